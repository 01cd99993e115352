//! Mixture of experts: the weighted sum of a token's routed experts, plus the shared expert.

pub mod reference;

use super::ffn::Ffn;
use super::router::Routing;
use super::{expect, no_kernel};
use crate::error::{Error, Result};
use crate::tensor::{Device, Precision, Tensor};
use crate::{cpu, cuda};

/// `y[t] = sum_j weights[t][j] ffn_{ids[t][j]}(x[t]) + shared(x[t])`; the shared expert is neither scaled nor gated.
/// `experts` has one slab per expert; `x`, `y` `[m, hidden]`; `routing` as [`super::router::router`] leaves it.
///
/// # Errors
/// [`Error::Shape`] if they do not fit, [`Error::Argument`] for an expert id outside the stack (a GPU traps there, which is an
/// [`Error::Driver`] of a later call).
pub fn moe(
    experts: &Ffn,
    shared: Option<&Ffn>,
    x: &Tensor,
    routing: &Routing,
    y: &mut Tensor,
    precision: Precision,
) -> Result<()> {
    let hidden = experts.hidden();
    expect("moe", "x", x, x.rows(), hidden)?;
    expect("moe", "y", y, x.rows(), hidden)?;
    let k = routing.ids.cols();
    expect("moe", "ids", &routing.ids, x.rows(), k)?;
    expect("moe", "weights", &routing.weights, x.rows(), k)?;
    if let Some(s) = shared
        && (s.slabs() != 1 || s.hidden() != hidden)
    {
        let got = format!("{:?}", s.gate().shape());
        return Err(Error::shape("moe", format!("a shared expert [1, ff, {hidden}]"), got));
    }
    match x.device() {
        Device::Cpu(cpu) => {
            if let Some(id) = routing.ids.cpu()?.iter().find(|id| **id as usize >= experts.slabs()) {
                return Err(Error::argument("expert id", format!("below {}", experts.slabs()), id));
            }
            cpu::moe::moe(cpu, experts, shared, x, routing, y, precision)
        }
        Device::Cuda(gpu) => {
            match [experts.gate(), experts.up(), experts.down()].iter().any(|w| w.is_tiled()) {
                true => no_kernel("moe of experts in tiles", gpu),
                false => cuda::moe_blocks::moe(experts, shared, x, routing, y, precision, None),
            }
        }
    }
}
