//! Launches of latent attention. Shapes were checked by [`crate::ops`].

use std::f32::consts::LOG2_E;
use std::ptr;

use super::dequantize::{count, holds};
use super::{Buffer, Gpu};
use crate::error::Result;
use crate::kernels::Entry;
use crate::ops::dsa_topk::Selection;
use crate::ops::mla_attention::config::{LATENT, MlaLaunch, MlaProblem, most_pieces};
use crate::ops::mla_attention::{MlaConfig, MlaOptions};
use crate::sys::{mla_cut, mla_decode_params, mla_float_params, mla_merge_params, mla_selection};
use crate::tensor::{Device, PagedRows, RaggedRows, Tensor};

/// In [`Gpu::held`].
const LABEL: &str = "attention";

/// What attention needs besides its inputs and outputs, on a GPU: room for sums of keys that several blocks of threads share. As large as the
/// GPU asks for, whatever the call; nothing in it outlives a call.
#[derive(Debug)]
pub struct MlaScratch {
    partial: Buffer<f32>,
    sums: Buffer<f32>,
    cuts: Buffer<u32>,
}

impl MlaScratch {
    /// For any call on a GPU.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) elsewhere than on a GPU; [`Error::OutOfMemory`](crate::Error::OutOfMemory) or
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn new(device: &Device) -> Result<Self> {
        Self::on(device.gpu()?)
    }

    fn on(gpu: &Gpu) -> Result<Self> {
        let (heads, cuts) = most_pieces(gpu.properties());
        Ok(MlaScratch {
            partial: gpu.alloc(LABEL, heads * LATENT)?,
            sums: gpu.alloc(LABEL, heads * 2)?,
            cuts: gpu.alloc(LABEL, cuts * size_of::<mla_cut>() / size_of::<u32>())?,
        })
    }
}

/// Inputs of a call, checked.
struct Inputs<'a> {
    gpu: Gpu,
    q: &'a Buffer<f32>,
    cache: &'a Buffer<u8>,
    slots: usize,
    rows: &'a RaggedRows,
    selected: Option<(&'a Buffer<u32>, &'a Buffer<u32>, u32)>,
    n_heads: u32,
}

impl Inputs<'_> {
    fn selection(&self) -> mla_selection {
        match self.selected {
            None => mla_selection { indices: ptr::null(), lens: ptr::null(), k: 0 },
            // Where there are no positions none are read, but null would mean all keys.
            Some((_, lens, 0)) => mla_selection { indices: lens.as_ptr(), lens: lens.as_ptr(), k: 0 },
            Some((indices, lens, k)) => mla_selection { indices: indices.as_ptr(), lens: lens.as_ptr(), k },
        }
    }
}

pub(crate) fn mla_attention(
    options: MlaOptions<'_>,
    q: &Tensor,
    cache: &PagedRows,
    rows: &RaggedRows,
    selected: Option<&Selection>,
    config: &MlaConfig,
    out: &mut Tensor,
) -> Result<()> {
    let (m, MlaConfig { n_heads, kv_lora_rank, .. }) = (rows.len(), *config);
    let (width, ty) = (cache.width(), cache.ty());
    let (slots, q, cache) = (cache.slots(), q.cuda()?, cache.cuda()?);
    let gpu = q.gpu().with(cache)?.clone();
    let keys = selected.map_or(usize::MAX, Selection::k).min(rows.most_keys(&gpu));
    let problem = MlaProblem { m, n_heads, kv_lora_rank, width, ty, keys };
    holds("mla_attention", q, m * n_heads * width)?;
    let selected = match selected {
        None => None,
        Some(s) => {
            let (indices, lens) = (s.indices.cuda()?, s.lens.cuda()?);
            gpu.with(indices)?.with(lens)?;
            holds("mla_attention", indices, m * s.k())?;
            holds("mla_attention", lens, m)?;
            Some((indices, lens, count("positions of a row", s.k())?))
        }
    };
    let out = out.cuda_mut()?;
    gpu.with(out)?;
    holds("mla_attention", out, m * n_heads * kv_lora_rank)?;
    let lse = options.lse.map(Tensor::cuda_mut).transpose()?;
    if let Some(lse) = &lse {
        gpu.with(lse)?;
        holds("mla_attention", lse, m * n_heads)?;
    }
    count("rows", m)?;
    let n_heads = count("heads", n_heads)?;
    if m == 0 || n_heads == 0 {
        return Ok(());
    }
    let launch = MlaLaunch::pick(problem, options.kernel, gpu.properties())?;
    let inputs = Inputs { gpu, q, cache, slots, rows, selected, n_heads };
    let _turn = inputs.gpu.turn();
    match launch {
        MlaLaunch::Float { entry, grid } => float((entry, grid), &inputs, config, width, out, lse),
        MlaLaunch::Tiles { entry, grid, merge, merge_grid } => {
            inputs.gpu.prepare(entry, [grid, 1, 1])?;
            inputs.gpu.prepare(merge, [merge_grid, 1, 1])?;
            let mut own = None;
            let scratch = match options.scratch {
                Some(scratch) => scratch,
                None => own.insert(MlaScratch::on(&inputs.gpu)?),
            };
            inputs.gpu.with(&scratch.partial)?;
            let launches = [(entry, grid), (merge, merge_grid)];
            tiles(launches, &inputs, config.sm_scale, out, lse, scratch)
        }
    }
}

fn float(
    (entry, grid): (Entry, u32),
    inputs: &Inputs<'_>,
    config: &MlaConfig,
    width: usize,
    out: &mut Buffer<f32>,
    lse: Option<&mut Buffer<f32>>,
) -> Result<()> {
    let params = mla_float_params {
        q: inputs.q.as_ptr(),
        cache: inputs.cache.as_ptr().cast(),
        rows: inputs.rows.on_gpu(&inputs.gpu, inputs.slots)?,
        selected: inputs.selection(),
        out: out.as_mut_ptr(),
        lse: lse.map_or(ptr::null_mut(), Buffer::as_mut_ptr),
        n_heads: inputs.n_heads,
        latent: config.kv_lora_rank as u32,
        width: width as u32,
        scale: config.sm_scale,
    };
    // SAFETY: all hold their shapes and lie on this device, as was checked; the kernel takes rows of this width, no wider than it has room
    // for, and slots that rows reach are those of the cache. Selected positions that a row does not see are not followed.
    unsafe { inputs.gpu.launch(entry, [grid, 1, 1], &params) }
}

fn tiles(
    [(entry, grid), (merge, merge_grid)]: [(Entry, u32); 2],
    inputs: &Inputs<'_>,
    sm_scale: f32,
    out: &mut Buffer<f32>,
    lse: Option<&mut Buffer<f32>>,
    scratch: &mut MlaScratch,
) -> Result<()> {
    let (gpu, n_heads) = (&inputs.gpu, inputs.n_heads);
    let (out, lse) = (out.as_mut_ptr(), lse.map_or(ptr::null_mut(), Buffer::as_mut_ptr));
    let (partial, sums) = (scratch.partial.as_mut_ptr(), scratch.sums.as_mut_ptr());
    let cuts = scratch.cuts.as_mut_ptr().cast::<mla_cut>();
    let params = mla_decode_params {
        q: inputs.q.as_ptr(),
        cache: inputs.cache.as_ptr().cast(),
        rows: inputs.rows.on_gpu(gpu, inputs.slots)?,
        selected: inputs.selection(),
        out,
        lse,
        partial,
        sums,
        cuts,
        n_heads,
        scale: sm_scale * LOG2_E,
    };
    // SAFETY: all hold their shapes and lie on this device, as was checked; rows are as wide as the kernel takes and of its type, buffers
    // aligned to 256, and slots that rows reach are those of the cache. The scratch has room for two pieces and a cut of each block of
    // threads of any kernel here.
    unsafe { gpu.launch(entry, [grid, 1, 1], &params)? };
    let params = mla_merge_params { partial, sums, cuts, out, lse, n_heads };
    // SAFETY: as above; there is a cut for every 2 * heads halves of heads, of which a block of threads has one or four, written by the launch before.
    unsafe { gpu.launch(merge, [merge_grid, 1, 1], &params) }
}
