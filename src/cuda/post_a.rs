//! Launches of post_a. Shapes were checked by [`crate::ops`].

use std::ptr::{null, null_mut};

use super::dequantize::{count, holds};
use crate::error::Result;
use crate::ops::post_a::config::{PostAConfig, PostAProblem};
use crate::ops::post_a::{IndexKeys, PostA};
use crate::sys::post_a_params;
use crate::tensor::{ActivationFormat, PagedRows, QuantizedTiles, Tensor};

pub(crate) fn post_a(
    input: &PostA<'_>,
    y: Option<&mut Tensor>,
    tiles: Option<&mut QuantizedTiles>,
    latent: &mut PagedRows,
    keys: Option<IndexKeys<'_>>,
) -> Result<()> {
    let PostA { q_a, q_norm, kv_a, kv_norm, eps, angles, rows } = *input;
    let (m, q_cols, rank, rope) = (rows.len(), q_a.cols(), kv_norm.cols(), angles.cols());
    let config = PostAConfig::pick(PostAProblem {
        m,
        q_cols,
        tiles: tiles.is_some(),
        latent: rank,
        rope,
        key_cols: keys.as_ref().map(|keys| keys.x.cols()),
    })?;
    let (q, q_norm, kv, kv_norm, angles) =
        (q_a.cuda()?, q_norm.cuda()?, kv_a.cuda()?, kv_norm.cuda()?, angles.cuda()?);
    let gpu = q.gpu().clone();
    holds("post_a", q, m * q_cols)?;
    holds("post_a", kv, m * (rank + rope))?;
    holds("post_a", angles, m * rope)?;
    let _turn = gpu.turn();
    let most = keys.as_ref().map_or(latent.slots(), |keys| keys.cache.slots().min(latent.slots()));
    let slots = rows.on_gpu(&gpu, most)?.slots;
    let latent_type = latent.ty().code();
    let mut params = post_a_params {
        q: q.as_ptr(),
        q_norm: q_norm.as_prologue_ptr(),
        y: null_mut(),
        tiles: null_mut(),
        kv: kv.as_ptr(),
        kv_norm: kv_norm.as_prologue_ptr(),
        key: null(),
        key_norm: null(),
        key_bias: null(),
        key_cache: null_mut(),
        latent_cache: latent.cuda_mut()?.as_mut_ptr().cast(),
        angles: angles.as_ptr(),
        slots,
        m: count("rows", m)?,
        q_rows: config.q_rows,
        q_cols: q_cols as u32, // no kernel has more, so the configuration would have failed
        latent: rank as u32,
        rope: rope as u32,
        key_cols: 0,
        f16_tiles: 0,
        latent_type,
        key_type: 0,
        eps,
        key_eps: 0.0,
    };
    if let Some(y) = y {
        let y = y.cuda_mut()?;
        holds("post_a", y, m * q_cols)?;
        params.y = y.as_mut_ptr();
    }
    if let Some(tiles) = tiles {
        gpu.with(tiles.tiles())?;
        holds("post_a", tiles.tiles(), tiles.bytes())?;
        params.f16_tiles = (tiles.format() == ActivationFormat::F16).into();
        params.tiles = tiles.tiles_mut().as_mut_ptr().cast();
    }
    if let Some(IndexKeys { x, norm, bias, eps, cache }) = keys {
        holds("post_a", x.cuda()?, m * x.cols())?;
        params.key = x.cuda()?.as_ptr();
        params.key_norm = norm.cuda()?.as_prologue_ptr();
        params.key_bias = bias.cuda()?.as_prologue_ptr();
        params.key_cols = x.cols() as u32;
        params.key_type = cache.ty().code();
        params.key_eps = eps;
        params.key_cache = cache.cuda_mut()?.as_mut_ptr().cast();
    }
    // SAFETY: all hold `m` rows of these widths, weights one, the copy of the rows `m` slots that the caller found in the caches, and
    // tiles are as many as their shape has; all lie on this device. Buffers are aligned to 256, and widths are whole fours.
    unsafe { gpu.launch(config.entry, [config.grid, 1, 1], &params) }
}
