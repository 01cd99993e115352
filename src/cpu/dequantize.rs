//! Values of blocks, row by row.

use super::Cpu;
use crate::error::Result;
use crate::quant::{self, GgmlType};
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
        rows_f32(cpu, ty, cols, bytes, bytemuck::cast_slice_mut(out));
        return Ok(());
    }
    let mut values = cpu.scratch_f32(out.len());
    rows_f32(cpu, ty, cols, bytes, &mut values);
    out.iter_mut().zip(values.iter()).for_each(|(to, from)| *to = T::from_f32(*from));
    Ok(())
}

fn rows_f32<'a>(
    cpu: &Cpu,
    ty: GgmlType,
    cols: usize,
    bytes: impl Fn(usize) -> &'a [u8] + Sync,
    out: &mut [f32],
) {
    cpu.for_rows(out, cols, 4 * cols, |r, row| blocks(ty, bytes(r), row));
}

/// Dequantizes blocks of a [`Matrix`](crate::tensor::Matrix), which holds only supported types in whole blocks: there is
/// nothing to report. Were it wrong all the same, the values would be NaN and not whatever stood there.
pub(super) fn blocks(ty: GgmlType, blocks: &[u8], out: &mut [f32]) {
    if quant::dequantize(ty, blocks, out).is_err() {
        out.fill(f32::NAN);
    }
}
