//! Norms, row by row.

use std::ops::Range;

use super::{Cpu, simd};
use crate::error::Result;
use crate::quant::Activations;
use crate::tensor::Float;

pub(crate) fn rms_norm(cpu: &Cpu, x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) -> Result<()> {
    let n = w.len();
    cpu.for_rows(
        y,
        n,
        2 * n,
        #[inline(always)]
        |t, y| normalize(&x[t * n..][..n], w, eps, y),
    );
    Ok(())
}

pub(crate) fn rms_norm_cols(
    cpu: &Cpu,
    x: &mut [f32],
    n: usize,
    cols: Range<usize>,
    w: &[f32],
    eps: f32,
) -> Result<()> {
    cpu.for_rows(
        x,
        n,
        2 * cols.len(),
        #[inline(always)]
        |_, row| {
            let row = &mut row[cols.clone()];
            let s = inverse_rms(row, eps);
            row.iter_mut().zip(w).for_each(|(x, w)| *x = *x * s * w);
        },
    );
    Ok(())
}

pub(crate) fn add_rms_norm(
    cpu: &Cpu,
    x: &mut [f32],
    r: &[f32],
    w: &[f32],
    eps: f32,
    y: &mut [f32],
) -> Result<()> {
    add(cpu, x, r, w.len());
    rms_norm(cpu, x, w, eps, y)
}

fn add(cpu: &Cpu, x: &mut [f32], r: &[f32], n: usize) {
    cpu.for_rows(
        x,
        n,
        n,
        #[inline(always)]
        |t, x| x.iter_mut().zip(&r[t * n..]).for_each(|(x, r)| *x += r),
    );
}

pub(crate) fn norm_quantize<Y: Float>(
    cpu: &Cpu,
    x: &mut [f32],
    r: Option<&[f32]>,
    w: &[f32],
    eps: f32,
    y: Option<&mut [Y]>,
    q: Option<&mut Activations>,
) -> Result<()> {
    if let Some(r) = r {
        add(cpu, x, r, w.len());
    }
    let mut normed = cpu.scratch_f32(x.len());
    rms_norm(cpu, x, w, eps, &mut normed)?;
    if let Some(y) = y {
        y.iter_mut().zip(normed.iter()).for_each(|(y, v)| *y = Y::from_f32(*v));
    }
    if let Some(q) = q {
        cpu.simd(
            #[inline(always)]
            || q.quantize(&normed),
        )?;
    }
    Ok(())
}

pub(crate) fn layer_norm(cpu: &Cpu, x: &mut [f32], w: &[f32], b: &[f32], eps: f32) -> Result<()> {
    let n = w.len();
    cpu.for_rows(
        x,
        n,
        4 * n,
        #[inline(always)]
        |_, x| {
            // Two passes in f64: a mean far from zero must not eat the variance.
            let mean = x.iter().map(|v| *v as f64).sum::<f64>() / n as f64;
            let var = x.iter().map(|v| (*v as f64 - mean).powi(2)).sum::<f64>() / n as f64;
            let s = 1.0 / (var + eps as f64).sqrt();
            for ((x, w), b) in x.iter_mut().zip(w).zip(b) {
                *x = ((*x as f64 - mean) * s) as f32 * w + b;
            }
        },
    );
    Ok(())
}

#[inline(always)]
fn normalize(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) {
    let s = inverse_rms(x, eps);
    x.iter().zip(w).zip(y).for_each(|((x, w), y)| *y = x * s * w);
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    (1.0 / (simd::sum_squares(x) / x.len() as f64 + eps as f64).sqrt()) as f32
}
