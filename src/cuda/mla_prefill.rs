//! Launches of attention with expanded keys and values. Shapes were checked by [`crate::ops`].

use std::f32::consts::LOG2_E;
use std::ptr;

use half::bf16;

use super::dequantize::{count, dequantize, holds};
use super::{Buffer, Gpu};
use crate::error::{Error, Result};
use crate::ops::mla_attention::MlaConfig;
use crate::ops::mla_attention::config::{LATENT, WIDTH};
use crate::ops::mla_prefill::PrefillOptions;
use crate::ops::mla_prefill::config::{
    EXPAND, HEAD, KEYS, KEYS_AT_A_TIME, NOPE, PrefillGroup, PrefillKernels, PrefillProblem, SEQUENCES, TILE,
    groups,
};
use crate::sys::{
    mla_expand_params, mla_gather_params, mla_prefill_params, prefill_sequence, prefill_sequences,
};
use crate::tensor::{Device, Matrix, PAGE_ROWS, PagedRows, RaggedRows, Tensor};

/// In [`Gpu::held`].
const LABEL: &str = "expanded keys";

/// What attention with expanded keys and values needs besides its inputs and outputs, on a GPU: weights, and keys and values of all heads for some
/// keys at a time, in bf16, one kB for a key and a head. Nothing in it outlives a call.
#[derive(Debug)]
pub struct PrefillScratch {
    n_heads: usize,
    rows: usize,
    keys: usize,
    k_b: Buffer<bf16>,
    v_b: Buffer<bf16>,
    latents: Buffer<bf16>,
    tiles: Buffer<u8>,
    state: Buffer<f32>,
}

impl PrefillScratch {
    /// For calls of up to `n_heads` heads and `rows` rows, on a GPU; any number of keys, of which at most `keys`, rounded up to 128, are expanded at a
    /// time. That number does not change results. With 4096 keys and 64 heads it is 300 MB; sums of all rows are written and read once for each such block.
    ///
    /// # Errors
    /// [`Error::Unsupported`] elsewhere than on a GPU; [`Error::OutOfMemory`], [`Error::Capacity`] or [`Error::Driver`].
    pub fn new(device: &Device, n_heads: usize, rows: usize, keys: usize) -> Result<Self> {
        Self::on(device.gpu()?, n_heads, rows, keys)
    }

    fn on(gpu: &Gpu, n_heads: usize, rows: usize, keys: usize) -> Result<Self> {
        let keys = keys.clamp(1, u32::MAX as usize / EXPAND * EXPAND).next_multiple_of(EXPAND);
        // What overflows is left to the allocation to refuse.
        let values = |n: usize, of: usize| n.saturating_mul(of);
        Ok(PrefillScratch {
            n_heads,
            rows,
            keys,
            k_b: gpu.alloc(LABEL, values(n_heads, LATENT * NOPE))?,
            v_b: gpu.alloc(LABEL, values(n_heads, HEAD * LATENT))?,
            latents: gpu.alloc(LABEL, values(keys, WIDTH))?,
            tiles: gpu.alloc(LABEL, values(values(keys / KEYS, n_heads), TILE))?,
            state: gpu.alloc(LABEL, values(values(rows, n_heads), 8))?,
        })
    }
}

#[allow(clippy::too_many_arguments)] // those of the operation
pub(crate) fn mla_prefill(
    gpu: &Gpu,
    options: PrefillOptions<'_>,
    q: &Tensor,
    cache: &PagedRows,
    rows: &RaggedRows,
    k_b: &Matrix,
    v_b: &Matrix,
    config: &MlaConfig,
    out: &mut Tensor,
) -> Result<()> {
    const OP: &str = "mla_prefill";
    let (m, MlaConfig { n_heads, kv_lora_rank, sm_scale, .. }) = (rows.len(), *config);
    let (width, nope, v) = (cache.width(), k_b.cols(), v_b.rows());
    let kernels = PrefillKernels::pick(PrefillProblem { kv_lora_rank, width, nope, v, ty: cache.ty() })?;
    let (k_b, v_b) = (k_b.cuda()?, v_b.cuda()?);
    let (slots, q, cache) = (cache.slots(), q.cuda()?, cache.cuda()?);
    gpu.with(q)?.with(cache)?.with(&k_b.blocks)?.with(&v_b.blocks)?;
    holds(OP, q, m * n_heads * HEAD)?;
    let out = out.cuda_mut()?;
    gpu.with(out)?;
    holds(OP, out, m * n_heads * HEAD)?;
    let lse = options.lse.map(Tensor::cuda_mut).transpose()?;
    if let Some(lse) = &lse {
        gpu.with(lse)?;
        holds(OP, lse, m * n_heads)?;
    }
    count("rows", m)?;
    count("heads", n_heads)?;
    let groups = groups(rows)?;
    if m == 0 || n_heads == 0 {
        return Ok(());
    }
    let most = groups.iter().map(|group| group.keys).max().unwrap_or(0);
    let mut own = None;
    let scratch = match options.scratch {
        Some(scratch) => scratch,
        None => own.insert(PrefillScratch::on(gpu, n_heads, m, most.min(KEYS_AT_A_TIME))?),
    };
    gpu.with(&scratch.tiles)?;
    if scratch.n_heads < n_heads || scratch.rows < m {
        let (want, got) = ((n_heads, m), (scratch.n_heads, scratch.rows));
        let text = |(heads, rows)| format!("scratch for {heads} heads and {rows} rows");
        return Err(Error::shape(OP, text(want), text(got)));
    }
    let call = Call {
        gpu,
        kernels,
        q,
        cache,
        slots,
        rows,
        out: out.as_mut_ptr(),
        lse: lse.map_or(ptr::null_mut(), Buffer::as_mut_ptr),
        n_heads,
        scale: sm_scale * LOG2_E,
    };
    // Also the largest grids.
    let at_a_time = scratch.keys.min(most);
    let tiles = groups.iter().map(|group| group.row_tiles).max().unwrap_or(0);
    let blocks = |n: usize| count("blocks of a grid", n);
    let grids = [
        (kernels.gather, blocks(at_a_time / PAGE_ROWS)?),
        (kernels.expand[0], blocks(at_a_time / EXPAND * n_heads)?),
        (kernels.expand[1], blocks(at_a_time / EXPAND * n_heads)?),
        (kernels.attend, blocks(tiles * n_heads)?),
    ];
    let _turn = gpu.turn();
    grids.iter().try_for_each(|(entry, blocks)| gpu.prepare(*entry, [*blocks, 1, 1]))?;
    dequantize(k_b, [1, n_heads * LATENT, NOPE], 0, 0..n_heads * LATENT, &mut scratch.k_b)?;
    dequantize(v_b, [1, n_heads * HEAD, LATENT], 0, 0..n_heads * HEAD, &mut scratch.v_b)?;
    for group in &groups {
        let mut begin = 0;
        while begin < group.keys {
            let end = (begin + at_a_time).min(group.keys);
            call.block(group, begin, end, scratch)?;
            begin = end;
        }
    }
    Ok(())
}

/// A call, checked.
struct Call<'a> {
    gpu: &'a Gpu,
    kernels: PrefillKernels,
    q: &'a Buffer<f32>,
    cache: &'a Buffer<u8>,
    slots: usize,
    rows: &'a RaggedRows,
    out: *mut f32,
    lse: *mut f32,
    n_heads: usize,
    scale: f32,
}

impl Call<'_> {
    /// Attention of all rows of a group to its keys from `begin` to `end`, which are places of keys, and multiples of [`EXPAND`].
    fn block(
        &self,
        group: &PrefillGroup,
        begin: usize,
        end: usize,
        scratch: &mut PrefillScratch,
    ) -> Result<()> {
        let (gpu, keys) = (self.gpu, end - begin);
        let none = prefill_sequence { row: 0, rows: 0, first: 0, keys: 0 };
        let mut sequences = prefill_sequences { at: [none; SEQUENCES], n: group.sequences.len() as u32 };
        for (to, s) in sequences.at.iter_mut().zip(&group.sequences) {
            *to = prefill_sequence { row: s.row, rows: s.rows, first: s.first, keys: s.keys };
        }
        let n_heads = self.n_heads as u32;
        let params = mla_gather_params {
            cache: self.cache.as_ptr().cast(),
            out: scratch.latents.as_mut_ptr().cast(),
            rows: self.rows.on_gpu_as_they_are(gpu, self.slots)?,
            sequences,
            begin: begin as u32,
        };
        // SAFETY: rows of the cache are of this type and width, and slots that rows reach are those of the cache, as was checked; the scratch has
        // room for `keys` latent rows. Buffers are aligned to 256.
        unsafe { gpu.launch(self.kernels.gather, [(keys / PAGE_ROWS) as u32, 1, 1], &params)? };
        let tiles = scratch.tiles.as_mut_ptr().cast();
        for (entry, weights) in self.kernels.expand.into_iter().zip([&scratch.k_b, &scratch.v_b]) {
            let rows = scratch.latents.as_ptr().cast();
            let params = mla_expand_params { rows, weights: weights.as_ptr().cast(), tiles, n_heads };
            // SAFETY: the scratch has `keys` latent rows, the weights of `n_heads` heads and room for as many tiles.
            unsafe { gpu.launch(entry, [n_heads * (keys / EXPAND) as u32, 1, 1], &params)? };
        }
        let row_tiles = group.row_tiles as u32;
        let params = mla_prefill_params {
            q: self.q.as_ptr(),
            tiles: tiles.cast_const(),
            out: self.out,
            state: scratch.state.as_mut_ptr(),
            lse: self.lse,
            sequences,
            row_tiles,
            begin: begin as u32,
            end: end as u32,
            n_heads,
            scale: self.scale,
        };
        // SAFETY: all hold their shapes and lie on this device, as was checked; sequences have the rows of the batch, and the launches before wrote the
        // tiles of all keys from `begin` to `end`. The scratch has room for the state of all rows and heads.
        unsafe { gpu.launch(self.kernels.attend, [row_tiles * n_heads, 1, 1], &params) }
    }
}
