//! RMSNorm, residual add + RMSNorm, the same with int8 activations, LayerNorm. Sums are taken in f32 or better over one row.
//!
//! On a GPU a row has at most 16384 values. Weights may come from other operations: what has just been written is waited for.

pub mod config;
pub mod reference;

use std::ops::Range;

use super::expect;
use super::linear::{LinearInput, Rounded};
use crate::error::{Error, Result};
use crate::tensor::{Device, Float, QuantizedRows, Tensor};
use crate::{cpu, cuda};

/// `y[i] = w[i] x[i] / sqrt(mean(x^2) + eps)` for each row. `x`, `y` `[m, n]`, `w` `[1, n]`.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub fn rms_norm(x: &Tensor, w: &Tensor, eps: f32, y: &mut Tensor) -> Result<()> {
    expect("rms_norm", "w", w, 1, x.cols())?;
    expect("rms_norm", "y", y, x.rows(), x.cols())?;
    match x.device() {
        Device::Cpu(cpu) => cpu::norm::rms_norm(cpu, x.cpu()?, w.cpu()?, eps, y.cpu_mut()?),
        Device::Cuda(_) => cuda::norm::rms_norm(x, w, eps, y),
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
        Device::Cuda(_) => cuda::norm::rms_norm_cols(x, cols, w, eps),
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
        Device::Cuda(_) => cuda::norm::norm_quantize(x, Some(r), w, eps, Some(y), None),
    }
}

/// What stands between two blocks of linear layers: `x += r` if there is a residual, then `rms_norm(x)`, rounded to `y`, as
/// int8 activations to `q`, or both. All `[m, n]`, `w` `[1, n]`. The quants are those of the f32 values, whatever the type
/// of `y`.
///
/// # Errors
/// [`Error::Shape`] if they do not fit; `x` is unchanged then. [`Error::Unsupported`] for an f16 `y` on a GPU.
pub fn norm_quantize<Y: Float>(
    x: &mut Tensor,
    r: Option<&Tensor>,
    w: &Tensor,
    eps: f32,
    y: Option<&mut Tensor<Y>>,
    q: Option<&mut QuantizedRows>,
) -> Result<()> {
    let [m, n] = x.shape();
    if let Some(r) = r {
        expect("norm_quantize", "r", r, m, n)?;
    }
    expect("norm_quantize", "w", w, 1, n)?;
    if let Some(y) = &y {
        expect("norm_quantize", "y", y, m, n)?;
    }
    if let Some(q) = &q
        && q.shape() != [m, n]
    {
        return Err(Error::shape("norm_quantize", format!("q [{m}, {n}]"), format!("{:?}", q.shape())));
    }
    match x.device().clone() {
        Device::Cpu(cpu) => {
            let r = r.map(Tensor::cpu).transpose()?;
            let y = y.map(Tensor::cpu_mut).transpose()?;
            let q = q.map(QuantizedRows::cpu_mut).transpose()?;
            cpu::norm::norm_quantize(&cpu, x.cpu_mut()?, r, w.cpu()?, eps, y, q)
        }
        Device::Cuda(_) => cuda::norm::norm_quantize(x, r, w, eps, y, q),
    }
}

/// [`rms_norm`], with a residual [`add_rms_norm`], to what linear layers and experts take: with it the rounded forms that are wanted, with the bits that
/// [`quantize`](super::linear::quantize) makes of `y`, as far as the device has them.
///
/// # Errors
/// [`Error::Shape`] if they do not fit; `x` is unchanged then. Those of memory and of a launch.
pub fn rms_norm_into(
    x: &mut Tensor,
    r: Option<&Tensor>,
    w: &Tensor,
    eps: f32,
    y: &mut LinearInput,
    wanted: Rounded,
) -> Result<()> {
    const OP: &str = "rms_norm_into";
    let [m, n] = x.shape();
    if let Some(r) = r {
        expect(OP, "r", r, m, n)?;
    }
    expect(OP, "w", w, 1, n)?;
    expect(OP, "y", y.values(), m, n)?;
    let forms = y.forms_mut(wanted)?;
    if forms.tiles.is_some() || forms.rows.is_some() {
        return cuda::norm::norm_tiles(x, r, w, eps, forms);
    }
    match r {
        Some(r) => add_rms_norm(x, r, w, eps, forms.values),
        None => rms_norm(x, w, eps, forms.values),
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
        Device::Cuda(_) => cuda::norm::layer_norm(x, w, b, eps),
    }
}
