//! Every ggml tensor type by id, name and block size, whether or not this crate can dequantize it.

use std::fmt;

macro_rules! ggml_types {
    ($($variant:ident $id:literal $name:literal $elems:literal $bytes:literal),* $(,)?) => {
        /// A tensor type of the GGUF format. `block_elems` values are stored in `block_bytes` bytes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types)]
        pub enum GgmlType { $(#[doc = concat!("`", $name, "`: ", $elems, " values in ", $bytes, " bytes.")] $variant),* }

        impl GgmlType {
            /// All known types, in order of id.
            pub const ALL: &'static [GgmlType] = &[$(GgmlType::$variant),*];

            /// The type with this id in GGUF files; `None` for removed, foreign and future ids.
            pub const fn from_id(id: u32) -> Option<GgmlType> {
                match id { $($id => Some(GgmlType::$variant),)* _ => None }
            }

            /// Id in GGUF files.
            pub const fn id(self) -> u32 { match self { $(GgmlType::$variant => $id),* } }

            /// Name as ggml writes it, upper case.
            pub const fn name(self) -> &'static str { match self { $(GgmlType::$variant => $name),* } }

            /// Values per block.
            pub const fn block_elems(self) -> usize { match self { $(GgmlType::$variant => $elems),* } }

            /// Bytes per block.
            pub const fn block_bytes(self) -> usize { match self { $(GgmlType::$variant => $bytes),* } }
        }
    };
}

ggml_types! {
    F32 0 "F32" 1 4, F16 1 "F16" 1 2, Q4_0 2 "Q4_0" 32 18, Q4_1 3 "Q4_1" 32 20, Q5_0 6 "Q5_0" 32 22, Q5_1 7 "Q5_1" 32 24,
    Q8_0 8 "Q8_0" 32 34, Q8_1 9 "Q8_1" 32 36, Q2_K 10 "Q2_K" 256 84, Q3_K 11 "Q3_K" 256 110, Q4_K 12 "Q4_K" 256 144,
    Q5_K 13 "Q5_K" 256 176, Q6_K 14 "Q6_K" 256 210, Q8_K 15 "Q8_K" 256 292, IQ2_XXS 16 "IQ2_XXS" 256 66,
    IQ2_XS 17 "IQ2_XS" 256 74, IQ3_XXS 18 "IQ3_XXS" 256 98, IQ1_S 19 "IQ1_S" 256 50, IQ4_NL 20 "IQ4_NL" 32 18,
    IQ3_S 21 "IQ3_S" 256 110, IQ2_S 22 "IQ2_S" 256 82, IQ4_XS 23 "IQ4_XS" 256 136, I8 24 "I8" 1 1, I16 25 "I16" 1 2,
    I32 26 "I32" 1 4, I64 27 "I64" 1 8, F64 28 "F64" 1 8, IQ1_M 29 "IQ1_M" 256 56, BF16 30 "BF16" 1 2,
    TQ1_0 34 "TQ1_0" 256 54, TQ2_0 35 "TQ2_0" 256 66, MXFP4 39 "MXFP4" 32 17, NVFP4 40 "NVFP4" 64 36,
    Q1_0 41 "Q1_0" 128 18, Q2_0 42 "Q2_0" 64 18,
}

impl GgmlType {
    /// Whether its values are integers times scales. F32, F16, BF16 and the types of plain numbers are not.
    pub const fn is_quantized(self) -> bool {
        self.block_elems() > 1
    }

    /// Bytes of a row of `cols` values; `None` unless `cols` is a multiple of the block and the size fits 64 bits.
    pub const fn row_bytes(self, cols: u64) -> Option<u64> {
        if !cols.is_multiple_of(self.block_elems() as u64) {
            return None;
        }
        (cols / self.block_elems() as u64).checked_mul(self.block_bytes() as u64)
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
