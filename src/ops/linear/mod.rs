//! Linear layers: `y = W x` with the weight in any supported block type.

pub mod config;
pub mod reference;

use super::expect;
use crate::error::{Error, Result};
use crate::tensor::{Device, Heads, Matrix, Precision, QuantizedTiles, Tensor};
use crate::{cpu, cuda};

/// `y[t][j] = sum_i W[j][i] x[t][i]`. `w` is `[1, n, k]`, `x` `[m, k]`, `y` `[m, n]`.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub fn linear(w: &Matrix, x: &Tensor, y: &mut Tensor, precision: Precision) -> Result<()> {
    linear_many(&[w], x, &mut [y], precision)
}

/// Several matrices on one input, in one parallel region: `ys[i] = ws[i] x`. Shapes as in [`linear`].
///
/// # Errors
/// [`Error::Shape`] if any of them does not fit; nothing is written then.
pub fn linear_many(ws: &[&Matrix], x: &Tensor, ys: &mut [&mut Tensor], precision: Precision) -> Result<()> {
    const OP: &str = "linear";
    if ws.len() != ys.len() {
        return Err(Error::shape(OP, format!("{} outputs", ws.len()), ys.len()));
    }
    for (w, y) in ws.iter().zip(ys.iter()) {
        if w.slabs() != 1 || w.cols() != x.cols() {
            return Err(Error::shape(
                OP,
                format!("a matrix [1, n, {}]", x.cols()),
                format!("{:?}", w.shape()),
            ));
        }
        expect(OP, "y", y, x.rows(), w.rows())?;
    }
    match x.device() {
        Device::Cpu(cpu) => cpu::linear::linear_many(cpu, ws, x, ys, precision),
        Device::Cuda(_) => cuda::linear::linear_many(ws, x, ys, precision),
    }
}

/// Rounds rows to int8 tiles, the input of [`linear_int8`]. `x` and `q` are `[m, k]`.
///
/// # Errors
/// [`Error::Shape`] if they do not fit or `k` is no multiple of 32; those of a launch.
pub fn quantize(x: &Tensor, q: &mut QuantizedTiles) -> Result<()> {
    const OP: &str = "quantize";
    if q.shape() != x.shape() || !x.cols().is_multiple_of(32) {
        let expected = format!("q {:?}, columns a multiple of 32", x.shape());
        return Err(Error::shape(OP, expected, format!("{:?}", q.shape())));
    }
    cuda::linear_int8::quantize(x, q)
}

/// [`linear`] with [`Precision::Fast`], of a matrix in tiles ([`Matrix::for_fast_linear`]) on activations that were rounded
/// before, by [`quantize`]: once for all the matrices that take them.
///
/// # Errors
/// [`Error::Shape`] if they do not fit, [`Error::Unsupported`] for a matrix that is not in tiles; those of a launch.
pub fn linear_int8(w: &Matrix, x: &mut QuantizedTiles, y: &mut Tensor) -> Result<()> {
    const OP: &str = "linear_int8";
    let [m, k] = x.shape();
    if w.slabs() != 1 || w.cols() != k {
        return Err(Error::shape(OP, format!("a matrix [1, n, {k}]"), format!("{:?}", w.shape())));
    }
    expect(OP, "y", y, m, w.rows())?;
    cuda::linear_int8::linear_int8(w, x, y)
}

/// One matrix per head: `y[t][head h] = W[h] x[t][head h]`. `w` is `[heads, n, k]`; the head parts of `x` are `k` wide,
/// those of `y` are `n` wide; columns of `y` outside them keep their values. Absorbing `k_b` and applying `v_b` are such
/// layers. [`Precision::Fast`] rounds the activations to bf16 here, not to int8.
///
/// # Errors
/// [`Error::Shape`] if counts, widths or rows do not fit.
pub fn head_linear(
    w: &Matrix,
    x: &Tensor,
    x_heads: Heads,
    y: &mut Tensor,
    y_heads: Heads,
    precision: Precision,
) -> Result<()> {
    const OP: &str = "head_linear";
    let [heads, n, k] = w.shape();
    if x_heads.n != heads || x_heads.len != k || !x_heads.fits(x.cols()) {
        let want = format!("{heads} heads of {k} in rows of {}", x.cols());
        return Err(Error::shape(OP, want, format!("x {x_heads:?}")));
    }
    if y_heads.n != heads || y_heads.len != n || !y_heads.fits(y.cols()) || y.rows() != x.rows() {
        let want = format!("{heads} heads of {n} in {} rows of {}", x.rows(), y.cols());
        return Err(Error::shape(OP, want, format!("y {y_heads:?} in {:?}", y.shape())));
    }
    match x.device() {
        Device::Cpu(cpu) => cpu::linear::head_linear(cpu, w.cpu()?, x, x_heads, y, y_heads, precision),
        Device::Cuda(_) => cuda::linear::head_linear(w, x, x_heads, y, y_heads, precision),
    }
}
