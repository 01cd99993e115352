//! Norms, as specified. Every sum runs over one row in f64.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::ops::linear::reference::bits22;
use crate::ops::{expect_len, expect_rows};

/// `y[i] = w[i] x[i] / sqrt(mean(x^2) + eps)`. `x` `[m, n]`, `w` `[n]` with `n = w.len()`; gives `[m, n]`.
///
/// # Errors
/// [`Error::Shape`] if `x` is not whole rows of `n`.
pub fn rms_norm<X: Copy + Into<f64>>(x: &[X], w: &[f32], eps: f64) -> Result<Vec<f64>> {
    let n = w.len();
    let m = expect_rows("rms_norm", "x", x.len(), n)?;
    let mut y = vec![0.0; m * n];
    for t in 0..m {
        let mut square = 0.0;
        for i in 0..n {
            let v: f64 = x[t * n + i].into();
            square += v * v;
        }
        let root = (square / n as f64 + eps).sqrt();
        for i in 0..n {
            y[t * n + i] = f64::from(w[i]) * x[t * n + i].into() / root;
        }
    }
    Ok(y)
}

/// [`rms_norm`] of columns `cols` of each row of `n`; the other columns come back as they are. `w` `[cols.len()]`.
///
/// # Errors
/// [`Error::Shape`] if the lengths do not fit.
pub fn rms_norm_cols(x: &[f32], n: usize, cols: Range<usize>, w: &[f32], eps: f64) -> Result<Vec<f64>> {
    let m = expect_rows("rms_norm_cols", "x", x.len(), n)?;
    expect_len("rms_norm_cols", "w", w.len(), cols.len())?;
    if cols.end > n {
        return Err(Error::shape("rms_norm_cols", format!("columns within {n}"), format!("{cols:?}")));
    }
    let mut y: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
    for t in 0..m {
        let part = t * n + cols.start..t * n + cols.end;
        let normed = rms_norm(&x[part.clone()], w, eps)?;
        y[part].copy_from_slice(&normed);
    }
    Ok(y)
}

/// The residual step and the norm after it: `x' = x + r` and `y = rms_norm(x')`. `x`, `r` `[m, n]`, `w` `[n]`; gives
/// `(x', y)`.
///
/// # Errors
/// [`Error::Shape`] if the lengths do not fit.
pub fn add_rms_norm(x: &[f32], r: &[f32], w: &[f32], eps: f64) -> Result<(Vec<f64>, Vec<f64>)> {
    expect_len("add_rms_norm", "r", r.len(), x.len())?;
    let mut sum = Vec::new();
    for i in 0..x.len() {
        sum.push(f64::from(x[i]) + f64::from(r[i]));
    }
    let y = rms_norm(&sum, w, eps)?;
    Ok((sum, y))
}

/// Int8 activations of values: one scale per `block` of them, one quant per value, the sum of each 16 quants.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantized {
    /// `amax / 127` with 22 significant bits; zero if that is subnormal, NaN if the block has a NaN or a value from 2^110 on.
    pub scales: Vec<f32>,
    /// `y (1 / scale)`, rounded to the nearest integer, halves to even; zeros where the scale is zero or NaN.
    pub qs: Vec<i8>,
    /// Sums of 16 quants.
    pub sums: Vec<i16>,
}

/// The activations of `y`, whole blocks of `block` values. The format is defined by operations on f32, each rounded: the
/// scale, its inverse, the product with that.
///
/// # Errors
/// [`Error::Shape`] unless `y` is whole blocks.
pub fn quantize(y: &[f32], block: usize) -> Result<Quantized> {
    let blocks = expect_rows("quantize", "y", y.len(), block)?;
    let mut out = Quantized { scales: Vec::new(), qs: Vec::new(), sums: Vec::new() };
    for b in 0..blocks {
        let values = &y[b * block..(b + 1) * block];
        let mut amax = 0f32;
        let mut finite = true;
        for v in values {
            amax = amax.max(v.abs());
            finite &= v.abs() < 2f32.powi(110);
        }
        let mut scale = bits22(amax / 127.0);
        if scale < f32::MIN_POSITIVE {
            scale = 0.0;
        }
        if !finite {
            scale = f32::NAN;
        }
        out.scales.push(scale);
        for v in values {
            let q = if scale > 0.0 { (v * (1.0 / scale)).round_ties_even() } else { 0.0 };
            out.qs.push(q as i8);
        }
    }
    for qs in out.qs.chunks(16) {
        let mut sum = 0;
        for q in qs {
            sum += i16::from(*q);
        }
        out.sums.push(sum);
    }
    Ok(out)
}

/// `y[i] = w[i] (x[i] - mean) / sqrt(var + eps) + b[i]` with the biased variance `var = mean((x - mean)^2)`. `x`
/// `[m, n]`, `w`, `b` `[n]` with `n = w.len()`; gives `[m, n]`.
///
/// # Errors
/// [`Error::Shape`] if the lengths do not fit.
pub fn layer_norm<X: Copy + Into<f64>>(x: &[X], w: &[f32], b: &[f32], eps: f64) -> Result<Vec<f64>> {
    let n = w.len();
    let m = expect_rows("layer_norm", "x", x.len(), n)?;
    expect_len("layer_norm", "b", b.len(), n)?;
    let mut y = vec![0.0; m * n];
    for t in 0..m {
        let mut mean = 0.0;
        for i in 0..n {
            mean += x[t * n + i].into() / n as f64;
        }
        let mut var = 0.0;
        for i in 0..n {
            let v: f64 = x[t * n + i].into();
            var += (v - mean) * (v - mean) / n as f64;
        }
        let root = (var + eps).sqrt();
        for i in 0..n {
            y[t * n + i] = f64::from(w[i]) * (x[t * n + i].into() - mean) / root + f64::from(b[i]);
        }
    }
    Ok(y)
}
