//! Linear layers, as specified, and the rounding of activations that [`Precision::Fast`](crate::tensor::Precision) means.
//!
//! Fast layers are these layers on rounded activations: int8 by [`round_int8`] in blocks of [`INT8_BLOCK`], or [`round_bf16`] for
//! one matrix per head; of weights in tiles also [`round_f16`] ([`ActivationFormat`](crate::tensor::ActivationFormat)). Weights that are not
//! quantized (F32, F16, BF16) take their activations as they are.

use half::{bf16, f16};

use crate::error::{Error, Result};
use crate::ops::{expect_len, expect_rows};

/// `y[t][j] = sum_i w[j][i] x[t][i]`. `w` `[n, k]` (dequantized), `x` `[m, k]`; gives `[m, n]`.
///
/// # Errors
/// [`Error::Shape`] if `w` is not `n` rows of `k` or `x` not whole rows of `k`.
pub fn linear<X: Copy + Into<f64>>(w: &[f32], x: &[X], n: usize, k: usize) -> Result<Vec<f64>> {
    let m = expect_rows("linear", "x", x.len(), k)?;
    expect_len("linear", "w", w.len(), n * k)?;
    let mut y = vec![0.0; m * n];
    for t in 0..m {
        for j in 0..n {
            let mut sum = 0.0;
            for i in 0..k {
                sum += f64::from(w[j * k + i]) * x[t * k + i].into();
            }
            y[t * n + j] = sum;
        }
    }
    Ok(y)
}

/// One matrix per head: `y[t][h][j] = sum_i w[h][j][i] x[t][h][i]`. `w` `[heads, n, k]`, `x` `[m, heads, k]`; gives
/// `[m, heads, n]`.
///
/// With `w = k_b` (`n = kv_lora_rank`, `k = qk_nope_head_dim`) this absorbs the key projection into the query; with
/// `w = v_b` (`n = v_head_dim`, `k = kv_lora_rank`) it turns attended latents into values.
///
/// # Errors
/// [`Error::Shape`] if the lengths do not fit.
pub fn head_linear<X: Copy + Into<f64>>(
    w: &[f32],
    x: &[X],
    heads: usize,
    n: usize,
    k: usize,
) -> Result<Vec<f64>> {
    let m = expect_rows("head_linear", "x", x.len(), heads * k)?;
    expect_len("head_linear", "w", w.len(), heads * n * k)?;
    let mut y = vec![0.0; m * heads * n];
    for t in 0..m {
        for h in 0..heads {
            for j in 0..n {
                let mut sum = 0.0;
                for i in 0..k {
                    sum += f64::from(w[(h * n + j) * k + i]) * x[(t * heads + h) * k + i].into();
                }
                y[(t * heads + h) * n + j] = sum;
            }
        }
    }
    Ok(y)
}

/// Activations that share one scale. With 256 of them, on activations of which one in a hundred is 20 times the others, the
/// error is 2.4 times as large.
pub const INT8_BLOCK: usize = 32;

/// Each row of `k` values rounded to int8 with one scale per block, and back. In f32 arithmetic: `d = max|x| / 127` with 22
/// significant bits, `q = x (1 / d)` rounded to the nearest integer, halves to even, and the result is `d q`. A block whose
/// `d` is zero or subnormal is all zeros, one with a NaN or a value from 2^110 on is all NaN. The last block of a row is
/// shorter if `block` does not divide `k`.
///
/// # Errors
/// [`Error::Shape`] if `x` is not whole rows of `k`, or for an empty block.
pub fn round_int8(x: &[f32], k: usize, block: usize) -> Result<Vec<f32>> {
    expect_rows("round_int8", "x", x.len(), k)?;
    if block == 0 {
        return Err(Error::shape("round_int8", "a block of at least 1", block));
    }
    let mut out = Vec::new();
    for row in x.chunks(k) {
        for b in row.chunks(block) {
            let mut amax = 0.0_f32;
            for v in b {
                amax = if v.abs() < 2f32.powi(110) { amax.max(v.abs()) } else { f32::NAN };
                if amax.is_nan() {
                    break;
                }
            }
            let d = bits22(amax / 127.0);
            let inverse = if d < f32::MIN_POSITIVE { 0.0 } else { 1.0 / d };
            for v in b {
                out.push(if inverse == 0.0 { 0.0 } else { d * (v * inverse).round_ties_even() });
            }
        }
    }
    Ok(out)
}

/// Each row of `k` values rounded to f16 after the power of two that takes its largest value to [2^9, 2^10), or 2^126 if that is
/// less, and back. A row with a value that is not finite is all NaN.
///
/// # Errors
/// [`Error::Shape`] if `x` is not whole rows of `k`.
pub fn round_f16(x: &[f32], k: usize) -> Result<Vec<f32>> {
    expect_rows("round_f16", "x", x.len(), k)?;
    let mut out = Vec::new();
    for row in x.chunks(k) {
        if row.iter().any(|v| !v.is_finite()) {
            out.resize(out.len() + row.len(), f32::NAN);
            continue;
        }
        let largest = row.iter().fold(0.0_f32, |a, v| a.max(v.abs()));
        let power = if largest.is_normal() { 9 - largest.log2().floor() as i32 } else { 126 };
        // log2 is rounded: just below a power of two it may give that power.
        let up = f64::from(largest) * 2f64.powi(power);
        let power = if up < 512.0 {
            power + 1
        } else if up >= 1024.0 {
            power - 1
        } else {
            power
        }
        .min(126);
        let scale = 2f64.powi(power);
        out.extend(row.iter().map(|v| (f16::from_f64(f64::from(*v) * scale).to_f64() / scale) as f32));
    }
    Ok(out)
}

/// A positive `x` with 22 significant bits, halves to even. Other numbers stay.
pub(crate) fn bits22(x: f32) -> f32 {
    if !x.is_normal() || x < 0.0 {
        return x;
    }
    let step = 2f64.powi(f64::from(x).log2().floor() as i32 - 21);
    ((f64::from(x) / step).round_ties_even() * step) as f32
}

/// Each value rounded to bf16 (nearest, halves to even) and back: what [`Precision::Fast`](crate::tensor::Precision)
/// does to the activations of a linear layer per head.
pub fn round_bf16(x: &[f32]) -> Vec<f32> {
    x.iter().map(|v| bf16::from_f32(*v).to_f32()).collect()
}
