//! What follows the first projections of attention, as specified.

use crate::error::Result;
use crate::ops::expect_len;
use crate::ops::norm::reference::{layer_norm, rms_norm};
use crate::ops::rope::reference::rope;

/// `rms_norm(q)`: what the second projections take, those of the indexer too. `q` `[m, n]`, `w` `[n]`.
///
/// # Errors
/// [`crate::Error::Shape`] if the lengths do not fit.
pub fn queries(q: &[f32], w: &[f32], eps: f64) -> Result<Vec<f64>> {
    rms_norm(q, w, eps)
}

/// Latent rows `[rms_norm(c) | rotated k]` of rows `[c | k]`; `k`, of `rope_dim` values, is not normed, and not part of any norm. `kv`
/// `[m, w.len() + rope_dim]`; gives the same shape.
///
/// # Errors
/// [`crate::Error::Shape`] if the lengths do not fit.
pub fn latent_rows(
    kv: &[f32],
    w: &[f32],
    eps: f64,
    positions: &[u32],
    rope_dim: usize,
    base: f64,
) -> Result<Vec<f64>> {
    let (rank, width) = (w.len(), w.len() + rope_dim);
    expect_len("post_a", "kv", kv.len(), positions.len() * width)?;
    let mut out = Vec::new();
    for (t, position) in positions.iter().enumerate() {
        let (latent, rotated) = kv[t * width..(t + 1) * width].split_at(rank);
        out.extend(rms_norm(latent, w, eps)?);
        out.extend(rope(rotated, &[*position], rope_dim, base)?);
    }
    Ok(out)
}

/// Keys of the indexer: `layer_norm(x)`, of which the first `rope_dim` values are rotated. `x` `[m, n]`, `w`, `b` `[n]`; gives `[m, n]`.
///
/// # Errors
/// [`crate::Error::Shape`] if the lengths do not fit.
pub fn keys(
    x: &[f32],
    w: &[f32],
    b: &[f32],
    eps: f64,
    positions: &[u32],
    rope_dim: usize,
    base: f64,
) -> Result<Vec<f64>> {
    let n = w.len();
    expect_len("post_a", "keys", x.len(), positions.len() * n)?;
    let mut out = layer_norm(x, w, b, eps)?;
    for (t, position) in positions.iter().enumerate() {
        let rotated = rope(&out[t * n..t * n + rope_dim], &[*position], rope_dim, base)?;
        out[t * n..t * n + rope_dim].copy_from_slice(&rotated);
    }
    Ok(out)
}
