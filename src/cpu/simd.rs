//! Run-time choice of the instruction set, and the vector loops that everything else is built from.
//!
//! Kernels are plain Rust over arrays of [`LANES`] floats, compiled once per level by `pulp`'s dispatch (every function on
//! the way is `inline(always)`, so that it takes the caller's target features). Sums run over fixed lanes with fused
//! multiply-add on every level, so all levels give the same bits.

use std::fmt;

use crate::error::{Error, Result};

/// Floats per vector step: one AVX-512 register, two of AVX2, four of NEON.
pub(crate) const LANES: usize = 16;

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

/// `acc[l] += a[l] * b[l]`.
#[inline(always)]
pub(crate) fn fma(acc: &mut [f32; LANES], a: &[f32; LANES], b: &[f32; LANES]) {
    for l in 0..LANES {
        acc[l] = a[l].mul_add(b[l], acc[l]);
    }
}

/// Sum of the lanes, pairwise.
#[inline(always)]
pub(crate) fn sum(v: &[f32; LANES]) -> f32 {
    let mut s = *v;
    let mut n = LANES / 2;
    while n > 0 {
        for l in 0..n {
            s[l] += s[l + n];
        }
        n /= 2;
    }
    s[0]
}

/// `sum_i a[i] b[i]` over the shorter of the two.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len().min(b.len());
    let (a4, a1) = a[..n].as_chunks::<{ 4 * LANES }>();
    let (b4, b1) = b[..n].as_chunks::<{ 4 * LANES }>();
    let mut acc = [[0f32; LANES]; 4];
    for (a, b) in a4.iter().zip(b4) {
        let (a, b) = (a.as_chunks::<LANES>().0, b.as_chunks::<LANES>().0);
        for i in 0..4 {
            fma(&mut acc[i], &a[i], &b[i]);
        }
    }
    let (a1, a0) = a1.as_chunks::<LANES>();
    let (b1, b0) = b1.as_chunks::<LANES>();
    for (a, b) in a1.iter().zip(b1) {
        fma(&mut acc[0], a, b);
    }
    for l in 0..LANES {
        acc[0][l] = (acc[0][l] + acc[1][l]) + (acc[2][l] + acc[3][l]);
    }
    a0.iter().zip(b0).fold(sum(&acc[0]), |s, (a, b)| a.mul_add(*b, s))
}

/// `y[i] += a * x[i]` over the shorter of the two.
#[inline(always)]
pub(crate) fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
    for (x, y) in x.iter().zip(y) {
        *y = a.mul_add(*x, *y);
    }
}

/// `sum_i x[i]^2` in f64 lanes: norms must not lose the small entries of a long row.
#[inline(always)]
pub(crate) fn sum_squares(x: &[f32]) -> f64 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut acc = [0f64; LANES];
    for c in chunks {
        for l in 0..LANES {
            acc[l] = (c[l] as f64).mul_add(c[l] as f64, acc[l]);
        }
    }
    acc.iter().sum::<f64>() + rest.iter().map(|v| *v as f64 * *v as f64).sum::<f64>()
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
    let x = x.clamp(-105.0, 89.0);
    let n = (x * std::f32::consts::LOG2_E).round_ties_even();
    let r = n.mul_add(-LN2_LO, n.mul_add(-LN2_HI, x));
    let mut p = 1.0 / 720.0;
    for c in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = f32::mul_add(p, r, c);
    }
    // 2^n in two factors, each a normal number for the clamped range.
    let n = n as i32;
    let half = n / 2;
    p * pow2(half) * pow2(n - half)
}

#[inline(always)]
fn pow2(n: i32) -> f32 {
    f32::from_bits(((n + 127) << 23) as u32)
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

    #[test]
    fn dot_covers_every_length() {
        for n in 0..200 {
            let a: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37).sin()).collect();
            let b: Vec<f32> = (0..n).map(|i| (i as f32 * 0.11).cos()).collect();
            let want: f64 = a.iter().zip(&b).map(|(a, b)| *a as f64 * *b as f64).sum();
            assert!((dot(&a, &b) as f64 - want).abs() < 1e-5, "n = {n}");
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
