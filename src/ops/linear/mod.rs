//! Linear layers: `y = W x` with the weight in any supported block type.

pub mod config;
pub mod gemm;
mod heads;
mod input;
pub mod reference;
mod rotated;

pub use heads::{HeadScratch, head_linear, head_linear_from, head_linear_into};
pub use input::{InputForms, LinearInput, Rounded, linear_from};
use rotated::expect_rotated;
pub use rotated::{Rotated, linear_rotated};

use super::expect;
use crate::error::{Error, Result};
use crate::kernels::Entry;
use crate::tensor::{Device, Heads, Matrix, Precision, QuantizedTiles, Tensor};
use crate::{cpu, cuda};

/// `y[t][j] = sum_i W[j][i] x[t][i]`. `w` is `[1, n, k]`, `x` `[m, k]`, `y` `[m, n]`.
///
/// On GPUs products of F32, F16 and BF16 weights whose rows have a multiple of 32 values are good to 2^-19, and an infinity among those
/// weights or their activations makes NaN of the outputs that it reaches.
///
/// Of a matrix in tiles this rounds `x` into memory that it allocates: [`quantize`] once and [`linear_tiled`] are for several
/// layers on one input and for graphs.
///
/// # Errors
/// [`Error::Shape`] if they do not fit, [`Error::Unsupported`] for [`Precision::Exact`] of a matrix in tiles.
pub fn linear(w: &Matrix, x: &Tensor, y: &mut Tensor, precision: Precision) -> Result<()> {
    linear_many(&[w], x, &mut [y], precision)
}

/// [`linear`] of a matrix in blocks on a GPU by a kernel of [`linear_kernels`] in place of the one that is chosen: for benches and
/// tests.
///
/// # Errors
/// As [`linear`]; [`Error::Unsupported`] if the kernel is for another problem, and for a matrix in tiles.
pub fn linear_by(kernel: Entry, w: &Matrix, x: &Tensor, y: &mut Tensor, precision: Precision) -> Result<()> {
    expect_linear(w, x, y)?;
    cuda::linear::linear_by(kernel, w, x, y, precision)
}

/// The kernels that can multiply a matrix in blocks by `x`: first the one that [`linear`] chooses.
///
/// # Errors
/// [`Error::Unsupported`] elsewhere than on a GPU, and for a matrix in tiles.
pub fn linear_kernels(w: &Matrix, x: &Tensor) -> Result<Vec<Entry>> {
    cuda::linear::kernels(w, x)
}

fn expect_linear(w: &Matrix, x: &Tensor, y: &Tensor) -> Result<()> {
    const OP: &str = "linear";
    if w.slabs() != 1 || w.cols() != x.cols() {
        return Err(Error::shape(OP, format!("a matrix [1, n, {}]", x.cols()), format!("{:?}", w.shape())));
    }
    expect(OP, "y", y, x.rows(), w.rows())
}

/// Several matrices on one input: `ys[i] = ws[i] x`. Shapes as in [`linear`]. One parallel region on the CPU; on GPUs a launch
/// for each matrix in blocks, and for up to four of a type in tiles, with which those of F32 go as in [`Unrounded`].
///
/// # Errors
/// [`Error::Shape`] if any of them does not fit, [`Error::Unsupported`] for [`Precision::Exact`] of a matrix in tiles; nothing is
/// written then.
pub fn linear_many(ws: &[&Matrix], x: &Tensor, ys: &mut [&mut Tensor], precision: Precision) -> Result<()> {
    expect_many(ws, x, ys)?;
    match x.device() {
        Device::Cpu(cpu) => cpu::linear::linear_many(cpu, ws, x, ys, precision),
        Device::Cuda(_) => cuda::linear::linear_many(ws, x, None, ys, Vec::new(), precision),
    }
}

fn expect_many(ws: &[&Matrix], x: &Tensor, ys: &[&mut Tensor]) -> Result<()> {
    if ws.len() != ys.len() {
        return Err(Error::shape("linear", format!("{} outputs", ws.len()), ys.len()));
    }
    ws.iter().zip(ys).try_for_each(|(w, y)| expect_linear(w, x, y))
}

/// Rounds rows to the format of `q`, the input of [`linear_tiled`]. `x` and `q` are `[m, k]`.
///
/// # Errors
/// [`Error::Shape`] if they do not fit or `k` is no multiple of 32; those of a launch.
pub fn quantize(x: &Tensor, q: &mut QuantizedTiles) -> Result<()> {
    const OP: &str = "quantize";
    if q.shape() != x.shape() || q.slabs() != 1 || !x.cols().is_multiple_of(32) {
        let expected = format!("q {:?}, columns a multiple of 32", x.shape());
        return Err(Error::shape(OP, expected, format!("{} parts of {:?}", q.slabs(), q.shape())));
    }
    cuda::linear_tiled::quantize(x, Heads::one(0, x.cols()), q)
}

/// The same of a part of each row for each head, the input of [`head_linear_tiled`].
///
/// # Errors
/// [`Error::Shape`] if they do not fit or parts are no multiple of 32 wide; [`Error::Unsupported`] if they do not begin at
/// multiples of 4 columns; those of a launch.
pub fn quantize_heads(x: &Tensor, x_heads: Heads, q: &mut QuantizedTiles) -> Result<()> {
    const OP: &str = "quantize_heads";
    let there = [q.slabs(), q.shape()[0], q.shape()[1]];
    if there != [x_heads.n, x.rows(), x_heads.len] || !x_heads.len.is_multiple_of(32) {
        let expected = format!("q {:?}, columns a multiple of 32", [x_heads.n, x.rows(), x_heads.len]);
        return Err(Error::shape(OP, expected, format!("{there:?}")));
    }
    if !x_heads.fits(x.cols()) {
        return Err(Error::shape(OP, format!("parts within {} columns", x.cols()), format!("{x_heads:?}")));
    }
    cuda::linear_tiled::quantize(x, x_heads, q)
}

/// What a call on rounded activations can have besides.
#[derive(Debug, Default)]
pub struct TiledOptions<'a> {
    /// Further matrices on the same input.
    pub unrounded: Option<Unrounded<'a>>,
    /// Parts of the outputs of [`linear_tiled_with`] that are rotated on their way.
    pub rotated: Vec<Rotated<'a>>,
    /// A kernel of [`tiled_kernels`] in place of the one that is chosen: for benches and tests.
    pub kernel: Option<Entry>,
}

/// Matrices in blocks that take the activations as they were before they were rounded: `ys[i] = ws[i] x`, as [`linear`] with
/// [`Precision::Exact`] has it. Those of F32, such as a router's or the indexer's weights, are in the launch of matrices in tiles, and in
/// plain f32 arithmetic, where that is one of `linear_decode`: up to 16 tokens on int8 activations, up to 8 of very many rows. It has room
/// for four matrices in all. Others are launches of their own.
#[derive(Debug)]
pub struct Unrounded<'a> {
    /// `[m, k]`
    pub x: &'a Tensor,
    /// `[1, n, k]` each.
    pub ws: &'a [&'a Matrix],
    /// `[m, n]` each.
    pub ys: &'a mut [&'a mut Tensor],
}

impl TiledOptions<'_> {
    /// Fails unless what is unrounded fits an input of `shape`.
    fn expect(&self, op: &'static str, shape: [usize; 2]) -> Result<()> {
        let Some(Unrounded { x, ws, ys }) = &self.unrounded else { return Ok(()) };
        if x.shape() != shape {
            return Err(Error::shape(op, format!("unrounded x {shape:?}"), format!("{:?}", x.shape())));
        }
        if ws.len() != ys.len() {
            return Err(Error::shape(op, format!("{} unrounded outputs", ws.len()), ys.len()));
        }
        ws.iter().zip(ys.iter()).try_for_each(|(w, y)| expect_linear(w, x, y))
    }
}

/// [`linear_many`] with [`Precision::Fast`], of matrices in tiles ([`Matrix::for_fast_linear`]) on activations that were rounded
/// before, by [`quantize`]. Up to four matrices of a type are one launch.
///
/// # Errors
/// [`Error::Shape`] if they do not fit, [`Error::Unsupported`] for a matrix that is not in tiles; nothing is written then. Those
/// of a launch.
pub fn linear_tiled(ws: &[&Matrix], x: &mut QuantizedTiles, ys: &mut [&mut Tensor]) -> Result<()> {
    linear_tiled_with(TiledOptions::default(), ws, x, ys)
}

/// [`linear_tiled`] with options.
///
/// # Errors
/// As [`linear_tiled`], for matrices that are unrounded as [`linear`], for parts that are rotated as [`linear_rotated`];
/// [`Error::Unsupported`] if a kernel is given that does not suit all of `ws`.
pub fn linear_tiled_with(
    options: TiledOptions<'_>,
    ws: &[&Matrix],
    x: &mut QuantizedTiles,
    ys: &mut [&mut Tensor],
) -> Result<()> {
    const OP: &str = "linear_tiled";
    if ws.len() != ys.len() {
        return Err(Error::shape(OP, format!("{} outputs", ws.len()), ys.len()));
    }
    for (w, y) in ws.iter().zip(ys.iter()) {
        expect_tiled(OP, w, x)?;
        expect(OP, "y", y, x.shape()[0], w.rows())?;
    }
    options.expect(OP, x.shape())?;
    expect_rotated(ws, ys, &options.rotated)?;
    cuda::linear_tiled::linear_tiled(ws, x, ys, options)
}

/// `y[t][j] = silu((gate x)[t][j]) * (up x)[t][j]`, the first half of a SwiGLU layer, in one launch. The matrices are of one type
/// and shape, and as [`linear_tiled`] takes them; the sums are those that it computes, and silu is in f32.
///
/// # Errors
/// As [`linear_tiled`]; [`Error::Unsupported`] for two types.
pub fn swiglu_tiled(gate: &Matrix, up: &Matrix, x: &mut QuantizedTiles, y: &mut Tensor) -> Result<()> {
    swiglu_tiled_with(TiledOptions::default(), gate, up, x, y)
}

/// [`swiglu_tiled`] with options.
///
/// # Errors
/// As [`swiglu_tiled`], and as [`linear_tiled_with`]; [`Error::Unsupported`] for outputs that are rotated.
pub fn swiglu_tiled_with(
    options: TiledOptions<'_>,
    gate: &Matrix,
    up: &Matrix,
    x: &mut QuantizedTiles,
    y: &mut Tensor,
) -> Result<()> {
    const OP: &str = "swiglu_tiled";
    expect_tiled(OP, gate, x)?;
    if up.shape() != gate.shape() {
        return Err(Error::shape(OP, format!("up {:?}", gate.shape()), format!("{:?}", up.shape())));
    }
    let [gate_ty, up_ty] = [gate.tiles()?.ty, up.tiles()?.ty];
    if gate_ty != up_ty {
        return Err(Error::unsupported(format!("gate {gate_ty} and up {up_ty}"), "both must be of one type"));
    }
    expect(OP, "y", y, x.shape()[0], gate.rows())?;
    options.expect(OP, x.shape())?;
    if !options.rotated.is_empty() {
        return Err(Error::unsupported("swiglu of rotated outputs", "only linear layers have them"));
    }
    cuda::linear_tiled::swiglu_tiled(gate, up, x, y, options)
}

/// [`head_linear`] with [`Precision::Fast`], of a stack of matrices in tiles on activations that were rounded before, by
/// [`quantize_heads`].
///
/// # Errors
/// As [`head_linear`]; [`Error::Unsupported`] for matrices that are not in tiles.
pub fn head_linear_tiled(w: &Matrix, x: &mut QuantizedTiles, y: &mut Tensor, y_heads: Heads) -> Result<()> {
    const OP: &str = "head_linear_tiled";
    let [heads, n, k] = w.shape();
    if x.slabs() != heads || x.shape()[1] != k {
        let want = format!("{heads} heads of {k}");
        return Err(Error::shape(OP, want, format!("x with {} parts of {}", x.slabs(), x.shape()[1])));
    }
    expect_heads(OP, "y", y_heads, [heads, n], y, x.shape()[0])?;
    cuda::linear_tiled::head_linear_tiled(w, x, y, y_heads)
}

/// The kernels that can multiply matrices in tiles, all of one type, by `x` in one launch: first the one that [`linear_tiled`]
/// chooses, or [`swiglu_tiled`] if `glu`, of gate and up.
///
/// # Errors
/// [`Error::Unsupported`] for a matrix that is not in tiles.
pub fn tiled_kernels(ws: &[&Matrix], x: &QuantizedTiles, glu: bool) -> Result<Vec<Entry>> {
    cuda::linear_tiled::tiled_kernels(ws, x, glu)
}

/// Parts of rows that are outputs of `n` for each of `heads`.
fn expect_heads(
    op: &'static str,
    name: &str,
    parts: Heads,
    [heads, n]: [usize; 2],
    y: &Tensor,
    rows: usize,
) -> Result<()> {
    if parts.n != heads || parts.len != n || !parts.fits(y.cols()) || y.rows() != rows {
        let want = format!("{heads} heads of {n} in {rows} rows of {}", y.cols());
        return Err(Error::shape(op, want, format!("{name} {parts:?} in {:?}", y.shape())));
    }
    Ok(())
}

fn expect_tiled(op: &'static str, w: &Matrix, x: &QuantizedTiles) -> Result<()> {
    let [_, k] = x.shape();
    match w.slabs() == 1 && x.slabs() == 1 && w.cols() == k {
        true => Ok(()),
        false => Err(Error::shape(op, format!("a matrix [1, n, {k}]"), format!("{:?}", w.shape()))),
    }
}
