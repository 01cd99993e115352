//! Multi-head latent attention in absorbed form, dense or over selected keys.

pub mod config;
pub mod reference;

use super::dsa_topk::Selection;
use super::expect;
pub use crate::cuda::mla_attention::MlaScratch;
use crate::error::{Error, Result};
use crate::kernels::Entry;
use crate::tensor::{Device, PagedRows, RaggedRows, Tensor};
use crate::{cpu, cuda};

/// Shape and scale of the attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MlaConfig {
    /// Query heads.
    pub n_heads: usize,
    /// Width of the latent part of a cache row, and of the values.
    pub kv_lora_rank: usize,
    /// Width of the rotated part of a cache row.
    pub qk_rope_head_dim: usize,
    /// `1 / sqrt(qk_nope_head_dim + qk_rope_head_dim)`.
    pub sm_scale: f32,
}

/// What a call of [`mla_attention_with`] can have besides.
#[derive(Debug, Default)]
pub struct MlaOptions<'a> {
    /// `[m, n_heads]`: `log sum_s exp l[s]` of each row and head, by which results over parts of the keys are put together; -inf without keys.
    pub lse: Option<&'a mut Tensor>,
    /// What a GPU needs besides. Without, it is made for the call, which then cannot be recorded in a graph.
    pub scratch: Option<&'a mut MlaScratch>,
    /// The kernel of a GPU, for comparisons; without, the fastest.
    pub kernel: Option<Entry>,
}

/// [`mla_attention_with`] of the default options.
///
/// # Errors
/// As [`mla_attention_with`].
pub fn mla_attention(
    q: &Tensor,
    cache: &PagedRows,
    rows: &RaggedRows,
    selected: Option<&Selection>,
    config: &MlaConfig,
    out: &mut Tensor,
) -> Result<()> {
    mla_attention_with(MlaOptions::default(), q, cache, rows, selected, config, out)
}

/// For each row `t` and head `h`: `l[s] = sm_scale * q[t][h] . row[s]` over the keys `s`, `p = softmax(l)`,
/// `out[t][h] = sum_s p[s] row[s][..kv_lora_rank]`. Keys are the visible ones of the row's sequence, or those of them that
/// `selected` names (an index past the row's position is never attended). A row without keys gives zeros.
/// `q` `[m, n_heads * (kv_lora_rank + qk_rope_head_dim)]`, each head `[absorbed q | rotated q]`; `cache` rows
/// `[latent | rotated key]`; `out` `[m, n_heads * kv_lora_rank]`.
///
/// On a GPU, heads of 512 + 64 over caches of bf16, f16 or fp8 are rounded for matrix instructions: `q` to the type of the cache (for f16 scaled
/// into its range, by a power of two for each head; for fp8 to bf16, in which its rows are exact) and `p` too, before it meets values. Everything
/// else is f32, as for other caches and widths.
///
/// # Errors
/// [`Error::Shape`] if they do not fit; [`Error::Argument`] for selected positions that do not ascend (on the CPU; kernels
/// cannot tell); [`Error::Unsupported`] across devices, for rows that were not uploaded to the GPU, and there for rows wider than 576.
pub fn mla_attention_with(
    options: MlaOptions<'_>,
    q: &Tensor,
    cache: &PagedRows,
    rows: &RaggedRows,
    selected: Option<&Selection>,
    config: &MlaConfig,
    out: &mut Tensor,
) -> Result<()> {
    const OP: &str = "mla_attention";
    let width = config.kv_lora_rank.saturating_add(config.qk_rope_head_dim);
    expect(OP, "q", q, rows.len(), config.n_heads.saturating_mul(width))?;
    expect(OP, "out", out, rows.len(), config.n_heads.saturating_mul(config.kv_lora_rank))?;
    if let Some(lse) = &options.lse {
        expect(OP, "lse", lse, rows.len(), config.n_heads)?;
    }
    if cache.width() != width || rows.max_slot() >= cache.slots().max(1) {
        let want = format!("cache rows of {width} and slots below {}", cache.slots());
        return Err(Error::shape(OP, want, format!("{} and {}", cache.width(), rows.max_slot())));
    }
    if let Some(s) = selected {
        expect(OP, "selection", &s.lens, rows.len(), 1)?;
        expect(OP, "selection", &s.indices, rows.len(), s.k())?;
    }
    match q.device() {
        Device::Cpu(cpu) => {
            cpu::mla_attention::mla_attention(cpu, q, cache, rows, selected, config, out, options.lse)
        }
        Device::Cuda(_) => cuda::mla_attention::mla_attention(options, q, cache, rows, selected, config, out),
    }
}
