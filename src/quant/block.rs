//! Blocks as they lie in the file: plain bytes of alignment 1, fields named as in ggml.

use bytemuck::Pod;

use super::GgmlType;
use super::scalar::f16_to_f32;
use crate::error::{Error, Result};

/// A block of one type: [`Block::ELEMS`] values in `size_of::<Self>()` bytes. Any bytes are a block.
pub trait Block: Pod + Send + Sync {
    /// The type whose block this is.
    const TYPE: GgmlType;
    /// Values per block.
    const ELEMS: usize = Self::TYPE.block_elems();
    /// `[f32; ELEMS]`.
    type Values: Pod + AsRef<[f32]> + AsMut<[f32]>;

    /// The values of this block, in f32 with the roundings of the format's reference (a product and a sum round
    /// separately). Always inlined, so that callers compiled for wider SIMD get these loops in it.
    fn dequantize(&self, out: &mut Self::Values);
}

/// `bytes` as blocks.
///
/// # Errors
/// [`Error::Shape`] unless they are whole blocks.
#[inline(always)]
pub fn as_blocks<B: Block>(bytes: &[u8]) -> Result<&[B]> {
    bytemuck::try_cast_slice(bytes).map_err(|_| not_whole_blocks(B::TYPE, bytes.len()))
}

/// Dequantizes whole blocks of one type, known at compile time, into as many values as they hold.
///
/// # Errors
/// [`Error::Shape`] unless `bytes` is whole blocks and `out` has [`Block::ELEMS`] values for each.
#[inline(always)]
pub fn dequantize_blocks<B: Block>(bytes: &[u8], out: &mut [f32]) -> Result<()> {
    let blocks = as_blocks::<B>(bytes)?;
    let got = out.len();
    match bytemuck::try_cast_slice_mut::<f32, B::Values>(out) {
        Ok(values) if values.len() == blocks.len() => {
            for (block, values) in blocks.iter().zip(values) {
                block.dequantize(values);
            }
            Ok(())
        }
        _ => Err(wrong_out_len(B::TYPE, blocks.len(), got)),
    }
}

#[cold]
pub(super) fn not_whole_blocks(ty: GgmlType, got: usize) -> Error {
    Error::shape("blocks", format!("whole {ty} blocks of {} bytes", ty.block_bytes()), format!("{got} bytes"))
}

#[cold]
fn wrong_out_len(ty: GgmlType, blocks: usize, got: usize) -> Error {
    Error::shape("dequantize", format!("{} values of {blocks} {ty} blocks", blocks * ty.block_elems()), got)
}

/// Declares a block struct of byte arrays; fails to compile if its size is not the one of the type.
macro_rules! block {
    ($(#[$doc:meta])* $name:ident $ty:ident { $($(#[$fdoc:meta])* $field:ident: $len:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: [u8; $len]),* }

        const _: () = assert!(size_of::<$name>() == GgmlType::$ty.block_bytes() && align_of::<$name>() == 1);
    };
}

block! {
    /// One f32.
    BlockF32 F32 {
        /// The value, f32.
        d: 4,
    }
}

block! {
    /// One f16.
    BlockF16 F16 {
        /// The value, f16.
        d: 2,
    }
}

block! {
    /// One bf16: the upper half of an f32.
    BlockBF16 BF16 {
        /// The value, bf16.
        d: 2,
    }
}

block! {
    /// `y = d (q - 8)`
    BlockQ4_0 Q4_0 {
        /// Scale, f16.
        d: 2,
        /// 4-bit quants: values `i` and `i + 16` in the low and high half of byte `i`.
        qs: 16,
    }
}

block! {
    /// `y = d q + m`
    BlockQ4_1 Q4_1 {
        /// Scale, f16.
        d: 2,
        /// Offset, f16.
        m: 2,
        /// 4-bit quants, as in [`BlockQ4_0`].
        qs: 16,
    }
}

block! {
    /// `y = d (q - 16)`
    BlockQ5_0 Q5_0 {
        /// Scale, f16.
        d: 2,
        /// Fifth bits, u32: bit `i` belongs to value `i`.
        qh: 4,
        /// Low four bits, as in [`BlockQ4_0`].
        qs: 16,
    }
}

block! {
    /// `y = d q + m`
    BlockQ5_1 Q5_1 {
        /// Scale, f16.
        d: 2,
        /// Offset, f16.
        m: 2,
        /// Fifth bits, as in [`BlockQ5_0`].
        qh: 4,
        /// Low four bits, as in [`BlockQ4_0`].
        qs: 16,
    }
}

block! {
    /// `y = d q`
    BlockQ8_0 Q8_0 {
        /// Scale, f16.
        d: 2,
        /// Quants, i8.
        qs: 32,
    }
}

block! {
    /// `y = d sc q - dmin mn`, one `(sc, mn)` per 16 values.
    BlockQ2K Q2_K {
        /// Per 16 values: scale in the low, minimum in the high four bits.
        scales: 16,
        /// 2-bit quants: values `32 j + i` of each half (128 values) in bits `2 j` of byte `i` of its 32 bytes.
        qs: 64,
        /// Scale of the scales, f16.
        d: 2,
        /// Scale of the minima, f16.
        dmin: 2,
    }
}

block! {
    /// `y = d (sc - 32) (q - 4)`, one `sc` per 16 values.
    BlockQ3K Q3_K {
        /// Third bits: bit `j` of byte `i` belongs to value `32 j + i`.
        hmask: 32,
        /// Low two bits, as in [`BlockQ2K`].
        qs: 64,
        /// 6-bit scales: low four bits in bytes 0..8, as nibbles; high two bits in bytes 8..12.
        scales: 12,
        /// Scale of the scales, f16.
        d: 2,
    }
}

block! {
    /// `y = d sc q - dmin mn`, one `(sc, mn)` per 32 values.
    BlockQ4K Q4_K {
        /// Scale of the scales, f16.
        d: 2,
        /// Scale of the minima, f16.
        dmin: 2,
        /// Eight 6-bit scales and minima: see [`scale_min_k4`].
        scales: 12,
        /// 4-bit quants: values `i` and `i + 32` of each 64 in the low and high half of byte `i` of its 32 bytes.
        qs: 128,
    }
}

block! {
    /// `y = d sc q - dmin mn`, one `(sc, mn)` per 32 values.
    BlockQ5K Q5_K {
        /// Scale of the scales, f16.
        d: 2,
        /// Scale of the minima, f16.
        dmin: 2,
        /// Eight 6-bit scales and minima: see [`scale_min_k4`].
        scales: 12,
        /// Fifth bits: bit `j` of byte `i` belongs to value `32 j + i`.
        qh: 32,
        /// Low four bits, as in [`BlockQ4K`].
        qs: 128,
    }
}

block! {
    /// `y = d sc (q - 32)`, one `sc` per 16 values.
    BlockQ6K Q6_K {
        /// Low four bits: of each half (128 values), values `0..64` in the low, `64..128` in the high half of 64 bytes.
        ql: 128,
        /// High two bits: values `32 j + i` of each half in bits `2 j` of byte `i` of its 32 bytes.
        qh: 64,
        /// Scales, i8.
        scales: 16,
        /// Scale of the scales, f16.
        d: 2,
    }
}

block! {
    /// `y = d K[q]` with sixteen unevenly spaced levels ([`IQ4_LEVELS`](super::IQ4_LEVELS)).
    BlockIQ4NL IQ4_NL {
        /// Scale, f16.
        d: 2,
        /// 4-bit quants, as in [`BlockQ4_0`].
        qs: 16,
    }
}

block! {
    /// `y = d (sc - 32) K[q]`, one `sc` per 32 values; levels as in [`BlockIQ4NL`].
    BlockIQ4XS IQ4_XS {
        /// Scale of the scales, f16.
        d: 2,
        /// High two bits of the eight scales, u16.
        scales_h: 2,
        /// Low four bits of the scales, as nibbles.
        scales_l: 4,
        /// 4-bit quants: 16 bytes per 32 values, as in [`BlockQ4_0`].
        qs: 128,
    }
}

block! {
    /// `y = ± d (1/2 + sc) / 4 g`, one `sc` per 32 values, magnitudes `g` from 256 points.
    BlockIQ2XXS IQ2_XXS {
        /// Scale, f16.
        d: 2,
        /// Per 32 values: four 8-bit points, then a u32 of four 7-bit sign patterns and the scale on top.
        qs: 64,
    }
}

block! {
    /// `y = ± d (1/2 + sc) / 4 g`, one `sc` per 16 values, magnitudes `g` from 512 points.
    BlockIQ2XS IQ2_XS {
        /// Scale, f16.
        d: 2,
        /// Per 8 values a u16: a 9-bit point, and a 7-bit sign pattern on top.
        qs: 64,
        /// 4-bit scales, as nibbles.
        scales: 8,
    }
}

block! {
    /// `y = ± d (1/2 + sc) / 4 g`, one `sc` per 16 values, magnitudes `g` from 1024 points.
    BlockIQ2S IQ2_S {
        /// Scale, f16.
        d: 2,
        /// Low eight bits of the point of each 8 values.
        qs: 32,
        /// Sign bits of each 8 values.
        signs: 32,
        /// High two bits of the points.
        qh: 8,
        /// 4-bit scales, as nibbles.
        scales: 8,
    }
}

block! {
    /// `y = ± d (1/2 + sc) / 2 g`, one `sc` per 32 values, magnitudes `g` from 256 points of four.
    BlockIQ3XXS IQ3_XXS {
        /// Scale, f16.
        d: 2,
        /// The point of each 4 values.
        qs: 64,
        /// Per 32 values a u32: four 7-bit sign patterns and the scale on top.
        scales: 32,
    }
}

block! {
    /// `y = ± d (1 + 2 sc) g`, one `sc` per 32 values, magnitudes `g` from 512 points of four.
    BlockIQ3S IQ3_S {
        /// Scale, f16.
        d: 2,
        /// Low eight bits of the point of each 4 values.
        qs: 64,
        /// Ninth bits of the points.
        qh: 8,
        /// Sign bits of each 8 values.
        signs: 32,
        /// 4-bit scales, as nibbles.
        scales: 4,
    }
}

block! {
    /// `y = d (2 sc + 1) (g ± 1/8)`, `g` from 2048 ternary points; `sc` and the sign per 32 values.
    BlockIQ1S IQ1_S {
        /// Scale, f16.
        d: 2,
        /// Low eight bits of the point of each 8 values.
        qs: 32,
        /// Per 32 values a u16: high three bits of four points, 3-bit scale, sign of the shift.
        qh: 16,
    }
}

block! {
    /// `y = d (2 sc + 1) (g ± 1/8)`, `g` as in [`BlockIQ1S`]; `sc` per 16, the sign per 8 values.
    BlockIQ1M IQ1_M {
        /// Low eight bits of the point of each 8 values.
        qs: 32,
        /// Per 8 values a nibble: high three bits of the point, sign of the shift.
        qh: 16,
        /// Four u16: four 3-bit scales each; their top nibbles together are the f16 `d`, lowest first.
        scales: 8,
    }
}

block! {
    /// `y = 2^(e - 127) F[q]`, OCP microscaling FP4 (E2M1).
    BlockMXFP4 MXFP4 {
        /// Exponent, E8M0.
        e: 1,
        /// 4-bit quants, as in [`BlockQ4_0`].
        qs: 16,
    }
}

/// Scale and minimum `j < 8` of the 12 bytes of 6-bit scales of Q4_K and Q5_K.
#[inline(always)]
pub fn scale_min_k4(scales: &[u8; 12], j: usize) -> (u8, u8) {
    if j < 4 {
        (scales[j] & 63, scales[j + 4] & 63)
    } else {
        let low = scales[j + 4];
        ((low & 15) | (scales[j - 4] >> 6) << 4, (low >> 4) | (scales[j] >> 6) << 4)
    }
}

impl BlockIQ1M {
    /// The scale, gathered from the top nibbles of [`BlockIQ1M::scales`].
    #[inline(always)]
    pub fn d(&self) -> f32 {
        let s = self.scales;
        let bits = [s[1] >> 4 | s[3] & 0xf0, s[5] >> 4 | s[7] & 0xf0];
        f16_to_f32(bits)
    }
}
