//! Launches of cache_write. Shapes were checked by [`crate::tensor::PagedRows`].

use super::Buffer;
use super::dequantize::{count, holds};
use crate::error::{Error, Result};
use crate::kernels;
use crate::quant::GgmlType;
use crate::sys::cache_write_params;
use crate::tensor::{CacheType, RaggedRows, Tensor};

/// `src` to the slots of `rows` in `cache`, which has them.
pub(crate) fn write(cache: &mut Buffer<u8>, ty: CacheType, rows: &RaggedRows, src: &Tensor) -> Result<()> {
    let [m, width] = src.shape();
    let src = src.cuda()?;
    let gpu = cache.gpu().with(src)?.clone();
    holds("cache write", src, m * width)?;
    let out = match ty {
        CacheType::F32 => GgmlType::F32,
        CacheType::Bf16 => GgmlType::BF16,
        CacheType::F16 => GgmlType::F16,
    };
    let load = if width.is_multiple_of(4) { 4 } else { 1 };
    let found = kernels::cache_write::INSTANCES.iter().find(|i| i.out == out && i.load == load);
    let found = found.ok_or_else(|| Error::unsupported("cache write", "no kernel was built for it"))?;
    let units = m.saturating_mul(width.div_ceil(32 * load as usize));
    let grid = count("pieces of rows", units)?.div_ceil(found.warps);
    let _turn = gpu.turn();
    let params = cache_write_params {
        x: src.as_ptr(),
        slots: rows.on_gpu(&gpu)?.slots,
        cache: cache.as_mut_ptr().cast(),
        m: count("rows", m)?,
        width: count("columns", width)?,
    };
    // SAFETY: `src` has `m` rows of `width` values, the copy of the rows `m` slots, which the caller found in the cache; all lie on
    // this device. Buffers are aligned to 256, and rows are whole fours where a kernel loads such.
    unsafe { gpu.launch(found.entry, [grid, 1, 1], &params) }
}
