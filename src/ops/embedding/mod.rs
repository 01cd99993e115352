//! Embedding: rows of a (quantized) table.

pub mod reference;

use super::{expect, no_kernel};
use crate::cpu;
use crate::error::{Error, Result};
use crate::tensor::{Device, Matrix, Tensor};

/// `out[t] = table[tokens[t]]`, dequantized, not scaled. `table` is `[1, vocab, hidden]`, `out` `[tokens.len(), hidden]`.
///
/// # Errors
/// [`Error::Shape`] if `out` does not fit, [`Error::Argument`] for a token outside the vocabulary.
pub fn embedding(table: &Matrix, tokens: &[u32], out: &mut Tensor) -> Result<()> {
    expect("embedding", "out", out, tokens.len(), table.cols())?;
    if let Some(t) = tokens.iter().find(|t| **t as usize >= table.rows()) {
        return Err(Error::argument("token id", format!("below the vocabulary size {}", table.rows()), t));
    }
    match out.device().clone() {
        Device::Cpu(cpu) => cpu::embedding::embedding(&cpu, table.cpu()?, tokens, out.cpu_mut()?),
        Device::Cuda(gpu) => no_kernel("embedding", &gpu),
    }
}
