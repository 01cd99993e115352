//! Exact top-k, as specified: sort everything, take the first `k`.

use std::cmp::Ordering;

use crate::error::{Error, Result};
use crate::ops::expect_len;

/// For each row, the positions of the `k` largest of its first `visible[t]` scores (all if fewer), ascending. Order of
/// preference: NaN first, so that it is seen and not hidden; then the larger score; then the lower position (`-0.0`
/// equals `0.0`). `scores` `[visible.len(), s]`.
///
/// # Errors
/// [`Error::Shape`] if the lengths do not fit, or a row is to see more than there is.
pub fn top_k(scores: &[f32], s: usize, visible: &[u32], k: usize) -> Result<Vec<Vec<u32>>> {
    expect_len("top_k", "scores", scores.len(), visible.len() * s)?;
    let mut out = Vec::new();
    for (t, visible) in visible.iter().enumerate() {
        if *visible as usize > s {
            return Err(Error::shape("top_k", format!("visible at most {s}"), visible));
        }
        let row = &scores[t * s..(t + 1) * s];
        let mut order: Vec<u32> = (0..*visible).collect();
        order.sort_by(|a, b| {
            let (x, y) = (row[*a as usize], row[*b as usize]);
            let by_score = match (x.is_nan(), y.is_nan()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Less,
                (false, true) => Ordering::Greater,
                (false, false) => y.partial_cmp(&x).unwrap_or(Ordering::Equal),
            };
            by_score.then(a.cmp(b))
        });
        order.truncate(k);
        order.sort();
        out.push(order);
    }
    Ok(out)
}
