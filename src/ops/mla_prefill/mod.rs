//! Multi-head latent attention of prompts, in expanded form on GPUs: keys and values of their own for every head.
//!
//! It computes what [`mla_attention`](super::mla_attention) does between absorbing `k_b` and applying `v_b`, with these: for a query and a key
//! 2 x (256 + 256) operations a head, for 2 x (576 + 512), once each key has been expanded. [`expanded_wins`] says for which rows that pays.

pub mod config;
pub mod reference;

use super::linear::head_linear;
use super::mla_attention::{MlaConfig, MlaOptions, mla_attention_with};
use super::{expect, on_one_device};
use crate::cuda;
pub use crate::cuda::mla_prefill::PrefillScratch;
use crate::error::{Error, Result};
use crate::tensor::{Device, Heads, Matrix, PagedRows, Precision, RaggedRows, Tensor};

/// What a call of [`mla_prefill_with`] can have besides.
#[derive(Debug, Default)]
pub struct PrefillOptions<'a> {
    /// `[m, n_heads]`: `log sum_s exp l[s]` of each row and head, as of [`MlaOptions`].
    pub lse: Option<&'a mut Tensor>,
    /// What a GPU needs besides. Without, it is made for the call, which then cannot be recorded in a graph.
    pub scratch: Option<&'a mut PrefillScratch>,
}

/// [`mla_prefill_with`] of the default options.
///
/// # Errors
/// As [`mla_prefill_with`].
pub fn mla_prefill(
    q: &Tensor,
    cache: &PagedRows,
    rows: &RaggedRows,
    k_b: &Matrix,
    v_b: &Matrix,
    config: &MlaConfig,
    out: &mut Tensor,
) -> Result<()> {
    mla_prefill_with(PrefillOptions::default(), q, cache, rows, k_b, v_b, config, out)
}

/// For each row `t` and head `h`: `l[s] = sm_scale * q[t][h] . [k_b[h]^T c_s | k_pe_s]` over all keys `s` that the row sees,
/// `p = softmax(l)`, `out[t][h] = sum_s p[s] v_b[h] c_s`. `q` `[m, n_heads * (nope + rope)]`, each head `[q_nope | rotated q]`;
/// `cache` rows `[c | rotated key]`; `k_b` `[n_heads, kv_lora_rank, nope]`, `v_b` `[n_heads, v, kv_lora_rank]`, of any type;
/// `out` `[m, n_heads * v]`.
///
/// On a GPU heads are of GLM-5's widths, 192 + 64 and 256 of 512, and latent rows, weights, `sm_scale q`, expanded keys and values, and
/// `p` before it meets values are rounded to bf16, for any type of cache; sums are f32. The result of a row depends on its query and the
/// keys it sees alone, bit for bit, however a prompt is cut. On the CPU it is the absorbed form, in f32.
///
/// What is not finite in `v_b`, or becomes so there, counts as the largest number of bf16, 3.4e38; the absorbed form gives NaN. Keys that are not
/// finite give NaN in the rows that see them.
///
/// A recorded call reads queries, page tables and latent rows anew, for rows at the same positions: others are refused by
/// [`RaggedRows::upload`] while the graph is there.
///
/// # Errors
/// [`Error::Shape`] if they do not fit, or the scratch is for fewer rows or heads; [`Error::Unsupported`] across devices, for rows that were not
/// uploaded to the GPU, and there for other widths and for weights in tiles; [`Error::Capacity`] for more keys, or blocks of threads, than
/// can be numbered.
#[allow(clippy::too_many_arguments)] // those of the formula
pub fn mla_prefill_with(
    options: PrefillOptions<'_>,
    q: &Tensor,
    cache: &PagedRows,
    rows: &RaggedRows,
    k_b: &Matrix,
    v_b: &Matrix,
    config: &MlaConfig,
    out: &mut Tensor,
) -> Result<()> {
    const OP: &str = "mla_prefill";
    let MlaConfig { n_heads, kv_lora_rank: rank, qk_rope_head_dim: rope, .. } = *config;
    let (nope, v) = (k_b.cols(), v_b.rows());
    for (what, w, shape) in [("k_b", k_b, [n_heads, rank, nope]), ("v_b", v_b, [n_heads, v, rank])] {
        if w.shape() != shape {
            return Err(Error::shape(OP, format!("{what} {shape:?}"), format!("{:?}", w.shape())));
        }
    }
    expect(OP, "q", q, rows.len(), n_heads.saturating_mul(nope.saturating_add(rope)))?;
    expect(OP, "out", out, rows.len(), n_heads.saturating_mul(v))?;
    if let Some(lse) = &options.lse {
        expect(OP, "lse", lse, rows.len(), n_heads)?;
    }
    if cache.width() != rank + rope || rows.max_slot() >= cache.slots().max(1) {
        let want = format!("cache rows of {} and slots below {}", rank + rope, cache.slots());
        return Err(Error::shape(OP, want, format!("{} and {}", cache.width(), rows.max_slot())));
    }
    let devices = [q.device(), cache.device(), k_b.device(), v_b.device(), out.device()];
    on_one_device(OP, &devices)?;
    match q.device() {
        Device::Cpu(_) => absorbed(options.lse, q, cache, rows, k_b, v_b, config, out),
        Device::Cuda(gpu) => {
            cuda::mla_prefill::mla_prefill(gpu, options, q, cache, rows, k_b, v_b, config, out)
        }
    }
}

/// The absorbed form, by the operations that it takes.
#[allow(clippy::too_many_arguments)] // those of the operation
fn absorbed(
    lse: Option<&mut Tensor>,
    q: &Tensor,
    cache: &PagedRows,
    rows: &RaggedRows,
    k_b: &Matrix,
    v_b: &Matrix,
    config: &MlaConfig,
    out: &mut Tensor,
) -> Result<()> {
    let MlaConfig { n_heads: n, kv_lora_rank: rank, qk_rope_head_dim: rope, .. } = *config;
    let (nope, v, m) = (k_b.cols(), v_b.rows(), rows.len());
    let mut of_latents = Tensor::zeros(q.device(), m, n * (rank + rope))?;
    let from = Heads { n, stride: nope + rope, offset: 0, len: nope };
    let to = Heads { n, stride: rank + rope, offset: 0, len: rank };
    head_linear(k_b, q, from, &mut of_latents, to, Precision::Exact)?;
    let heads = of_latents.cpu_mut()?.chunks_exact_mut(rank + rope).zip(q.cpu()?.chunks_exact(nope + rope));
    heads.for_each(|(to, from)| to[rank..].copy_from_slice(&from[nope..]));
    let mut sums = Tensor::zeros(q.device(), m, n * rank)?;
    let options = MlaOptions { lse, ..MlaOptions::default() };
    mla_attention_with(options, &of_latents, cache, rows, None, config, &mut sums)?;
    let heads = |len| Heads { n, stride: len, offset: 0, len };
    head_linear(v_b, &sums, heads(rank), out, heads(v), Precision::Exact)
}

/// Whether the expanded form takes a GPU less time than the absorbed one, for rows that attend all that they see.
///
/// A row and a key cost a head `2 (rank + rope + rank)` operations absorbed and `2 (nope + rope + v)` expanded; to expand a key costs
/// `2 rank (nope + v)` once. For GLM-5 that is 1088 and 512 multiplications for a pair and 229,376 for a key, so that 400 queries for each key
/// balance by operations. A tile of 128 rows costs as much when it is not full. Absorbing and applying `v_b`, which the expanded form does without,
/// are left out: they make up for what it reads and writes between its launches.
pub fn expanded_wins(rows: &RaggedRows, nope: usize, v: usize, config: &MlaConfig) -> bool {
    let MlaConfig { kv_lora_rank: rank, qk_rope_head_dim: rope, .. } = *config;
    let (mut absorbed, mut expanded) = (0.0, 0.0);
    for part in rows.parts() {
        let (keys, n) = (rows.visible(part.end - 1) as f64, part.len() as f64);
        // Keys of a row, on average: all but half of those of the sequence's own rows.
        let seen = keys - (n - 1.0) / 2.0;
        absorbed += n * seen * (2 * rank + rope) as f64;
        let in_tiles = part.len().next_multiple_of(config::ROWS) as f64;
        expanded += in_tiles * seen * (nope + rope + v) as f64 + keys * (rank * (nope + v)) as f64;
    }
    expanded < absorbed
}
