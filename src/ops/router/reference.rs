//! Router, as specified.
//!
//! Logits are those of a [`linear`](crate::ops::linear::reference::linear) layer. Selection is exact on f32 values: a
//! score is `gating(logit)` rounded to f32, a biased score is the f32 sum of score and bias, and equal biased scores go
//! by lower index. Two correct implementations may differ in the last bit of a score, so experts whose biased scores
//! differ by that little may change places, and groups whose sums do; nothing else may.

use super::{Gating, RouterConfig};
use crate::error::Result;
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

fn rank(x: f32) -> f32 {
    if x.is_nan() { f32::NEG_INFINITY } else { x }
}

/// Indices from the largest value to the smallest, the lower of equals first.
fn by_rank(values: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| rank(values[*b]).total_cmp(&rank(values[*a])).then(a.cmp(b)));
    order
}

/// Chooses for each row the `n_experts_per_tok` experts with the largest `score + bias`; ties go to the lower index, and NaN
/// counts as `-inf`. Where only some groups are used, it chooses among the experts of the `n_groups_used` groups with the largest
/// sums, in f32, of their two largest biased scores; a group of one has no second. The weights are the scores without bias, divided
/// by `sum + 1e-20` if `norm_topk_prob`, times `routed_scaling_factor`. `logits` `[m, n_experts]` with `n_experts = bias.len()`.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the lengths do not fit, [`Error::Argument`](crate::Error::Argument) for more experts per
/// token than can be chosen (or none) and for groups that do not divide the experts.
pub fn route<X: Copy + Into<f64>>(logits: &[X], bias: &[f32], config: &RouterConfig) -> Result<Routed> {
    let n = bias.len();
    let m = expect_rows("router", "logits", logits.len(), n)?;
    let (k, group_size) = (config.n_experts_per_tok, config.group_size(n)?);
    let mut out = Routed { ids: Vec::new(), weights: Vec::new(), biased: Vec::new() };
    for t in 0..m {
        let row: Vec<f64> = logits[t * n..(t + 1) * n].iter().map(|z| (*z).into()).collect();
        let scores = scores(&row, config.gating);
        let biased: Vec<f32> = (0..n).map(|e| scores[e] as f32 + bias[e]).collect();

        let mut order = by_rank(&biased);
        if let Some(size) = group_size {
            let mut sums = Vec::new();
            for group in biased.chunks(size) {
                let best = by_rank(group);
                sums.push(best.iter().take(2).map(|e| rank(group[*e])).sum::<f32>());
            }
            let used = &by_rank(&sums)[..config.n_groups_used];
            order.retain(|e| used.contains(&(e / size)));
        }
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
