//! Operations: one module each, with the safe function, its checks and the reference in plain f64 loops.
//!
//! Every function checks shapes, then dispatches on the device of its tensors. Bad input is an
//! [`Error`] and leaves the outputs as they were. `m` is the number of rows (tokens) of a call.
//!
//! | module | operation |
//! |---|---|
//! | [`dequantize`] | values of a quantized matrix |
//! | [`embedding`] | rows of a quantized table |
//! | [`linear`] | `y = W x` for any weight type; several matrices on one input; one matrix per head |
//! | [`norm`] | RMSNorm, residual add + RMSNorm, with int8 activations; LayerNorm |
//! | [`rope`] | interleaved rotary embedding |
//! | [`post_a`] | what follows the first projections of attention: norms, rotation of keys, rows of the caches |
//! | [`ffn`] | SwiGLU feed-forward |
//! | [`router`], [`moe`] | expert selection; routed and shared experts |
//! | [`moe_sort`], [`moe_sum`] | the pairs of token and expert sorted by expert, in tiles; the weighted sum of their rows |
//! | [`mla_attention`] | absorbed latent attention, dense or over selected keys |
//! | [`mla_prefill`] | the same of long prompts, with keys and values expanded for each head |
//! | [`dsa_indexer`], [`dsa_topk`] | lightning indexer scores; exact selection |
//! | [`logits`] | output head on chosen rows |

pub mod dequantize;
pub mod dsa_indexer;
pub mod dsa_topk;
pub mod embedding;
pub mod ffn;
pub mod linear;
pub mod logits;
pub mod mla_attention;
pub mod mla_prefill;
pub mod moe;
pub mod moe_sort;
pub mod moe_sum;
pub mod norm;
pub mod post_a;
pub mod rope;
pub mod router;

use crate::error::{Error, Result};
use crate::tensor::{Device, Element, Tensor};

/// Fails unless `t` has the shape `[rows, cols]`; `what` names the argument.
pub(crate) fn expect<T: Element>(
    op: &'static str,
    what: &str,
    t: &Tensor<T>,
    rows: usize,
    cols: usize,
) -> Result<()> {
    if t.shape() == [rows, cols] {
        return Ok(());
    }
    Err(Error::shape(op, format!("{what} [{rows}, {cols}]"), format!("{:?}", t.shape())))
}

/// Fails unless all lie on one device. For operations that resize outputs: the others find it out by themselves, before they
/// write.
pub(crate) fn on_one_device(op: &str, devices: &[&Device]) -> Result<()> {
    let first = devices.first();
    match devices.iter().zip(first.iter().cycle()).all(|(d, first)| d.same(first)) {
        true => Ok(()),
        false => Err(Error::unsupported(format!("{op} across devices"), "all arguments must lie on one")),
    }
}

/// For the references: fails unless a slice has `want` values.
pub(crate) fn expect_len(op: &'static str, what: &str, got: usize, want: usize) -> Result<()> {
    if got == want {
        return Ok(());
    }
    Err(Error::shape(op, format!("{want} values of {what}"), got))
}

/// For the references: the number of rows of `n` values in a slice of `len`.
pub(crate) fn expect_rows(op: &'static str, what: &str, len: usize, n: usize) -> Result<usize> {
    if n > 0 && len.is_multiple_of(n) {
        return Ok(len / n);
    }
    Err(Error::shape(op, format!("{what} in whole rows of {n}"), format!("{len} values")))
}
