//! Dot products of quantized rows with f32 activations, for few activations: each block is unpacked once, in registers, and
//! multiplied with all of them.

use pulp::{Simd, WithSimd};

use super::rect::Rect;
use super::{Cpu, dequantize, simd};
use crate::quant::Weight;

/// Most rows of activations that [`rows_dot`] takes.
pub(super) const MAX_DOTS: usize = 4;

/// Activations `[m, k]`, rows `stride` apart.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub values: &'a [f32],
    pub stride: usize,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn row(&self, t: usize, k: usize) -> &'a [f32] {
        &self.values[t * self.stride..][..k]
    }
}

/// `y[t][i] = W[slab][first + i] . x[t]`, for at most [`MAX_DOTS`] rows of `y`. Each product has one order of summation
/// for a level and a number of rows, wherever it lies in `y`.
pub(super) fn rows_dot(cpu: &Cpu, w: &Weight, slab: usize, first: usize, x: Rows<'_>, mut y: Rect<'_>) {
    #[cfg(target_arch = "x86_64")]
    if unpacked::rows_dot(cpu, w, slab, first, x, &mut y) {
        return;
    }
    buffered_dots(cpu, w, slab, first, x, &mut y);
}

/// Floats in the buffer of [`buffered_dots`]: 16 KiB, half of a first-level cache.
const BUFFER: usize = 4096;

/// Dequantizes a few rows at a time into a buffer in the first-level cache and multiplies.
fn buffered_dots(cpu: &Cpu, w: &Weight, slab: usize, first: usize, x: Rows<'_>, y: &mut Rect<'_>) {
    let k = w.cols();
    let at_once = (BUFFER / k).clamp(1, y.cols().max(1));
    let mut values = cpu.scratch_f32(at_once * k);
    for i in (0..y.cols()).step_by(at_once) {
        let n = at_once.min(y.cols() - i);
        let values = &mut values[..n * k];
        dequantize::blocks(w.ty(), w.rows_bytes(slab, first + i..first + i + n), values);
        for t in 0..y.rows() {
            cpu.dispatch(Dots { values, x: x.row(t, k), y: &mut y.row(t)[i..i + n] });
        }
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

#[cfg(target_arch = "x86_64")]
mod unpacked {
    use pulp::{Arch, NullaryFnOnce};

    use super::Rows;
    use crate::cpu::Cpu;
    use crate::cpu::lanes::Lanes;
    use crate::cpu::rect::Rect;
    use crate::cpu::unpack::{Sink, Unpack, with_unpack};
    use crate::quant::Weight;

    /// [`super::rows_dot`], or `false` if there is no such code for the type and the level.
    pub(super) fn rows_dot(
        cpu: &Cpu,
        w: &Weight,
        slab: usize,
        first: usize,
        x: Rows<'_>,
        y: &mut Rect<'_>,
    ) -> bool {
        match cpu.arch() {
            Arch::V4(l) => at_level(l, w, slab, first, x, y),
            Arch::V3(l) => at_level(l, w, slab, first, x, y),
            _ => false,
        }
    }

    fn at_level<L: Lanes>(
        l: L,
        w: &Weight,
        slab: usize,
        first: usize,
        x: Rows<'_>,
        y: &mut Rect<'_>,
    ) -> bool {
        let rows = w.rows_bytes(slab, first..first + y.cols());
        let (row_bytes, k) = (w.row_bytes(), w.cols());
        with_unpack!(w.ty(), B => {
            match y.rows() {
                1 => l.vectorize(Dots::<_, B, 1> { l, rows, row_bytes, k, x, y, block: Default::default() }),
                2 => l.vectorize(Dots::<_, B, 2> { l, rows, row_bytes, k, x, y, block: Default::default() }),
                3 => l.vectorize(Dots::<_, B, 3> { l, rows, row_bytes, k, x, y, block: Default::default() }),
                4 => l.vectorize(Dots::<_, B, 4> { l, rows, row_bytes, k, x, y, block: Default::default() }),
                _ => return false,
            }
            true
        }, else false)
    }

    /// Products of rows of blocks `B` with `M` activations.
    struct Dots<'a, 'r, L, B, const M: usize> {
        l: L,
        rows: &'a [u8],
        row_bytes: usize,
        k: usize,
        x: Rows<'a>,
        y: &'a mut Rect<'r>,
        block: std::marker::PhantomData<B>,
    }

    impl<L: Lanes, B: Unpack, const M: usize> NullaryFnOnce for Dots<'_, '_, L, B, M> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let Dots { l, rows, row_bytes, k, x, y, .. } = self;
            let mut xs = [&x.values[..0]; M];
            for t in 0..M {
                xs[t] = x.row(t, k);
            }
            for (i, row) in rows.chunks_exact(row_bytes).enumerate() {
                let dots = row_dots::<L, B, M>(l, row, xs);
                for t in 0..M {
                    y.row(t)[i] = dots[t];
                }
            }
        }
    }

    #[inline(always)]
    fn row_dots<L: Lanes, B: Unpack, const M: usize>(l: L, row: &[u8], xs: [&[f32]; M]) -> [f32; M] {
        let (block_bytes, elems) = (size_of::<B>(), 16 * B::SIXTEENS);
        let mut padded = [[[0.0; 16]; 4]; M];
        let mut sums = Sums { l, x: [&[]; M], sums: [[l.splat(0.0); 4]; M] };
        let whole = row.len() / block_bytes;
        let (blocks, rest) = row.split_at(whole * block_bytes);
        for (b, block) in bytemuck::cast_slice::<u8, B>(blocks).iter().enumerate() {
            for t in 0..M {
                sums.x[t] = xs[t][b * elems..][..elems].as_chunks::<16>().0;
            }
            block.unpack(l, &mut sums);
            sums.rotate::<B>();
        }
        if !rest.is_empty() {
            // Scalars that fill no block: zeros take the other places.
            let mut block = B::zeroed();
            bytemuck::bytes_of_mut(&mut block)[..rest.len()].copy_from_slice(rest);
            for t in 0..M {
                let x = &xs[t][whole * elems..];
                padded[t].as_flattened_mut()[..x.len()].copy_from_slice(x);
            }
            for t in 0..M {
                sums.x[t] = &padded[t];
            }
            block.unpack(l, &mut sums);
        }
        let mut out = [0.0; M];
        for t in 0..M {
            let [a, b, c, d] = sums.sums[t];
            out[t] = l.sum(l.add(l.add(a, b), l.add(c, d)));
        }
        out
    }

    /// Sums of products in the making. One activation has four chains of additions, so that none waits for its predecessor;
    /// more have fewer each.
    struct Sums<'a, L: Lanes, const M: usize> {
        l: L,
        /// The activations that meet the block.
        x: [&'a [[f32; 16]]; M],
        sums: [[L::Floats; 4]; M],
    }

    impl<L: Lanes, const M: usize> Sums<'_, L, M> {
        const CHAINS: usize = match M {
            1 => 4,
            2 => 2,
            _ => 1,
        };

        /// Lets the next block, if blocks are short, add to the other chains.
        #[inline(always)]
        fn rotate<B: Unpack>(&mut self) {
            if B::SIXTEENS < Self::CHAINS {
                for t in 0..M {
                    let [a, b, c, d] = self.sums[t];
                    self.sums[t] = [c, d, a, b];
                }
            }
        }
    }

    impl<L: Lanes, const M: usize> Sink<L> for Sums<'_, L, M> {
        #[inline(always)]
        fn put(&mut self, at: usize, values: L::Floats) {
            for t in 0..M {
                let sum = &mut self.sums[t][at % Self::CHAINS];
                *sum = self.l.mul_add(values, self.l.load(&self.x[t][at]), *sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::SimdLevel;
    use crate::cpu::tests::{any_supported, random_weight};

    fn dots(cpu: &Cpu, w: &Weight, rows: std::ops::Range<usize>, x: Rows<'_>, m: usize) -> Vec<f32> {
        let mut y = vec![f32::NAN; m * rows.len()];
        rows_dot(cpu, w, 0, rows.start, x, Rect::new(&mut y, rows.len()));
        y
    }

    proptest! {
        /// All types, levels and numbers of activations, rows of any number of blocks and scalars: the sum of the products
        /// with the dequantized values, and the same bits wherever a row lies.
        #[test]
        fn dots_are_sums_of_products(
            ty in any_supported(), n in 1usize..9, k in 1usize..700, m in 1usize..=MAX_DOTS, gap in 0usize..5, seed: u64,
        ) {
            let k = k.next_multiple_of(ty.block_elems());
            let w = random_weight(ty, n, k, seed);
            let values = w.dequantize(0, 0..n).unwrap();
            let x: Vec<f32> = (0..m * (k + gap)).map(|i| ((i as f32 + seed as f32 % 7.0) * 0.7).sin()).collect();
            let rows = Rows { values: &x, stride: k + gap };
            for level in SimdLevel::available() {
                let cpu = Cpu::with_simd(Some(1), level).unwrap();
                let y = dots(&cpu, &w, 0..n, rows, m);
                let split = seed as usize % n;
                let (a, b) = (dots(&cpu, &w, 0..split, rows, m), dots(&cpu, &w, split..n, rows, m));
                for (t, row) in y.chunks(n).enumerate() {
                    let parts = a[t * split..][..split].iter().chain(&b[t * (n - split)..][..n - split]);
                    prop_assert!(row.iter().zip(parts).all(|(y, p)| y.to_bits() == p.to_bits()), "{} {}", ty, level);
                    for (i, y) in row.iter().enumerate() {
                        let products = || values[i * k..][..k].iter().zip(rows.row(t, k)).map(|(w, x)| *w as f64 * *x as f64);
                        let (want, size): (f64, f64) = (products().sum(), products().map(f64::abs).sum());
                        // Chains of at most 175 products (four of them, portable), each step half a unit off at worst.
                        prop_assert!((*y as f64 - want).abs() <= 180.0 * 6e-8 * size, "{} {}: {} for {}", ty, level, y, want);
                    }
                }
            }
        }
    }
}
