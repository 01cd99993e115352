//! Lightning indexer scores of one sequence, as specified.

use crate::error::Result;
use crate::ops::{expect_len, expect_rows};

/// `scores[t][s] = scale sum_a w[t][a] relu(q[t][a] . keys[s])` for `s <= positions[t]`, `-inf` for later keys. Weights
/// keep their sign; `relu` turns negative values to zero and lets NaN pass. `q` `[m, heads, dim]`, `w` `[m, heads]`,
/// `keys` `[s, dim]` by position; gives `[m, s]`.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the lengths do not fit.
pub fn indexer_scores<X: Copy + Into<f64>>(
    q: &[X],
    w: &[X],
    keys: &[f32],
    positions: &[u32],
    heads: usize,
    dim: usize,
    scale: f64,
) -> Result<Vec<f64>> {
    let n = expect_rows("indexer", "keys", keys.len(), dim)?;
    let m = positions.len();
    expect_len("indexer", "q", q.len(), m * heads * dim)?;
    expect_len("indexer", "w", w.len(), m * heads)?;
    let mut scores = vec![f64::NEG_INFINITY; m * n];
    for t in 0..m {
        for s in 0..n.min(positions[t] as usize + 1) {
            let mut sum = 0.0;
            for a in 0..heads {
                let mut dot = 0.0;
                for i in 0..dim {
                    dot += q[(t * heads + a) * dim + i].into() * f64::from(keys[s * dim + i]);
                }
                let relu = if dot < 0.0 { 0.0 } else { dot };
                sum += w[t * heads + a].into() * relu;
            }
            scores[t * n + s] = scale * sum;
        }
    }
    Ok(scores)
}
