//! Launches of `linear_heads`: one matrix for each head, few tokens. Shapes were checked by [`crate::ops`].

use std::ptr;

use super::dequantize::{count, holds};
use super::linear::TILES_ARE_FAST;
use super::{Gpu, linear_tiled};
use crate::error::{Error, Result};
use crate::kernels;
use crate::ops::linear::config::{HEADS_COLS, HEADS_TOKENS};
use crate::quant::GgmlType;
use crate::quant::tiles::{TILE_COLS, tile_bytes, tiles};
use crate::sys::linear_heads_params;
use crate::tensor::{ActivationFormat, Heads, Matrix, Precision, QuantizedTiles, TILE_TOKENS, Tensor};

/// The kernel for `m` tokens, if there is one for heads of these inputs.
fn kernel(
    ty: GgmlType,
    m: usize,
    x_heads: Heads,
    x_cols: usize,
) -> Option<&'static kernels::linear_heads::Instance> {
    let Heads { stride, offset, len, .. } = x_heads;
    let aligned = [x_cols, stride, offset].iter().all(|values| values.is_multiple_of(4));
    let fits = m <= HEADS_TOKENS && len <= HEADS_COLS && len.is_multiple_of(32);
    let token_tiles = m.div_ceil(TILE_TOKENS).max(1);
    let found =
        kernels::linear_heads::INSTANCES.iter().find(|i| i.ty == ty && i.tokens as usize >= token_tiles);
    found.filter(|_| aligned && fits)
}

/// Whether [`head_linear`] can round what it gives, heads side by side, for the linear layers in tiles that come next.
pub(crate) fn rounds(w: &Matrix, x: &Tensor, x_heads: Heads, y_heads: Heads, y_cols: usize) -> bool {
    let Heads { n, stride, offset, len } = y_heads;
    // Nothing writes what a tile has behind the last head.
    let tiles = len.is_multiple_of(32) && y_cols.is_multiple_of(TILE_COLS);
    let whole = tiles && offset == 0 && stride == len && n.checked_mul(len) == Some(y_cols);
    let int8 = |gpu: &Gpu| linear_tiled::format(gpu, x.rows()) == ActivationFormat::Int8;
    let there = w.tiles().ok().zip(x.cuda().ok());
    there.is_some_and(|(w, x_there)| {
        whole && int8(x_there.gpu()) && kernel(w.ty, x.rows(), x_heads, x.cols()).is_some()
    })
}

/// One matrix in tiles for each head. Of more tokens, or longer parts, `x` is rounded before: into `rounded`, or into memory of this call, so that
/// it cannot be recorded in a graph. With `out`, where [`rounds`] says so, outputs are rounded as well.
pub(crate) fn head_linear(
    w: &Matrix,
    (x, x_heads): (&Tensor, Heads),
    rounded: Option<&mut QuantizedTiles>,
    (y, y_heads): (&mut Tensor, Heads),
    out: Option<&mut QuantizedTiles>,
    precision: Precision,
) -> Result<()> {
    if precision != Precision::Fast {
        return Err(Error::unsupported("an exact linear layer", TILES_ARE_FAST));
    }
    let gpu = x.cuda()?.gpu().clone();
    let _turn = gpu.turn();
    let (m, x_cols, y_cols) = (x.rows(), x.cols(), y.cols());
    let Some(kernel) = kernel(w.tiles()?.ty, m, x_heads, x_cols) else {
        let mut own = None;
        let q = match rounded {
            Some(q) => {
                q.resize(m, x_heads.len)?;
                q
            }
            None => own.insert(QuantizedTiles::on(
                &gpu,
                [m, x_heads.n, x_heads.len],
                Some(ActivationFormat::F16),
            )?),
        };
        linear_tiled::quantize(x, x_heads, q)?;
        return linear_tiled::head_linear_tiled(w, q, y, y_heads);
    };
    let [heads, n, k] = w.shape();
    let w = w.tiles()?;
    let [row_tiles, k_tiles] = tiles(n, k);
    let (x, y) = (x.cuda()?, y.cuda_mut()?);
    gpu.with(&w.tiles)?.with(y)?;
    holds("linear", &w.tiles, heads * row_tiles * k_tiles * tile_bytes(w.ty).unwrap_or(0))?;
    holds("linear", x, m * x_cols)?;
    holds("linear", y, m * y_cols)?;
    let (x_head, y_head) = (count("columns", x_heads.stride)?, count("columns", y_heads.stride)?);
    let (n, k) = (count("outputs", n)?, count("inputs", k)?);
    count("values of a row", y_cols)?; // columns of `out`
    let of_block = 2 * kernel.warps as usize;
    let grid = [count("rows", row_tiles.div_ceil(of_block))?, count("heads", heads)?, 1];
    let out = match out {
        None => ptr::null_mut(),
        Some(q) => {
            gpu.with(q.tiles())?;
            holds("linear", q.tiles(), q.bytes())?;
            q.tiles_mut().as_mut_ptr().cast()
        }
    };
    if m == 0 {
        return Ok(());
    }
    let params = linear_heads_params {
        w: w.tiles.as_prologue_ptr().cast(),
        x: x.as_ptr().wrapping_add(x_heads.offset),
        y: y.as_mut_ptr().wrapping_add(y_heads.offset),
        out,
        x_stride: x_cols as u64,
        y_stride: y_cols as u64,
        x_head,
        y_head,
        m: m as u32,
        n,
        k,
    };
    // SAFETY: heads fit rows of x and y, and `out`, if there, has int8 tiles of rows of `y`, as the caller checked; w, x, y and `out` hold their
    // shapes, as was checked here. Buffers are aligned to 256, and parts of x to 16.
    unsafe { gpu.launch(kernel.entry, grid, &params) }
}
