//! Dot product of one quantized row with f32 activations, dequantized on the way.

use bytemuck::Zeroable;
use pulp::{Simd, WithSimd};

use super::simd::Acc;
use crate::quant::block::*;
use crate::quant::with_block;
use crate::quant::{Weight, as_blocks};

/// `y[i] = W[slab][first + i] . x`.
pub(super) struct RowsDot<'a> {
    pub w: &'a Weight,
    pub slab: usize,
    pub first: usize,
    pub x: &'a [f32],
    pub y: &'a mut [f32],
}

impl WithSimd for RowsDot<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let bytes = self.w.rows_bytes(self.slab, self.first..self.first + self.y.len());
        let rows = bytes.chunks_exact(self.w.row_bytes());
        with_block!(self.w.ty(), B => for (row, y) in rows.zip(self.y) {
            // Whole blocks by the contract of Weight, and blocks have alignment 1: the cast cannot fail.
            if let Ok(blocks) = as_blocks::<B>(row) {
                *y = B::row_dot(simd, blocks, self.x);
            }
        }, else ())
    }
}

/// Dot product of a row of blocks with as many activations.
trait RowDot: Block {
    fn row_dot<S: Simd>(simd: S, row: &[Self], x: &[f32]) -> f32;
}

/// Values go block by block through a buffer that stays in the first-level cache.
#[inline(always)]
fn block_row_dot<B: Block, S: Simd>(simd: S, row: &[B], x: &[f32]) -> f32 {
    let mut acc = Acc::new(simd);
    let mut values = B::Values::zeroed();
    for (block, x) in row.iter().zip(x.chunks_exact(B::ELEMS)) {
        block.dequantize(&mut values);
        acc.add(values.as_ref(), x);
    }
    acc.finish()
}

/// Types without blocks are taken 64 values at a time, so that there is something to vectorize.
#[inline(always)]
fn scalar_row_dot<B: Block<Values = [f32; 1]>, S: Simd>(simd: S, row: &[B], x: &[f32]) -> f32 {
    const GROUP: usize = 64;
    let mut acc = Acc::new(simd);
    let mut values = [0f32; GROUP];
    for (row, x) in row.chunks(GROUP).zip(x.chunks(GROUP)) {
        for (b, v) in row.iter().zip(values.as_chunks_mut::<1>().0) {
            b.dequantize(v);
        }
        acc.add(&values[..row.len()], x);
    }
    acc.finish()
}

macro_rules! row_dot {
    ($function:ident: $($block:ident)*) => {
        $(impl RowDot for $block {
            #[inline(always)]
            fn row_dot<S: Simd>(simd: S, row: &[Self], x: &[f32]) -> f32 {
                $function(simd, row, x)
            }
        })*
    };
}

row_dot!(scalar_row_dot: BlockF32 BlockF16 BlockBF16);
row_dot!(block_row_dot: BlockQ4_0 BlockQ4_1 BlockQ5_0 BlockQ5_1 BlockQ8_0 BlockQ2K BlockQ3K BlockQ4K BlockQ5K BlockQ6K);
row_dot!(block_row_dot: BlockIQ4NL BlockIQ4XS BlockIQ2XXS BlockIQ2XS BlockIQ2S BlockIQ3XXS BlockIQ3S BlockIQ1S BlockIQ1M);
row_dot!(block_row_dot: BlockMXFP4);
