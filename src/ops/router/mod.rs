//! Router: which experts a token goes to, and with which weights. All in f32.

pub mod config;
pub mod reference;

use super::{expect, on_one_device};
use crate::error::{Error, Result};
use crate::tensor::{Device, Matrix, Tensor};
use crate::{cpu, cuda};

/// How logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Gating {
    /// `softmax(logits)` over all experts.
    Softmax,
    /// `sigmoid(logit)` of each expert on its own (GLM-5).
    Sigmoid,
}

/// Constants of the router, from the file's metadata.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct RouterConfig {
    /// Experts per token.
    pub n_experts_per_tok: usize,
    /// Score function.
    pub gating: Gating,
    /// Whether the chosen weights are divided by their sum.
    pub norm_topk_prob: bool,
    /// Factor on the weights, applied once, after the normalization.
    pub routed_scaling_factor: f32,
    /// Groups of equal size that the experts are cut into, in order. One (GLM-5), or 0: no groups.
    pub n_groups: usize,
    /// Groups whose experts can be chosen. All of them is as if there were none.
    pub n_groups_used: usize,
}

impl RouterConfig {
    /// Experts of each group if the choice among `n_experts` is limited to some groups.
    ///
    /// # Errors
    /// [`Error::Argument`] unless there are as many experts to choose from, in groups of equal size.
    pub(crate) fn group_size(&self, n_experts: usize) -> Result<Option<usize>> {
        let (k, groups, used) = (self.n_experts_per_tok, self.n_groups.max(1), self.n_groups_used);
        if k == 0 || k > n_experts {
            return Err(Error::argument("experts per token", format!("1 to {n_experts}"), k));
        }
        if !n_experts.is_multiple_of(groups) {
            return Err(Error::argument("groups of experts", format!("a divisor of {n_experts}"), groups));
        }
        // Without groups, metadata may count none as used.
        if used > groups || used == 0 && groups > 1 {
            return Err(Error::argument("groups of experts used", format!("1 to {groups}"), used));
        }
        if groups == 1 || used == groups {
            return Ok(None);
        }
        let size = n_experts / groups;
        if k > used * size {
            let want = format!("1 to {} in {used} of {groups} groups", used * size);
            return Err(Error::argument("experts per token", want, k));
        }
        Ok(Some(size))
    }
}

/// Result of [`router`], reused from step to step.
#[derive(Debug)]
pub struct Routing {
    /// `[m, n_experts_per_tok]`, by falling biased score.
    pub ids: Tensor<u32>,
    /// `[m, n_experts_per_tok]`, in the order of `ids`.
    pub weights: Tensor,
    /// `[m, n_experts]`, before the score function.
    pub logits: Tensor,
    /// Of every four tokens of a launch on a GPU: blocks of threads that have ended. Zeros between launches.
    pub(crate) arrived: Tensor<u32>,
}

impl Routing {
    /// Room for no rows yet.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn new(device: &Device, n_experts: usize, n_experts_per_tok: usize) -> Result<Self> {
        Ok(Routing {
            ids: Tensor::zeros(device, 0, n_experts_per_tok)?,
            weights: Tensor::zeros(device, 0, n_experts_per_tok)?,
            logits: Tensor::zeros(device, 0, n_experts)?,
            arrived: Tensor::zeros(device, 1, config::FUSED_TOKENS.div_ceil(config::TOKENS))?,
        })
    }

    /// One after the other: if one fails, those before it have changed.
    fn resize_all(&mut self, rows: usize) -> Result<()> {
        self.ids.resize(rows)?;
        self.weights.resize(rows)?;
        self.logits.resize(rows)
    }

    /// Changes the number of rows.
    ///
    /// # Errors
    /// As [`Tensor::resize`]; nothing is changed then.
    pub(crate) fn resize(&mut self, rows: usize) -> Result<()> {
        let before = [self.ids.rows(), self.weights.rows(), self.logits.rows()];
        self.resize_all(rows).inspect_err(|_| {
            // Those that have grown become smaller again, for which there is memory.
            let [ids, weights, logits] = before;
            _ = self.ids.resize(ids);
            _ = self.weights.resize(weights);
            _ = self.logits.resize(logits);
        })
    }
}

/// Scores `s = gating(w x)`; the experts with the largest `s + bias` are chosen (ties: lower index first, NaN as `-inf`), the bias
/// counting here only; their weights are `s`, divided by `sum + 1e-20` if `norm_topk_prob`, times the scaling factor.
/// If only some groups of experts are used, they are those with the largest sums of their two largest `s + bias` (or of the one of a
/// group of one; ties and NaN as above), and no others' experts are chosen.
/// `w` `[1, n_experts, hidden]`, `bias` `[1, n_experts]`, `x` `[m, hidden]`; `out` is resized to `m` rows.
///
/// On GPUs logits are in f32 arithmetic for up to 16 tokens of F32 weights, and else as [`linear`](super::linear::linear) has them.
///
/// # Errors
/// [`Error::Shape`] if they do not fit, [`Error::Argument`] for more experts per token than can be chosen (or none) and for groups
/// that do not divide the experts; [`Error::Unsupported`] on GPUs for more than 512 experts or 32 per token.
pub fn router(w: &Matrix, bias: &Tensor, x: &Tensor, config: &RouterConfig, out: &mut Routing) -> Result<()> {
    let [slabs, n_experts, hidden] = w.shape();
    if slabs != 1 || hidden != x.cols() {
        return Err(Error::shape("router", format!("w [1, n, {}]", x.cols()), format!("{:?}", w.shape())));
    }
    expect("router", "bias", bias, 1, n_experts)?;
    let (k, group_size) = (config.n_experts_per_tok, config.group_size(n_experts)?);
    if out.ids.cols() != k || out.weights.cols() != k || out.logits.cols() != n_experts {
        let got = format!("{} of {}", out.ids.cols(), out.logits.cols());
        return Err(Error::shape("router", format!("room for {k} of {n_experts} experts"), got));
    }
    let [ids, weights, logits] = [out.ids.device(), out.weights.device(), out.logits.device()];
    let arrived = out.arrived.device();
    on_one_device("router", &[x.device(), w.device(), bias.device(), ids, weights, logits, arrived])?;
    match x.device() {
        Device::Cpu(cpu) => {
            out.resize(x.rows())?;
            cpu::router::router(cpu, w, bias, x, config, group_size, out)
        }
        Device::Cuda(_) => cuda::router::router(w, bias, x, config, group_size, out),
    }
}
