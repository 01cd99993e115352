//! SwiGLU feed-forward: `down (silu(gate x) * up x)`.

pub mod reference;

use super::expect;
use super::linear::LinearInput;
use crate::error::{Error, Result};
use crate::quant::Weight;
use crate::quant::tiles::tile_bytes;
use crate::tensor::{Device, Matrix, Precision, Tensor};
use crate::{cpu, cuda};

/// Weights of a SwiGLU layer, or a stack of them (experts): `gate`, `up` `[slabs, ff, hidden]`, `down` `[slabs, hidden, ff]`.
#[derive(Debug, Clone)]
pub struct Ffn {
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

impl Ffn {
    /// Puts three matrices (or stacks of them) together.
    ///
    /// # Errors
    /// [`Error::Shape`] if they do not fit.
    pub fn new(gate: Matrix, up: Matrix, down: Matrix) -> Result<Self> {
        let [slabs, ff, hidden] = gate.shape();
        if up.shape() != gate.shape() {
            return Err(Error::shape("ffn", format!("up {:?}", gate.shape()), format!("{:?}", up.shape())));
        }
        if down.shape() != [slabs, hidden, ff] {
            let want = format!("down {:?}", [slabs, hidden, ff]);
            return Err(Error::shape("ffn", want, format!("{:?}", down.shape())));
        }
        Ok(Ffn { gate, up, down })
    }

    /// On a device, for [`Precision::Fast`]: on a GPU in tiles ([`Matrix::for_fast_linear`]) if the types of all three have them, and else in
    /// blocks, since experts are all of the one kind or the other.
    ///
    /// # Errors
    /// As [`Ffn::new`] and [`Matrix::for_fast_linear`].
    pub fn for_fast_linear(device: &Device, gate: Weight, up: Weight, down: Weight) -> Result<Self> {
        let weights = [gate, up, down];
        let in_tiles = weights.iter().all(|w| tile_bytes(w.ty()).is_some());
        let [gate, up, down] = weights.map(|w| match in_tiles {
            true => Matrix::for_fast_linear(device, w),
            false => Matrix::new(device, w),
        });
        Self::new(gate?, up?, down?)
    }

    /// Whether all three are in tiles.
    pub(crate) fn is_tiled(&self) -> bool {
        [&self.gate, &self.up, &self.down].iter().all(|w| w.is_tiled())
    }

    /// `[slabs, ff, hidden]`.
    pub fn gate(&self) -> &Matrix {
        &self.gate
    }

    /// `[slabs, ff, hidden]`.
    pub fn up(&self) -> &Matrix {
        &self.up
    }

    /// `[slabs, hidden, ff]`.
    pub fn down(&self) -> &Matrix {
        &self.down
    }

    /// Width of input and output.
    pub fn hidden(&self) -> usize {
        self.gate.cols()
    }

    /// Width between.
    pub fn ff(&self) -> usize {
        self.gate.rows()
    }

    /// Number of experts (1 for a plain layer).
    pub fn slabs(&self) -> usize {
        self.gate.slabs()
    }
}

/// `y = down (silu(gate x) * up x)`. `w` has one slab; `x`, `y` `[m, hidden]`.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub fn ffn(w: &Ffn, x: &Tensor, y: &mut Tensor, precision: Precision) -> Result<()> {
    if w.slabs() != 1 {
        return Err(Error::shape("ffn", "one slab", w.slabs()));
    }
    expect("ffn", "x", x, x.rows(), w.hidden())?;
    expect("ffn", "y", y, x.rows(), w.hidden())?;
    match x.device() {
        Device::Cpu(cpu) => cpu::moe::ffn(cpu, w, x, y, precision),
        Device::Cuda(_) => cuda::ffn::ffn(w, x, y, precision),
    }
}

/// What is between the two halves of a feed-forward layer, reused from step to step: once grown it is kept, so that a step that was run can be
/// recorded in a graph. On the CPU it is empty.
#[derive(Debug)]
pub struct FfnScratch {
    pub(crate) h: LinearInput,
    /// Where gate and up are launches of their own.
    pub(crate) up: Tensor,
}

impl FfnScratch {
    /// For layers with `ff` values between their halves.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn new(device: &Device, ff: usize) -> Result<Self> {
        Ok(FfnScratch { h: LinearInput::new(device, ff)?, up: Tensor::zeros(device, 0, ff)? })
    }
}

/// [`ffn`] of rows that keep their rounded form. With matrices in tiles, gate and up of one type, two launches and the rounding between them.
///
/// # Errors
/// As [`ffn`]; [`Error::Shape`] if the scratch is for another width.
pub fn ffn_from(
    w: &Ffn,
    x: &mut LinearInput,
    scratch: &mut FfnScratch,
    y: &mut Tensor,
    precision: Precision,
) -> Result<()> {
    if w.slabs() != 1 {
        return Err(Error::shape("ffn", "one slab", w.slabs()));
    }
    let m = x.values().rows();
    expect("ffn", "x", x.values(), m, w.hidden())?;
    expect("ffn", "y", y, m, w.hidden())?;
    match x.values().device().clone() {
        Device::Cpu(cpu) => cpu::moe::ffn(&cpu, w, x.values(), y, precision),
        Device::Cuda(_) => {
            expect("ffn", "scratch", &scratch.up, scratch.up.rows(), w.ff())?;
            cuda::ffn::ffn_from(w, x, scratch, y, precision)
        }
    }
}

/// `y[i] = silu(gate[i]) * up[i]`, `silu(z) = z / (1 + exp(-z))`. All of one shape.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub fn swiglu(gate: &Tensor, up: &Tensor, y: &mut Tensor) -> Result<()> {
    expect("swiglu", "up", up, gate.rows(), gate.cols())?;
    expect("swiglu", "y", y, gate.rows(), gate.cols())?;
    match gate.device() {
        Device::Cpu(cpu) => cpu::moe::swiglu(cpu, gate.cpu()?, up.cpu()?, gate.cols(), y.cpu_mut()?),
        Device::Cuda(_) => cuda::ffn::swiglu(gate, up, y),
    }
}
