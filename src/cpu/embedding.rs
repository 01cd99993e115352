//! Rows of a quantized table.

use super::{Cpu, dequantize};
use crate::error::Result;
use crate::quant::Weight;
use crate::tensor::Float;

pub(crate) fn embedding<T: Float>(cpu: &Cpu, table: &Weight, tokens: &[u32], out: &mut [T]) -> Result<()> {
    let row = |t| table.rows_bytes(0, tokens[t] as usize..tokens[t] as usize + 1);
    dequantize::rows(cpu, table.ty(), table.cols(), row, out)
}
