//! Launches of the router. Shapes were checked by [`crate::ops`].

use std::ptr;

use super::dequantize::{count, holds, row_bytes};
use super::linear;
use crate::error::Result;
use crate::ops::router::config::{RouterConfig as Config, RouterProblem};
use crate::ops::router::{Gating, RouterConfig, Routing};
use crate::quant::GgmlType;
use crate::sys::{GATING_SIGMOID, GATING_SOFTMAX, router_params};
use crate::tensor::{Matrix, Precision, Tensor};

/// `out` for the rows of `x`: one launch for few of them, and for more a linear layer and one that chooses.
pub(crate) fn router(
    w: &Matrix,
    bias: &Tensor,
    x: &Tensor,
    config: &RouterConfig,
    group_size: Option<usize>,
    out: &mut Routing,
) -> Result<()> {
    let ([_, n, k], m) = (w.shape(), x.rows());
    let (blocks, values, bias) = (w.cuda()?, x.cuda()?, bias.cuda()?);
    let gpu = values.gpu().with(&blocks.blocks)?.with(bias)?.clone();
    let _turn = gpu.turn();
    holds("router", &blocks.blocks, n * row_bytes(blocks, k)?)?;
    holds("router", values, m * k)?;
    holds("router", bias, n)?;
    let is_float = blocks.ty == GgmlType::F32 && k > 0 && k.is_multiple_of(4);
    let problem = RouterProblem { m, n_experts: n, n_experts_per_tok: config.n_experts_per_tok, is_float };
    let Config { entry, grid, fused } = Config::pick(problem)?;
    gpu.prepare(entry, [grid, 1, 1])?;
    if !fused {
        linear::prepare(w, x)?;
    }
    let (m, k) = (count("tokens", m)?, count("inputs", k)?);
    out.resize(x.rows())?;
    if m == 0 {
        return Ok(());
    }
    if !fused {
        linear::linear_many(&[w], x, None, &mut [&mut out.logits], Vec::new(), Precision::Exact)?;
    }
    let (w, x) = match fused {
        true => (blocks.blocks.as_prologue_ptr().cast(), values.as_ptr()),
        false => (ptr::null(), ptr::null()),
    };
    let params = router_params {
        w,
        x,
        bias: bias.as_ptr(),
        logits: out.logits.cuda_mut()?.as_mut_ptr(),
        ids: out.ids.cuda_mut()?.as_mut_ptr(),
        weights: out.weights.cuda_mut()?.as_mut_ptr(),
        arrived: out.arrived.cuda_mut()?.as_mut_ptr(),
        m,
        n: n as u32,
        k,
        top_k: config.n_experts_per_tok as u32,
        gating: match config.gating {
            Gating::Softmax => GATING_SOFTMAX,
            Gating::Sigmoid => GATING_SIGMOID,
        },
        normalize: config.norm_topk_prob.into(),
        scale: config.routed_scaling_factor,
        group_size: group_size.unwrap_or(0) as u32, // no more than experts
        groups_used: config.n_groups_used as u32,
    };
    // SAFETY: w, x and bias hold their shapes, as was checked, and the outputs were made for these rows; the kernel is one for as many
    // experts, and there is a counter for every four of the tokens of one launch. All lie on this device.
    unsafe { gpu.launch(entry, [grid, 1, 1], &params) }
}
