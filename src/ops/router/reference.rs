//! Router, as specified.
//!
//! Logits are those of a [`linear`](crate::ops::linear::reference::linear) layer. Selection is exact on f32 values: a
//! score is `gating(logit)` rounded to f32, a biased score is the f32 sum of score and bias, and equal biased scores go
//! by lower index. Two correct implementations may differ in the last bit of a score, so experts whose biased scores
//! differ by that little may change places; nothing else may.

use super::{Gating, RouterConfig};
use crate::error::{Error, Result};
use crate::ops::expect_rows;

/// What [`route`] chooses.
#[derive(Debug, Clone, PartialEq)]
pub struct Routed {
    /// `[m, n_experts_per_tok]`, by falling biased score.
    pub ids: Vec<u32>,
    /// `[m, n_experts_per_tok]`.
    pub weights: Vec<f64>,
    /// `[m, n_experts]`: scores plus bias, which decided.
    pub biased: Vec<f32>,
}

/// Scores in f64: `1 / (1 + exp(-logit))` for each expert, or `softmax(logits)` over the experts.
pub fn scores(logits: &[f64], gating: Gating) -> Vec<f64> {
    match gating {
        Gating::Sigmoid => logits.iter().map(|z| 1.0 / (1.0 + (-z).exp())).collect(),
        Gating::Softmax => {
            let max = logits.iter().fold(f64::NEG_INFINITY, |a, z| a.max(*z));
            let sum: f64 = logits.iter().map(|z| (z - max).exp()).sum();
            logits.iter().map(|z| (z - max).exp() / sum).collect()
        }
    }
}

/// Chooses for each row the `n_experts_per_tok` experts with the largest `score + bias`; ties go to the lower index, and NaN
/// counts as `-inf`. The
/// weights are the scores without bias, divided by `sum + 1e-20` if `norm_topk_prob`, times `routed_scaling_factor`.
/// `logits` `[m, n_experts]` with `n_experts = bias.len()`.
///
/// # Errors
/// [`Error::Shape`] if the lengths do not fit, [`Error::Argument`] for more experts per token than there are (or none).
pub fn route<X: Copy + Into<f64>>(logits: &[X], bias: &[f32], config: &RouterConfig) -> Result<Routed> {
    let n = bias.len();
    let m = expect_rows("router", "logits", logits.len(), n)?;
    let k = config.n_experts_per_tok;
    if k == 0 || k > n {
        return Err(Error::argument("experts per token", format!("1 to {n}"), k));
    }
    let mut out = Routed { ids: Vec::new(), weights: Vec::new(), biased: Vec::new() };
    for t in 0..m {
        let row: Vec<f64> = logits[t * n..(t + 1) * n].iter().map(|z| (*z).into()).collect();
        let scores = scores(&row, config.gating);
        let biased: Vec<f32> = (0..n).map(|e| scores[e] as f32 + bias[e]).collect();

        let mut order: Vec<usize> = (0..n).collect();
        let rank = |e: &usize| if biased[*e].is_nan() { f32::NEG_INFINITY } else { biased[*e] };
        order.sort_by(|a, b| rank(b).total_cmp(&rank(a)).then(a.cmp(b)));
        let chosen = &order[..k];

        let sum: f64 = chosen.iter().map(|e| scores[*e]).sum();
        let divisor = if config.norm_topk_prob { sum + 1e-20 } else { 1.0 };
        for e in chosen {
            out.ids.push(*e as u32);
            out.weights.push(scores[*e] / divisor * f64::from(config.routed_scaling_factor));
        }
        out.biased.extend(biased);
    }
    Ok(out)
}
