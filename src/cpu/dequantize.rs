//! Values of blocks, row by row.

use super::Cpu;
use crate::error::Result;
use crate::quant::{GgmlType, dequantize};
use crate::tensor::Float;

/// Row `r` of `out`, of `cols` values, from the blocks `bytes(r)`.
pub(crate) fn rows<'a, T: Float>(
    cpu: &Cpu,
    ty: GgmlType,
    cols: usize,
    bytes: impl Fn(usize) -> &'a [u8] + Sync,
    out: &mut [T],
) -> Result<()> {
    if T::TYPE == GgmlType::F32 {
        return rows_f32(cpu, ty, cols, bytes, bytemuck::cast_slice_mut(out));
    }
    let mut values = cpu.scratch_f32(out.len());
    rows_f32(cpu, ty, cols, bytes, &mut values)?;
    out.iter_mut().zip(values.iter()).for_each(|(to, from)| *to = T::from_f32(*from));
    Ok(())
}

fn rows_f32<'a>(
    cpu: &Cpu,
    ty: GgmlType,
    cols: usize,
    bytes: impl Fn(usize) -> &'a [u8] + Sync,
    out: &mut [f32],
) -> Result<()> {
    // Shapes were checked, so no row can fail; the first error would still be returned.
    let failed = std::sync::Mutex::new(Ok(()));
    cpu.for_rows(out, cols, 4 * cols, |r, row| {
        if let Err(e) = dequantize(ty, bytes(r), row) {
            *failed.lock().unwrap_or_else(|e| e.into_inner()) = Err(e);
        }
    });
    failed.into_inner().unwrap_or_else(|e| e.into_inner())
}
