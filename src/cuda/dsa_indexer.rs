//! Launches of dsa_indexer, dsa_indexer_int8 and dsa_indexer_any, with the selection that follows, and of dsa_select and dsa_select_int8. Shapes were checked by [`crate::ops`].

use super::dequantize::{count, holds};
use super::dsa_topk::{self, Rows};
use super::{Buffer, Gpu};
use crate::error::{Error, Result};
use crate::ops::dsa_indexer::config::{IndexerConfig, IndexerProblem, SelectConfig};
use crate::ops::dsa_indexer::{IndexerScratch, Selecting};
use crate::ops::dsa_topk::Selection;
use crate::ops::dsa_topk::config::{MAX_PARTS, TopkConfig, TopkProblem};
use crate::sys::{dsa_indexer_params, dsa_select_params, ragged_rows};
use crate::tensor::{PagedRows, Precision, RaggedRows, Tensor};

/// What is scored.
pub(crate) struct Scorer<'a> {
    gpu: Gpu,
    q: &'a Buffer<f32>,
    w: &'a Buffer<f32>,
    keys: &'a Buffer<u8>,
    batch: ragged_rows,
    scale: f32,
    problem: IndexerProblem,
}

/// Rows of a batch that are scored by one launch.
struct Part {
    first: usize,
    m: usize,
    /// Rows that see no more are left out.
    least: usize,
    /// Columns that are written.
    fill: usize,
}

impl<'a> Scorer<'a> {
    pub fn new(
        q: &'a Tensor,
        w: &'a Tensor,
        keys: &'a PagedRows,
        rows: &RaggedRows,
        scale: f32,
        precision: Precision,
    ) -> Result<Self> {
        let (heads, dim) = (w.cols(), keys.width());
        let (q, w, bytes) = (q.cuda()?, w.cuda()?, keys.cuda()?);
        let gpu = q.gpu().with(w)?.with(bytes)?.clone();
        let problem = IndexerProblem {
            m: rows.len(),
            sequences: rows.sequences(),
            visible: rows.most_keys(&gpu),
            heads,
            dim,
            ty: keys.ty(),
            precision,
            sms: 1,
            smem_per_sm: 0,
        };
        let problem = problem.on(gpu.properties());
        holds("indexer", q, rows.len() * heads * dim)?;
        holds("indexer", w, rows.len() * heads)?;
        holds("indexer", bytes, keys.slots() * keys.ty().row_bytes(dim)?)?;
        let batch = rows.on_gpu(&gpu, keys.slots())?;
        Ok(Scorer { gpu, q, w, keys: bytes, batch, scale, problem })
    }

    /// The launch for `m` of the rows, or why there is none.
    fn prepare(&self, m: usize, config: Option<IndexerConfig>) -> Result<(IndexerConfig, [u32; 3])> {
        let problem = IndexerProblem { m, ..self.problem };
        let config = match config {
            Some(config) => config.of(problem)?,
            None => IndexerConfig::pick(problem)?,
        };
        let groups = m.div_ceil(config.rows.max(1) as usize);
        let grid = [count("blocks of a grid", groups.saturating_mul(config.workers as usize))?, 1, 1];
        self.gpu.prepare(config.entry, grid)?;
        Ok((config, grid))
    }

    /// Scores of a part into rows of `stride`.
    fn run(
        &self,
        part: &Part,
        config: Option<IndexerConfig>,
        scores: &mut Buffer<f32>,
        stride: usize,
    ) -> Result<()> {
        let (config, grid) = self.prepare(part.m, config)?;
        let params = self.params(part, scores, stride, config.workers)?;
        // SAFETY: as of `params`, and kernels write no more of a row than its scores are wide; the kernel is one for these keys, heads
        // and width.
        unsafe { self.gpu.launch(config.entry, grid, &params) }
    }

    /// What kernels that score take. q, w and keys hold their shapes and slots of the batch lie in the cache, as was checked; scores have
    /// these rows. All lie on this device. Buffers are aligned to 256.
    fn params(
        &self,
        part: &Part,
        scores: &mut Buffer<f32>,
        stride: usize,
        workers: u32,
    ) -> Result<dsa_indexer_params> {
        self.gpu.with(scores)?;
        holds("indexer", scores, part.m * stride)?;
        Ok(dsa_indexer_params {
            q: self.q.as_ptr(),
            w: self.w.as_ptr(),
            keys: self.keys.as_ptr().cast(),
            rows: self.batch,
            scores: scores.as_mut_ptr(),
            stride: stride as u64,
            scale: self.scale,
            first: count("rows", part.first)?,
            m: count("rows", part.m)?,
            heads: count("heads", self.problem.heads)?,
            dim: count("values of a key", self.problem.dim)?,
            least: count("keys", part.least)?,
            fill: count("columns", part.fill)?,
            workers,
        })
    }
}

pub(crate) fn indexer_scores(
    scorer: &Scorer<'_>,
    config: Option<IndexerConfig>,
    scores: &mut Tensor,
) -> Result<()> {
    let [m, n] = scores.shape();
    let _turn = scorer.gpu.turn();
    scorer.run(&Part { first: 0, m, least: 0, fill: n }, config, scores.cuda_mut()?, n)
}

pub(crate) fn indexer_select(
    scorer: &Scorer<'_>,
    rows: &RaggedRows,
    how: Option<Selecting>,
    scratch: &mut IndexerScratch,
    out: &mut Selection,
) -> Result<()> {
    // As much memory as a graph needs that is recorded next, whose rows may see all that their pages hold.
    let (m, reach) = (rows.len(), rows.reach());
    if reach > out.k() {
        let problem = IndexerProblem { visible: reach, ..scorer.problem };
        let at_once = how != Some(Selecting::Apart) && SelectConfig::fitting(problem, out.k()).is_some();
        let room = if at_once { m * reach } else { block_rows(scratch, reach, m) * reach };
        if scratch.scores.rows() < room {
            scratch.scores.resize(room)?;
        }
    }
    scratch.topk.grow(m)?;
    let how = how.or_else(|| SelectConfig::pick(scorer.problem, out.k()).map(Selecting::AtOnce));
    match how {
        Some(Selecting::AtOnce(config)) => select_at_once(scorer, config, scratch, out),
        Some(Selecting::Apart) | None => select_apart(scorer, rows, scratch, out),
    }
}

/// Rows of which scores are held at a time.
fn block_rows(scratch: &IndexerScratch, keys: usize, m: usize) -> usize {
    (scratch.block / keys.max(1)).clamp(1, m.max(1))
}

/// In blocks of rows. Those that see at most `k` keys are not scored.
fn select_apart(
    scorer: &Scorer<'_>,
    rows: &RaggedRows,
    scratch: &mut IndexerScratch,
    out: &mut Selection,
) -> Result<()> {
    let (m, n, k) = (rows.len(), scorer.problem.visible, out.k());
    let scored = if n > k { n } else { 0 };
    let block = block_rows(scratch, n, m);
    let topk = |m: usize| TopkConfig::pick(TopkProblem::new(m, n, scorer.gpu.properties()));
    if scored > 0 {
        scorer.prepare(block, None)?;
    }
    dsa_topk::prepare(&scorer.gpu, block, n, topk(block)?)?;
    if scratch.scores.rows() < block * scored {
        scratch.scores.resize(block * scored)?;
    }
    out.resize(m)?;
    let _turn = scorer.gpu.turn();
    for first in (0..m).step_by(block) {
        let part = Part { first, m: block.min(m - first), least: k, fill: 0 };
        let sees_more = || (first..first + part.m).any(|t| rows.visible(t) > k);
        if scored > 0 && (scorer.gpu.capturing() || sees_more()) {
            scorer.run(&part, None, scratch.scores.cuda_mut()?, n)?;
        }
        let visible = scorer.batch.positions.wrapping_add(first);
        let of_part = Rows { scores: scratch.scores.cuda()?, m: part.m, n, visible, more: 1 };
        dsa_topk::top_k(of_part, topk(part.m)?, &mut scratch.topk, first, out)?;
    }
    Ok(())
}

/// One launch. Scores are memory that it takes only if what blocks of threads listed does not prove the selection, or one gave up.
fn select_at_once(
    scorer: &Scorer<'_>,
    config: SelectConfig,
    scratch: &mut IndexerScratch,
    out: &mut Selection,
) -> Result<()> {
    let (IndexerProblem { m, visible: n, .. }, k) = (scorer.problem, out.k());
    let built = SelectConfig::fitting(scorer.problem, k).filter(|built| built.entry == config.entry);
    let Some(built) = built else {
        return Err(Error::unsupported(
            "scores and selection by one launch",
            format!("{} is not for these rows", config.entry),
        ));
    };
    if !(1..=MAX_PARTS as u32).contains(&config.parts)
        || !(SelectConfig { parts: config.parts, ..built }).holds(n)
    {
        let want = format!("1 to {MAX_PARTS}, to hold {n} scores");
        return Err(Error::argument("blocks of threads of a row", want, config.parts));
    }
    let grid = [count("blocks of a grid", m.saturating_mul(config.parts as usize))?, 1, 1];
    scorer.gpu.prepare(config.entry, grid)?;
    let k_32 = count("positions of a row", k)?;
    if scratch.scores.rows() < m * n {
        scratch.scores.resize(m * n)?;
    }
    scratch.topk.grow(m)?;
    out.resize(m)?;
    let _turn = scorer.gpu.turn();
    let part = Part { first: 0, m, least: 0, fill: 0 };
    let of = scorer.params(&part, scratch.scores.cuda_mut()?, n, 0)?;
    let (indices, lens, shared) =
        (out.indices.cuda_mut()?, out.lens.cuda_mut()?, scratch.topk.rows.cuda_mut()?);
    scorer.gpu.with(indices)?.with(lens)?.with(shared)?;
    holds("indexer", indices, m * k)?;
    holds("indexer", lens, m)?;
    let params = dsa_select_params {
        of,
        shared: shared.as_mut_ptr().cast(),
        indices: indices.as_mut_ptr(),
        lens: lens.as_mut_ptr(),
        k: k_32,
        sharing: dsa_topk::sharing(config.parts, k_32),
    };
    // SAFETY: as of `Scorer::params`; the kernel is one for these keys, heads and width, and its blocks hold what rows see, which it takes no
    // more of than a row of scores is wide. The outputs have these rows, and the scratch one for each. All lie on this device.
    unsafe { scorer.gpu.launch(config.entry, grid, &params) }
}
