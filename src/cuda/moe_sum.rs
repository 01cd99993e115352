//! Launches of moe_sum. Shapes were checked by [`crate::ops`].

use std::ptr;

use super::Buffer;
use super::dequantize::{count, holds};
use crate::error::Result;
use crate::ops::moe_sort::SortedPairs;
use crate::ops::moe_sum::config::SumConfig;
use crate::sys::moe_sum_params;
use crate::tensor::Tensor;

/// `rows` has a row for each place, as wide as `y`.
pub(crate) fn moe_sum(
    rows: &Buffer<f32>,
    sorted: &SortedPairs,
    weights: &Tensor,
    shared: Option<&Tensor>,
    y: &mut Tensor,
) -> Result<()> {
    let ([m, hidden], top_k) = (y.shape(), sorted.top_k());
    let (places, weights, y) = (sorted.places.cuda()?, weights.cuda()?, y.cuda_mut()?);
    let gpu = rows.gpu().with(places)?.with(weights)?.with(y)?.clone();
    holds("moe_sum", rows, sorted.pairs() * hidden)?;
    holds("moe_sum", places, m * top_k)?;
    holds("moe_sum", weights, m * top_k)?;
    holds("moe_sum", y, m * hidden)?;
    let config = SumConfig::pick(m, hidden)?;
    let _turn = gpu.turn();
    let shared = match shared {
        None => ptr::null(),
        Some(shared) => {
            let shared = shared.cuda()?;
            gpu.with(shared)?;
            holds("moe_sum", shared, m * hidden)?;
            shared.as_ptr()
        }
    };
    let params = moe_sum_params {
        rows: rows.as_ptr(),
        places: places.as_ptr(),
        weights: weights.as_ptr(),
        shared,
        y: y.as_mut_ptr(),
        m: count("tokens", m)?,
        top_k: count("slots of a token", top_k)?,
        hidden: count("columns", hidden)?,
    };
    // SAFETY: all hold their shapes, as was checked, and places are below the number of pairs; all lie on this device.
    // Buffers are aligned to 256, and rows are whole fours where a kernel loads such.
    unsafe { gpu.launch(config.entry, [config.grid, 1, 1], &params) }
}
