//! Launches of swiglu, and of feed-forward layers. Shapes were checked by [`crate::ops`].

use super::Buffer;
use super::dequantize::holds;
use super::linear::{self, linear_many};
use super::moe_shared::together;
use crate::error::{Error, Result};
use crate::kernels;
use crate::ops::ffn::{Ffn, FfnScratch};
use crate::ops::linear::{LinearInput, linear_from, swiglu_tiled};
use crate::sys::swiglu_params;
use crate::tensor::{Precision, Tensor};

/// `y = silu(gate) * up`.
pub(crate) fn swiglu(gate: &Tensor, up: &Tensor, y: &mut Tensor) -> Result<()> {
    let n = gate.rows() * gate.cols();
    let (gate, up, y) = (gate.cuda()?, up.cuda()?, y.cuda_mut()?);
    let gpu = gate.gpu().with(up)?.with(y)?.clone();
    holds("swiglu", gate, n)?;
    holds("swiglu", y, n)?;
    let _turn = gpu.turn();
    let (gate, out) = (gate.as_ptr(), y.as_mut_ptr());
    launch(gate, up, out, n)
}

/// `gate = silu(gate) * up`, `n` values.
pub(super) fn swiglu_in_place(gate: &mut Buffer<f32>, up: &Buffer<f32>, n: usize) -> Result<()> {
    let gpu = gate.gpu().with(up)?.clone();
    holds("swiglu", gate, n)?;
    let _turn = gpu.turn();
    let gate = gate.as_mut_ptr();
    launch(gate.cast_const(), up, gate, n)
}

/// Finds out whether [`swiglu_in_place`] of so many values can be launched.
pub(super) fn prepare(gpu: &super::Gpu, n: usize) -> Result<()> {
    let (entry, grid) = config(n)?;
    gpu.prepare(entry, [grid, 1, 1])
}

fn config(n: usize) -> Result<(kernels::Entry, u32)> {
    let found = kernels::swiglu::INSTANCES.first();
    let found = found.ok_or_else(|| Error::unsupported("swiglu", "no kernel was built for it"))?;
    let blocks = n.div_ceil((128 * found.warps * found.unroll) as usize);
    let what = || Error::Capacity {
        what: "blocks of a grid".into(),
        needed: blocks as u64,
        available: u32::MAX.into(),
    };
    Ok((found.entry, u32::try_from(blocks).map_err(|_| what())?))
}

/// `gate` and `y` have `n` values on the device of `up`, and were taken in this turn.
fn launch(gate: *const f32, up: &Buffer<f32>, y: *mut f32, n: usize) -> Result<()> {
    holds("swiglu", up, n)?;
    let (entry, grid) = config(n)?;
    let params = swiglu_params { gate, up: up.as_ptr(), y, n: n as u64 };
    // SAFETY: all have `n` values on one device, as was checked here and by the callers. Buffers are aligned to 256.
    unsafe { up.gpu().launch(entry, [grid, 1, 1], &params) }
}

/// `y = down (silu(gate x) * up x)`, in memory of this call, so that it cannot be recorded in a graph.
pub(crate) fn ffn(w: &Ffn, x: &Tensor, y: &mut Tensor, precision: Precision) -> Result<()> {
    let gpu = x.cuda()?.gpu();
    gpu.with(y.cuda()?)?;
    let _turn = gpu.turn();
    let (m, ff) = (x.rows(), w.ff());
    let [mut gate, mut up] = [Tensor::zeros(x.device(), m, ff)?, Tensor::zeros(x.device(), m, ff)?];
    prepare(gpu, m * ff)?;
    if !w.down().is_tiled() {
        linear::prepare(w.down(), &gate)?;
    }
    linear_many(&[w.gate(), w.up()], x, None, &mut [&mut gate, &mut up], Vec::new(), precision)?;
    swiglu_in_place(gate.cuda_mut()?, up.cuda()?, m * ff)?;
    linear_many(&[w.down()], &gate, None, &mut [y], Vec::new(), precision)
}

/// The same in memory that is kept.
pub(crate) fn ffn_from(
    w: &Ffn,
    x: &mut LinearInput,
    scratch: &mut FfnScratch,
    y: &mut Tensor,
    precision: Precision,
) -> Result<()> {
    let gpu = x.values().cuda()?.gpu().with(y.cuda()?)?.clone();
    let _turn = gpu.turn();
    let FfnScratch { h, up } = scratch;
    let (m, n) = (x.values().rows(), x.values().rows() * w.ff());
    h.resize(m)?;
    let both = together(w)? && precision == Precision::Fast;
    // Rounded only for those that take it so.
    if both && let (_, Some(x)) = x.rounded()? {
        swiglu_tiled(w.gate(), w.up(), x, h.values_mut())?;
    } else {
        up.resize(m)?;
        prepare(&gpu, n)?;
        linear_from(&[w.gate(), w.up()], x, &mut [h.values_mut(), up], &mut [], precision)?;
        swiglu_in_place(h.values_mut().cuda_mut()?, up.cuda()?, n)?;
    }
    linear_from(&[w.down()], h, &mut [y], &mut [], precision)
}
