//! Attention of one sequence with expanded keys and values, as specified, and with what is rounded on the way.

use crate::error::Result;
use crate::ops::mla_attention::MlaConfig;
use crate::ops::mla_attention::reference::Expansion;
use crate::ops::{expect_len, expect_rows};

/// Keys `[n, n_heads, nope + rope]` and values `[n, n_heads, v]` of the heads.
#[derive(Debug, Clone)]
pub struct Expanded {
    /// `[k_b[h]^T c_s | k_pe_s]`
    pub keys: Vec<f64>,
    /// `v_b[h] c_s`
    pub values: Vec<f64>,
}

/// What the rows of a sequence attend.
#[derive(Debug, Clone, Default)]
pub struct Attended {
    /// `[m, n_heads, v]`
    pub out: Vec<f64>,
    /// `[m, n_heads]`: the logarithm of the sum of exponentials of the logits.
    pub lse: Vec<f64>,
    /// `[m, n_heads, v]`: `sum_s p[s] |v[h][s]|`, which errors of weights and values are relative to.
    pub magnitudes: Vec<f64>,
}

/// Keys and values of all heads from the rows `[n, rank + rope]` of a cache. Every latent value, weight and result goes through `round`, which for
/// exact arithmetic gives back what it gets.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the lengths do not fit.
pub fn expand(
    rows: &[f32],
    config: &MlaConfig,
    expansion: &Expansion,
    round: impl Fn(f64) -> f64,
) -> Result<Expanded> {
    let (heads, rank, rope) = (config.n_heads, config.kv_lora_rank, config.qk_rope_head_dim);
    let (nope, v) = (expansion.qk_nope_head_dim, expansion.v_head_dim);
    let n = expect_rows("mla_prefill", "rows", rows.len(), rank + rope)?;
    expect_len("mla_prefill", "k_b", expansion.k_b.len(), heads * rank * nope)?;
    expect_len("mla_prefill", "v_b", expansion.v_b.len(), heads * v * rank)?;
    let rounded = |values: &[f32]| values.iter().map(|x| round(f64::from(*x))).collect::<Vec<f64>>();
    let (k_b, v_b) = (rounded(expansion.k_b), rounded(expansion.v_b));
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for s in 0..n {
        let row = rounded(&rows[s * (rank + rope)..(s + 1) * (rank + rope)]);
        for h in 0..heads {
            let mut key = vec![0.0; nope];
            for r in 0..rank {
                for d in 0..nope {
                    key[d] += k_b[(h * rank + r) * nope + d] * row[r];
                }
            }
            keys.extend(key.into_iter().map(&round));
            keys.extend_from_slice(&row[rank..]);
            for j in 0..v {
                let mut value = 0.0;
                for r in 0..rank {
                    value += v_b[(h * v + j) * rank + r] * row[r];
                }
                values.push(round(value));
            }
        }
    }
    Ok(Expanded { keys, values })
}

/// Rows at `positions` over those keys: `l[s] = q[t][h] . k[h][s]`, `p = softmax(l)`, `out[t][h] = sum_s p[s] v[h][s]`, with `q` `[m, n_heads,
/// nope + rope]` that holds the scale already.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the lengths do not fit.
pub fn attend(q: &[f64], expanded: &Expanded, positions: &[u32], heads: usize) -> Result<Attended> {
    let (m, Expanded { keys, values }) = (positions.len(), expanded);
    let width = q.len() / (m * heads).max(1);
    expect_len("mla_prefill", "q", q.len(), m * heads * width)?;
    let n = expect_rows("mla_prefill", "keys", keys.len(), heads * width)?;
    let v = values.len() / (n * heads).max(1);
    let mut all = Attended::default();
    for t in 0..m {
        let visible = (positions[t] as usize + 1).min(n);
        for h in 0..heads {
            let q = &q[(t * heads + h) * width..][..width];
            let logit = |s: usize| -> f64 {
                let key = &keys[(s * heads + h) * width..][..width];
                q.iter().zip(key).map(|(q, k)| q * k).sum()
            };
            let logits: Vec<f64> = (0..visible).map(logit).collect();
            let max = logits.iter().fold(f64::NEG_INFINITY, |a, l| a.max(*l));
            let sum: f64 = logits.iter().map(|l| (l - max).exp()).sum();
            let (mut out, mut magnitudes) = (vec![0.0; v], vec![0.0; v]);
            for s in 0..visible {
                let p = (logits[s] - max).exp() / sum;
                for j in 0..v {
                    let value = values[(s * heads + h) * v + j];
                    out[j] += p * value;
                    magnitudes[j] += p * value.abs();
                }
            }
            all.out.extend(out);
            all.magnitudes.extend(magnitudes);
            all.lse.push(max + sum.ln());
        }
    }
    Ok(all)
}
