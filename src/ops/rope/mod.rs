//! Rotary position embedding, interleaved: adjacent pairs `(2i, 2i + 1)` are rotated by `p * base^(-2i / dim)`.

pub mod reference;

use super::{expect, no_kernel};
use crate::cpu;
use crate::error::{Error, Result};
use crate::tensor::{Device, Heads, Tensor};

/// `angles[t] = (cos, sin, cos, sin, ...)` of `positions[t] * base^(-2i / dim)`, `i < dim / 2`, computed in f64.
/// `angles` is `[positions.len(), dim]`; one table serves all layers of a step.
///
/// # Errors
/// [`Error::Shape`] if `angles` does not fit or `dim` is odd, [`Error::Argument`] unless `base` is finite and positive.
pub fn rope_angles(base: f32, positions: &[u32], angles: &mut Tensor) -> Result<()> {
    let dim = angles.cols();
    expect("rope_angles", "angles", angles, positions.len(), dim)?;
    if !dim.is_multiple_of(2) || dim == 0 {
        return Err(Error::shape("rope_angles", "an even width", dim));
    }
    if !(base.is_finite() && base > 0.0) {
        return Err(Error::argument("rope base", "a positive number", base));
    }
    match angles.device().clone() {
        Device::Cpu(_) => cpu::rope::rope_angles(base, positions, dim, angles.cpu_mut()?),
        Device::Cuda(gpu) => no_kernel("rope_angles", &gpu),
    }
}

/// Rotates the head parts of each row in place; other columns keep their values. `x` `[m, n]`, `angles` `[m, dim]` from
/// [`rope_angles`] with `dim = heads.len`.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub fn rope(x: &mut Tensor, heads: Heads, angles: &Tensor) -> Result<()> {
    expect("rope", "angles", angles, x.rows(), heads.len)?;
    if !heads.fits(x.cols()) {
        return Err(Error::shape("rope", format!("heads within rows of {}", x.cols()), format!("{heads:?}")));
    }
    match x.device().clone() {
        Device::Cpu(cpu) => {
            let n = x.cols();
            cpu::rope::rope(&cpu, x.cpu_mut()?, n, heads, angles.cpu()?)
        }
        Device::Cuda(gpu) => no_kernel("rope", &gpu),
    }
}

/// As [`rope`], reading from the head parts of `x` and writing to those of `y`, whose other columns keep their values.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub fn rope_into(x: &Tensor, x_heads: Heads, angles: &Tensor, y: &mut Tensor, y_heads: Heads) -> Result<()> {
    expect("rope_into", "angles", angles, x.rows(), x_heads.len)?;
    if !x_heads.fits(x.cols()) {
        return Err(Error::shape(
            "rope_into",
            format!("x heads within {}", x.cols()),
            format!("{x_heads:?}"),
        ));
    }
    let same = y_heads.n == x_heads.n && y_heads.len == x_heads.len && y.rows() == x.rows();
    if !same || !y_heads.fits(y.cols()) {
        let want = format!("{} heads of {} in {} rows of {}", x_heads.n, x_heads.len, x.rows(), y.cols());
        return Err(Error::shape("rope_into", want, format!("y {y_heads:?} in {:?}", y.shape())));
    }
    match x.device() {
        Device::Cpu(cpu) => {
            let (nx, ny) = (x.cols(), y.cols());
            cpu::rope::rope_into(cpu, x.cpu()?, nx, x_heads, angles.cpu()?, y.cpu_mut()?, ny, y_heads)
        }
        Device::Cuda(gpu) => no_kernel("rope_into", gpu),
    }
}
