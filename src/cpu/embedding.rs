//! Rows of a quantized table.

use super::{Cpu, dequantize};
use crate::error::Result;
use crate::quant::Weight;

pub(crate) fn embedding(cpu: &Cpu, table: &Weight, tokens: &[u32], out: &mut [f32]) -> Result<()> {
    cpu.for_rows(out, table.cols(), 4 * table.cols(), |t, row| {
        let r = tokens[t] as usize;
        dequantize(table, table.rows_bytes(0, r..r + 1), row);
    });
    Ok(())
}
