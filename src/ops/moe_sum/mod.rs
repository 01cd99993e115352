//! The weighted sum of what the experts of each token gave, plus what the shared one gave.

pub mod config;
pub mod reference;

use super::moe_sort::SortedPairs;
use super::{expect, on_one_device};
use crate::error::{Error, Result};
use crate::tensor::{Device, Tensor};
use crate::{cpu, cuda};

/// `y[t] = sum_j weights[t][j] rows[place of pair (t, j)] + shared[t]`: fused multiply-adds in f32, from slot 0 on, then the shared row.
/// Pairs without a place count nothing, and nothing is read for them. `rows` has a row of `hidden` for each place, and may have more;
/// `weights` `[m, top_k]`, of the routing that was sorted; `shared`, `y` `[m, hidden]`.
///
/// # Errors
/// [`Error::Shape`] if they do not fit; [`Error::Unsupported`] across devices.
pub fn gather_sum(
    rows: &Tensor,
    sorted: &SortedPairs,
    weights: &Tensor,
    shared: Option<&Tensor>,
    y: &mut Tensor,
) -> Result<()> {
    let [m, hidden] = y.shape();
    expect("moe_sum", "weights", weights, m, sorted.top_k())?;
    if m * sorted.top_k() != sorted.pairs() {
        let want = format!("{m} tokens with {} slots", sorted.top_k());
        return Err(Error::shape("moe_sum", want, format!("{} pairs", sorted.pairs())));
    }
    if rows.cols() != hidden || rows.rows() < sorted.pairs() {
        let want = format!("rows [{} or more, {hidden}]", sorted.pairs());
        return Err(Error::shape("moe_sum", want, format!("{:?}", rows.shape())));
    }
    if let Some(shared) = shared {
        expect("moe_sum", "shared", shared, m, hidden)?;
        on_one_device("moe_sum", &[y.device(), shared.device()])?;
    }
    on_one_device("moe_sum", &[y.device(), rows.device(), sorted.device(), weights.device()])?;
    match y.device() {
        Device::Cpu(cpu) => {
            let cpu = cpu.clone();
            cpu::moe::gather_sum(&cpu, rows, sorted, weights, shared, y)
        }
        Device::Cuda(_) => cuda::moe_sum::moe_sum(rows.cuda()?, sorted, weights, shared, y),
    }
}
