//! Between the first projections of attention and what takes their results: norms, rotation of keys, rows of the caches, activations of the
//! next linear layers. On a GPU one launch.

pub mod config;
pub mod reference;

use super::{expect, on_one_device};
use crate::error::{Error, Result};
use crate::quant::cache_rows::FP8_ROTATED;
use crate::tensor::{CacheType, Device, PagedRows, QuantizedTiles, RaggedRows, Tensor};
use crate::{cpu, cuda};

/// Results of the first projections, and what they go through.
#[derive(Debug, Clone, Copy)]
pub struct PostA<'a> {
    /// Latent queries `[m, q_lora_rank]`.
    pub q_a: &'a Tensor,
    /// `[1, q_lora_rank]`
    pub q_norm: &'a Tensor,
    /// Latent keys and what is rotated of keys, `[m, kv_lora_rank + rope]`.
    pub kv_a: &'a Tensor,
    /// `[1, kv_lora_rank]`
    pub kv_norm: &'a Tensor,
    /// Of both norms.
    pub eps: f32,
    /// `[m, rope]`, of [`rope_angles`](super::rope::rope_angles).
    pub angles: &'a Tensor,
    /// Whose slots the caches are written at.
    pub rows: &'a RaggedRows,
}

/// The indexer's keys, and what they go through.
#[derive(Debug)]
pub struct IndexKeys<'a> {
    /// `[m, index_head_dim]`
    pub x: &'a Tensor,
    /// Weights of the LayerNorm, `[1, index_head_dim]`.
    pub norm: &'a Tensor,
    /// Its bias.
    pub bias: &'a Tensor,
    /// Added to the variance.
    pub eps: f32,
    /// Rows of `index_head_dim` values.
    pub cache: &'a mut PagedRows,
}

/// `rms_norm(q_a)` to `y` `[m, q_lora_rank]`, to `tiles` with the bits that [`quantize`](super::linear::quantize) makes of it, or both;
/// `[rms_norm(latent) | rotated key]` of `kv_a` to the rows' slots of `latent`; `layer_norm(x)` of the indexer's keys, the first `rope`
/// values rotated, to those of their cache. What is rotated of `kv_a` is not normed.
///
/// On a GPU widths are multiples of 4, at most 2048, 512 + 128 and 128, as GLM-5's are.
///
/// # Errors
/// [`Error::Shape`] if they do not fit or a slot does not exist; [`Error::Unsupported`] across devices, for latent rows of int8, for tiles on a
/// CPU and other widths on a GPU. Nothing is written then.
pub fn post_a(
    input: &PostA<'_>,
    y: Option<&mut Tensor>,
    tiles: Option<&mut QuantizedTiles>,
    latent: &mut PagedRows,
    keys: Option<IndexKeys<'_>>,
) -> Result<()> {
    const OP: &str = "post_a";
    let PostA { q_a, q_norm, kv_a, kv_norm, angles, rows, .. } = *input;
    let (m, rope) = (rows.len(), angles.cols());
    expect(OP, "q_a", q_a, m, q_a.cols())?;
    expect(OP, "q_norm", q_norm, 1, q_a.cols())?;
    expect(OP, "kv_norm", kv_norm, 1, kv_norm.cols())?;
    expect(OP, "kv_a", kv_a, m, kv_norm.cols() + rope)?;
    expect(OP, "angles", angles, m, rope)?;
    if rope == 0 || !rope.is_multiple_of(2) || q_a.cols() == 0 || kv_norm.cols() == 0 {
        let got = format!("{} and {} columns, {rope} rotated", q_a.cols(), kv_norm.cols());
        return Err(Error::shape(OP, "columns, an even number of them rotated", got));
    }
    expect_cache(latent, kv_a.cols(), rows)?;
    if latent.ty() == CacheType::Int8 {
        return Err(Error::unsupported("latent rows of int8", "that is a type of the indexer's keys"));
    }
    if latent.ty() == CacheType::Fp8 && rope != FP8_ROTATED {
        return Err(Error::shape(OP, format!("{FP8_ROTATED} rotated values of rows in fp8"), rope));
    }
    let here = q_a.device();
    on_one_device(
        OP,
        &[here, q_norm.device(), kv_a.device(), kv_norm.device(), angles.device(), latent.device()],
    )?;
    if let Some(y) = &y {
        expect(OP, "y", y, m, q_a.cols())?;
        on_one_device(OP, &[here, y.device()])?;
    }
    if let Some(tiles) = &tiles
        && (tiles.shape() != [m, q_a.cols()] || tiles.slabs() != 1)
    {
        let got = format!("{:?} for {} matrices", tiles.shape(), tiles.slabs());
        return Err(Error::shape(OP, format!("tiles [{m}, {}]", q_a.cols()), got));
    }
    if let Some(IndexKeys { x, norm, bias, cache, .. }) = &keys {
        expect(OP, "keys", x, m, x.cols())?;
        expect(OP, "norm of the keys", norm, 1, x.cols())?;
        expect(OP, "bias of the keys", bias, 1, x.cols())?;
        if x.cols() < rope {
            return Err(Error::shape(OP, format!("keys of {rope} values or more"), x.cols()));
        }
        expect_cache(cache, x.cols(), rows)?;
        on_one_device(OP, &[here, x.device(), norm.device(), bias.device(), cache.device()])?;
    }
    match here {
        Device::Cpu(cpu) => match tiles {
            None => cpu::post_a::post_a(cpu, input, y, latent, keys),
            Some(_) => Err(Error::unsupported("post_a to tiles on a CPU", "only GPUs have them")),
        },
        Device::Cuda(_) => cuda::post_a::post_a(input, y, tiles, latent, keys),
    }
}

fn expect_cache(cache: &PagedRows, width: usize, rows: &RaggedRows) -> Result<()> {
    match cache.width() == width {
        true => cache.expect_slots(rows),
        false => Err(Error::shape("post_a", format!("a cache of rows of {width}"), cache.width())),
    }
}
