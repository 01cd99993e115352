//! Exact top-k by selection on integer keys.

use super::Cpu;
use crate::error::Result;
use crate::ops::dsa_topk::Selection;
use crate::tensor::Tensor;

pub(crate) fn top_k(cpu: &Cpu, scores: &Tensor, visible: &[u32], out: &mut Selection) -> Result<()> {
    let (n, k) = (scores.cols(), out.k());
    let rows = out.indices.cpu_mut()?.chunks_exact_mut(k).zip(out.lens.cpu_mut()?);
    let scores = scores.cpu()?;
    for (t, (indices, len)) in rows.enumerate() {
        let row = &scores[t * n..][..visible[t] as usize];
        *len = select(cpu, row, indices) as u32;
    }
    Ok(())
}

/// Positions of the `out.len()` best of `scores` (all, if fewer), ascending; returns how many.
pub(super) fn select(cpu: &Cpu, scores: &[f32], out: &mut [u32]) -> usize {
    let n = scores.len();
    let k = out.len().min(n);
    if k == n {
        out.iter_mut().zip(0..n as u32).for_each(|(o, i)| *o = i);
        return n;
    }
    let mut keys = cpu.scratch(n);
    for (i, (key, s)) in keys.iter_mut().zip(scores).enumerate() {
        *key = (descending(*s) as u64) << 32 | i as u64;
    }
    keys.select_nth_unstable(k);
    let best = &mut keys[..k];
    best.iter_mut().for_each(|key| *key &= u32::MAX as u64);
    best.sort_unstable();
    out.iter_mut().zip(best).for_each(|(o, key)| *o = *key as u32);
    k
}

/// An integer that grows as the score falls: NaN first, then +inf down to -inf, both zeros alike.
#[inline(always)]
fn descending(score: f32) -> u32 {
    if score.is_nan() {
        return 0;
    }
    let bits = (score + 0.0).to_bits(); // -0.0 + 0.0 = 0.0
    if bits >> 31 == 0 { !(bits | 1 << 31) } else { bits }
}
