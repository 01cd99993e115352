//! Products of weights with many activations: tiles of weight rows become f32 columns, the form that the GEMM takes as it
//! is. Sixteen rows by 256 columns are dequantized into a buffer in the first-level cache and transposed from there.

use std::ops::Range;

use super::Cpu;
use super::rect::{Rect, gemm};
use crate::quant::{Weight, dequantize};

/// Columns dequantized at a time: whole blocks of every type.
const CHUNK: usize = 256;
/// Rows transposed at a time.
const ROWS: usize = 16;
/// Rows of the buffer are this far apart: not at a power of two, which would put all of a column into one cache set.
const BUFFER_STRIDE: usize = CHUNK + 16;
/// Columns multiplied at a time: 1024 of 64 rows are 256 KiB, which stay in the second-level cache.
const DEPTH: usize = 1024;

/// `y[t][j] = W[slab][first + j] . x[t]` for many rows of `x`, which are `stride` apart.
pub(super) fn gemm_rows(
    cpu: &Cpu,
    w: &Weight,
    slab: usize,
    first: usize,
    x: &[f32],
    stride: usize,
    mut y: Rect<'_>,
) {
    let (n, k) = (y.cols(), w.cols());
    let rows = w.rows_bytes(slab, first..first + n);
    // Whole squares are transposed: what lies beyond the last row and column is written, and nobody reads it.
    let tile_stride = n.next_multiple_of(ROWS);
    let mut tile = cpu.scratch_f32(DEPTH.min(k.next_multiple_of(ROWS)) * tile_stride);
    let mut buffer = cpu.scratch_f32(ROWS * BUFFER_STRIDE);
    for c in (0..k).step_by(DEPTH) {
        let depth = DEPTH.min(k - c);
        columns(cpu, w, rows, c..c + depth, &mut buffer, &mut tile, tile_stride);
        gemm(y.reborrow(), c > 0, &x[c..], stride, &tile, tile_stride, depth);
    }
}

/// The values of columns `cols` of all `rows`, bit for bit as [`dequantize`] has them, column by column to `out`.
fn columns(
    cpu: &Cpu,
    w: &Weight,
    rows: &[u8],
    cols: Range<usize>,
    buffer: &mut [f32],
    out: &mut [f32],
    stride: usize,
) {
    let block = w.ty().block_elems();
    for c in cols.clone().step_by(CHUNK) {
        let n = CHUNK.min(cols.end - c);
        let bytes = c / block * w.ty().block_bytes()..(c + n) / block * w.ty().block_bytes();
        for (i, rows) in rows.chunks(ROWS * w.row_bytes()).enumerate() {
            Part { w, rows, bytes: bytes.clone(), cols: n }.dequantize(cpu, buffer);
            transpose(
                cpu,
                buffer,
                n.div_ceil(ROWS),
                &mut out[(c - cols.start) * stride + i * ROWS..],
                stride,
            );
        }
    }
}

/// At most [`ROWS`] rows by [`CHUNK`] columns.
struct Part<'a> {
    w: &'a Weight,
    rows: &'a [u8],
    /// Range of the columns in each row.
    bytes: Range<usize>,
    cols: usize,
}

impl Part<'_> {
    /// Into rows [`BUFFER_STRIDE`] apart.
    fn dequantize(&self, cpu: &Cpu, out: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        if unpacked::dequantize(cpu, self, out) {
            return;
        }
        for (row, out) in self.rows.chunks_exact(self.w.row_bytes()).zip(out.chunks_exact_mut(BUFFER_STRIDE))
        {
            let done = dequantize(self.w.ty(), &row[self.bytes.clone()], &mut out[..self.cols]);
            debug_assert!(done.is_ok(), "a Matrix holds only supported types in whole blocks");
        }
    }
}

/// Columns `16 i..16 i + 16` of `buffer`, for `i < squares`, to rows of `out`.
fn transpose(cpu: &Cpu, buffer: &[f32], squares: usize, out: &mut [f32], stride: usize) {
    #[cfg(target_arch = "x86_64")]
    if unpacked::transpose(cpu, buffer, squares, out, stride) {
        return;
    }
    for c in 0..squares * ROWS {
        for r in 0..ROWS {
            out[c * stride + r] = buffer[r * BUFFER_STRIDE + c];
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod unpacked {
    use pulp::{Arch, NullaryFnOnce};

    use super::{BUFFER_STRIDE, Part, ROWS};
    use crate::cpu::Cpu;
    use crate::cpu::lanes::Lanes;
    use crate::cpu::unpack::{Sink, Unpack, with_unpack};

    /// [`Part::dequantize`], or `false` if there is no such code for the type and the level.
    pub(super) fn dequantize(cpu: &Cpu, part: &Part<'_>, out: &mut [f32]) -> bool {
        match cpu.arch() {
            Arch::V4(l) => at_level(l, part, out),
            Arch::V3(l) => at_level(l, part, out),
            _ => false,
        }
    }

    fn at_level<L: Lanes>(l: L, part: &Part<'_>, out: &mut [f32]) -> bool {
        with_unpack!(part.w.ty(), B => {
            if !part.cols.is_multiple_of(16 * B::SIXTEENS) {
                return false;
            }
            l.vectorize(Store::<L, B> { l, part, out, block: Default::default() });
            true
        }, else false)
    }

    struct Store<'a, L, B> {
        l: L,
        part: &'a Part<'a>,
        out: &'a mut [f32],
        block: std::marker::PhantomData<B>,
    }

    impl<L: Lanes, B: Unpack> NullaryFnOnce for Store<'_, L, B> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let Store { l, part, out, .. } = self;
            let rows = part.rows.chunks_exact(part.w.row_bytes());
            for (row, out) in rows.zip(out.chunks_exact_mut(BUFFER_STRIDE)) {
                let blocks: &[B] = bytemuck::cast_slice(&row[part.bytes.clone()]);
                for (block, out) in blocks.iter().zip(out.chunks_exact_mut(16 * B::SIXTEENS)) {
                    block.unpack(l, &mut To { l, out: out.as_chunks_mut::<16>().0 });
                }
            }
        }
    }

    struct To<'a, L> {
        l: L,
        out: &'a mut [[f32; 16]],
    }

    impl<L: Lanes> Sink<L> for To<'_, L> {
        #[inline(always)]
        fn put(&mut self, at: usize, values: L::Floats) {
            self.l.store(values, &mut self.out[at]);
        }
    }

    /// [`super::transpose`], or `false` if there is no such code for the level.
    pub(super) fn transpose(
        cpu: &Cpu,
        buffer: &[f32],
        squares: usize,
        out: &mut [f32],
        stride: usize,
    ) -> bool {
        match cpu.arch() {
            Arch::V4(l) => l.vectorize(Transpose { l, buffer, squares, out, stride }),
            Arch::V3(l) => l.vectorize(Transpose { l, buffer, squares, out, stride }),
            _ => return false,
        }
        true
    }

    struct Transpose<'a, L> {
        l: L,
        buffer: &'a [f32],
        squares: usize,
        out: &'a mut [f32],
        stride: usize,
    }

    impl<L: Lanes> NullaryFnOnce for Transpose<'_, L> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let Transpose { l, buffer, squares, out, stride } = self;
            let rows: &[[[f32; 16]; BUFFER_STRIDE / 16]; ROWS] =
                bytemuck::from_bytes(bytemuck::cast_slice(buffer));
            for i in 0..squares {
                let mut square = [l.splat(0.0); 16];
                for r in 0..ROWS {
                    square[r] = l.load(&rows[r][i]);
                }
                let columns = l.transpose(square);
                for c in 0..ROWS {
                    if let Some(out) = out[(16 * i + c) * stride..].first_chunk_mut() {
                        l.store(columns[c], out);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::SimdLevel;
    use crate::cpu::tests::{any_supported, random_bytes, random_weight};
    use crate::quant::Weight;

    proptest! {
        /// All types and levels, any bytes: infinite and NaN scales too.
        #[test]
        fn columns_are_the_dequantized_values_bit_for_bit(
            ty in any_supported(), n in 1usize..40, k in 1usize..700, first in 0usize..3, seed: u64,
        ) {
            let k = k.next_multiple_of(ty.block_elems());
            let bytes = random_bytes(n * k / ty.block_elems() * ty.block_bytes(), seed);
            let w = Weight::new(ty, [1, n, k], bytes.into()).unwrap();
            let cols = (first * CHUNK).min((k - 1) / CHUNK * CHUNK)..k;
            let values = w.dequantize(0, 0..n).unwrap();
            let stride = n.next_multiple_of(ROWS);
            for level in SimdLevel::available() {
                let cpu = Cpu::with_simd(Some(1), level).unwrap();
                let mut buffer = vec![0.0; ROWS * BUFFER_STRIDE];
                let mut out = vec![0.0; cols.len().next_multiple_of(ROWS) * stride];
                columns(&cpu, &w, w.rows_bytes(0, 0..n), cols.clone(), &mut buffer, &mut out, stride);
                for i in 0..n {
                    for c in cols.clone() {
                        let (got, want) = (out[(c - cols.start) * stride + i], values[i * k + c]);
                        let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                        prop_assert!(same, "{} {} [{}, {}]: {} for {}", ty, level, i, c, got, want);
                    }
                }
            }
        }

        /// Depths of one and of several rounds, tiles that fill no square.
        #[test]
        fn gemm_rows_is_the_product(
            ty in any_supported(), m in 1usize..9, n in 1usize..70, k in prop_oneof![1usize..300, 900usize..2500], seed: u64,
        ) {
            let k = k.next_multiple_of(ty.block_elems());
            let w = random_weight(ty, n + 1, k, seed);
            let values = w.dequantize(0, 1..n + 1).unwrap();
            let x: Vec<f32> = (0..m * (k + 3)).map(|i| ((i as f32 + seed as f32 % 7.0) * 0.7).sin()).collect();
            let cpu = Cpu::new(Some(1)).unwrap();
            let mut y = vec![f32::NAN; m * n];
            gemm_rows(&cpu, &w, 0, 1, &x, k + 3, Rect::new(&mut y, n));
            for (t, row) in y.chunks(n).enumerate() {
                for (i, y) in row.iter().enumerate() {
                    let x = &x[t * (k + 3)..][..k];
                    let products = || values[i * k..][..k].iter().zip(x).map(|(w, x)| *w as f64 * *x as f64);
                    let (want, size): (f64, f64) = (products().sum(), products().map(f64::abs).sum());
                    prop_assert!((*y as f64 - want).abs() <= 1e-5 * size, "{}: {} for {}", ty, y, want);
                }
            }
        }
    }
}
