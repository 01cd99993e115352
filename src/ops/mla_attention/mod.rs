//! Multi-head latent attention in absorbed form, dense or over selected keys.

pub mod reference;

use super::dsa_topk::Selection;
use super::{expect, no_kernel};
use crate::cpu;
use crate::error::{Error, Result};
use crate::tensor::{Device, PagedRows, RaggedRows, Tensor};

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

/// For each row `t` and head `h`: `l[s] = sm_scale * q[t][h] . row[s]` over the keys `s`, `p = softmax(l)`,
/// `out[t][h] = sum_s p[s] row[s][..kv_lora_rank]`. Keys are the visible ones of the row's sequence, or those of them that
/// `selected` names (an index past the row's position is never attended). A row without keys gives zeros.
/// `q` `[m, n_heads * (kv_lora_rank + qk_rope_head_dim)]`, each head `[absorbed q | rotated q]`; `cache` rows
/// `[latent | rotated key]`; `out` `[m, n_heads * kv_lora_rank]`.
///
/// # Errors
/// [`Error::Shape`] if they do not fit; [`Error::Argument`] for selected positions that do not ascend (on the CPU; kernels
/// cannot tell).
pub fn mla_attention(
    q: &Tensor,
    cache: &PagedRows,
    rows: &RaggedRows,
    selected: Option<&Selection>,
    config: &MlaConfig,
    out: &mut Tensor,
) -> Result<()> {
    const OP: &str = "mla_attention";
    let width = config.kv_lora_rank + config.qk_rope_head_dim;
    expect(OP, "q", q, rows.len(), config.n_heads * width)?;
    expect(OP, "out", out, rows.len(), config.n_heads * config.kv_lora_rank)?;
    if cache.width() != width || rows.max_slot() >= cache.slots().max(1) {
        let want = format!("cache rows of {width} and slots below {}", cache.slots());
        return Err(Error::shape(OP, want, format!("{} and {}", cache.width(), rows.max_slot())));
    }
    if let Some(s) = selected {
        expect(OP, "selection", &s.lens, rows.len(), 1)?;
        expect(OP, "selection", &s.indices, rows.len(), s.k())?;
    }
    match q.device() {
        Device::Cpu(cpu) => cpu::mla_attention::mla_attention(cpu, q, cache, rows, selected, config, out),
        Device::Cuda(gpu) => no_kernel("mla_attention", gpu),
    }
}
