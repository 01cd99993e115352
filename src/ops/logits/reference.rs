//! Output head, as specified: a linear layer on chosen rows.

use crate::error::{Error, Result};
use crate::ops::expect_rows;
use crate::ops::linear::reference::linear;

/// `y[i] = w x[rows[i]]`. No bias, no cap, no scale. `w` `[vocab, hidden]` (dequantized), `x` `[m, hidden]`; gives
/// `[rows.len(), vocab]`.
///
/// # Errors
/// [`Error::Shape`] if the lengths do not fit or a row does not exist.
pub fn logits<X: Copy + Into<f64>>(
    w: &[f32],
    x: &[X],
    rows: &[u32],
    vocab: usize,
    hidden: usize,
) -> Result<Vec<f64>> {
    let m = expect_rows("logits", "x", x.len(), hidden)?;
    let mut y = Vec::new();
    for r in rows {
        let row = *r as usize;
        if row >= m {
            return Err(Error::shape("logits", format!("rows below {m}"), r));
        }
        y.extend(linear(w, &x[row * hidden..(row + 1) * hidden], vocab, hidden)?);
    }
    Ok(y)
}
