//! DSA lightning indexer: scores of all visible keys, and the selection made from them.

pub mod reference;

use super::dsa_topk::Selection;
use super::{expect, no_kernel, on_one_device};
use crate::cpu;
use crate::error::{Error, Result};
use crate::tensor::{Device, PagedRows, RaggedRows, Tensor};

/// `scores[t][s] = scale * sum_a w[t][a] relu(q[t][a] . k[s])` for visible keys, `-inf` for later ones. `q`
/// `[m, heads * dim]`, `w` `[m, heads]` (may be negative), `keys` rows of `dim`; `scale` is `1 / sqrt(heads * dim)`;
/// `scores` `[m, s]` with `s` at least the most keys that any row sees.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub fn indexer_scores(
    q: &Tensor,
    w: &Tensor,
    keys: &PagedRows,
    rows: &RaggedRows,
    scale: f32,
    scores: &mut Tensor,
) -> Result<()> {
    check(q, w, keys, rows)?;
    if scores.rows() != rows.len() || scores.cols() < rows.max_visible() {
        let want = format!("scores [{}, {} or more]", rows.len(), rows.max_visible());
        return Err(Error::shape("indexer", want, format!("{:?}", scores.shape())));
    }
    match q.device() {
        Device::Cpu(cpu) => cpu::dsa_indexer::indexer_scores(cpu, q, w, keys, rows, scale, scores),
        Device::Cuda(gpu) => no_kernel("indexer_scores", gpu),
    }
}

/// [`indexer_scores`] and [`top_k`](super::dsa_topk::top_k) in blocks of rows, so that scores take at most 16 MiB
/// (or one row). Rows that see at most `k` keys select all of them without being scored. `out` is resized to the rows.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub fn indexer_select(
    q: &Tensor,
    w: &Tensor,
    keys: &PagedRows,
    rows: &RaggedRows,
    scale: f32,
    out: &mut Selection,
) -> Result<()> {
    check(q, w, keys, rows)?;
    if out.k() == 0 {
        return Err(Error::shape("indexer", "room for at least one position", 0));
    }
    let devices = [q.device(), w.device(), keys.device(), out.indices.device(), out.lens.device()];
    on_one_device("indexer_select", &devices)?;
    match q.device() {
        Device::Cpu(cpu) => {
            out.resize(rows.len())?;
            cpu::dsa_indexer::indexer_select(cpu, q, w, keys, rows, scale, out)
        }
        Device::Cuda(gpu) => no_kernel("indexer_select", gpu),
    }
}

fn check(q: &Tensor, w: &Tensor, keys: &PagedRows, rows: &RaggedRows) -> Result<()> {
    expect("indexer", "q", q, rows.len(), w.cols() * keys.width())?;
    expect("indexer", "w", w, rows.len(), w.cols())?;
    if rows.max_slot() >= keys.slots().max(1) {
        return Err(Error::shape("indexer", format!("slots below {}", keys.slots()), rows.max_slot()));
    }
    Ok(())
}
