//! Embedding, as specified: copying rows.

use crate::error::{Error, Result};
use crate::ops::expect_rows;

/// `out[t][i] = table[tokens[t]][i]`: no scale, no arithmetic, so the values are those of the table bit for bit.
/// `table` `[vocab, hidden]` dequantized; gives `[tokens.len(), hidden]`.
///
/// # Errors
/// [`Error::Shape`] if `table` is not whole rows, [`Error::Argument`] for a token outside the vocabulary.
pub fn embedding(table: &[f32], hidden: usize, tokens: &[u32]) -> Result<Vec<f32>> {
    let vocab = expect_rows("embedding", "table", table.len(), hidden)?;
    let mut out = Vec::new();
    for token in tokens {
        let row = *token as usize;
        if row >= vocab {
            return Err(Error::argument("token id", format!("below the vocabulary size {vocab}"), token));
        }
        for i in 0..hidden {
            out.push(table[row * hidden + i]);
        }
    }
    Ok(out)
}
