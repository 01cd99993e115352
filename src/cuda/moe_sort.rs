//! Launches of moe_sort and moe_sort_few. Shapes were checked by [`crate::ops`].

use super::dequantize::holds;
use crate::error::Result;
use crate::ops::moe_sort::config::SortConfig;
use crate::ops::moe_sort::{SortOptions, SortedPairs};
use crate::sys::moe_sort_params;
use crate::tensor::Tensor;

/// `out` has grown for these ids.
pub(crate) fn moe_sort(
    ids: &Tensor<u32>,
    config: SortConfig,
    options: &SortOptions,
    out: &mut SortedPairs,
) -> Result<()> {
    let ([m, top_k], n_experts) = (ids.shape(), out.n_experts());
    let ids = ids.cuda()?;
    let gpu = ids.gpu().clone();
    holds("moe_sort", ids, m * top_k)?;
    for part in [&out.offsets, &out.sorted, &out.places, &out.tiles, &out.counters, &out.arrived] {
        gpu.with(part.cuda()?)?;
    }
    let _turn = gpu.turn();
    let params = moe_sort_params {
        ids: ids.as_ptr(),
        offsets: out.offsets.cuda_mut()?.as_mut_ptr(),
        sorted: out.sorted.cuda_mut()?.as_mut_ptr(),
        places: out.places.cuda_mut()?.as_mut_ptr(),
        tiles: out.tiles.cuda_mut()?.as_mut_ptr().cast(),
        counters: out.counters.cuda_mut()?.as_mut_ptr(),
        arrived: out.arrived.cuda_mut()?.as_mut_ptr(),
        n: (m * top_k) as u32, // below 2^23
        n_experts: n_experts as u32,
        first_expert: options.first_expert as u32,
        height: options.height as u32,
        strict: options.strict.into(),
    };
    // SAFETY: `out` was made for these experts and has grown for these pairs, and the kernel has room for both; all lie on this device.
    // Buffers are aligned to 256.
    unsafe { gpu.launch(config.entry, [config.grid, 1, 1], &params) }
}
