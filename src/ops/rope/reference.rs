//! Rotary position embedding, as specified: interleaved pairs, angles in f64.

use crate::error::{Error, Result};
use crate::ops::expect_rows;

/// Angle per position of each pair: `base^(-2i / dim)` for `i < dim / 2`. `dim` is the rotated width, not the width of
/// the head around it.
///
/// # Errors
/// [`Error::Shape`] if `dim` is zero or odd.
pub fn frequencies(base: f64, dim: usize) -> Result<Vec<f64>> {
    if dim == 0 || dim % 2 == 1 {
        return Err(Error::shape("rope", "an even width", dim));
    }
    Ok((0..dim / 2).map(|i| base.powf(-2.0 * i as f64 / dim as f64)).collect())
}

/// Rotates every head part at position `p` by `phi = p base^(-2i / dim)` in the plane of its values `2i` and `2i + 1`:
/// `z'[2i] = z[2i] cos phi - z[2i+1] sin phi`, `z'[2i+1] = z[2i] sin phi + z[2i+1] cos phi`. `x` is
/// `[positions.len(), heads, dim]`, the head parts alone; gives the same shape.
///
/// # Errors
/// [`Error::Shape`] if `dim` is zero or odd or `x` is not whole rows.
pub fn rope<X: Copy + Into<f64>>(x: &[X], positions: &[u32], dim: usize, base: f64) -> Result<Vec<f64>> {
    let freqs = frequencies(base, dim)?;
    let parts = expect_rows("rope", "x", x.len(), dim)?;
    let heads = if positions.is_empty() { 0 } else { parts / positions.len() };
    if heads * positions.len() != parts {
        return Err(Error::shape("rope", format!("parts of {dim} for {} rows", positions.len()), parts));
    }
    let mut y = vec![0.0; x.len()];
    for (t, position) in positions.iter().enumerate() {
        for h in 0..heads {
            let part = (t * heads + h) * dim;
            for i in 0..dim / 2 {
                let phi = f64::from(*position) * freqs[i];
                let (a, b): (f64, f64) = (x[part + 2 * i].into(), x[part + 2 * i + 1].into());
                y[part + 2 * i] = a * phi.cos() - b * phi.sin();
                y[part + 2 * i + 1] = a * phi.sin() + b * phi.cos();
            }
        }
    }
    Ok(y)
}
