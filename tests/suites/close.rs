//! Comparison of results with references, and the error bounds it uses.
//!
//! Bounds are those of f32 arithmetic on the same inputs: an output may be off by a few units in its last place, plus the
//! rounding of its sum, `4 eps sqrt(K) sum |w x|` for `K` terms. That is above what any order of summation gives and far
//! below what a wrong factor, index or sign gives.

#![allow(dead_code)] // Each test crate, and the bench of kernels, uses a part.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

/// What outputs hold before a run. An element that still holds it was not written.
pub const POISON: f32 = f32::from_bits(0x7fc0_dead);

/// Relative distance of neighbouring f32 values.
pub const EPS: f64 = f32::EPSILON as f64;

/// Units in the last place that any output may be off.
const ULPS: f64 = 4.0;

/// Distance from the f32 nearest to `x` to the next larger in magnitude.
pub fn ulp(x: f64) -> f64 {
    let x = (x as f32).abs();
    if x >= f32::MAX {
        return f64::from(f32::MAX) - f64::from(f32::from_bits(f32::MAX.to_bits() - 1));
    }
    f64::from(f32::from_bits(x.to_bits() + 1)) - f64::from(x)
}

/// `got[i]` must be `want[i]` within 4 units in the last place plus `slack(i)`. Where the reference is not finite in
/// f32, the result must be the same infinity, or NaN.
pub fn close(
    what: &str,
    got: &[f32],
    want: &[f64],
    slack: impl Fn(usize) -> f64,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(got.len(), want.len(), "{}: number of values", what);
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        written(what, i, *got)?;
        let finite = (*want as f32).is_finite();
        let same = if want.is_nan() { got.is_nan() } else { *got == *want as f32 };
        if finite != got.is_finite() || !finite && !same {
            return fail(format!("{what}[{i}]: got {got:e}, want {want:e}"));
        }
        let (off, bound) = ((f64::from(*got) - want).abs(), ULPS * ulp(*want) + slack(i));
        if finite && (off > bound || bound.is_nan()) {
            return fail(format!("{what}[{i}]: got {got:e}, want {want:e}, off by {off:e}, bound {bound:e}"));
        }
    }
    Ok(())
}

/// All values must be equal bit for bit, save that any NaN equals any other.
pub fn equal(what: &str, got: &[f32], want: &[f32]) -> Result<(), TestCaseError> {
    prop_assert_eq!(got.len(), want.len(), "{}: number of values", what);
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        written(what, i, *got)?;
        if got.to_bits() != want.to_bits() && !(got.is_nan() && want.is_nan()) {
            return fail(format!("{what}[{i}]: got {got:e}, want {want:e} exactly"));
        }
    }
    Ok(())
}

/// Euclidean distance relative to the length of `want` must be at most `bound`.
pub fn relative(what: &str, got: &[f32], want: &[f64], bound: f64) -> Result<(), TestCaseError> {
    prop_assert_eq!(got.len(), want.len(), "{}: number of values", what);
    let off: f64 = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum::<f64>().sqrt();
    let length = want.iter().map(|w| w * w).sum::<f64>().sqrt();
    if off.is_nan() || off > bound * length {
        return fail(format!("{what}: off by {off:e} of {length:e}, bound {bound:e} relative"));
    }
    Ok(())
}

/// Results on rounded activations against the `ideal`, which is exact arithmetic on the activations as they are. The error
/// in L2 over all outputs is at most `times` that of `rounded`, exact arithmetic on the same rounded activations, plus
/// the tight bound of [`close`] with the slack `off`. So no number is assumed for what rounding costs: where products
/// cancel in a few outputs, that may be several percent.
pub fn near_ideal(
    what: &str,
    got: &[f32],
    rounded: &[f64],
    off: &[f64],
    ideal: &[f64],
    times: f64,
) -> Result<(), TestCaseError> {
    prop_assert_eq!((got.len(), rounded.len()), (ideal.len(), ideal.len()), "{}: number of values", what);
    let length = |v: &dyn Fn(usize) -> f64| (0..ideal.len()).map(|i| v(i).powi(2)).sum::<f64>().sqrt();
    for (i, got) in got.iter().enumerate() {
        written(what, i, *got)?;
    }
    let error = length(&|i| f64::from(got[i]) - ideal[i]);
    let least = length(&|i| rounded[i] - ideal[i]);
    let bound = times * least + length(&|i| ULPS * ulp(rounded[i]) + off[i]);
    if error.is_nan() || error > bound {
        let of = length(&|i| ideal[i]);
        return fail(format!(
            "{what}: off by {error:e} of {of:e}, bound {bound:e}, rounding alone {least:e}"
        ));
    }
    Ok(())
}

fn written(what: &str, i: usize, got: f32) -> Result<(), TestCaseError> {
    if got.to_bits() == POISON.to_bits() {
        return fail(format!("{what}[{i}] was not written"));
    }
    Ok(())
}

fn fail(message: String) -> Result<(), TestCaseError> {
    Err(TestCaseError::fail(message))
}

/// Rounding of a sum of `k` products with absolute values summing to `magnitude`. The last term is for products too
/// small for normal f32 numbers.
pub fn sum_slack(k: usize, magnitude: f64) -> f64 {
    4.0 * EPS * (k as f64).sqrt() * magnitude + k as f64 * f64::from(f32::MIN_POSITIVE) * EPS
}

/// Rounding of a value `y` of RMSNorm over `n` columns. A sum of `n` positive terms in one chain has, with independent
/// roundings, a relative error of `eps sqrt(n) / 6` (one standard deviation), and the root halves it: this is six of them,
/// and the inverse root, its argument and the products.
pub fn rms_norm_slack(n: usize, y: f64) -> f64 {
    EPS * (1.5 + 0.5 * (n as f64).sqrt()) * y.abs()
}

/// Rounding of each value of LayerNorm, `want = (x - mean) / root * w + b`: that of the two terms, which may cancel, and that
/// of the mean, which any value may be near to. The mean is good to a few units in its own last place, and to one of the
/// spread: a sum of deviations strays by `eps / 5` of it in one chain (one standard deviation), however many they are.
pub fn layer_norm_slack(x: &[f32], w: &[f32], b: &[f32], eps: f32, want: &[f64]) -> Vec<f64> {
    let n = w.len();
    let mut out = Vec::new();
    for (x, want) in x.chunks(n).zip(want.chunks(n)) {
        let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / n as f64;
        let var = x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n as f64;
        let mean_off = EPS * (4.0 * mean.abs() + var.sqrt()) / (var + f64::from(eps)).sqrt();
        for i in 0..n {
            let (weight, bias) = (f64::from(w[i]).abs(), f64::from(b[i]));
            out.push(rms_norm_slack(n, want[i] - bias) + weight * mean_off + 4.0 * EPS * bias.abs());
        }
    }
    out
}

/// `sum_i |w[j][i] x[t][i]|` for each output of a linear layer; `w` `[n, k]`, `x` `[m, k]`.
pub fn magnitudes<X: Copy + Into<f64>>(w: &[f32], x: &[X], k: usize) -> Vec<f64> {
    let mut out = Vec::new();
    for x in x.chunks(k) {
        for w in w.chunks(k) {
            out.push(w.iter().zip(x).map(|(w, x)| (f64::from(*w) * (*x).into()).abs()).sum());
        }
    }
    out
}
