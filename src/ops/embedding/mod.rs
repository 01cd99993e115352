//! Embedding: rows of a (quantized) table.

pub mod reference;

use super::expect;
use crate::error::{Error, Result};
use crate::tensor::{Device, Float, Matrix, Tensor};
use crate::{cpu, cuda};

/// `out[t] = table[tokens[t]]`, dequantized, not scaled. `table` is `[1, vocab, hidden]`, `out` `[tokens.len(), hidden]`.
///
/// # Errors
/// [`Error::Shape`] if `out` does not fit, [`Error::Argument`] for a token outside the vocabulary; [`Error::Unsupported`]
/// for an f16 `out` on a GPU.
pub fn embedding<T: Float>(table: &Matrix, tokens: &[u32], out: &mut Tensor<T>) -> Result<()> {
    expect("embedding", "out", out, tokens.len(), table.cols())?;
    check_tokens(table, tokens)?;
    match out.device().clone() {
        Device::Cpu(cpu) => cpu::embedding::embedding(&cpu, table.cpu()?, tokens, out.cpu_mut()?),
        Device::Cuda(gpu) => {
            let tokens = gpu.upload("tokens", tokens)?;
            cuda::dequantize::embed(table.cuda()?, table.shape(), &tokens, out.rows(), out.cuda_mut()?)
        }
    }
}

/// As [`embedding`], with tokens that already are where the table is, as in a graph that is replayed. `tokens` `[m, 1]`.
///
/// # Errors
/// As [`embedding`], but a GPU finds a token outside the vocabulary only while it runs: [`Error::Driver`] from a later call.
pub fn embedding_of<T: Float>(table: &Matrix, tokens: &Tensor<u32>, out: &mut Tensor<T>) -> Result<()> {
    expect("embedding", "tokens", tokens, tokens.rows(), 1)?;
    match tokens.device() {
        Device::Cpu(_) => embedding(table, tokens.cpu()?, out),
        Device::Cuda(_) => {
            expect("embedding", "out", out, tokens.rows(), table.cols())?;
            cuda::dequantize::embed(
                table.cuda()?,
                table.shape(),
                tokens.cuda()?,
                tokens.rows(),
                out.cuda_mut()?,
            )
        }
    }
}

fn check_tokens(table: &Matrix, tokens: &[u32]) -> Result<()> {
    match tokens.iter().find(|t| **t as usize >= table.rows()) {
        Some(t) => Err(Error::argument("token id", format!("below the vocabulary size {}", table.rows()), t)),
        None => Ok(()),
    }
}
