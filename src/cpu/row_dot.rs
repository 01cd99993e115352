//! Dot product of one quantized row with f32 activations, dequantized on the way.

use bytemuck::Zeroable;

use super::simd::{LANES, fma, sum};
use crate::quant::block::*;
use crate::quant::with_block;
use crate::quant::{Weight, as_blocks};

/// `y[i] = W[slab][first + i] . x`.
#[inline(always)]
pub(super) fn rows_dot(w: &Weight, slab: usize, first: usize, x: &[f32], y: &mut [f32]) {
    let bytes = w.rows_bytes(slab, first..first + y.len());
    with_block!(w.ty(), B => rows_dot_blocks::<B>(bytes, w.row_bytes(), x, y), else ())
}

#[inline(always)]
fn rows_dot_blocks<B: RowDot>(bytes: &[u8], row_bytes: usize, x: &[f32], y: &mut [f32]) {
    for (row, y) in bytes.chunks_exact(row_bytes).zip(y) {
        // Whole blocks by the contract of Weight, and blocks have alignment 1: the cast cannot fail.
        *y = as_blocks::<B>(row).map_or(f32::NAN, |blocks| B::row_dot(blocks, x));
    }
}

/// Dot product of a row of blocks with as many activations.
trait RowDot: Block {
    fn row_dot(row: &[Self], x: &[f32]) -> f32;
}

/// Any block type: values go through a buffer that stays in the first-level cache.
#[inline(always)]
fn buffered<B: Block>(row: &[B], x: &[f32]) -> f32 {
    let mut acc = [[0f32; LANES]; 2];
    let mut tail = 0.0;
    // Types without blocks are taken 64 at a time, so that there is something to vectorize.
    let group = if B::ELEMS == 1 { 64 } else { 1 };
    let mut values = [B::Values::zeroed(); 64];
    for (row, x) in row.chunks(group).zip(x.chunks(group * B::ELEMS)) {
        for (b, v) in row.iter().zip(&mut values) {
            b.dequantize(v);
        }
        let v: &[f32] = &bytemuck::cast_slice::<B::Values, f32>(&values[..row.len()]);
        let (v2, v0) = v.as_chunks::<{ 2 * LANES }>();
        let (x2, x0) = x.as_chunks::<{ 2 * LANES }>();
        for (v, x) in v2.iter().zip(x2) {
            let (v, x) = (v.as_chunks::<LANES>().0, x.as_chunks::<LANES>().0);
            fma(&mut acc[0], &v[0], &x[0]);
            fma(&mut acc[1], &v[1], &x[1]);
        }
        for (v, x) in v0.iter().zip(x0) {
            tail = f32::mul_add(*v, *x, tail);
        }
    }
    for l in 0..LANES {
        acc[0][l] += acc[1][l];
    }
    sum(&acc[0]) + tail
}

macro_rules! buffered {
    ($($block:ident),*) => {
        $(impl RowDot for $block {
            #[inline(always)]
            fn row_dot(row: &[Self], x: &[f32]) -> f32 {
                buffered(row, x)
            }
        })*
    };
}

buffered!(
    BlockF32,
    BlockF16,
    BlockBF16,
    BlockQ4_0,
    BlockQ4_1,
    BlockQ5_0,
    BlockQ5_1,
    BlockQ8_0,
    BlockQ2K,
    BlockQ3K,
    BlockQ4K,
    BlockQ5K,
    BlockQ6K,
    BlockIQ4NL,
    BlockIQ4XS,
    BlockIQ2XXS,
    BlockIQ2XS,
    BlockIQ2S,
    BlockIQ3XXS,
    BlockIQ3S,
    BlockIQ1S,
    BlockIQ1M,
    BlockMXFP4
);
