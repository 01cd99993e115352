//! Linear layers, as specified, and the rounding of activations that [`Precision::Fast`](crate::tensor::Precision) means.
//!
//! Fast layers are these layers on rounded activations: int8 by [`round_int8`] in blocks of [`INT8_BLOCK`], or [`round_bf16`] for
//! one matrix per head. Weights that are not quantized (F32, F16, BF16) take their activations as they are.

use half::bf16;

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

/// Each row of `k` values rounded to int8 with one scale per block, and back. In f32 arithmetic: `d = max|x| / 127`,
/// `q = x (1 / d)` rounded to the nearest integer, halves to even, and the result is `d q`. A block whose `d` is zero or
/// subnormal is all zeros, one with an infinity or a NaN is all NaN. The last block of a row is shorter if `block` does
/// not divide `k`.
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
                amax = if v.is_finite() { amax.max(v.abs()) } else { f32::NAN };
                if amax.is_nan() {
                    break;
                }
            }
            let d = amax / 127.0;
            let inverse = if d < f32::MIN_POSITIVE { 0.0 } else { 1.0 / d };
            for v in b {
                out.push(if inverse == 0.0 { 0.0 } else { d * (v * inverse).round_ties_even() });
            }
        }
    }
    Ok(out)
}

/// Each value rounded to bf16 (nearest, halves to even) and back: what [`Precision::Fast`](crate::tensor::Precision)
/// does to the activations of a linear layer per head.
pub fn round_bf16(x: &[f32]) -> Vec<f32> {
    x.iter().map(|v| bf16::from_f32(*v).to_f32()).collect()
}
