//! Mixture of experts, as specified: a loop over tokens, and over the experts of each.

use super::{MoeOptions, NO_EXPERT};
use crate::error::Result;
use crate::ops::ffn::reference::{Weights, ffn};
use crate::ops::{expect_len, expect_rows};

/// [`moe_with`] of the default options: the stack has all experts.
///
/// # Errors
/// As [`moe_with`].
pub fn moe<X: Copy + Into<f64>>(
    experts: &Weights,
    shared: Option<&Weights>,
    x: &[X],
    ids: &[u32],
    weights: &[f32],
    k: usize,
) -> Result<Vec<f64>> {
    moe_with(MoeOptions::default(), experts, shared, x, ids, weights, k)
}

/// `y[t] = sum_j weights[t][j] ffn_{ids[t][j]}(x[t]) + shared(x[t])`. An expert named twice counts twice; one that is
/// named nowhere is not read. [`NO_EXPERT`] is passed over, and in a shard all ids of experts that are not there. The shared
/// expert is neither scaled nor gated. `x` `[m, hidden]`; `ids`, `weights` `[m, k]` with any `k`, none included; gives `[m, hidden]`.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the lengths do not fit or an expert of a whole stack does not exist,
/// [`Error::Argument`](crate::Error::Argument) for a shard with
/// experts that no id reaches.
pub fn moe_with<X: Copy + Into<f64>>(
    options: MoeOptions,
    experts: &Weights,
    shared: Option<&Weights>,
    x: &[X],
    ids: &[u32],
    weights: &[f32],
    k: usize,
) -> Result<Vec<f64>> {
    let hidden = experts.hidden;
    let m = expect_rows("moe", "x", x.len(), hidden)?;
    expect_len("moe", "ids", ids.len(), m * k)?;
    expect_len("moe", "weights", weights.len(), m * k)?;
    let slabs = experts.gate.len().checked_div(hidden * experts.ff).unwrap_or(0);
    options.check(slabs)?;
    let mut y = vec![0.0; m * hidden];
    for t in 0..m {
        let row = &x[t * hidden..(t + 1) * hidden];
        for j in t * k..(t + 1) * k {
            let expert = match options.first_expert {
                _ if ids[j] == NO_EXPERT => continue,
                None => ids[j] as usize,
                Some(first) if (first..first + slabs).contains(&(ids[j] as usize)) => ids[j] as usize - first,
                Some(_) => continue,
            };
            let out = ffn(&experts.slab(expert)?, row)?;
            for i in 0..hidden {
                y[t * hidden + i] += f64::from(weights[j]) * out[i];
            }
        }
        if let Some(shared) = shared {
            let out = ffn(shared, row)?;
            expect_len("moe", "shared output", out.len(), hidden)?;
            for i in 0..hidden {
                y[t * hidden + i] += out[i];
            }
        }
    }
    Ok(y)
}
