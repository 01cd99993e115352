//! Run-time choice of the instruction set, and the vector loops that everything else is built from.
//!
//! Kernels are compiled once per level by `pulp`'s dispatch. Every function on the way is `inline(always)`, so that it takes
//! the caller's target features; hot loops are plain `for` and `match`, because std's combinators are not always inlined,
//! and a closure left in one is compiled without them. Element-wise loops vectorize by themselves; sums are written with
//! `pulp`'s vectors.

use std::fmt;

use pulp::Simd;

use crate::error::{Error, Result};

/// An instruction set that the kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SimdLevel {
    /// What every processor of the target has.
    Portable,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 (F, BW, CD, DQ, VL).
    Avx512,
    /// NEON.
    Neon,
}

impl SimdLevel {
    /// The levels this machine can run, best first.
    pub fn available() -> Vec<SimdLevel> {
        let mut levels = vec![level(pulp::Arch::new())];
        if levels[0] == SimdLevel::Avx512 {
            levels.push(SimdLevel::Avx2);
        }
        if levels[0] != SimdLevel::Portable {
            levels.push(SimdLevel::Portable);
        }
        levels
    }

    pub(super) fn arch(self) -> Result<pulp::Arch> {
        let best = pulp::Arch::new();
        match self {
            SimdLevel::Portable => Ok(pulp::Arch::Scalar),
            _ if level(best) == self => Ok(best),
            #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
            SimdLevel::Avx2 => pulp::x86::V3::try_new().map(pulp::Arch::V3).ok_or_else(|| missing(self)),
            _ => Err(missing(self)),
        }
    }
}

impl fmt::Display for SimdLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SimdLevel::Portable => "portable",
            SimdLevel::Avx2 => "avx2",
            SimdLevel::Avx512 => "avx512",
            SimdLevel::Neon => "neon",
        })
    }
}

fn missing(level: SimdLevel) -> Error {
    Error::unsupported(format!("SIMD level {level}"), "this processor does not have it")
}

pub(super) fn level(arch: pulp::Arch) -> SimdLevel {
    #[allow(unreachable_patterns)] // which variants exist depends on the target
    match arch {
        pulp::Arch::Scalar => SimdLevel::Portable,
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        pulp::Arch::V3(_) => SimdLevel::Avx2,
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        pulp::Arch::V4(_) => SimdLevel::Avx512,
        #[cfg(target_arch = "aarch64")]
        pulp::Arch::Neon(_) => SimdLevel::Neon,
        _ => SimdLevel::Portable,
    }
}

/// `sum_i a[i] b[i]` over the shorter of the two.
#[inline(always)]
pub(crate) fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let n = a.len().min(b.len());
    let mut acc = Acc::new(simd);
    acc.add(&a[..n], &b[..n]);
    acc.finish()
}

/// A dot product in the making: four vectors of partial sums, and the sum of what fills no vector.
pub(crate) struct Acc<S: Simd> {
    simd: S,
    sums: [S::f32s; 4],
    rest: f32,
}

impl<S: Simd> Acc<S> {
    #[inline(always)]
    pub fn new(simd: S) -> Self {
        Acc { simd, sums: [simd.splat_f32s(0.0); 4], rest: 0.0 }
    }

    /// Adds `sum_i a[i] b[i]`; both have one length.
    #[inline(always)]
    pub fn add(&mut self, a: &[f32], b: &[f32]) {
        let simd = self.simd;
        let ((a, a_rest), (b, b_rest)) = (S::as_simd_f32s(a), S::as_simd_f32s(b));
        let ((a4, a1), (b4, b1)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
        let [mut s0, mut s1, mut s2, mut s3] = self.sums;
        for (a, b) in a4.iter().zip(b4) {
            s0 = simd.mul_add_e_f32s(a[0], b[0], s0);
            s1 = simd.mul_add_e_f32s(a[1], b[1], s1);
            s2 = simd.mul_add_e_f32s(a[2], b[2], s2);
            s3 = simd.mul_add_e_f32s(a[3], b[3], s3);
        }
        // At most three vectors are left: each its own sum, so that short blocks do not wait for one another.
        if let (Some(a), Some(b)) = (a1.first(), b1.first()) {
            s0 = simd.mul_add_e_f32s(*a, *b, s0);
        }
        if let (Some(a), Some(b)) = (a1.get(1), b1.get(1)) {
            s1 = simd.mul_add_e_f32s(*a, *b, s1);
        }
        if let (Some(a), Some(b)) = (a1.get(2), b1.get(2)) {
            s2 = simd.mul_add_e_f32s(*a, *b, s2);
        }
        self.sums = [s0, s1, s2, s3];
        for (a, b) in a_rest.iter().zip(b_rest) {
            self.rest += a * b;
        }
    }

    #[inline(always)]
    pub fn finish(self) -> f32 {
        let ([s0, s1, s2, s3], simd) = (self.sums, self.simd);
        let sum = simd.add_f32s(simd.add_f32s(s0, s1), simd.add_f32s(s2, s3));
        simd.reduce_sum_f32s(sum) + self.rest
    }
}

/// `y[i] += a * x[i]` over the shorter of the two.
#[inline(always)]
pub(crate) fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
    for (x, y) in x.iter().zip(y) {
        *y += a * x;
    }
}

/// `sum_i x[i]^2` in f64: norms must not lose the small entries of a long row.
#[inline(always)]
pub(crate) fn sum_squares(x: &[f32]) -> f64 {
    const LANES: usize = 16;
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut acc = [0f64; LANES];
    for c in chunks {
        for l in 0..LANES {
            acc[l] += c[l] as f64 * c[l] as f64;
        }
    }
    let mut sum = 0.0;
    for v in acc {
        sum += v;
    }
    for v in rest {
        sum += *v as f64 * *v as f64;
    }
    sum
}

/// `x / (1 + exp(-x))`, with a polynomial exponential that vectorizes: relative error below 3e-7.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `e^x` to 2 ulp in the range of f32: `x = n ln 2 + r`, a degree-6 polynomial on `|r| <= ln 2 / 2`, then `2^n`.
/// Overflows to infinity and underflows to zero like `f32::exp` (gradually, by two steps of scaling); NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LN2_HI: f32 = 0.693_145_75;
    const LN2_LO: f32 = 1.428_606_8e-6;
    /// Adding 1.5 * 2^23 leaves the nearest integer in the low bits: a cast to i32 would not vectorize, as it saturates.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-105.0, 89.0);
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    // n LN2_HI is exact: 8 and 15 bits.
    let r = (x - n * LN2_HI) - n * LN2_LO;
    let mut p = 1.0 / 720.0;
    for c in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + c;
    }
    // 2^n in two factors, each a normal number for the clamped range.
    let n = rounded.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = n >> 1;
    p * pow2(half) * pow2(n - half)
}

#[inline(always)]
fn pow2(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_over_the_whole_range() {
        let mut x = -110f32;
        while x < 95.0 {
            let (got, want) = (exp(x) as f64, (x as f64).exp() as f32 as f64);
            let ok = got == want || (got - want).abs() <= 3e-7 * want.abs() + 2e-45;
            assert!(ok, "exp({x}) = {got}, want {want}");
            x += 0.000_917;
        }
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(0.0), 1.0);
    }

    struct Dot<'a>(&'a [f32], &'a [f32]);

    impl pulp::WithSimd for Dot<'_> {
        type Output = f32;
        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> f32 {
            dot(simd, self.0, self.1)
        }
    }

    #[test]
    fn dot_covers_every_length() {
        for level in SimdLevel::available() {
            for n in 0..200 {
                let a: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37).sin()).collect();
                let b: Vec<f32> = (0..n).map(|i| (i as f32 * 0.11).cos()).collect();
                let want: f64 = a.iter().zip(&b).map(|(a, b)| *a as f64 * *b as f64).sum();
                let got = level.arch().unwrap().dispatch(Dot(&a, &b));
                assert!((got as f64 - want).abs() < 1e-5, "{level}, n = {n}");
            }
        }
    }

    #[test]
    fn levels_are_consistent() {
        for l in SimdLevel::available() {
            assert_eq!(level(l.arch().unwrap()), l);
        }
        let missing = if cfg!(target_arch = "aarch64") { SimdLevel::Avx2 } else { SimdLevel::Neon };
        assert!(missing.arch().is_err());
    }
}
