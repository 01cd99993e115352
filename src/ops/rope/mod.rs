//! Rotary position embedding, interleaved: adjacent pairs `(2i, 2i + 1)` are rotated by `p * base^(-2i / dim)`.

pub mod config;
pub mod reference;

use super::expect;
use crate::error::{Error, Result};
use crate::tensor::{Device, Heads, RaggedRows, Tensor};
use crate::{cpu, cuda};

/// `angles[t] = (cos, sin, cos, sin, ...)` of `positions[t] * base^(-2i / dim)`, `i < dim / 2`: on the CPU in f64, on a GPU good to
/// 1.5e-7 at any position. `angles` is `[rows.len(), dim]`; one table serves all layers of a step. A GPU takes the positions from the
/// copy of `rows` that lies there, so that a graph sees those of each replay.
///
/// # Errors
/// [`Error::Shape`] if `angles` does not fit or `dim` is odd, [`Error::Argument`] unless `base` is finite and positive;
/// [`Error::Unsupported`] on a GPU for rows that were not uploaded, a `base` below 1 or a `dim` above 128.
pub fn rope_angles(base: f32, rows: &RaggedRows, angles: &mut Tensor) -> Result<()> {
    let dim = angles.cols();
    expect("rope_angles", "angles", angles, rows.len(), dim)?;
    if !dim.is_multiple_of(2) || dim == 0 {
        return Err(Error::shape("rope_angles", "an even width", dim));
    }
    if !(base.is_finite() && base > 0.0) {
        return Err(Error::argument("rope base", "a positive number", base));
    }
    match angles.device() {
        Device::Cpu(_) => cpu::rope::rope_angles(base, rows.positions(), dim, angles.cpu_mut()?),
        Device::Cuda(_) => cuda::rope::rope_angles(base, rows, angles),
    }
}

/// Rotates the head parts of each row in place; other columns keep their values. `x` `[m, n]`, `angles` `[m, dim]` from
/// [`rope_angles`] with `dim = heads.len`.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub fn rope(x: &mut Tensor, heads: Heads, angles: &Tensor) -> Result<()> {
    expect_in_place("rope", x, heads, angles)?;
    match x.device().clone() {
        Device::Cpu(cpu) => {
            let n = x.cols();
            cpu::rope::rope(&cpu, x.cpu_mut()?, n, heads, angles.cpu()?)
        }
        Device::Cuda(_) => cuda::rope::rope(x, heads, angles),
    }
}

/// As [`rope`], reading from the head parts of `x` and writing to those of `y`, whose other columns keep their values.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub fn rope_into(x: &Tensor, x_heads: Heads, angles: &Tensor, y: &mut Tensor, y_heads: Heads) -> Result<()> {
    expect_into("rope_into", x, x_heads, angles, y, y_heads)?;
    match x.device() {
        Device::Cpu(cpu) => {
            let (nx, ny) = (x.cols(), y.cols());
            cpu::rope::rope_into(cpu, x.cpu()?, nx, x_heads, angles.cpu()?, y.cpu_mut()?, ny, y_heads)
        }
        Device::Cuda(_) => cuda::rope::rope_into(x, x_heads, angles, y, y_heads),
    }
}

pub(super) fn expect_in_place(op: &'static str, x: &Tensor, heads: Heads, angles: &Tensor) -> Result<()> {
    expect(op, "angles", angles, x.rows(), heads.len)?;
    match heads.fits(x.cols()) {
        true => Ok(()),
        false => Err(Error::shape(op, format!("heads within rows of {}", x.cols()), format!("{heads:?}"))),
    }
}

pub(super) fn expect_into(
    op: &'static str,
    x: &Tensor,
    x_heads: Heads,
    angles: &Tensor,
    y: &Tensor,
    y_heads: Heads,
) -> Result<()> {
    expect(op, "angles", angles, x.rows(), x_heads.len)?;
    if !x_heads.fits(x.cols()) {
        return Err(Error::shape(op, format!("x heads within {}", x.cols()), format!("{x_heads:?}")));
    }
    let same = y_heads.n == x_heads.n && y_heads.len == x_heads.len && y.rows() == x.rows();
    if !same || !y_heads.fits(y.cols()) {
        let want = format!("{} heads of {} in {} rows of {}", x_heads.n, x_heads.len, x.rows(), y.cols());
        return Err(Error::shape(op, want, format!("y {y_heads:?} in {:?}", y.shape())));
    }
    Ok(())
}
