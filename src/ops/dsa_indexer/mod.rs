//! DSA lightning indexer: scores of all visible keys, and the selection made from them.

pub mod config;
pub mod reference;

use config::{IndexerConfig, SelectConfig};

use super::dsa_topk::{Selection, TopkScratch};
use super::{expect, on_one_device};
use crate::cuda::dsa_indexer::Scorer;
use crate::error::{Error, Result};
use crate::tensor::{Device, PagedRows, Precision, RaggedRows, Tensor};
use crate::{cpu, cuda};

/// Memory of [`indexer_select`] on a GPU, reused from step to step: once grown it is kept, so that a graph may hold what has room for its
/// step. On the CPU it is empty.
#[derive(Debug)]
pub struct IndexerScratch {
    /// Of a block of rows, one after the other.
    pub(crate) scores: Tensor,
    pub(crate) topk: TopkScratch,
    /// Scores of a block, at most.
    pub(crate) block: usize,
}

/// Scores that a GPU holds at a time (256 MiB): 512 rows of 128k, which fill it when they are selected from. Blocks that L2 holds are so few
/// rows that both kernels leave a part of the GPU idle.
const BLOCK_SCORES: usize = 64 << 20;

impl IndexerScratch {
    /// Nothing yet.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn new(device: &Device) -> Result<Self> {
        Self::with_block(device, BLOCK_SCORES)
    }

    /// The same for blocks of at most so many scores, or of one row.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn with_block(device: &Device, scores: usize) -> Result<Self> {
        let topk = TopkScratch::new(device)?;
        Ok(IndexerScratch { scores: Tensor::zeros(device, 0, 1)?, topk, block: scores })
    }
}

/// `scores[t][s] = scale * sum_a w[t][a] relu(q[t][a] . k[s])` for visible keys, `-inf` for later ones. `q`
/// `[m, heads * dim]`, `w` `[m, heads]` (may be negative), `keys` rows of `dim`; `scale` is `1 / sqrt(heads * dim)`;
/// `scores` `[m, s]` with `s` at least the most keys that any row sees. A GPU takes the batch that was uploaded.
///
/// How queries meet keys of 16 bits is for `precision` to say. [`Precision::Exact`]: as they are; on GPUs, for 128 values and up to 32 heads, as sums of
/// two numbers of the type, so that each value is good to 2^-18 (bf16) or 2^-24 (f16). [`Precision::Fast`]: rounded once to the type of the keys
/// ([`reference::rounded_query`]), to 2^-9 or 2^-12, for half of the products; not on GPUs where kernels for any shape score. A score moves by
/// at most that part of `scale sum_a |w[t][a]| sum |q k|`: no more than the keys have lost already, and far less than when both are
/// kept in 8 bits, as these models are often served. Keys of f32 meet queries as they are.
///
/// With keys of int8 a query is rotated and rounded as they are, whatever the precision ([`reference::indexer_scores_int8`]): products are exact, and
/// a score is off by at most what the roundings of `q` and `k` make of each dot product, half a step of each rotated value.
///
/// # Errors
/// [`Error::Shape`] if they do not fit; [`Error::Unsupported`] across devices, and for a batch that was not uploaded to the GPU.
pub fn indexer_scores(
    q: &Tensor,
    w: &Tensor,
    keys: &PagedRows,
    rows: &RaggedRows,
    scale: f32,
    scores: &mut Tensor,
    precision: Precision,
) -> Result<()> {
    indexer_scores_with(q, w, keys, rows, scale, None, scores, precision)
}

/// [`indexer_scores`] by a launch of [`config::candidates`] in place of the one that is chosen: for benches and tests.
///
/// # Errors
/// As [`indexer_scores`].
#[expect(clippy::too_many_arguments, reason = "those of the operation, and the launch")]
pub fn indexer_scores_with(
    q: &Tensor,
    w: &Tensor,
    keys: &PagedRows,
    rows: &RaggedRows,
    scale: f32,
    config: Option<IndexerConfig>,
    scores: &mut Tensor,
    precision: Precision,
) -> Result<()> {
    check(q, w, keys, rows)?;
    if scores.rows() != rows.len() || scores.cols() < rows.max_visible() {
        let want = format!("scores [{}, {} or more]", rows.len(), rows.max_visible());
        return Err(Error::shape("indexer", want, format!("{:?}", scores.shape())));
    }
    match q.device() {
        Device::Cpu(cpu) => {
            let scorer = cpu::dsa_indexer::Scorer::new(cpu, q, w, keys, rows, scale, precision)?;
            cpu::dsa_indexer::indexer_scores(&scorer, scores)
        }
        Device::Cuda(_) => {
            let scorer = Scorer::new(q, w, keys, rows, scale, precision)?;
            cuda::dsa_indexer::indexer_scores(&scorer, config, scores)
        }
    }
}

/// [`indexer_scores`] and [`top_k`](super::dsa_topk::top_k) in blocks of rows, so that scores take at most 16 MiB, on GPUs 256
/// (or one row). Rows that see at most `k` keys select all of them without being scored. `out` is resized to the rows.
///
/// A GPU scores and selects few rows of sequences of their own in one launch, with the same positions. Their scores go to memory, which is
/// there for them, only where what blocks of threads listed does not prove the selection.
///
/// # Errors
/// As [`indexer_scores`].
#[expect(clippy::too_many_arguments, reason = "inputs, memory and output of two operations")]
pub fn indexer_select(
    q: &Tensor,
    w: &Tensor,
    keys: &PagedRows,
    rows: &RaggedRows,
    scale: f32,
    scratch: &mut IndexerScratch,
    out: &mut Selection,
    precision: Precision,
) -> Result<()> {
    indexer_select_with(q, w, keys, rows, scale, scratch, out, precision, None)
}

/// How a GPU selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selecting {
    /// Scores go to memory, in blocks of rows, and are selected from by a second launch.
    Apart,
    /// By one launch.
    AtOnce(SelectConfig),
}

/// [`indexer_select`] in this way in place of the one that is chosen: for benches and tests.
///
/// # Errors
/// As [`indexer_select`].
#[expect(clippy::too_many_arguments, reason = "inputs, memory and output of two operations")]
pub fn indexer_select_with(
    q: &Tensor,
    w: &Tensor,
    keys: &PagedRows,
    rows: &RaggedRows,
    scale: f32,
    scratch: &mut IndexerScratch,
    out: &mut Selection,
    precision: Precision,
    how: Option<Selecting>,
) -> Result<()> {
    check(q, w, keys, rows)?;
    if out.k() == 0 {
        return Err(Error::shape("indexer", "room for at least one position", 0));
    }
    let of_scratch = scratch.scores.device();
    let devices =
        [q.device(), w.device(), keys.device(), of_scratch, out.indices.device(), out.lens.device()];
    on_one_device("indexer_select", &devices)?;
    match q.device() {
        Device::Cpu(cpu) => {
            out.resize(rows.len())?;
            let scorer = cpu::dsa_indexer::Scorer::new(cpu, q, w, keys, rows, scale, precision)?;
            cpu::dsa_indexer::indexer_select(&scorer, out)
        }
        Device::Cuda(_) => {
            let scorer = Scorer::new(q, w, keys, rows, scale, precision)?;
            cuda::dsa_indexer::indexer_select(&scorer, rows, how, scratch, out)
        }
    }
}

fn check(q: &Tensor, w: &Tensor, keys: &PagedRows, rows: &RaggedRows) -> Result<()> {
    expect("indexer", "q", q, rows.len(), w.cols().saturating_mul(keys.width()))?;
    expect("indexer", "w", w, rows.len(), w.cols())?;
    if rows.max_slot() >= keys.slots().max(1) {
        return Err(Error::shape("indexer", format!("slots below {}", keys.slots()), rows.max_slot()));
    }
    Ok(())
}
