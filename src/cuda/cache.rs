//! Launches of cache_write, cache_write_fp8 and cache_write_int8. Shapes were checked by [`crate::tensor::PagedRows`].

use super::Buffer;
use super::dequantize::{count, holds};
use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::quant::GgmlType;
use crate::quant::cache_rows::FP8_BLOCK;
use crate::sys::cache_write_params;
use crate::tensor::{CacheType, RaggedRows, Tensor};

/// `src` to the slots of `rows` in `cache`, which has these among its `slots`.
pub(crate) fn write(
    cache: &mut Buffer<u8>,
    ty: CacheType,
    slots: usize,
    rows: &RaggedRows,
    src: &Tensor,
) -> Result<()> {
    let [m, width] = src.shape();
    let src = src.cuda()?;
    let gpu = cache.gpu().with(src)?.clone();
    holds("cache write", src, m * width)?;
    let (entry, warps, units) = pick(ty, m, width)?;
    let grid = count("pieces of rows", units)?.div_ceil(warps);
    let _turn = gpu.turn();
    let params = cache_write_params {
        x: src.as_ptr(),
        slots: rows.on_gpu(&gpu, slots)?.slots,
        cache: cache.as_mut_ptr().cast(),
        m: count("rows", m)?,
        width: count("columns", width)?,
    };
    // SAFETY: widths are those of the type. `src` has `m` rows of `width` values, the copy of the rows `m` slots, which the caller found in
    // the cache; all lie on this device. Buffers are aligned to 256, and rows are whole fours where a kernel loads such.
    unsafe { gpu.launch(entry, [grid, 1, 1], &params) }
}

/// A kernel, its warps, and for how many of these there is work.
fn pick(ty: CacheType, m: usize, width: usize) -> Result<(Entry, u32, usize)> {
    let load = if width.is_multiple_of(4) { 4 } else { 1 };
    let of = |out: GgmlType| {
        let found = kernels::cache_write::INSTANCES.iter().find(|i| i.out == out && i.load == load);
        found.map(|i| (i.entry, i.warps, m.saturating_mul(width.div_ceil(32 * load as usize))))
    };
    let found = match ty {
        CacheType::F32 => of(GgmlType::F32),
        CacheType::Bf16 => of(GgmlType::BF16),
        CacheType::F16 => of(GgmlType::F16),
        CacheType::Fp8 => {
            let pieces = m.saturating_mul(width.div_ceil(FP8_BLOCK)); // the last one is the rotated values
            kernels::cache_write_fp8::INSTANCES.first().map(|i| (i.entry, i.warps, pieces))
        }
        CacheType::Int8 => kernels::cache_write_int8::INSTANCES.first().map(|i| (i.entry, i.warps, m)),
    };
    found.ok_or_else(|| Error::unsupported("cache write", "no kernel was built for it"))
}
