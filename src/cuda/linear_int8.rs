//! Launches of repack, quantize and the integer linears. Shapes were checked by [`crate::ops`].

use super::dequantize::holds;
use super::runtime::Properties;
use super::{Buffer, Gpu};
use crate::error::{Error, Result};
use crate::ops::linear::config::{GemmConfig, Int8Config};
use crate::quant::Weight;
use crate::quant::tiles::{tile_bytes, tiles};
use crate::sys::{linear_gemm_params, linear_int8_params, quantize_params, repack_params, tile_act};
use crate::tensor::{DeviceTiles, Matrix, QuantizedTiles, TILE_TOKENS, Tensor};
use crate::{kernels, quant};

/// A weight as tiles. Its blocks are on the device, too, until the work is done.
pub(crate) fn repack(gpu: &Gpu, weight: &Weight) -> Result<DeviceTiles> {
    let (ty, [slabs, n, k]) = (weight.ty(), weight.shape());
    let bytes = tile_bytes(ty).ok_or_else(|| {
        Error::unsupported(format!("{ty} as tiles"), format!("only {:?} have them", quant::tiles::TYPES))
    })?;
    let entry = kernels::repack::INSTANCES.iter().find(|i| i.ty == ty);
    let entry =
        entry.ok_or_else(|| Error::unsupported(format!("repack of {ty}"), "no kernel was built for it"))?;
    let [row_tiles, k_tiles] = tiles(n, k);
    let _turn = gpu.turn();
    let blocks = gpu.upload("weights", weight.bytes())?;
    let mut out: Buffer<u8> = gpu.alloc("weights", slabs * row_tiles * k_tiles * bytes)?;
    let params = repack_params {
        src: blocks.as_ptr().cast(),
        out: out.as_mut_ptr().cast(),
        n: count("rows", n)?,
        k: count("columns", k)?,
    };
    let grid =
        [count("tiles", (row_tiles * k_tiles).div_ceil(entry.warps as usize))?, count("slabs", slabs)?, 1];
    // SAFETY: the blocks are those of the stack, as `Weight` promises, and `out` has its tiles. Buffers are aligned to 256.
    unsafe { gpu.launch(entry.entry, grid, &params) }?;
    gpu.synchronize()?; // so that kernels need not wait for weights
    Ok(DeviceTiles { ty, tiles: out })
}

/// `q = x`, rounded. `q` has the shape of `x`.
pub(crate) fn quantize(x: &Tensor, q: &mut QuantizedTiles) -> Result<()> {
    let [m, k] = x.shape();
    let x = x.cuda()?;
    let gpu = x.gpu().with(q.tiles())?.clone();
    let _turn = gpu.turn();
    holds("quantize", q.tiles(), act_tiles(m, k) * size_of::<tile_act>())?;
    let params = quantize_params {
        x: x.as_ptr(),
        out: q.tiles_mut().as_mut_ptr().cast(),
        m: count("tokens", m)?,
        k: count("columns", k)?,
    };
    let grid = [count("tiles", act_tiles(m, k))?, 1, 1];
    // SAFETY: x has `m` rows of `k` values, as the caller checked, and `q` its tiles, as was checked here.
    unsafe { gpu.launch(kernels::quantize::INSTANCES[0].entry, grid, &params) }
}

/// `y = W x`.
pub(crate) fn linear_int8(w: &Matrix, x: &mut QuantizedTiles, y: &mut Tensor) -> Result<()> {
    let ([_, n, k], [m, _]) = (w.shape(), x.shape());
    let (w, y) = (w.tiles()?, y.cuda_mut()?);
    let gpu = w.tiles.gpu().with(x.tiles())?.with(y)?.clone();
    let _turn = gpu.turn();
    let [row_tiles, k_tiles] = tiles(n, k);
    holds("linear", &w.tiles, row_tiles * k_tiles * tile_bytes(w.ty).unwrap_or(0))?;
    holds("linear", x.tiles(), act_tiles(m, k) * size_of::<tile_act>())?;
    holds("linear", y, m * n)?;
    let Properties { sms, smem_per_sm, .. } = *gpu.properties();
    let x_tiles = x.tiles().as_ptr().cast::<tile_act>();
    let (n_outputs, k_tiles) = (count("outputs", n)?, count("tiles", k_tiles)?);
    let many = GemmConfig::pick(w.ty, m, [n, k], sms, smem_per_sm)?;
    if m > TILE_TOKENS && !many.is_beaten_by_decode(m) {
        let scratch =
            x.scratch_mut().ok_or_else(|| Error::unsupported("linear", "activations without scratch"))?;
        let params = linear_gemm_params {
            w: w.tiles.as_ptr().cast(),
            x: x_tiles,
            y: y.as_mut_ptr(),
            partial: scratch.partial.as_mut_ptr(),
            arrived: scratch.arrived.as_mut_ptr(),
            m: count("tokens", m)?,
            n: n_outputs,
            k_tiles,
        };
        // SAFETY: w and x have the tiles that the params say and y has `m` rows of `n` values, as was checked; the scratch has
        // room for the blocks of threads of every configuration.
        return unsafe { gpu.launch(many.entry, [many.grid, 1, 1], &params) };
    }
    let config = Int8Config::pick(w.ty, m.min(TILE_TOKENS), n, sms, smem_per_sm)?;
    for tile in 0..m.div_ceil(TILE_TOKENS) {
        let params = linear_int8_params {
            w: w.tiles.as_prologue_ptr().cast(),
            x: x_tiles.wrapping_add(tile * k_tiles as usize),
            y: y.as_mut_ptr().wrapping_add(tile * TILE_TOKENS * n),
            m: (m - tile * TILE_TOKENS).min(TILE_TOKENS) as u32,
            n: n_outputs,
            k_tiles,
        };
        // SAFETY: w and x have the tiles that the params say and y has `m` rows of `n` values, as was checked.
        unsafe { gpu.launch(config.entry, [config.grid, 1, 1], &params) }?;
    }
    Ok(())
}

fn act_tiles(m: usize, k: usize) -> usize {
    m.div_ceil(TILE_TOKENS) * tiles(0, k)[1]
}

fn count(what: &str, n: usize) -> Result<u32> {
    let too_many = |_| Error::unsupported(format!("{n} {what}"), "counts are 31 bits wide");
    i32::try_from(n).map(|n| n as u32).map_err(too_many)
}
