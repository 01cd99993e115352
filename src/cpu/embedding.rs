//! Rows of a quantized table.

use super::Cpu;
use crate::error::Result;
use crate::quant::{Weight, dequantize};

pub(crate) fn embedding(cpu: &Cpu, table: &Weight, tokens: &[u32], out: &mut [f32]) -> Result<()> {
    // Tokens and shapes were checked, so no row can fail; the first error would still be returned.
    let failed = std::sync::Mutex::new(Ok(()));
    cpu.for_rows(out, table.cols(), 4 * table.cols(), |t, row| {
        let r = tokens[t] as usize;
        if let Err(e) = dequantize(table.ty(), table.rows_bytes(0, r..r + 1), row) {
            *failed.lock().unwrap_or_else(|e| e.into_inner()) = Err(e);
        }
    });
    failed.into_inner().unwrap_or_else(|e| e.into_inner())
}
