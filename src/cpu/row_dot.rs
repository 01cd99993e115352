//! Dot products of quantized rows with f32 activations: a few rows at a time are dequantized into a buffer that stays in
//! the first-level cache, then multiplied.

use pulp::{Simd, WithSimd};

use super::{Cpu, simd};
use crate::quant::{Weight, dequantize};

/// Floats in the buffer: 16 KiB, half of a first-level cache.
const BUFFER: usize = 4096;

/// `y[i] = W[slab][first + i] . x`.
pub(super) fn rows_dot(cpu: &Cpu, w: &Weight, slab: usize, first: usize, x: &[f32], y: &mut [f32]) {
    let k = w.cols();
    let at_once = (BUFFER / k).max(1);
    let mut values = cpu.scratch_f32(at_once * k);
    for (i, y) in y.chunks_mut(at_once).enumerate() {
        let values = &mut values[..y.len() * k];
        let start = first + i * at_once;
        let done = dequantize(w.ty(), w.rows_bytes(slab, start..start + y.len()), values);
        debug_assert!(done.is_ok(), "a Matrix holds only supported types in whole blocks");
        cpu.dispatch(Dots { values, x, y });
    }
}

struct Dots<'a> {
    values: &'a [f32],
    x: &'a [f32],
    y: &'a mut [f32],
}

impl WithSimd for Dots<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for (row, y) in self.values.chunks_exact(self.x.len()).zip(self.y) {
            *y = simd::dot(simd, row, self.x);
        }
    }
}
