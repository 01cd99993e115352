//! Lightning indexer scores of one sequence, as specified.

use half::{bf16, f16};

use crate::error::Result;
use crate::ops::{expect_len, expect_rows};
use crate::quant::activations::quantize_act_block;
use crate::tensor::CacheType;

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

/// The same over keys of a cache in int8: products of quants with the quants of the query, which is rotated and rounded as a key is
/// ([`rotated_int8`]), times both scales. `q` `[m, heads, 128]`, `keys` `[s, 128]`.
///
/// # Errors
/// As [`indexer_scores`].
pub fn indexer_scores_int8(
    q: &[f32],
    w: &[f32],
    keys: &[f32],
    positions: &[u32],
    heads: usize,
    scale: f64,
) -> Result<Vec<f64>> {
    let rounded = |x: &[f32]| x.as_chunks().0.iter().map(rotated_int8).collect::<Vec<_>>();
    let (of_q, of_keys) = (rounded(q), rounded(keys));
    let quants = |of: &[([i8; 128], f32)]| -> Vec<f32> {
        of.iter().flat_map(|(quants, _)| quants.map(f32::from)).collect()
    };
    let q: Vec<f64> = quants(&of_q).into_iter().map(f64::from).collect();
    let w: Vec<f64> = w.iter().zip(&of_q).map(|(w, (_, scale))| f64::from(*w) * f64::from(*scale)).collect();
    let mut scores = indexer_scores(&q, &w, &quants(&of_keys), positions, heads, 128, scale)?;
    for row in scores.chunks_mut(of_keys.len().max(1)) {
        let seen = row.iter_mut().zip(&of_keys).filter(|(score, _)| **score != f64::NEG_INFINITY);
        seen.for_each(|(score, (_, scale))| *score *= f64::from(*scale));
    }
    Ok(scores)
}

/// Quants and scale of a vector times the Hadamard matrix over `sqrt(128)`. Sums and differences of values 1, 2, 4 and so on apart are rounded
/// to f32 in this order, which decides between two quants where both are as near.
pub fn rotated_int8(x: &[f32; 128]) -> ([i8; 128], f32) {
    let mut x = *x;
    for apart in [1, 2, 4, 8, 16, 32, 64] {
        x = std::array::from_fn(|i| if i & apart == 0 { x[i] + x[i + apart] } else { x[i - apart] - x[i] });
    }
    let root = (1.0 / 128f64.sqrt()) as f32;
    let mut quants = [0; 128];
    let scale = quantize_act_block(&x.map(|v| v * root), &mut quants, &mut [0; 8]);
    (quants, scale)
}

/// Queries as [`Precision::Fast`](crate::tensor::Precision) has them before they meet keys of the type: rounded to bf16, or to f16 with the largest value
/// of a head brought to 2^12 by a power of two; as they are for others. `q` `[m, heads, dim]`.
pub fn rounded_query(q: &[f32], dim: usize, ty: CacheType) -> Vec<f32> {
    let head = |head: &[f32]| -> Vec<f32> {
        let largest = head.iter().fold(0f32, |m, v| m.max(v.abs()));
        let exponent = if largest > 0.0 && largest.is_finite() {
            12 - f64::from(largest).log2().floor() as i32
        } else {
            0
        };
        let power = 2f64.powi(exponent.clamp(-100, 100));
        let round = |v: &f32| match ty {
            CacheType::Bf16 => bf16::from_f32(*v).to_f32(),
            CacheType::F16 => (f16::from_f64(f64::from(*v) * power).to_f64() / power) as f32,
            _ => *v,
        };
        head.iter().map(round).collect()
    };
    q.chunks(dim.max(1)).flat_map(head).collect()
}
