//! Products of weights with many activations: tiles of weight rows become f32 columns, the form that the GEMM takes as it
//! is. Sixteen rows by 256 columns are dequantized into a buffer in the first-level cache and transposed from there.

use super::rect::{Rect, gemm};
use super::{Cpu, dequantize};
use crate::quant::Weight;

/// Columns dequantized and multiplied at a time: whole blocks of every type. Sums of more products than these are sums of
/// their sums, which rounds less than one long chain.
const CHUNK: usize = 256;
/// Rows transposed at a time.
const ROWS: usize = 16;
/// Rows of the buffer are this far apart: not at a power of two, which would put all of a column into one cache set.
const BUFFER_STRIDE: usize = CHUNK + 16;

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
    let mut buffer = cpu.scratch_f32(ROWS * BUFFER_STRIDE);
    let tile_stride = n.next_multiple_of(ROWS);
    let mut tile = cpu.scratch_f32(CHUNK * tile_stride);
    for c in (0..k).step_by(CHUNK) {
        let cols = CHUNK.min(k - c);
        columns(cpu, w, rows, c, cols, &mut buffer, &mut tile, tile_stride);
        gemm(y.reborrow(), c > 0, &x[c..], stride, &tile, tile_stride, cols);
    }
}

/// Columns `first..first + cols` of `rows`, bit for bit as [`dequantize`] has them, one after the other to `out`. Whole
/// squares are transposed: what lies beyond the last row and column is written too, and nobody reads it.
#[allow(clippy::too_many_arguments)] // a rectangle of blocks and where it goes
fn columns(
    cpu: &Cpu,
    w: &Weight,
    rows: &[u8],
    first: usize,
    cols: usize,
    buffer: &mut [f32],
    out: &mut [f32],
    stride: usize,
) {
    let (block, bytes) = (w.ty().block_elems(), w.ty().block_bytes());
    for (i, rows) in rows.chunks(ROWS * w.row_bytes()).enumerate() {
        Part { w, rows, first: first / block * bytes, cols }.dequantize(cpu, buffer);
        transpose(cpu, buffer, cols.div_ceil(ROWS), &mut out[i * ROWS..], stride);
    }
}

/// At most [`ROWS`] rows by [`CHUNK`] columns.
struct Part<'a> {
    w: &'a Weight,
    rows: &'a [u8],
    /// Where the columns begin in each row, in bytes.
    first: usize,
    cols: usize,
}

impl Part<'_> {
    /// Into rows [`BUFFER_STRIDE`] apart.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))] // one level, no choice
    fn dequantize(&self, cpu: &Cpu, out: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        if unpacked::dequantize(cpu, self, out) {
            return;
        }
        for (row, out) in self.rows.chunks_exact(self.w.row_bytes()).zip(out.chunks_exact_mut(BUFFER_STRIDE))
        {
            dequantize::blocks(self.w.ty(), self.blocks(row), &mut out[..self.cols]);
        }
    }

    /// The blocks of the columns in a row.
    #[inline(always)]
    fn blocks<'r>(&self, row: &'r [u8]) -> &'r [u8] {
        &row[self.first..][..self.cols / self.w.ty().block_elems() * self.w.ty().block_bytes()]
    }
}

/// Columns `16 i..16 i + 16` of `buffer`, for `i < squares`, to rows of `out`.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))] // one level, no choice
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
                let blocks: &[B] = bytemuck::cast_slice(part.blocks(row));
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
            let start = (first * CHUNK).min((k - 1) / CHUNK * CHUNK);
            let cols = CHUNK.min(k - start);
            let values = w.dequantize(0, 0..n).unwrap();
            let stride = n.next_multiple_of(ROWS);
            for level in SimdLevel::available() {
                let cpu = Cpu::with_simd(Some(1), level).unwrap();
                let (mut buffer, mut out) = (vec![0.0; ROWS * BUFFER_STRIDE], vec![0.0; CHUNK * stride]);
                columns(&cpu, &w, w.rows_bytes(0, 0..n), start, cols, &mut buffer, &mut out, stride);
                for i in 0..n {
                    for c in 0..cols {
                        let (got, want) = (out[c * stride + i], values[i * k + start + c]);
                        let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                        prop_assert!(same, "{} {} [{}, {}]: {} for {}", ty, level, i, c, got, want);
                    }
                }
            }
        }

        /// One and several chunks, tiles that fill no square.
        #[test]
        fn gemm_rows_is_the_product(
            ty in any_supported(), m in 1usize..9, n in 1usize..70, k in 1usize..800, seed: u64,
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
                    // Chains of at most 256 products and of 4 chunks, each step half a unit off at worst.
                    prop_assert!((*y as f64 - want).abs() <= 260.0 * 6e-8 * size, "{}: {} for {}", ty, y, want);
                }
            }
        }
    }
}
