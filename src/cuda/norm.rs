//! Launches of norm_quantize and layer_norm. Shapes were checked by [`crate::ops`].

use std::ops::Range;
use std::ptr::{null, null_mut};

use super::dequantize::{count, holds};
use super::{Buffer, Gpu};
use crate::error::Result;
use crate::ops::linear::InputForms;
use crate::ops::norm::config::{NormConfig, NormProblem};
use crate::quant::{ActBlockSize, GgmlType};
use crate::sys::{layer_norm_params, norm_quantize_params, norm_tiles_params};
use crate::tensor::{ActivationFormat, Float, QuantizedRows, Tensor};

/// Params that ask for nothing: no residual, no outputs.
fn params(w: &Buffer<f32>, stride: usize, n: usize, eps: f32) -> norm_quantize_params {
    norm_quantize_params {
        x: null_mut(),
        r: null_mut(),
        w: w.as_prologue_ptr(),
        y: null_mut(),
        qs: null_mut(),
        scales: null_mut(),
        sums: null_mut(),
        x_stride: stride as u64,
        y_stride: stride as u64,
        n: n as u32, // no kernel holds more, so the configuration would have failed
        eps,
    }
}

fn pick(
    gpu: &Gpu,
    rows: usize,
    n: usize,
    out: GgmlType,
    block: ActBlockSize,
    aligned: bool,
) -> Result<NormConfig> {
    let aligned = aligned && n.is_multiple_of(4);
    NormConfig::pick(NormProblem { rows, n, out, block, aligned }, gpu.properties().sms)
}

/// `y = rms_norm(x)`, `[m, n]` both.
pub(crate) fn rms_norm(x: &Tensor, w: &Tensor, eps: f32, y: &mut Tensor) -> Result<()> {
    let [m, n] = x.shape();
    let (x, w, y) = (x.cuda()?, w.cuda()?, y.cuda_mut()?);
    let gpu = x.gpu().with(w)?.with(y)?.clone();
    let config = pick(&gpu, m, n, GgmlType::F32, ActBlockSize::B32, true)?;
    let _turn = gpu.turn();
    let mut params = params(w, n, n, eps);
    params.x = x.as_ptr().cast_mut(); // not written without a residual
    params.y = y.as_mut_ptr().cast();
    // SAFETY: x and y have `m` rows of `n` values and w has `n`, as the caller checked; all lie on this device.
    unsafe { gpu.launch(config.entry, [config.grid, 1, 1], &params) }
}

/// RMSNorm of columns `cols` of `x` in place.
pub(crate) fn rms_norm_cols(x: &mut Tensor, cols: Range<usize>, w: &Tensor, eps: f32) -> Result<()> {
    let [m, stride] = x.shape();
    let (x, w) = (x.cuda_mut()?, w.cuda()?);
    let gpu = x.gpu().with(w)?.clone();
    let aligned = stride.is_multiple_of(4) && cols.start.is_multiple_of(4);
    let config = pick(&gpu, m, cols.len(), GgmlType::F32, ActBlockSize::B32, aligned)?;
    let _turn = gpu.turn();
    let mut params = params(w, stride, cols.len(), eps);
    params.x = x.as_mut_ptr().wrapping_add(cols.start);
    params.y = params.x.cast();
    // SAFETY: the columns lie within the rows of x and w has as many values, as the caller checked. Each thread writes what
    // it alone has read.
    unsafe { gpu.launch(config.entry, [config.grid, 1, 1], &params) }
}

/// `x += r` if there is one; `y = rms_norm(x)` and its quants, whichever is asked for.
pub(crate) fn norm_quantize<Y: Float>(
    x: &mut Tensor,
    r: Option<&Tensor>,
    w: &Tensor,
    eps: f32,
    y: Option<&mut Tensor<Y>>,
    q: Option<&mut QuantizedRows>,
) -> Result<()> {
    let [m, n] = x.shape();
    let (x, w) = (x.cuda_mut()?, w.cuda()?);
    let gpu = x.gpu().with(w)?.clone();
    let block = q.as_ref().map_or(ActBlockSize::B32, |q| q.block());
    let config = pick(&gpu, m, n, Y::TYPE, block, true)?;
    let _turn = gpu.turn();
    let mut params = params(w, n, n, eps);
    params.x = x.as_mut_ptr();
    if let Some(r) = r {
        let r = r.cuda()?;
        gpu.with(r)?;
        params.r = r.as_ptr();
    }
    if let Some(y) = y {
        let y = y.cuda_mut()?;
        gpu.with(y)?;
        params.y = y.as_mut_ptr().cast();
    }
    if let Some(q) = q {
        let q = q.cuda_mut()?;
        gpu.with(&q.qs)?;
        params.qs = q.qs.as_mut_ptr();
        params.scales = q.scales.as_mut_ptr();
        params.sums = q.sums.as_mut_ptr();
    }
    // SAFETY: all have `m` rows of `n` values and w has `n`, and rows are whole blocks if they are quantized, as the caller
    // checked; all lie on this device.
    unsafe { gpu.launch(config.entry, [config.grid, 1, 1], &params) }
}

/// `x += r` if there is one; `y = rms_norm(x)` and the rounded forms that are there. Rows are whole blocks of 32 values.
pub(crate) fn norm_tiles(
    x: &mut Tensor,
    r: Option<&Tensor>,
    w: &Tensor,
    eps: f32,
    InputForms { values, tiles, rows }: InputForms<'_>,
) -> Result<()> {
    let [m, n] = x.shape();
    let (x, w, y) = (x.cuda_mut()?, w.cuda()?, values.cuda_mut()?);
    let gpu = x.gpu().with(w)?.with(y)?.clone();
    let config = NormConfig::pick_tiles(m, n, tiles.is_some(), gpu.properties().sms)?;
    let _turn = gpu.turn();
    let mut params = norm_tiles_params {
        x: x.as_mut_ptr(),
        r: null(),
        w: w.as_prologue_ptr(),
        y: y.as_mut_ptr(),
        tiles: null_mut(),
        rows: null_mut(),
        n_rows: count("rows", m)?,
        n: n as u32, // no kernel holds more, so the configuration would have failed
        f16_tiles: 0,
        eps,
    };
    if let Some(r) = r {
        let r = r.cuda()?;
        gpu.with(r)?;
        params.r = r.as_ptr();
    }
    if let Some(tiles) = tiles {
        gpu.with(tiles.tiles())?;
        holds("norm", tiles.tiles(), tiles.bytes())?;
        params.f16_tiles = (tiles.format() == ActivationFormat::F16).into();
        params.tiles = tiles.tiles_mut().as_mut_ptr().cast();
    }
    if let Some(rows) = rows {
        gpu.with(rows.rows())?;
        params.rows = rows.rows_mut().as_mut_ptr().cast();
    }
    // SAFETY: all have `m` rows of `n` values and w has `n`, as the caller checked; tiles and rows were made for these; all lie on this device.
    // Buffers are aligned to 256, and rows have whole blocks.
    unsafe { gpu.launch(config.entry, [config.grid, 1, 1], &params) }
}

/// LayerNorm of `x` `[m, n]` in place.
pub(crate) fn layer_norm(x: &mut Tensor, w: &Tensor, b: &Tensor, eps: f32) -> Result<()> {
    let [m, n] = x.shape();
    let (x, w, b) = (x.cuda_mut()?, w.cuda()?, b.cuda()?);
    let gpu = x.gpu().with(w)?.with(b)?.clone();
    let config = NormConfig::pick_layer_norm(m, n, gpu.properties().sms)?;
    let _turn = gpu.turn();
    let params = layer_norm_params {
        x: x.as_mut_ptr(),
        w: w.as_prologue_ptr(),
        b: b.as_prologue_ptr(),
        n: n as u32,
        eps,
    };
    // SAFETY: x has `m` rows of `n` values, w and b have `n`, as the caller checked; all lie on this device.
    unsafe { gpu.launch(config.entry, [config.grid, 1, 1], &params) }
}
