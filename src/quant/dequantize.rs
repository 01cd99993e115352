//! Dequantization by run-time type, of blocks and of weights.

use std::ops::Range;

use super::block::*;
use super::{GgmlType, Weight};
use crate::error::{Error, Result};

/// Evaluates `$body` with `$B` naming the block struct of `$ty`, or `$otherwise` for types known only by size. One
/// dispatch for any amount of work inside.
macro_rules! with_block {
    ($ty:expr, $B:ident => $body:expr, else $otherwise:expr) => {
        $crate::quant::with_block!(@match $ty, $B, $body, $otherwise,
            F32 BlockF32, F16 BlockF16, BF16 BlockBF16, Q4_0 BlockQ4_0, Q4_1 BlockQ4_1, Q5_0 BlockQ5_0,
            Q5_1 BlockQ5_1, Q8_0 BlockQ8_0, Q2_K BlockQ2K, Q3_K BlockQ3K, Q4_K BlockQ4K, Q5_K BlockQ5K,
            Q6_K BlockQ6K, IQ4_NL BlockIQ4NL, IQ4_XS BlockIQ4XS, IQ2_XXS BlockIQ2XXS, IQ2_XS BlockIQ2XS,
            IQ2_S BlockIQ2S, IQ3_XXS BlockIQ3XXS, IQ3_S BlockIQ3S, IQ1_S BlockIQ1S, IQ1_M BlockIQ1M,
            MXFP4 BlockMXFP4)
    };
    (@match $ty:expr, $B:ident, $body:expr, $otherwise:expr, $($variant:ident $block:ident),*) => {
        match $ty {
            $($crate::quant::GgmlType::$variant => {
                type $B = $crate::quant::block::$block;
                $body
            })*
            _ => $otherwise,
        }
    };
}
pub(crate) use with_block;

/// Whether values of this type can be computed; the other types are known by size only.
pub const fn is_supported(ty: GgmlType) -> bool {
    with_block!(ty, B => size_of::<B>() == ty.block_bytes(), else false)
}

/// Refuses types known only by size.
///
/// # Errors
/// [`Error::Unsupported`] naming the type.
pub fn check_supported(ty: GgmlType) -> Result<()> {
    if is_supported(ty) { Ok(()) } else { Err(unsupported(ty)) }
}

pub(super) fn unsupported(ty: GgmlType) -> Error {
    Error::unsupported(format!("type {ty}"), "its layout is known by size only")
}

/// Dequantizes whole blocks of `ty` into exactly as many values as they hold, bit for bit as the format's reference
/// does in f32.
///
/// # Errors
/// [`Error::Unsupported`] for types known only by size, [`Error::Shape`] unless `blocks` is whole blocks and `out` as
/// long as their values.
pub fn dequantize(ty: GgmlType, blocks: &[u8], out: &mut [f32]) -> Result<()> {
    with_block!(ty, B => dequantize_blocks::<B>(blocks, out), else Err(unsupported(ty)))
}

impl Weight {
    /// A weight of type F32 from its values.
    ///
    /// # Errors
    /// [`Error::Shape`] unless there are `slabs * rows * cols` values.
    pub fn from_f32(shape: [usize; 3], values: &[f32]) -> Result<Weight> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Weight::new(GgmlType::F32, shape, bytes.into())
    }

    /// A weight of blocks of `ty` for its values: [`quantize`](super::quantize()).
    ///
    /// # Errors
    /// Those of [`quantize`](super::quantize()); [`Error::Shape`] unless there are `slabs * rows * cols` values in whole
    /// blocks per row.
    pub fn quantize(ty: GgmlType, shape: [usize; 3], values: &[f32]) -> Result<Weight> {
        Weight::new(ty, shape, super::quantize(ty, values)?.into())
    }

    /// Values `[rows.len(), cols]` of rows `rows` of matrix `slab`.
    ///
    /// # Errors
    /// As [`Weight::dequantize_into`].
    pub fn dequantize(&self, slab: usize, rows: Range<usize>) -> Result<Vec<f32>> {
        self.check_rows(slab, &rows)?;
        if !is_supported(self.ty()) {
            return Err(unsupported(self.ty()));
        }
        let mut out = vec![0.0; rows.len() * self.cols()];
        self.dequantize_into(slab, rows, &mut out)?;
        Ok(out)
    }

    /// Writes the values of rows `rows` of matrix `slab` to `out`, `[rows.len(), cols]`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for types known only by size; [`Error::Shape`] if there is no such slab or row, or `out`
    /// has another length.
    pub fn dequantize_into(&self, slab: usize, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        self.check_rows(slab, &rows)?;
        dequantize(self.ty(), self.rows_bytes(slab, rows), out)
    }

    fn check_rows(&self, slab: usize, rows: &Range<usize>) -> Result<()> {
        if slab < self.slabs() && rows.start <= rows.end && rows.end <= self.rows() {
            return Ok(());
        }
        let expected = format!("a slab below {} and rows within 0..{}", self.slabs(), self.rows());
        Err(Error::shape("dequantize", expected, format!("slab {slab}, rows {rows:?}")))
    }
}
