//! Sums of what experts gave, as specified.

use crate::error::Result;
use crate::ops::moe_sort::NONE;
use crate::ops::{expect_len, expect_rows};

/// `y[t] = sum_j weights[t][j] rows[places[t][j]] + shared[t]`, without those that have no place. `rows` `[places, hidden]`, `places`,
/// `weights` `[m, k]`, `shared` `[m, hidden]`; gives `[m, hidden]`.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the lengths do not fit or a place does not exist.
pub fn gather_sum(
    rows: &[f32],
    hidden: usize,
    places: &[u32],
    weights: &[f32],
    shared: Option<&[f32]>,
    m: usize,
) -> Result<Vec<f64>> {
    let n = expect_rows("moe_sum", "rows", rows.len(), hidden)?;
    expect_len("moe_sum", "weights", weights.len(), places.len())?;
    let mut y = vec![0.0; m * hidden];
    if let Some(shared) = shared {
        expect_len("moe_sum", "shared", shared.len(), m * hidden)?;
        y.iter_mut().zip(shared).for_each(|(y, s)| *y = f64::from(*s));
    }
    let k = places.len().checked_div(m).unwrap_or(0);
    for (pair, place) in places.iter().enumerate().filter(|(_, place)| **place != NONE) {
        expect_len("moe_sum", "rows at a place", n.min(*place as usize + 1), *place as usize + 1)?;
        let (t, row) = (pair / k, &rows[*place as usize * hidden..][..hidden]);
        for (y, v) in y[t * hidden..][..hidden].iter_mut().zip(row) {
            *y += f64::from(weights[pair]) * f64::from(*v);
        }
    }
    Ok(y)
}
