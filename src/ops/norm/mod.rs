//! RMSNorm, residual add + RMSNorm, LayerNorm. All statistics are taken in f32 or better over one row.

pub mod reference;

use std::ops::Range;

use super::{expect, no_kernel};
use crate::cpu;
use crate::error::{Error, Result};
use crate::tensor::{Device, Tensor};

/// `y[i] = w[i] x[i] / sqrt(mean(x^2) + eps)` for each row. `x`, `y` `[m, n]`, `w` `[1, n]`.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub fn rms_norm(x: &Tensor, w: &Tensor, eps: f32, y: &mut Tensor) -> Result<()> {
    expect("rms_norm", "w", w, 1, x.cols())?;
    expect("rms_norm", "y", y, x.rows(), x.cols())?;
    match x.device() {
        Device::Cpu(cpu) => cpu::norm::rms_norm(cpu, x.cpu()?, w.cpu()?, eps, y.cpu_mut()?),
        Device::Cuda(gpu) => no_kernel("rms_norm", gpu),
    }
}

/// RMSNorm of columns `cols` of each row in place; other columns keep their values. `x` `[m, n]`, `w` `[1, cols.len()]`.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub fn rms_norm_cols(x: &mut Tensor, cols: Range<usize>, w: &Tensor, eps: f32) -> Result<()> {
    if cols.is_empty() || cols.end > x.cols() {
        return Err(Error::shape(
            "rms_norm_cols",
            format!("columns within {}", x.cols()),
            format!("{cols:?}"),
        ));
    }
    expect("rms_norm_cols", "w", w, 1, cols.len())?;
    match x.device().clone() {
        Device::Cpu(cpu) => {
            let n = x.cols();
            cpu::norm::rms_norm_cols(&cpu, x.cpu_mut()?, n, cols, w.cpu()?, eps)
        }
        Device::Cuda(gpu) => no_kernel("rms_norm_cols", &gpu),
    }
}

/// Residual step and the norm after it: `x += r`, then `y = rms_norm(x)`. All `[m, n]`, `w` `[1, n]`.
///
/// # Errors
/// [`Error::Shape`] if they do not fit; `x` is unchanged then.
pub fn add_rms_norm(x: &mut Tensor, r: &Tensor, w: &Tensor, eps: f32, y: &mut Tensor) -> Result<()> {
    expect("add_rms_norm", "r", r, x.rows(), x.cols())?;
    expect("add_rms_norm", "w", w, 1, x.cols())?;
    expect("add_rms_norm", "y", y, x.rows(), x.cols())?;
    match x.device().clone() {
        Device::Cpu(cpu) => {
            cpu::norm::add_rms_norm(&cpu, x.cpu_mut()?, r.cpu()?, w.cpu()?, eps, y.cpu_mut()?)
        }
        Device::Cuda(gpu) => no_kernel("add_rms_norm", &gpu),
    }
}

/// LayerNorm in place: `x[i] = w[i] (x[i] - mean) / sqrt(var + eps) + b[i]` with the biased variance. `x` `[m, n]`, `w`,
/// `b` `[1, n]`.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub fn layer_norm(x: &mut Tensor, w: &Tensor, b: &Tensor, eps: f32) -> Result<()> {
    expect("layer_norm", "w", w, 1, x.cols())?;
    expect("layer_norm", "b", b, 1, x.cols())?;
    match x.device().clone() {
        Device::Cpu(cpu) => cpu::norm::layer_norm(&cpu, x.cpu_mut()?, w.cpu()?, b.cpu()?, eps),
        Device::Cuda(gpu) => no_kernel("layer_norm", &gpu),
    }
}
