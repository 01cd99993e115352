//! Launches of the linear layers. Shapes were checked by [`crate::ops`].

use super::dequantize::{count, holds, row_bytes};
use super::linear_tiled;
use crate::error::{Error, Result};
use crate::kernels::Entry;
use crate::ops::linear::config::{LinearConfig, LinearProblem};
use crate::ops::linear::{Rotated, TiledOptions, Unrounded};
use crate::quant::GgmlType;
use crate::sys::{ROUND_BF16, ROUND_INT8, ROUND_NONE, linear_params, linear_round};
use crate::tensor::{Heads, Matrix, Precision, QuantizedTiles, Tensor};

pub(super) const TILES_ARE_FAST: &str = "a matrix in tiles takes rounded activations: precision `fast`";

/// `ys[i] = ws[i] x`: one launch for each matrix in blocks. Those in tiles share launches, and activations that are rounded once:
/// `x_rounded`, or else into memory of this call, so that it cannot be recorded in a graph. Parts are `rotated` only if all are in tiles.
pub(crate) fn linear_many(
    ws: &[&Matrix],
    x: &Tensor,
    x_rounded: Option<&mut QuantizedTiles>,
    ys: &mut [&mut Tensor],
    rotated: Vec<Rotated<'_>>,
    precision: Precision,
) -> Result<()> {
    let _turn = x.cuda()?.gpu().turn();
    if precision != Precision::Fast && ws.iter().any(|w| w.is_tiled()) {
        return Err(Error::unsupported("an exact linear layer", TILES_ARE_FAST));
    }
    let (mut in_tiles, mut tiled_ys) = (Vec::new(), Vec::new());
    let (mut unrounded, mut unrounded_ys) = (Vec::new(), Vec::new());
    let mut in_blocks = Vec::new();
    let tiles = ws.iter().any(|w| w.is_tiled());
    for (w, y) in ws.iter().zip(ys) {
        if w.is_tiled() {
            in_tiles.push(*w);
            tiled_ys.push(&mut **y);
        } else if tiles && w.cuda()?.ty == GgmlType::F32 {
            unrounded.push(*w);
            unrounded_ys.push(&mut **y);
        } else {
            in_blocks.push((w, y));
        }
    }
    // Before addresses are taken that kernels write to: memory that is cleared would count as the end of those kernels.
    let mut own = None;
    if tiles && x_rounded.is_none() {
        own = Some(QuantizedTiles::on(x.cuda()?.gpu(), [x.rows(), 1, x.cols()], None)?);
    }
    let all = in_blocks.into_iter().map(|(w, y)| {
        let (x_part, y_part) = (Heads::one(0, w.cols()), Heads::one(0, w.rows()));
        Launch::new(w, x, x_part, y, y_part, round(w, precision, ROUND_INT8)?, None)
    });
    // None runs unless all can.
    let all = all.collect::<Result<Vec<_>>>()?;
    if let Some(q) = &mut own {
        linear_tiled::quantize(x, Heads::one(0, x.cols()), q)?;
    }
    if let Some(q) = x_rounded.or(own.as_mut()).filter(|_| tiles) {
        let unrounded = Some(Unrounded { x, ws: &unrounded, ys: &mut unrounded_ys });
        linear_tiled::linear_tiled(
            &in_tiles,
            q,
            &mut tiled_ys,
            TiledOptions { unrounded, rotated, kernel: None },
        )?;
    }
    all.iter().try_for_each(|launch| launch.run(x))
}

/// One matrix in blocks per head.
pub(crate) fn head_linear(
    w: &Matrix,
    x: &Tensor,
    x_heads: Heads,
    y: &mut Tensor,
    y_heads: Heads,
    precision: Precision,
) -> Result<()> {
    let _turn = x.cuda()?.gpu().turn();
    Launch::new(w, x, x_heads, y, y_heads, round(w, precision, ROUND_BF16)?, None)?.run(x)
}

/// `y = w x` for a matrix in blocks, by a kernel of [`kernels`].
pub(crate) fn linear_by(
    kernel: Entry,
    w: &Matrix,
    x: &Tensor,
    y: &mut Tensor,
    precision: Precision,
) -> Result<()> {
    let _turn = x.cuda()?.gpu().turn();
    let (x_part, y_part) = (Heads::one(0, w.cols()), Heads::one(0, w.rows()));
    Launch::new(w, x, x_part, y, y_part, round(w, precision, ROUND_INT8)?, Some(kernel))?.run(x)
}

/// Finds out whether the exact product of a matrix in blocks can be launched.
pub(crate) fn prepare(w: &Matrix, x: &Tensor) -> Result<()> {
    let gpu = x.cuda()?.gpu();
    let config = LinearConfig::pick(problem(w, x, Heads::one(0, w.cols()))?, gpu.properties().sms)?;
    gpu.prepare(config.entry, config.grid)
}

/// The kernels that could multiply a matrix in blocks, the one that is chosen first.
pub(crate) fn kernels(w: &Matrix, x: &Tensor) -> Result<Vec<Entry>> {
    let sms = x.cuda()?.gpu().properties().sms;
    Ok(LinearConfig::candidates(problem(w, x, Heads::one(0, w.cols()))?, sms))
}

fn problem(w: &Matrix, x: &Tensor, x_heads: Heads) -> Result<LinearProblem> {
    let ([slabs, n, k], [m, x_cols]) = (w.shape(), x.shape());
    // Buffers are aligned to 256.
    let aligned = [x_cols, x_heads.offset, x_heads.stride].iter().all(|values| values.is_multiple_of(4));
    Ok(LinearProblem { ty: w.cuda()?.ty, m, n, k, slabs, aligned })
}

/// How the activations that meet `w` are rounded; `fast` is how [`Precision::Fast`] rounds them for quantized weights.
pub(super) fn round(w: &Matrix, precision: Precision, fast: linear_round) -> Result<linear_round> {
    let rounds = precision == Precision::Fast && w.cuda()?.ty.is_quantized();
    Ok(if rounds { fast } else { ROUND_NONE })
}

/// A launch whose params were checked.
pub(super) struct Launch {
    config: LinearConfig,
    params: linear_params,
}

impl Launch {
    /// Of a matrix on activations as they are.
    pub(super) fn unrounded(w: &Matrix, x: &Tensor, y: &mut Tensor) -> Result<Self> {
        let (x_part, y_part) = (Heads::one(0, w.cols()), Heads::one(0, w.rows()));
        Launch::new(w, x, x_part, y, y_part, ROUND_NONE, None)
    }

    fn new(
        w: &Matrix,
        x: &Tensor,
        x_heads: Heads,
        y: &mut Tensor,
        y_heads: Heads,
        round: linear_round,
        kernel: Option<Entry>,
    ) -> Result<Self> {
        let problem = problem(w, x, x_heads)?;
        let ([slabs, n, k], [m, x_cols], y_cols) = (w.shape(), x.shape(), y.cols());
        let (w, x, y) = (w.cuda()?, x.cuda()?, y.cuda_mut()?);
        x.gpu().with(&w.blocks)?.with(y)?;
        holds("linear", &w.blocks, slabs * n * row_bytes(w, k)?)?;
        holds("linear", x, m * x_cols)?;
        holds("linear", y, m * y_cols)?;
        let sms = x.gpu().properties().sms;
        let config = match kernel {
            None => LinearConfig::pick(problem, sms)?,
            Some(kernel) => LinearConfig::of(kernel, problem, sms)?,
        };
        x.gpu().prepare(config.entry, config.grid)?;
        let params = linear_params {
            w: w.blocks.as_prologue_ptr().cast(),
            x: x.as_ptr().wrapping_add(x_heads.offset),
            y: y.as_mut_ptr().wrapping_add(y_heads.offset),
            x_stride: x_cols as u64,
            y_stride: y_cols as u64,
            x_head: x_heads.stride as u64,
            y_head: y_heads.stride as u64,
            m: count("tokens", m)?,
            n: count("outputs", n)?,
            k: count("inputs", k)?,
            round,
        };
        Ok(Launch { config, params })
    }

    pub(super) fn run(&self, x: &Tensor) -> Result<()> {
        let gpu = x.cuda()?.gpu();
        // SAFETY: the heads fit rows of x and y, as the caller checked, and w, x and y hold their shapes, as `new` did; all
        // lie on this device, and whoever calls `run` holds their borrows. Buffers are aligned to 256.
        unsafe { gpu.launch(self.config.entry, self.config.grid, &self.params) }
    }
}
