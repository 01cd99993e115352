//! Launches of dsa_topk. Shapes were checked by [`crate::ops`].

use std::ptr;

use super::dequantize::{count, holds};
use super::{Buffer, Gpu};
use crate::error::{Error, Result};
use crate::ops::dsa_topk::config::{MAX_PARTS, TopkConfig};
use crate::ops::dsa_topk::{Selection, TopkScratch};
use crate::sys::{dsa_topk_params, topk_sharing};
use crate::tensor::Tensor;

/// Looks that a block of threads takes for the others of its row: about half a millisecond, which is longer than others that can run
/// at all keep it waiting. The emulator, which runs few blocks at a time, calls it a livelock if all look much longer.
const PATIENCE: u32 = 1000;

/// How so many blocks of threads share a row of which `k` are selected.
pub(crate) fn sharing(parts: u32, k: u32) -> topk_sharing {
    let (room, want) = TopkConfig::listed(parts, k);
    topk_sharing { parts, room, want, patience: PATIENCE }
}

/// Rows of scores.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// `[m, n]`
    pub scores: &'a Buffer<f32>,
    pub m: usize,
    pub n: usize,
    /// `[m]` of the same GPU: row t sees `visible[t] + more`. Counts, or positions.
    pub visible: *const u32,
    pub more: u32,
}

impl<'a> Rows<'a> {
    /// Of two tensors whose shapes fit.
    pub fn of(scores: &'a Tensor, visible: &Tensor<u32>) -> Result<Self> {
        let ([m, n], visible) = (scores.shape(), visible.cuda()?);
        let scores = scores.cuda()?;
        scores.gpu().with(visible)?;
        holds("top_k", scores, m * n)?;
        holds("top_k", visible, m)?;
        Ok(Rows { scores, m, n, visible: visible.as_ptr(), more: 0 })
    }
}

/// The grid of a launch for `m` rows, or why there is none.
pub(crate) fn prepare(gpu: &Gpu, m: usize, n: usize, config: TopkConfig) -> Result<[u32; 3]> {
    let parts = config.parts as usize;
    if !(1..=MAX_PARTS).contains(&parts) {
        let want = format!("1 to {MAX_PARTS}");
        return Err(Error::argument("blocks of threads of a row", want, parts));
    }
    count("scores of a row", n)?;
    let grid = [count("blocks of a grid", m.saturating_mul(parts))?, 1, 1];
    gpu.prepare(config.entry, grid)?;
    Ok(grid)
}

/// Writes rows `first..` of `out`, which has them.
pub(crate) fn top_k(
    rows: Rows<'_>,
    config: TopkConfig,
    scratch: &mut TopkScratch,
    first: usize,
    out: &mut Selection,
) -> Result<()> {
    let (gpu, k, m) = (rows.scores.gpu().clone(), out.k(), rows.m);
    let grid = prepare(&gpu, m, rows.n, config)?;
    let k_32 = count("positions of a row", k)?;
    if config.parts > 1 {
        scratch.grow(m)?;
    }
    let (indices, lens, shared) = (out.indices.cuda_mut()?, out.lens.cuda_mut()?, scratch.rows.cuda_mut()?);
    gpu.with(indices)?.with(lens)?.with(shared)?;
    holds("top_k", indices, (first + m) * k)?;
    holds("top_k", lens, first + m)?;
    let _turn = gpu.turn();
    let params = dsa_topk_params {
        scores: rows.scores.as_ptr(),
        visible: rows.visible,
        shared: if config.parts > 1 { shared.as_mut_ptr().cast() } else { ptr::null_mut() },
        indices: indices.as_mut_ptr().wrapping_add(first * k),
        lens: lens.as_mut_ptr().wrapping_add(first),
        stride: rows.n as u64,
        n: rows.n as u32, // as prepared
        k: k_32,
        more: rows.more,
        sharing: sharing(config.parts, k_32),
    };
    // SAFETY: scores and what is visible hold their shapes, which is the promise of `Rows`; the outputs have these rows, and the scratch
    // one for each if they are shared. All lie on this device.
    unsafe { gpu.launch(config.entry, grid, &params) }
}
