//! Router: logits, scores, selection of distinct experts.

use super::{Cpu, linear};
use crate::error::Result;
use crate::ops::router::{Gating, RouterConfig, Routing};
use crate::tensor::{Matrix, Precision, Tensor};

pub(crate) fn router(
    cpu: &Cpu,
    w: &Matrix,
    bias: &Tensor,
    x: &Tensor,
    config: &RouterConfig,
    group_size: Option<usize>,
    out: &mut Routing,
) -> Result<()> {
    linear::linear_many(cpu, &[w], x, &mut [&mut out.logits], Precision::Exact)?;
    let (n, k) = (w.rows(), config.n_experts_per_tok);
    let bias = bias.cpu()?;
    let mut scratch = cpu.scratch_f32(2 * n + group_size.map_or(0, |size| n / size));
    let (scores, rest) = scratch.split_at_mut(n);
    let (biased, sums) = rest.split_at_mut(n);
    let rows = out.ids.cpu_mut()?.chunks_exact_mut(k).zip(out.weights.cpu_mut()?.chunks_exact_mut(k));
    for ((ids, weights), logits) in rows.zip(out.logits.cpu()?.chunks_exact(n)) {
        score(config.gating, logits, scores);
        biased.iter_mut().zip(scores.iter().zip(bias)).for_each(|(b, (s, bias))| *b = canonical(s + bias));
        if let Some(size) = group_size {
            strike_groups(biased, size, config.n_groups_used, sums);
        }
        for (id, weight) in ids.iter_mut().zip(weights.iter_mut()) {
            let best = take_best(biased);
            *id = best as u32;
            *weight = scores[best];
        }
        if config.norm_topk_prob {
            let sum = weights.iter().sum::<f32>() + 1e-20;
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        weights.iter_mut().for_each(|w| *w *= config.routed_scaling_factor);
    }
    Ok(())
}

fn score(gating: Gating, logits: &[f32], scores: &mut [f32]) {
    match gating {
        // f32::exp, not the vector polynomial: selection depends on the last bits of the scores.
        Gating::Sigmoid => scores.iter_mut().zip(logits).for_each(|(s, l)| *s = 1.0 / (1.0 + (-l).exp())),
        Gating::Softmax => {
            let max = logits.iter().fold(f32::NEG_INFINITY, |m, l| m.max(*l));
            scores.iter_mut().zip(logits).for_each(|(s, l)| *s = (l - max).exp());
            let sum = scores.iter().sum::<f32>();
            scores.iter_mut().for_each(|s| *s /= sum);
        }
    }
}

/// Strikes out all entries but those of the `used` groups of `size` with the largest sums of two entries; `sums` is room for one of
/// each group.
fn strike_groups(biased: &mut [f32], size: usize, used: usize, sums: &mut [f32]) {
    for (sum, group) in sums.iter_mut().zip(biased.chunks_exact(size)) {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for v in group {
            if *v > first {
                (first, second) = (*v, first);
            } else if *v > second {
                second = *v;
            }
        }
        *sum = if size == 1 { first } else { canonical(first + second) };
    }
    for _ in 0..used {
        take_best(sums);
    }
    for (_, group) in
        sums.iter().zip(biased.chunks_exact_mut(size)).filter(|(sum, _)| sum.to_bits() != STRUCK)
    {
        group.fill(f32::from_bits(STRUCK));
    }
}

/// NaN of one pattern, so that none can look like [`STRUCK`].
fn canonical(x: f32) -> f32 {
    if x.is_nan() { f32::NAN } else { x }
}

/// Index of the largest entry, the first of equals, which is struck out so that the next call finds another. NaN counts as
/// smallest, so experts stay distinct whatever the scores are.
fn take_best(biased: &mut [f32]) -> usize {
    let mut best = None;
    for (i, v) in biased.iter().enumerate() {
        if *v > best.map_or(f32::NEG_INFINITY, |b: usize| biased[b]) {
            best = Some(i);
        }
    }
    // Only NaN, -inf and struck-out entries left: take the first that is not struck out (marked by a NaN of our own).
    let best = best.or_else(|| biased.iter().position(|v| v.to_bits() != STRUCK)).unwrap_or(0);
    biased[best] = f32::from_bits(STRUCK);
    best
}

/// A NaN unlike the canonical one.
const STRUCK: u32 = 0xffff_fffe;
