//! Launches of a mixture of experts in tiles, activations rounded to int8. Shapes were checked by [`crate::ops`].

use std::ptr;

use super::dequantize::{count, holds};
use super::{Buffer, Gpu, moe_sum};
use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::ops::ffn::Ffn;
use crate::ops::linear::{linear_tiled, quantize, swiglu_tiled};
use crate::ops::moe::MoeOptions;
use crate::ops::moe::config::{self, FEW_PAIRS, FEW_ROWS, GroupedConfig, RowsConfig, RowsProblem};
use crate::ops::moe_sort::config::SortConfig;
use crate::ops::moe_sort::{self as sort, SortOptions, SortedPairs, max_tiles};
use crate::ops::moe_sum::config::SumConfig;
use crate::ops::router::Routing;
use crate::quant::GgmlType;
use crate::quant::tiles::{TILE_COLS, tile_bytes, tiles};
use crate::sys::{
    TILES_Q4_K, TILES_Q5_0, TILES_Q5_K, TILES_Q6_K, TILES_Q8_0, moe_down_params, moe_gemm_params, moe_matrix,
    moe_pairs, moe_rows_params, quantize_rows_params, row_act, tiles_type,
};
use crate::tensor::{Device, Matrix, Precision, QuantizedTiles, Tensor};

/// In [`Gpu::held`].
const LABEL: &str = "experts";

/// What a mixture of experts in tiles needs besides its input and output, on a GPU. Nothing in it outlives a call; memory once grown is
/// kept, so that a call that can be recorded in a graph is any but the first of its size.
#[derive(Debug)]
pub struct MoeScratch {
    /// The input, rounded.
    x: Buffer<u8>,
    /// Between the two halves, rounded: of experts by place, and of the shared one.
    h: Buffer<u8>,
    h_shared: Buffer<u8>,
    /// Sums and counters of the blocks of threads.
    partial: Buffer<f32>,
    arrived: Buffer<u32>,
    /// Of many tokens.
    many: Many,
}

/// What many tokens need besides.
#[derive(Debug)]
struct Many {
    /// For each number of experts that there was.
    sorted: Vec<SortedPairs>,
    /// What experts give, by place.
    rows: Buffer<f32>,
    /// For each width of a shared expert.
    shared: Vec<ManyShared>,
}

impl Many {
    /// Those of such a call, for which there is room.
    fn of(&mut self, sizes: Sizes) -> Result<(&mut SortedPairs, &mut Buffer<f32>, Option<&mut ManyShared>)> {
        let none = || Error::unsupported("many tokens", "there is no room for them");
        let sorted = self.sorted.iter_mut().find(|sorted| sorted.n_experts() == sizes.n_experts);
        let shared = self.shared.iter_mut().find(|room| room.suits(sizes));
        Ok((sorted.ok_or_else(none)?, &mut self.rows, shared))
    }
}

/// What the shared expert of many tokens needs: input and what is between its halves, rounded, and that before; its output.
#[derive(Debug)]
struct ManyShared {
    x: QuantizedTiles,
    h: Tensor,
    h_rounded: QuantizedTiles,
    y: Tensor,
}

impl ManyShared {
    fn suits(&self, sizes: Sizes) -> bool {
        self.h.cols() == sizes.ff_shared && self.y.cols() == sizes.hidden
    }
}

/// Sizes of a call.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    m: usize,
    top_k: usize,
    hidden: usize,
    ff: usize,
    ff_shared: usize,
    n_experts: usize,
}

impl Sizes {
    fn pairs(&self) -> usize {
        self.m.saturating_mul(self.top_k)
    }
}

/// Bytes of rounded rows of `n` values.
fn row_bytes(rows: usize, n: usize) -> usize {
    rows.saturating_mul(n.div_ceil(TILE_COLS)).saturating_mul(size_of::<row_act>())
}

/// As long as asked for, or longer. What is new is zeros.
fn grow<T: bytemuck::Pod>(buffer: &mut Buffer<T>, len: usize) -> Result<()> {
    if buffer.len() < len {
        *buffer = buffer.gpu().clone().zeros(LABEL, len)?;
    }
    Ok(())
}

impl MoeScratch {
    /// Nothing yet.
    ///
    /// # Errors
    /// [`Error::Unsupported`] elsewhere than on a GPU.
    pub fn new(device: &Device) -> Result<Self> {
        Self::on(device.gpu()?)
    }

    fn on(gpu: &Gpu) -> Result<Self> {
        Ok(MoeScratch {
            x: gpu.alloc(LABEL, 0)?,
            h: gpu.alloc(LABEL, 0)?,
            h_shared: gpu.alloc(LABEL, 0)?,
            partial: gpu.alloc(LABEL, 0)?,
            arrived: gpu.alloc(LABEL, 0)?,
            many: Many { sorted: Vec::new(), rows: gpu.alloc(LABEL, 0)?, shared: Vec::new() },
        })
    }

    /// Room for a call.
    fn resize(&mut self, sizes: Sizes, gpu: &Gpu, height: Option<usize>) -> Result<()> {
        let many = height.is_some();
        let Sizes { m, hidden, ff, ff_shared, .. } = sizes;
        let pairs = sizes.pairs();
        grow(&mut self.x, row_bytes(m, hidden))?;
        grow(&mut self.h, row_bytes(pairs, ff))?;
        grow(&mut self.h_shared, row_bytes(if many { 0 } else { m }, ff_shared))?;
        let blocks = RowsConfig::most_blocks(gpu.properties());
        grow(&mut self.partial, blocks * 2 * 4 * 128)?;
        grow(&mut self.arrived, blocks)?;
        let Some(height) = height else { return Ok(()) };
        let device = Device::Cuda(gpu.clone());
        let many = &mut self.many;
        if !many.sorted.iter().any(|sorted| sorted.n_experts() == sizes.n_experts) {
            many.sorted.push(SortedPairs::new(&device, sizes.n_experts)?);
        }
        let values = pairs.saturating_mul(hidden);
        if many.rows.len() < values {
            many.rows = gpu.alloc(LABEL, values)?;
        }
        if ff_shared > 0 && !many.shared.iter().any(|room| room.suits(sizes)) {
            many.shared.push(ManyShared {
                x: QuantizedTiles::new(&device, m, hidden)?,
                h: Tensor::zeros(&device, m, ff_shared)?,
                h_rounded: QuantizedTiles::new(&device, m, ff_shared)?,
                y: Tensor::zeros(&device, m, hidden)?,
            });
        }
        let (sorted, _, shared) = many.of(sizes)?;
        sorted.grow(pairs, height)?;
        let Some(room) = shared.filter(|_| ff_shared > 0) else { return Ok(()) };
        room.x.resize(m, hidden)?;
        room.h.resize(m)?;
        room.h_rounded.resize(m, ff_shared)?;
        room.y.resize(m)
    }
}

fn tiles_of(ty: GgmlType) -> Result<tiles_type> {
    match ty {
        GgmlType::Q4_K => Ok(TILES_Q4_K),
        GgmlType::Q5_K => Ok(TILES_Q5_K),
        GgmlType::Q6_K => Ok(TILES_Q6_K),
        GgmlType::Q5_0 => Ok(TILES_Q5_0),
        GgmlType::Q8_0 => Ok(TILES_Q8_0),
        other => {
            Err(Error::unsupported(format!("experts of {other} in tiles"), "no kernel was built for it"))
        }
    }
}

const NONE: moe_matrix = moe_matrix { w: ptr::null(), ty: TILES_Q4_K };

/// Tiles of a stack, checked.
#[derive(Clone, Copy)]
struct Stack<'a> {
    tiles: &'a Buffer<u8>,
    ty: GgmlType,
    code: tiles_type,
    rows: usize,
    cols: usize,
}

impl<'a> Stack<'a> {
    fn new(gpu: &Gpu, w: &'a Matrix) -> Result<Self> {
        let [slabs, rows, cols] = w.shape();
        let found = w.tiles()?;
        let [row_tiles, k_tiles] = tiles(rows, cols);
        gpu.with(&found.tiles)?;
        holds("moe", &found.tiles, slabs * row_tiles * k_tiles * tile_bytes(found.ty).unwrap_or(0))?;
        count("rows of an expert", rows)?;
        Ok(Stack { tiles: &found.tiles, ty: found.ty, code: tiles_of(found.ty)?, rows, cols })
    }

    fn matrix(&self) -> moe_matrix {
        moe_matrix { w: self.tiles.as_ptr().cast(), ty: self.code }
    }
}

/// Experts of a layer, or the shared one: gate and up are of one type.
struct Layer<'a> {
    gate: Stack<'a>,
    up: Stack<'a>,
    down: Stack<'a>,
}

impl<'a> Layer<'a> {
    fn new(gpu: &Gpu, w: &'a Ffn) -> Result<Self> {
        let [gate, up, down] = [w.gate(), w.up(), w.down()].map(|w| Stack::new(gpu, w));
        let (gate, up, down) = (gate?, up?, down?);
        if gate.ty != up.ty {
            let what = format!("experts with gate of {} and up of {}", gate.ty, up.ty);
            return Err(Error::unsupported(what, "both must be of one type"));
        }
        Ok(Layer { gate, up, down })
    }

    /// Rows and columns of the two halves: gate and up, and down.
    fn halves(&self) -> [(usize, usize); 2] {
        let Layer { gate, down, .. } = self;
        [(2 * gate.rows, gate.cols), (down.rows, down.cols)]
    }
}

/// Kernels of a call, and where they run.
struct Plan {
    quantize: Entry,
    quantize_grid: [u32; 3],
    rows: RowsConfig,
    /// Down, of few tokens.
    down: RowsConfig,
    many: Option<ManyPlan>,
}

/// Of many tokens.
struct ManyPlan {
    sort: SortOptions,
    gemms: [GroupedConfig; 2],
    /// Down of experts with few rows.
    rows: RowsConfig,
}

impl Plan {
    /// Looks, before the first launch, at what could fail. The shared expert of many tokens is a layer of its own, which looks for itself; `y`
    /// is written by the last launch.
    fn new(
        gpu: &Gpu,
        sizes: Sizes,
        experts: &Layer<'_>,
        shared: Option<&Layer<'_>>,
        options: &MoeOptions<'_>,
    ) -> Result<Self> {
        let (properties, n_experts) = (gpu.properties(), sizes.n_experts);
        let Sizes { m, top_k, .. } = sizes;
        let many = m > FEW_ROWS || sizes.pairs() > FEW_PAIRS;
        let problem = |half: usize| RowsProblem {
            experts: config::expected_experts(m, top_k, n_experts),
            expert: experts.halves()[half],
            shared: shared.filter(|_| !many).map(|w| w.halves()[half]),
        };
        let quantize = &kernels::quantize_rows::INSTANCES[0];
        let [_, k_tiles] = tiles(0, sizes.hidden);
        let pieces = m.saturating_mul(k_tiles).div_ceil(quantize.warps as usize);
        let mut plan = Plan {
            quantize: quantize.entry,
            quantize_grid: [count("rows", pieces)?, 1, 1],
            rows: RowsConfig::rows(problem(0), true, properties),
            down: RowsConfig::down(problem(1), properties),
            many: None,
        };
        let mut launches = vec![(plan.quantize, plan.quantize_grid[0]), (plan.rows.entry, plan.rows.grid)];
        match many {
            false => launches.push((plan.down.entry, plan.down.grid)),
            true => {
                let types = [experts.gate.ty, experts.down.ty];
                let height = GroupedConfig::height(types)?;
                let sort = SortOptions {
                    first_expert: options.first(),
                    strict: options.first_expert.is_none(),
                    height,
                    kernel: None,
                };
                let tiles = max_tiles(sizes.pairs(), n_experts, height);
                let gemm = |half: usize| {
                    let rows = experts.halves()[half].0;
                    GroupedConfig::pick(types[half], half == 0, rows, tiles, properties)
                };
                let rows = RowsConfig::rows(problem(1), false, properties);
                let gemms = [gemm(0)?, gemm(1)?];
                let sorting = SortConfig::pick(sizes.pairs(), n_experts, None)?;
                let summing = SumConfig::pick(m, sizes.hidden)?;
                launches.extend(gemms.map(|gemm| (gemm.entry, gemm.grid)));
                launches.extend([
                    (rows.entry, rows.grid),
                    (sorting.entry, sorting.grid),
                    (summing.entry, summing.grid),
                ]);
                plan.many = Some(ManyPlan { sort, gemms, rows });
            }
        }
        launches.into_iter().try_for_each(|(entry, grid)| gpu.prepare(entry, [grid, 1, 1]))?;
        Ok(plan)
    }
}

/// `y` for the rows of `x`.
pub(crate) fn moe(
    options: MoeOptions<'_>,
    experts: &Ffn,
    shared: Option<&Ffn>,
    x: &Tensor,
    routing: &Routing,
    y: &mut Tensor,
    precision: Precision,
) -> Result<()> {
    if precision != Precision::Fast {
        return Err(Error::unsupported(
            "exact experts",
            "those in tiles take rounded activations: precision `fast`",
        ));
    }
    let values = x.cuda()?;
    let gpu = values.gpu().clone();
    let _turn = gpu.turn();
    let (ids, weights) = (routing.ids.cuda()?, routing.weights.cuda()?);
    gpu.with(ids)?.with(weights)?.with(y.cuda()?)?;
    let (m, top_k) = (x.rows(), routing.ids.cols());
    let (hidden, ff) = (experts.hidden(), experts.ff());
    let ff_shared = shared.map_or(0, Ffn::ff);
    let sizes = Sizes { m, top_k, hidden, ff, ff_shared, n_experts: experts.slabs() };
    let layer = Layer::new(&gpu, experts)?;
    let shared_layer = shared.map(|w| Layer::new(&gpu, w)).transpose()?;
    holds("moe", values, m * hidden)?;
    holds("moe", ids, m * top_k)?;
    holds("moe", weights, m * top_k)?;
    holds("moe", y.cuda()?, m * hidden)?;
    if sizes.n_experts > config::MAX_EXPERTS {
        let most = format!("kernels have room for {}", config::MAX_EXPERTS);
        return Err(Error::unsupported(format!("{} experts in tiles", sizes.n_experts), most));
    }
    let (tokens, slots) = (count("tokens", m)?, count("experts of a token", top_k)?);
    let (first, columns) = (options.first() as u32, count("columns", hidden)?); // ids are u32, which was checked
    if sizes.pairs() > config::MAX_PAIRS {
        return Err(Error::Capacity {
            what: "pairs of tokens and experts".into(),
            needed: sizes.pairs() as u64,
            available: config::MAX_PAIRS as u64,
        });
    }
    if m == 0 {
        return Ok(());
    }
    let plan = Plan::new(&gpu, sizes, &layer, shared_layer.as_ref(), &options)?;
    let strict = options.first_expert.is_none().into();
    // All memory before the first launch: clearing some ends what runs.
    let mut own = None;
    let scratch = match options.scratch {
        Some(scratch) => scratch,
        None => own.insert(MoeScratch::on(&gpu)?),
    };
    gpu.with(&scratch.x)?;
    scratch.resize(sizes, &gpu, plan.many.as_ref().map(|many| many.sort.height))?;

    let params = quantize_rows_params {
        x: values.as_ptr(),
        out: scratch.x.as_mut_ptr().cast(),
        m: tokens,
        k: columns,
    };
    // SAFETY: x has `m` rows, as was checked, and the scratch room for them.
    unsafe { gpu.launch(plan.quantize, plan.quantize_grid, &params) }?;
    let mut pairs = moe_pairs {
        ids: ids.as_ptr(),
        offsets: ptr::null(),
        sorted: ptr::null(),
        m: tokens,
        top_k: slots,
        n_experts: sizes.n_experts as u32,
        first,
        strict,
    };
    let [k_tiles, h_tiles, h_shared_tiles] = [hidden, ff, ff_shared].map(|n| n.div_ceil(TILE_COLS) as u32);
    let shared_few = shared_layer.as_ref().filter(|_| plan.many.is_none());
    if let Some(many) = &plan.many {
        let (sorted, _, _) = scratch.many.of(sizes)?;
        sort::moe_sort(&routing.ids, &many.sort, sorted)?;
        pairs.offsets = sorted.offsets.cuda()?.as_ptr();
        pairs.sorted = sorted.sorted.cuda()?.as_ptr();
    }
    let mut params = moe_rows_params {
        pairs,
        experts: [layer.gate.matrix(), layer.up.matrix()],
        shared: shared_few.map_or([NONE; 2], |w| [w.gate.matrix(), w.up.matrix()]),
        x: scratch.x.as_ptr().cast(),
        h: scratch.h.as_mut_ptr().cast(),
        h_shared: scratch.h_shared.as_mut_ptr().cast(),
        y: ptr::null_mut(),
        partial: scratch.partial.as_mut_ptr(),
        arrived: scratch.arrived.as_mut_ptr(),
        n: ff as u32,
        n_shared: shared_few.map_or(0, |_| ff_shared as u32),
        k_tiles,
    };
    // SAFETY: the stacks have the tiles that their shapes say, as was checked, and the scratch room for these sizes and for every launch on
    // this GPU; its counters are zeros. The kernel sorts up to as many pairs, or they were sorted.
    unsafe { gpu.launch(plan.rows.entry, [plan.rows.grid, 1, 1], &params) }?;

    let Some(many) = &plan.many else {
        let params = moe_down_params {
            pairs,
            weights: weights.as_ptr(),
            experts: layer.down.matrix(),
            shared: shared_few.map_or(NONE, |w| w.down.matrix()),
            h: scratch.h.as_ptr().cast(),
            h_shared: scratch.h_shared.as_ptr().cast(),
            y: y.cuda_mut()?.as_mut_ptr(),
            partial: scratch.partial.as_mut_ptr(),
            arrived: scratch.arrived.as_mut_ptr(),
            n: columns,
            k_tiles: h_tiles,
            k_shared: h_shared_tiles,
        };
        // SAFETY: as above; `y` has `m` rows.
        return unsafe { gpu.launch(plan.down.entry, [plan.down.grid, 1, 1], &params) };
    };
    let MoeScratch { x: x_rounded, h, partial, arrived, many: there, .. } = scratch;
    let (sorted, place_rows, shared_room) = there.of(sizes)?;
    let mut gemm = moe_gemm_params {
        experts: params.experts,
        x: x_rounded.as_ptr().cast(),
        sorted: pairs.sorted,
        tiles: sorted.tiles.cuda()?.as_ptr().cast(),
        n_tiles: sorted.counters.cuda()?.as_ptr(),
        queue: sorted.counters.cuda_mut()?.as_mut_ptr().wrapping_add(1),
        h: h.as_mut_ptr().cast(),
        y: ptr::null_mut(),
        n: ff as u32,
        k_tiles,
        top_k: slots,
    };
    // SAFETY: as above; the tiles are of at most as many places as the kernel takes, and the queue was cleared by the sorting.
    unsafe { gpu.launch(many.gemms[0].entry, [many.gemms[0].grid, 1, 1], &gemm) }?;
    let shared_y = match (shared_room, shared) {
        (Some(room), Some(w)) => {
            quantize(x, &mut room.x)?;
            swiglu_tiled(w.gate(), w.up(), &mut room.x, &mut room.h)?;
            quantize(&room.h, &mut room.h_rounded)?;
            linear_tiled(&[w.down()], &mut room.h_rounded, &mut [&mut room.y])?;
            Some(&room.y)
        }
        _ => None,
    };
    params = moe_rows_params {
        experts: [layer.down.matrix(), NONE],
        x: h.as_ptr().cast(),
        y: place_rows.as_mut_ptr(),
        partial: partial.as_mut_ptr(),
        arrived: arrived.as_mut_ptr(),
        n: columns,
        k_tiles: h_tiles,
        ..params
    };
    // SAFETY: as above; there is a row of `hidden` values for each place.
    unsafe { gpu.launch(many.rows.entry, [many.rows.grid, 1, 1], &params) }?;
    gemm = moe_gemm_params {
        experts: params.experts,
        x: h.as_ptr().cast(),
        queue: sorted.counters.cuda_mut()?.as_mut_ptr().wrapping_add(2),
        y: place_rows.as_mut_ptr(),
        n: columns,
        k_tiles: h_tiles,
        ..gemm
    };
    // SAFETY: as above.
    unsafe { gpu.launch(many.gemms[1].entry, [many.gemms[1].grid, 1, 1], &gemm) }?;
    moe_sum::moe_sum(place_rows, sorted, &routing.weights, shared_y, y)
}
