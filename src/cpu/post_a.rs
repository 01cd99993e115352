//! What follows the first projections of attention: the operations one after the other, on copies.

use super::{Cpu, norm, rope};
use crate::error::Result;
use crate::ops::post_a::{IndexKeys, PostA};
use crate::tensor::{Heads, PagedRows, Tensor};

pub(crate) fn post_a(
    cpu: &Cpu,
    input: &PostA<'_>,
    y: Option<&mut Tensor>,
    latent: &mut PagedRows,
    keys: Option<IndexKeys<'_>>,
) -> Result<()> {
    let PostA { q_a, q_norm, kv_a, kv_norm, eps, angles, rows } = *input;
    let (rank, dim, width, angles) = (kv_norm.cols(), angles.cols(), kv_a.cols(), angles.cpu()?);
    if let Some(y) = y {
        norm::rms_norm(cpu, q_a.cpu()?, q_norm.cpu()?, eps, y.cpu_mut()?)?;
    }
    let mut kv = cpu.scratch_f32(rows.len() * width);
    kv.copy_from_slice(kv_a.cpu()?);
    norm::rms_norm_cols(cpu, &mut kv, width, 0..rank, kv_norm.cpu()?, eps)?;
    rope::rope(cpu, &mut kv, width, Heads::one(rank, dim), angles)?;
    latent.write_values(rows, &kv)?;
    if let Some(IndexKeys { x, norm, bias, eps, cache }) = keys {
        let mut keys = cpu.scratch_f32(rows.len() * x.cols());
        keys.copy_from_slice(x.cpu()?);
        norm::layer_norm(cpu, &mut keys, norm.cpu()?, bias.cpu()?, eps)?;
        rope::rope(cpu, &mut keys, x.cols(), Heads::one(0, dim), angles)?;
        cache.write_values(rows, &keys)?;
    }
    Ok(())
}
