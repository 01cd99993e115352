//! Launches of repack, quantize and the integer linears. Shapes were checked by [`crate::ops`].

use std::{array, ptr};

use super::dequantize::{count, holds};
use super::runtime::Properties;
use super::{Buffer, Gpu};
use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::ops::linear::config::{DecodeProblem, GemmConfig, Int8Config};
use crate::quant::tiles::{TILE_ROWS, supported, tile_bytes, tiles};
use crate::quant::{GgmlType, Weight};
use crate::sys::{
    linear_decode_params, linear_gemm_params, linear_group, quantize_params, repack_params, tile_act,
};
use crate::tensor::{DeviceTiles, GemmScratch, Matrix, QuantizedTiles, TILE_TOKENS, Tensor};

/// A weight as tiles. Its blocks are on the device, too, until the work is done.
pub(crate) fn repack(gpu: &Gpu, weight: &Weight) -> Result<DeviceTiles> {
    let (ty, [slabs, n, k]) = (weight.ty(), weight.shape());
    let bytes = supported(ty)?;
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

/// Matrices of one launch, at most.
const GROUPS: usize = 4;

/// A matrix whose sizes were checked, and its outputs. Of gate and up the first one has them.
struct Group<'a> {
    w: &'a DeviceTiles,
    n: u32,
    y: Option<&'a mut Buffer<f32>>,
}

impl<'a> Group<'a> {
    fn new(gpu: &Gpu, w: &'a Matrix, y: Option<&'a mut Tensor>, m: usize) -> Result<Self> {
        let [_, n, k] = w.shape();
        let (w, y) = (w.tiles()?, y.map(Tensor::cuda_mut).transpose()?);
        gpu.with(&w.tiles)?;
        let [row_tiles, k_tiles] = tiles(n, k);
        holds("linear", &w.tiles, row_tiles * k_tiles * tile_bytes(w.ty).unwrap_or(0))?;
        if let Some(y) = &y {
            gpu.with(y)?;
            holds("linear", y, m * n)?;
        }
        Ok(Group { w, n: count("outputs", n)?, y })
    }
}

/// Matrices of type `ty`, of whose rows the numbers are `rows`, on `x` for 8 tokens at a time; of gate and up the first counts.
fn problem(ty: GgmlType, rows: impl Iterator<Item = usize>, [m, k]: [usize; 2], glu: bool) -> DecodeProblem {
    let rows = rows.step_by(1 + usize::from(glu));
    DecodeProblem {
        ty,
        m: m.min(TILE_TOKENS),
        row_tiles: rows.map(|n| n.div_ceil(TILE_ROWS)).sum(),
        k_tiles: tiles(0, k)[1],
        glu,
    }
}

/// Input of integer linears, checked.
struct Input {
    gpu: Gpu,
    x: *const tile_act,
    shape: [usize; 2],
    m: u32,
    k_tiles: u32,
}

impl Input {
    fn new(x: &QuantizedTiles) -> Result<Self> {
        let (shape @ [m, k], x) = (x.shape(), x.tiles());
        holds("linear", x, act_tiles(m, k) * size_of::<tile_act>())?;
        let [_, k_tiles] = tiles(0, k);
        let (m, k_tiles) = (count("tokens", m)?, count("tiles", k_tiles)?);
        Ok(Input { gpu: x.gpu().clone(), x: x.as_ptr().cast(), shape, m, k_tiles })
    }

    /// `kernel` if it suits the matrices, or the one that does best.
    fn decode(&self, groups: &[Group<'_>], glu: bool, kernel: Option<Entry>) -> Result<Int8Config> {
        let Some(first) = groups.first() else { return Err(Error::shape("linear", "matrices", "none")) };
        let problem = problem(first.w.ty, groups.iter().map(|group| group.n as usize), self.shape, glu);
        let Properties { sms, smem_per_sm, .. } = *self.gpu.properties();
        match kernel {
            None => Int8Config::pick(problem, sms, smem_per_sm),
            Some(kernel) => Int8Config::of(kernel, problem, sms, smem_per_sm),
        }
    }

    fn run(&self, groups: &mut [Group<'_>], config: Int8Config) -> Result<()> {
        let ([m, _], n_groups) = (self.shape, groups.len() as u32);
        for first in (0..m).step_by(TILE_TOKENS) {
            let group = |i: usize| match groups.get_mut(i) {
                None => linear_group { w: ptr::null(), y: ptr::null_mut(), n: 0 },
                Some(Group { w, n, y }) => linear_group {
                    w: w.tiles.as_prologue_ptr().cast(),
                    y: y.as_mut()
                        .map_or(ptr::null_mut(), |y| y.as_mut_ptr().wrapping_add(first * *n as usize)),
                    n: *n,
                },
            };
            let params = linear_decode_params {
                groups: array::from_fn::<_, GROUPS, _>(group),
                n_groups,
                m: (m - first).min(TILE_TOKENS) as u32,
                x: self.x.wrapping_add(first / TILE_TOKENS * self.k_tiles as usize),
                k_tiles: self.k_tiles,
            };
            // SAFETY: w and x have the tiles that the params say and y has `m` rows of `n` values, as was checked; the kernel is
            // one of the type, for as many tokens.
            unsafe { self.gpu.launch(config.entry, [config.grid, 1, 1], &params) }?;
        }
        Ok(())
    }
}

/// `ys[i] = ws[i] x`. Matrices of a type share launches, by `kernel` if one is given.
pub(crate) fn linear_tiled(
    ws: &[&Matrix],
    x: &mut QuantizedTiles,
    ys: &mut [&mut Tensor],
    kernel: Option<Entry>,
) -> Result<()> {
    let gpu = x.tiles().gpu().clone();
    let _turn = gpu.turn();
    let input = Input::new(x)?;
    let [m, k] = input.shape;
    let Properties { sms, smem_per_sm, .. } = *gpu.properties();
    let (mut few, mut many): (Vec<Vec<Group<'_>>>, _) = (Vec::new(), Vec::new());
    for (w, y) in ws.iter().zip(ys) {
        let group = Group::new(&gpu, w, Some(y), m)?;
        let gemm = || GemmConfig::pick(group.w.ty, m, [w.rows(), k], sms, smem_per_sm).ok();
        let gemm = if m > TILE_TOKENS && kernel.is_none() { gemm() } else { None };
        match gemm.filter(|config| !config.is_beaten_by_decode(m)) {
            Some(config) => many.push((group, config)),
            None => {
                let of_type = |groups: &&mut Vec<Group<'_>>| {
                    groups.len() < GROUPS && groups.iter().all(|other| other.w.ty == group.w.ty)
                };
                match few.iter_mut().find(of_type) {
                    Some(groups) => groups.push(group),
                    None => few.push(vec![group]),
                }
            }
        }
    }
    // None runs unless all can.
    let config = |groups: &Vec<Group<'_>>| input.decode(groups, false, kernel);
    let configs = few.iter().map(config).collect::<Result<Vec<_>>>()?;
    if !many.is_empty() {
        let no_scratch = || Error::unsupported("linear", "activations without scratch");
        let scratch = x.scratch_mut().ok_or_else(no_scratch)?;
        many.into_iter().try_for_each(|(group, config)| gemm(&input, group, config, scratch))?;
    }
    few.iter_mut().zip(configs).try_for_each(|(groups, config)| input.run(groups, config))
}

fn gemm(input: &Input, group: Group<'_>, config: GemmConfig, scratch: &mut GemmScratch) -> Result<()> {
    let Group { w, n, y } = group;
    let params = linear_gemm_params {
        w: w.tiles.as_ptr().cast(),
        x: input.x,
        y: y.map_or(ptr::null_mut(), Buffer::as_mut_ptr),
        partial: scratch.partial.as_mut_ptr(),
        arrived: scratch.arrived.as_mut_ptr(),
        m: input.m,
        n,
        k_tiles: input.k_tiles,
    };
    // SAFETY: w and x have the tiles that the params say and y has `m` rows of `n` values, as was checked; the scratch has room
    // for the blocks of threads of every configuration.
    unsafe { input.gpu.launch(config.entry, [config.grid, 1, 1], &params) }
}

/// `y = silu(gate x) * (up x)`. The two have one type and one shape.
pub(crate) fn swiglu_tiled(
    gate: &Matrix,
    up: &Matrix,
    x: &QuantizedTiles,
    y: &mut Tensor,
    kernel: Option<Entry>,
) -> Result<()> {
    let gpu = x.tiles().gpu().clone();
    let _turn = gpu.turn();
    let input = Input::new(x)?;
    let [m, _] = input.shape;
    let mut groups = [Group::new(&gpu, gate, Some(y), m)?, Group::new(&gpu, up, None, m)?];
    let config = input.decode(&groups, true, kernel)?;
    input.run(&mut groups, config)
}

/// The kernels that could multiply these matrices of one type in one launch, the one that is chosen first.
pub(crate) fn decode_kernels(ws: &[&Matrix], m: usize, glu: bool) -> Result<Vec<Entry>> {
    let Some(first) = ws.first() else { return Ok(Vec::new()) };
    let w = first.tiles()?;
    let Properties { sms, smem_per_sm, .. } = *w.tiles.gpu().properties();
    let problem = problem(w.ty, ws.iter().map(|w| w.rows()), [m, first.cols()], glu);
    Ok(Int8Config::candidates(problem, sms, smem_per_sm).into_iter().map(|config| config.entry).collect())
}

fn act_tiles(m: usize, k: usize) -> usize {
    m.div_ceil(TILE_TOKENS) * tiles(0, k)[1]
}
