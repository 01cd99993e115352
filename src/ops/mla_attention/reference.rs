//! Multi-head latent attention of one sequence, as specified, in its absorbed form and as ordinary attention.
//!
//! Both forms compute the same: with `qa[h] = k_b[h] q_nope[h]`,
//! `q_nope . (k_b[h]^T c_s) = qa . c_s`, and `sum_s p_s (v_b[h] c_s) = v_b[h] (sum_s p_s c_s)`.

use super::MlaConfig;
use crate::error::Result;
use crate::ops::{expect_len, expect_rows};

/// Positions that the query at `position` attends: those of `selected` (all if there is none), never later than itself
/// and never beyond the `n` keys there are.
fn attended(position: usize, selected: Option<&[u32]>, n: usize) -> Vec<usize> {
    let visible = (position + 1).min(n);
    match selected {
        None => (0..visible).collect(),
        Some(s) => s.iter().map(|i| *i as usize).filter(|i| *i < visible).collect(),
    }
}

/// `softmax(logits)`, none for none.
fn softmax(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().fold(f64::NEG_INFINITY, |a, l| a.max(*l));
    let sum: f64 = logits.iter().map(|l| (l - max).exp()).sum();
    logits.iter().map(|l| (l - max).exp() / sum).collect()
}

/// Attention over latents. For row `t` at `positions[t]` and head `h`, over the keys `s` it attends:
/// `l[s] = sm_scale q[t][h] . keys[s]`, `p = softmax(l)`, `out[t][h] = sum_s p[s] keys[s][..kv_lora_rank]`; zeros if it
/// attends none. `q` `[m, n_heads, kv_lora_rank + qk_rope_head_dim]`, heads as `[absorbed | rotated]`; `keys`
/// `[s, kv_lora_rank + qk_rope_head_dim]`, the cache rows of the sequence by position; `selected[t]` names positions.
/// Gives `[m, n_heads, kv_lora_rank]`.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the lengths do not fit.
pub fn absorbed<X: Copy + Into<f64>>(
    q: &[X],
    keys: &[f32],
    positions: &[u32],
    selected: Option<&[Vec<u32>]>,
    config: &MlaConfig,
) -> Result<Vec<f64>> {
    let (heads, rank) = (config.n_heads, config.kv_lora_rank);
    let width = rank + config.qk_rope_head_dim;
    let n = expect_rows("mla_attention", "keys", keys.len(), width)?;
    expect_len("mla_attention", "q", q.len(), positions.len() * heads * width)?;
    if let Some(s) = selected {
        expect_len("mla_attention", "selections", s.len(), positions.len())?;
    }
    let mut out = vec![0.0; positions.len() * heads * rank];
    for t in 0..positions.len() {
        let attended = attended(positions[t] as usize, selected.map(|s| &s[t][..]), n);
        for h in 0..heads {
            let mut logits = Vec::new();
            for s in &attended {
                let mut dot = 0.0;
                for i in 0..width {
                    dot += q[(t * heads + h) * width + i].into() * f64::from(keys[s * width + i]);
                }
                logits.push(f64::from(config.sm_scale) * dot);
            }
            for (s, p) in attended.iter().zip(softmax(&logits)) {
                for r in 0..rank {
                    out[(t * heads + h) * rank + r] += p * f64::from(keys[s * width + r]);
                }
            }
        }
    }
    Ok(out)
}

/// The logarithm of the sum of exponentials of the logits of [`absorbed`]: `log sum_s exp l[s]` for row `t` and head `h`, -inf without keys.
/// Gives `[m, n_heads]`.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the lengths do not fit.
pub fn log_sum_exp<X: Copy + Into<f64>>(
    q: &[X],
    keys: &[f32],
    positions: &[u32],
    selected: Option<&[Vec<u32>]>,
    config: &MlaConfig,
) -> Result<Vec<f64>> {
    let (heads, width) = (config.n_heads, config.kv_lora_rank + config.qk_rope_head_dim);
    let n = expect_rows("mla_attention", "keys", keys.len(), width)?;
    expect_len("mla_attention", "q", q.len(), positions.len() * heads * width)?;
    if let Some(s) = selected {
        expect_len("mla_attention", "selections", s.len(), positions.len())?;
    }
    let mut out = Vec::new();
    for t in 0..positions.len() {
        let attended = attended(positions[t] as usize, selected.map(|s| &s[t][..]), n);
        for q in q[t * heads * width..(t + 1) * heads * width].chunks(width) {
            let logit = |s: &usize| {
                let products = q.iter().zip(&keys[s * width..]).map(|(q, k)| (*q).into() * f64::from(*k));
                f64::from(config.sm_scale) * products.sum::<f64>()
            };
            let logits: Vec<f64> = attended.iter().map(logit).collect();
            let max = logits.iter().fold(f64::NEG_INFINITY, |a, l| a.max(*l));
            let sum: f64 = logits.iter().map(|l| (l - max).exp()).sum();
            out.push(if logits.is_empty() { max } else { max + sum.ln() });
        }
    }
    Ok(out)
}

/// The projections of the latent that [`naive`] applies to every key.
#[derive(Debug, Clone, Copy)]
pub struct Expansion<'a> {
    /// `[n_heads, kv_lora_rank, qk_nope_head_dim]`: `W_uk[h]` transposed, as files store it.
    pub k_b: &'a [f32],
    /// `[n_heads, v_head_dim, kv_lora_rank]`: `W_uv[h]`.
    pub v_b: &'a [f32],
    /// Width of the part of a key that comes from the latent.
    pub qk_nope_head_dim: usize,
    /// Width of a value.
    pub v_head_dim: usize,
}

/// Ordinary attention with keys and values expanded from the latents `c_s`: `k[h][s] = [k_b[h]^T c_s | k_pe_s]`,
/// `v[h][s] = v_b[h] c_s`, `p = softmax_s(sm_scale q[t][h] . k[h][s])`, `out[t][h] = sum_s p[s] v[h][s]`. `q`
/// `[m, n_heads, qk_nope_head_dim + qk_rope_head_dim]`, heads as `[nope | rotated]`; `keys`, `positions`, `selected` as
/// in [`absorbed`]. Gives `[m, n_heads, v_head_dim]`. Far too slow for anything but checking the absorbed form.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the lengths do not fit.
pub fn naive<X: Copy + Into<f64>>(
    q: &[X],
    keys: &[f32],
    positions: &[u32],
    selected: Option<&[Vec<u32>]>,
    config: &MlaConfig,
    expansion: &Expansion,
) -> Result<Vec<f64>> {
    let (heads, rank, rope) = (config.n_heads, config.kv_lora_rank, config.qk_rope_head_dim);
    let (nope, v_dim) = (expansion.qk_nope_head_dim, expansion.v_head_dim);
    let n = expect_rows("mla_attention", "keys", keys.len(), rank + rope)?;
    expect_len("mla_attention", "q", q.len(), positions.len() * heads * (nope + rope))?;
    expect_len("mla_attention", "k_b", expansion.k_b.len(), heads * rank * nope)?;
    expect_len("mla_attention", "v_b", expansion.v_b.len(), heads * v_dim * rank)?;
    if let Some(s) = selected {
        expect_len("mla_attention", "selections", s.len(), positions.len())?;
    }
    let mut out = vec![0.0; positions.len() * heads * v_dim];
    for h in 0..heads {
        let mut k = vec![0.0; n * (nope + rope)];
        let mut v = vec![0.0; n * v_dim];
        for s in 0..n {
            let row = &keys[s * (rank + rope)..(s + 1) * (rank + rope)];
            for d in 0..nope {
                for (r, c) in row[..rank].iter().enumerate() {
                    let w = expansion.k_b[(h * rank + r) * nope + d];
                    k[s * (nope + rope) + d] += f64::from(w) * f64::from(*c);
                }
            }
            for d in 0..rope {
                k[s * (nope + rope) + nope + d] = f64::from(row[rank + d]);
            }
            for j in 0..v_dim {
                for (r, c) in row[..rank].iter().enumerate() {
                    let w = expansion.v_b[(h * v_dim + j) * rank + r];
                    v[s * v_dim + j] += f64::from(w) * f64::from(*c);
                }
            }
        }
        for t in 0..positions.len() {
            let attended = attended(positions[t] as usize, selected.map(|s| &s[t][..]), n);
            let mut logits = Vec::new();
            for s in &attended {
                let mut dot = 0.0;
                for i in 0..nope + rope {
                    dot += q[(t * heads + h) * (nope + rope) + i].into() * k[s * (nope + rope) + i];
                }
                logits.push(f64::from(config.sm_scale) * dot);
            }
            for (s, p) in attended.iter().zip(softmax(&logits)) {
                for j in 0..v_dim {
                    out[(t * heads + h) * v_dim + j] += p * v[s * v_dim + j];
                }
            }
        }
    }
    Ok(out)
}
