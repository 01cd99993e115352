//! Mixture of experts: the weighted sum of a token's routed experts, plus the shared expert.

pub mod config;
pub mod reference;

use super::expect;
use super::ffn::Ffn;
use super::linear::{LinearInput, Rounded};
use super::router::Routing;
use crate::cuda::moe::Forms;
pub use crate::cuda::moe::MoeScratch;
use crate::error::{Error, Result};
use crate::tensor::{Device, Precision, Tensor};
use crate::{cpu, cuda};

/// An id that stands for no expert, such as in an unused place of a routing: it adds exactly zero, and its weight is not looked at.
pub const NO_EXPERT: u32 = u32::MAX;

/// What a call of [`moe_with`] can have besides.
#[derive(Debug, Default)]
pub struct MoeOptions<'a> {
    /// The stack is a shard that begins with this one of the model's experts; others add exactly zero. Without, the stack has all
    /// experts, and an id of none of them is an error.
    pub first_expert: Option<usize>,
    /// What a GPU needs besides. Without, it is made for the call, which then cannot be recorded in a graph.
    pub scratch: Option<&'a mut MoeScratch>,
}

impl MoeOptions<'_> {
    /// The expert that a stack begins with.
    pub(crate) fn first(&self) -> usize {
        self.first_expert.unwrap_or(0)
    }

    /// Fails unless every expert of a stack of `slabs` has an id.
    fn check(&self, slabs: usize) -> Result<()> {
        // Ids are u32, and the last one is that of no expert.
        let most = NO_EXPERT as usize;
        if self.first().checked_add(slabs).is_some_and(|end| end <= most) {
            return Ok(());
        }
        let want = format!("at most {} for {slabs} experts", most.saturating_sub(slabs));
        Err(Error::argument("first expert", want, self.first()))
    }

    /// Where expert `id` lies in a stack of `slabs`; nowhere if it is one of another shard, or none ([`Self::check`] sees to that).
    pub(crate) fn slab(&self, id: u32, slabs: usize) -> Option<usize> {
        (id as usize).checked_sub(self.first()).filter(|slab| *slab < slabs)
    }
}

/// [`moe_with`] of the default options: the stack has all experts.
///
/// # Errors
/// As [`moe_with`].
pub fn moe(
    experts: &Ffn,
    shared: Option<&Ffn>,
    x: &Tensor,
    routing: &Routing,
    y: &mut Tensor,
    precision: Precision,
) -> Result<()> {
    moe_with(MoeOptions::default(), experts, shared, x, routing, y, precision)
}

/// `y[t] = sum_j weights[t][j] ffn_{ids[t][j]}(x[t]) + shared(x[t])`; the shared expert is neither scaled nor gated. [`NO_EXPERT`] and,
/// for a shard of the experts, those of other shards add exactly zero. So the results of all shards add up to that of the whole, if
/// the shared expert is given for one of them.
/// `experts` has one slab per expert; `x`, `y` `[m, hidden]`; `routing` as [`super::router::router`] leaves it.
///
/// # Errors
/// [`Error::Shape`] if they do not fit, [`Error::Argument`] for an expert id outside a stack of all experts (a GPU traps there, which is an
/// [`Error::Driver`] of a later call), and for a shard with experts that no id reaches. On GPUs [`Error::Unsupported`] for
/// [`Precision::Exact`] of experts in tiles, for experts of which some matrices are in tiles and others in blocks
/// ([`Ffn::for_fast_linear`] makes none) and for more than 512 experts; [`Error::Capacity`] for more than 2^20 pairs of token and slot in
/// tiles, or more bytes of weights in a call than can be counted. `y` is as it was then.
pub fn moe_with(
    options: MoeOptions<'_>,
    experts: &Ffn,
    shared: Option<&Ffn>,
    x: &Tensor,
    routing: &Routing,
    y: &mut Tensor,
    precision: Precision,
) -> Result<()> {
    let forms = Forms { x, rows: None, tiles: None };
    run(options, experts, shared, forms, routing, y, precision)
}

/// Rounded forms of its input that [`moe_from`] takes, of `m` tokens: an operation that writes that input may write them with it.
pub fn takes(experts: &Ffn, shared: Option<&Ffn>, m: usize) -> Rounded {
    // Beside few tokens the shared expert is one of the others.
    let apart = !experts.is_tiled() || m > config::FEW_ROWS;
    let shared = shared.is_some_and(|w| w.gate().is_tiled() || w.up().is_tiled());
    Rounded { tiles: apart && shared, rows: experts.is_tiled() }
}

/// [`moe_with`] of rows whose rounded forms may be there.
///
/// # Errors
/// As [`moe_with`].
pub fn moe_from(
    options: MoeOptions<'_>,
    experts: &Ffn,
    shared: Option<&Ffn>,
    x: &mut LinearInput,
    routing: &Routing,
    y: &mut Tensor,
    precision: Precision,
) -> Result<()> {
    let (x, tiles, rows) = x.there();
    run(options, experts, shared, Forms { x, rows, tiles }, routing, y, precision)
}

fn run(
    options: MoeOptions<'_>,
    experts: &Ffn,
    shared: Option<&Ffn>,
    forms: Forms<'_>,
    routing: &Routing,
    y: &mut Tensor,
    precision: Precision,
) -> Result<()> {
    let x = forms.x;
    options.check(experts.slabs())?;
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
            let unknown = |id: &&u32| **id != NO_EXPERT && **id as usize >= experts.slabs();
            let ids = routing.ids.cpu()?;
            if let Some(id) = ids.iter().find(unknown).filter(|_| options.first_expert.is_none()) {
                return Err(Error::argument("expert id", format!("below {}", experts.slabs()), id));
            }
            cpu::moe::moe(cpu, &options, experts, shared, x, routing, y, precision)
        }
        Device::Cuda(_) => {
            match [experts.gate(), experts.up(), experts.down()].iter().any(|w| w.is_tiled()) {
                true => cuda::moe::moe(options, experts, shared, forms, routing, y, precision),
                false => cuda::moe_blocks::moe(options, experts, shared, forms, routing, y, precision),
            }
        }
    }
}
