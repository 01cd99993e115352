//! Launches of repack, quantize and the linear layers in tiles. Shapes were checked by [`crate::ops`].

use std::{array, mem, ptr};

use super::dequantize::{count, holds, row_bytes};
use super::linear;
use super::runtime::Properties;
use super::{Buffer, Gpu};
use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::ops::linear::config::{DECODE_TOKENS, DecodeConfig, DecodeProblem, float_tiles};
use crate::ops::linear::gemm::{GemmConfig, GemmProblem};
use crate::ops::linear::{Rotated, TiledOptions, Unrounded};
use crate::quant::tiles::{TILE_ROWS, tile_bytes, tiles};
use crate::quant::{self, GgmlType, Weight};
use crate::sys::{
    linear_decode_params, linear_gemm_params, linear_group, linear_rotation, quantize_f16_params,
    quantize_params, repack_params,
};
use crate::tensor::{
    ActivationFormat, DeviceTiles, GemmScratch, Heads, Matrix, QuantizedTiles, TILE_TOKENS, Tensor,
};

/// Tokens up to which f16 is used on GPUs whose matrix units are twice as fast with int8: fewer of them wait for memory.
const F16_TOKENS: usize = 32;

/// How the activations of `rows` tokens are rounded. Int8 as far as `linear_decode` goes, near the rate of memory; for more tokens
/// f16 is about as fast on an H200, with a twentieth of the error or less, and by its instructions half as fast on sm_120,
/// which was not measured.
pub(crate) fn format(gpu: &Gpu, rows: usize) -> ActivationFormat {
    let (major, _) = gpu.properties().compute_capability;
    match rows > DECODE_TOKENS && (major == 9 || rows <= F16_TOKENS) {
        true => ActivationFormat::F16,
        false => ActivationFormat::Int8,
    }
}

/// Whether tiles of activations come with scratch: where `linear_gemm` may multiply, as it does from 9 tokens on, and may cut what it
/// sums up.
pub(crate) fn needs_scratch(format: ActivationFormat, rows: usize, cols: usize, fixed: bool) -> bool {
    let few = rows <= TILE_TOKENS && format == ActivationFormat::Int8 && !fixed;
    !few && GemmConfig::may_cut(cols)
}

/// Values and counters that a launch of many tokens needs.
pub(crate) fn scratch(gpu: &Gpu) -> [usize; 2] {
    GemmConfig::scratch(gpu.properties())
}

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
    let blocks = gpu.upload_shared("weights", weight.bytes())?;
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

/// `q = x`, rounded. The parts of `x` are as many and as wide as those of `q`, and its rows as many.
pub(crate) fn quantize(x: &Tensor, parts: Heads, q: &mut QuantizedTiles) -> Result<()> {
    let ([m, k], slabs, format) = (q.shape(), q.slabs(), q.format());
    let x_cols = x.cols();
    let x = x.cuda()?;
    let gpu = x.gpu().with(q.tiles())?.clone();
    let _turn = gpu.turn();
    holds("quantize", x, m * x_cols)?;
    holds("quantize", q.tiles(), q.bytes())?;
    let (tokens, columns) = (count("tokens", m)?, count("columns", k)?);
    let [_, k_tiles] = tiles(0, k);
    let src = x.as_ptr().wrapping_add(parts.offset);
    match format {
        ActivationFormat::Int8 => {
            if slabs != 1 || x_cols != k {
                return Err(Error::unsupported("int8 activations of a part of a row", "they are whole rows"));
            }
            let grid = [count("tiles", m.div_ceil(TILE_TOKENS) * k_tiles)?, 1, 1];
            let out = q.tiles_mut().as_mut_ptr().cast();
            let params = quantize_params { x: src, out, m: tokens, k: columns };
            // SAFETY: x has `m` rows of `k` values, as the caller checked, and `q` its tiles, as was checked here.
            unsafe { gpu.launch(kernels::quantize::INSTANCES[0].entry, grid, &params) }
        }
        ActivationFormat::F16 => {
            if [parts.offset, parts.stride, x_cols].iter().any(|n| !n.is_multiple_of(4)) {
                return Err(Error::unsupported(
                    format!("parts {parts:?} of rows of {x_cols}"),
                    "they must begin at multiples of 4 values",
                ));
            }
            let padded = m.div_ceil(TILE_TOKENS) * TILE_TOKENS;
            let grid = [count("tokens", padded)?, count("heads", slabs)?, 1];
            let params = quantize_f16_params {
                x: src,
                out: q.tiles_mut().as_mut_ptr().cast(),
                x_stride: x_cols as u64,
                x_slab: parts.stride as u64,
                m: tokens,
                k: columns,
            };
            // SAFETY: x has `m` rows with `slabs` parts of `k` values, as the caller checked, and `q` their tiles, as was
            // checked here.
            unsafe { gpu.launch(kernels::quantize_f16::INSTANCES[0].entry, grid, &params) }
        }
    }
}

/// Matrices of one launch, at most.
const GROUPS: usize = 4;

/// A matrix whose sizes were checked, and its outputs. Of gate and up the first one has them.
struct Group<'a> {
    ty: GgmlType,
    /// Tiles, or rows of F32.
    w: &'a Buffer<u8>,
    rows: usize,
    y: Option<&'a mut Buffer<f32>>,
    /// Of the parts of a row of `y`.
    y_parts: Heads,
    y_cols: usize,
    rotation: linear_rotation,
}

/// Of outputs of which none are rotated.
const NO_ROTATION: linear_rotation = linear_rotation {
    angles: ptr::null(),
    y: ptr::null_mut(),
    y_stride: 0,
    y_head: 0,
    first: 0,
    stride: 2,
    width: 0,
    heads: 0,
};

impl<'a> Group<'a> {
    fn new(gpu: &Gpu, w: &'a Matrix, y: Option<(&'a mut Tensor, Heads)>, m: usize) -> Result<Self> {
        let [slabs, rows, k] = w.shape();
        let DeviceTiles { ty, tiles: w } = w.tiles()?;
        let [row_tiles, k_tiles] = tiles(rows, k);
        let bytes = slabs * row_tiles * k_tiles * tile_bytes(*ty).unwrap_or(0);
        Self::checked(
            gpu,
            Group { ty: *ty, w, rows, y: None, y_parts: Heads::one(0, 0), y_cols: 0, rotation: NO_ROTATION },
            bytes,
            y,
            m,
        )
    }

    /// Of F32.
    fn unrounded(gpu: &Gpu, w: &'a Matrix, y: &'a mut Tensor, m: usize) -> Result<Self> {
        let [_, rows, k] = w.shape();
        let w = w.cuda()?;
        let (bytes, y_parts) = (rows * row_bytes(w, k)?, Heads::one(0, rows));
        let group =
            Group { ty: w.ty, w: &w.blocks, rows, y: None, y_parts, y_cols: 0, rotation: NO_ROTATION };
        Self::checked(gpu, group, bytes, Some((y, y_parts)), m)
    }

    fn checked(
        gpu: &Gpu,
        group: Self,
        bytes: usize,
        y: Option<(&'a mut Tensor, Heads)>,
        m: usize,
    ) -> Result<Self> {
        gpu.with(group.w)?;
        holds("linear", group.w, bytes)?;
        count("outputs", group.rows)?;
        let Some((y, y_parts)) = y else { return Ok(group) };
        let y_cols = y.cols();
        let y = y.cuda_mut()?;
        gpu.with(y)?;
        holds("linear", y, m * y_cols)?;
        count("values of a row", y_cols)?;
        Ok(Group { y: Some(y), y_parts, y_cols, ..group })
    }

    /// With parts of the outputs rotated; the group has them until it is launched.
    fn rotated(mut self, gpu: &Gpu, part: Rotated<'a>, m: usize) -> Result<Self> {
        let Heads { n, stride, offset, len } = part.heads;
        let angles = part.angles.cuda()?;
        gpu.with(angles)?;
        holds("rotated", angles, m * len)?;
        let (y, cols, parts) = match part.to {
            None => (self.y.as_mut().map(|y| y.as_mut_ptr()), self.y_cols, part.heads),
            Some((to, parts)) => {
                let cols = to.cols();
                let to = to.cuda_mut()?;
                gpu.with(to)?;
                holds("rotated", to, m * cols)?;
                (Some(to.as_mut_ptr()), cols, parts)
            }
        };
        let Some(y) = y else { return Ok(self) };
        self.rotation = linear_rotation {
            angles: angles.as_ptr(),
            y: y.wrapping_add(parts.offset),
            y_stride: cols as u64,
            y_head: count("columns", parts.stride)?,
            first: count("columns", offset)?,
            // Where heads have no columns at all.
            stride: count("columns", stride.max(2))?,
            width: count("columns", len)?,
            heads: count("heads", n)?,
        };
        Ok(self)
    }
}

/// A launch that can begin.
struct Launch<'a> {
    groups: Vec<Group<'a>>,
    /// Of F32, on the activations as they were; of `linear_decode` only.
    unrounded: Vec<Group<'a>>,
    config: Config,
}

enum Config {
    Decode(DecodeConfig),
    Gemm(GemmConfig),
}

/// Input of linear layers in tiles, checked.
struct Input {
    gpu: Gpu,
    format: ActivationFormat,
    m: usize,
    k: usize,
    slabs: usize,
    has_scratch: bool,
}

impl Input {
    fn new(x: &QuantizedTiles) -> Result<Self> {
        let ([m, k], gpu) = (x.shape(), x.tiles().gpu().clone());
        holds("linear", x.tiles(), x.bytes())?;
        count("tokens", m)?;
        count("inputs", k)?;
        Ok(Input { gpu, format: x.format(), m, k, slabs: x.slabs(), has_scratch: x.has_scratch() })
    }

    /// Whether `linear_decode` can.
    fn can_decode(&self) -> bool {
        self.format == ActivationFormat::Int8 && self.m <= DECODE_TOKENS
    }

    fn decode_problem(&self, ty: GgmlType, rows: &[usize], glu: bool) -> DecodeProblem {
        let [_, k_tiles] = tiles(0, self.k);
        let row_tiles = rows.iter().map(|n| n.div_ceil(TILE_ROWS)).sum();
        DecodeProblem { ty, m: self.m, row_tiles, float_tiles: 0, k_tiles, glu }
    }

    /// Whether `linear_decode` is to multiply these.
    fn by_decode(&self, groups: &[Group<'_>], glu: bool, kernel: Option<Entry>) -> bool {
        let (ty, rows) = type_and_rows(groups, glu);
        let problem = self.decode_problem(ty, &rows, glu);
        let best = || DecodeConfig::is_best(problem, self.gpu.properties().sms);
        self.can_decode() && kernel.map_or_else(best, |kernel| kernel.family() == "linear_decode")
    }

    fn gemm_problem<'r>(&self, ty: GgmlType, rows: &'r [usize], glu: bool) -> GemmProblem<'r> {
        GemmProblem { ty, format: self.format, m: self.m, rows, k: self.k, slabs: self.slabs, glu }
    }

    /// All kernels that could multiply, the one that is chosen first.
    fn candidates(&self, ty: GgmlType, rows: &[usize], glu: bool) -> Vec<Entry> {
        let gpu = self.gpu.properties();
        let problem = self.decode_problem(ty, rows, glu);
        let (mut decode, mut gemm) = (Vec::new(), Vec::new());
        if self.can_decode() {
            let configs = DecodeConfig::candidates(problem, gpu.sms, gpu.smem_per_sm);
            decode.extend(configs.into_iter().map(|config| config.entry));
        }
        if self.can_gemm() {
            gemm = GemmConfig::candidates(self.gemm_problem(ty, rows, glu), gpu);
        }
        if DecodeConfig::is_best(problem, gpu.sms) {
            [decode, gemm].concat()
        } else {
            [gemm, decode].concat()
        }
    }

    /// Whether `linear_gemm` can: it may need scratch.
    fn can_gemm(&self) -> bool {
        self.has_scratch || !GemmConfig::may_cut(self.k)
    }

    /// By `kernel` if it suits the matrices, or by the one that does best.
    fn launch<'a>(
        &self,
        groups: Vec<Group<'a>>,
        unrounded: Vec<Group<'a>>,
        glu: bool,
        kernel: Option<Entry>,
    ) -> Result<Launch<'a>> {
        let (ty, rows) = type_and_rows(&groups, glu);
        let properties = self.gpu.properties();
        let Properties { sms, smem_per_sm, .. } = *properties;
        let gemm = self.gemm_problem(ty, &rows, glu);
        let float_tiles = unrounded.iter().map(|group| float_tiles(group.rows, self.m)).sum();
        let decode = DecodeProblem { float_tiles, ..self.decode_problem(ty, &rows, glu) };
        let by_decode = self.by_decode(&groups, glu, kernel);
        let config = match (by_decode, kernel) {
            (true, None) => Config::Decode(DecodeConfig::pick(decode, sms, smem_per_sm)?),
            (true, Some(kernel)) => Config::Decode(DecodeConfig::of(kernel, decode, sms, smem_per_sm)?),
            (false, _) if !self.can_gemm() => {
                return Err(Error::unsupported("linear", "activations without scratch"));
            }
            (false, None) => Config::Gemm(GemmConfig::pick(gemm, properties)?),
            (false, Some(kernel)) => Config::Gemm(GemmConfig::of(kernel, gemm, properties)?),
        };
        let (entry, grid) = match config {
            Config::Decode(DecodeConfig { entry, grid, .. }) => (entry, grid),
            Config::Gemm(GemmConfig { entry, grid, .. }) => (entry, grid),
        };
        self.gpu.prepare(entry, [grid, 1, 1])?;
        Ok(Launch { groups, unrounded, config })
    }

    /// `x_f32` are the activations before they were rounded, if there are groups for them.
    fn run(&self, x: &mut QuantizedTiles, x_f32: *const f32, launch: Launch<'_>) -> Result<()> {
        if self.m == 0 {
            return Ok(());
        }
        let Launch { mut groups, unrounded, config } = launch;
        let y_slab = groups.first().map_or(0, |group| group.y_parts.stride) as u32;
        let n_groups = groups.len() as u32;
        groups.extend(unrounded);
        let [_, k_tiles] = tiles(0, self.k);
        let (m, k_tiles) = (self.m as u32, k_tiles as u32);
        let x_tiles = x.tiles().as_ptr();
        let group = |i: usize| match groups.get_mut(i) {
            None => {
                linear_group { w: ptr::null(), y: ptr::null_mut(), n: 0, y_stride: 0, rotation: NO_ROTATION }
            }
            Some(Group { w, rows, y, y_parts, y_cols, rotation, .. }) => linear_group {
                w: w.as_prologue_ptr().cast(),
                y: y.as_mut().map_or(ptr::null_mut(), |y| y.as_mut_ptr().wrapping_add(y_parts.offset)),
                n: *rows as u32,
                y_stride: *y_cols as u32,
                rotation: *rotation,
            },
        };
        let groups = array::from_fn::<_, GROUPS, _>(group);
        match config {
            Config::Decode(DecodeConfig { entry, blocks, grid }) => {
                let (x, k) = (x_tiles.cast(), self.k as u32);
                let params = linear_decode_params { groups, n_groups, m, x, x_f32, k_tiles, k, blocks };
                // SAFETY: w and x have the tiles and values that the params say and y has `m` rows of `n` values, as was checked,
                // as are angles and places of what is rotated, borrowed as long as the groups;
                // the kernel is one of the type, for as many tokens. Buffers are aligned to 256, and with F32 `k` is a multiple of 4.
                unsafe { self.gpu.launch(entry, [grid, 1, 1], &params) }
            }
            Config::Gemm(GemmConfig { entry, grid, cut }) => {
                let (partial, arrived) = match x.scratch_mut() {
                    Some(GemmScratch { partial, arrived }) => (partial.as_mut_ptr(), arrived.as_mut_ptr()),
                    None => (ptr::null_mut(), ptr::null_mut()),
                };
                let params = linear_gemm_params {
                    groups,
                    n_groups,
                    m,
                    x: x_tiles.cast(),
                    partial,
                    arrived,
                    k_tiles,
                    slabs: self.slabs as u32,
                    y_slab,
                    cut: cut.into(),
                };
                // SAFETY: as above; the scratch, on the same device, has room for the blocks of threads of every configuration, and
                // nothing is cut where there is none.
                unsafe { self.gpu.launch(entry, [grid, 1, 1], &params) }
            }
        }
    }
}

/// Type, and rows of each matrix, or of each pair.
fn type_and_rows(groups: &[Group<'_>], glu: bool) -> (GgmlType, Vec<usize>) {
    let ty = groups.first().map_or(GgmlType::F32, |group| group.ty);
    (ty, groups.iter().step_by(1 + usize::from(glu)).map(|group| group.rows).collect())
}

/// Runs one launch for each of `sets`, and what is unrounded in the first that has room for it and is of `linear_decode`, or by itself.
/// None runs unless all can.
fn run(
    x: &mut QuantizedTiles,
    input: &Input,
    sets: Vec<Vec<Group<'_>>>,
    glu: bool,
    TiledOptions { kernel, unrounded, .. }: TiledOptions<'_>,
) -> Result<()> {
    let has_room = |set: &Vec<Group<'_>>| set.len() < GROUPS && input.by_decode(set, glu, kernel);
    let host = sets.iter().position(has_room);
    let room = host.map_or(0, |host| GROUPS - sets[host].len());
    let (mut guests, mut alone, mut x_f32) = (Vec::new(), Vec::new(), None);
    if let Some(Unrounded { x, ws, ys }) = unrounded {
        let values = x.cuda()?;
        input.gpu.with(values)?;
        holds("linear", values, input.m * input.k)?;
        for (w, y) in ws.iter().zip(ys) {
            if guests.len() < room
                && w.cuda()?.ty == GgmlType::F32
                && input.k > 0
                && input.k.is_multiple_of(4)
            {
                guests.push(Group::unrounded(&input.gpu, w, y, input.m)?);
            } else {
                alone.push(linear::Launch::unrounded(w, x, y)?);
            }
        }
        x_f32 = Some(x);
    }
    let launches: Vec<_> = sets
        .into_iter()
        .enumerate()
        .map(|(i, groups)| {
            let guests = if host == Some(i) { mem::take(&mut guests) } else { Vec::new() };
            input.launch(groups, guests, glu, kernel)
        })
        .collect::<Result<_>>()?;
    let values = match x_f32 {
        Some(x) => x.cuda()?.as_ptr(),
        None => ptr::null(),
    };
    launches.into_iter().try_for_each(|launch| input.run(x, values, launch))?;
    let Some(x_f32) = x_f32 else { return Ok(()) };
    alone.iter().try_for_each(|launch| launch.run(x_f32))
}

/// `ys[i] = ws[i] x`. Matrices of a type share launches.
pub(crate) fn linear_tiled(
    ws: &[&Matrix],
    x: &mut QuantizedTiles,
    ys: &mut [&mut Tensor],
    mut options: TiledOptions<'_>,
) -> Result<()> {
    let gpu = x.tiles().gpu().clone();
    let _turn = gpu.turn();
    let input = Input::new(x)?;
    let mut sets: Vec<Vec<Group<'_>>> = Vec::new();
    let mut rotated = mem::take(&mut options.rotated);
    for (i, (w, y)) in ws.iter().zip(ys).enumerate() {
        let parts = Heads::one(0, w.rows());
        let mut group = Group::new(&gpu, w, Some((y, parts)), input.m)?;
        if let Some(part) = rotated.iter().position(|part| part.matrix == i) {
            group = group.rotated(&gpu, rotated.swap_remove(part), input.m)?;
        }
        let of_type = |groups: &&mut Vec<Group<'_>>| {
            groups.len() < GROUPS && groups.iter().all(|other| other.ty == group.ty)
        };
        match sets.iter_mut().find(of_type) {
            Some(groups) => groups.push(group),
            None => sets.push(vec![group]),
        }
    }
    run(x, &input, sets, false, options)
}

/// `y = silu(gate x) * (up x)`. The two have one type and one shape.
pub(crate) fn swiglu_tiled(
    gate: &Matrix,
    up: &Matrix,
    x: &mut QuantizedTiles,
    y: &mut Tensor,
    options: TiledOptions<'_>,
) -> Result<()> {
    let gpu = x.tiles().gpu().clone();
    let _turn = gpu.turn();
    let input = Input::new(x)?;
    let parts = Heads::one(0, gate.rows());
    let first = Group::new(&gpu, gate, Some((y, parts)), input.m)?;
    let groups = vec![first, Group::new(&gpu, up, None, input.m)?];
    run(x, &input, vec![groups], true, options)
}

/// One matrix for each part of `x`; the parts of `y` are `y_parts`.
pub(crate) fn head_linear_tiled(
    w: &Matrix,
    x: &mut QuantizedTiles,
    y: &mut Tensor,
    y_parts: Heads,
) -> Result<()> {
    let gpu = x.tiles().gpu().clone();
    let _turn = gpu.turn();
    let input = Input::new(x)?;
    count("columns", y_parts.stride)?;
    let group = Group::new(&gpu, w, Some((y, y_parts)), input.m)?;
    run(x, &input, vec![vec![group]], false, TiledOptions::default())
}

/// The kernels that could multiply these matrices of one type by `x` in one launch, the one that is chosen first.
pub(crate) fn tiled_kernels(ws: &[&Matrix], x: &QuantizedTiles, glu: bool) -> Result<Vec<Entry>> {
    let Some(first) = ws.first() else { return Ok(Vec::new()) };
    let ty = first.tiles()?.ty;
    let rows: Vec<usize> = ws.iter().step_by(1 + usize::from(glu)).map(|w| w.rows()).collect();
    Ok(Input::new(x)?.candidates(ty, &rows, glu))
}
