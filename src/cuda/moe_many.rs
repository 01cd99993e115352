//! A mixture of experts in tiles for many tokens, or with gate and up of two types: pairs are sorted, each matrix is multiplied by the rows
//! of its expert, and the sum over a token's experts comes last. The shared expert is a layer of its own.

use std::ptr;

use super::dequantize::count;
use super::ffn::{self, swiglu_in_place};
use super::moe::{Call, LABEL, MoeScratch, NONE, Places, Rounding, Sizes};
use super::moe_shared::SharedRoom;
use super::{Buffer, Gpu, moe_sum};
use crate::error::{Error, Result};
use crate::kernels::Entry;
use crate::ops::ffn::Ffn;
use crate::ops::moe::config::{GroupedConfig, RowsConfig, RowsProblem};
use crate::ops::moe_sort::config::SortConfig;
use crate::ops::moe_sort::{self as sort, SortOptions, SortedPairs, max_tiles};
use crate::ops::moe_sum::config::SumConfig;
use crate::quant::tiles::TILE_COLS;
use crate::sys::{moe_gemm_params, moe_matrix, moe_pairs, moe_rows_params, moe_tile, row_act};
use crate::tensor::{Device, Precision, QuantizedTiles, Tensor};

/// Of [`MoeScratch`] what many tokens need.
#[derive(Debug)]
pub(super) struct Many {
    /// For each number of experts that there was.
    sorted: Vec<SortedPairs>,
    /// What experts give, by place.
    rows: Buffer<f32>,
    /// Gate and up of two types, by place.
    halves: [Buffer<f32>; 2],
    /// For each width of a shared expert.
    shared: Vec<SharedRoom>,
}

impl Many {
    pub fn on(gpu: &Gpu) -> Result<Self> {
        let none = || gpu.alloc(LABEL, 0);
        Ok(Many { sorted: Vec::new(), rows: none()?, halves: [none()?, none()?], shared: Vec::new() })
    }

    /// Room for a call, sorted into tiles of `height`; gate and up are products of their own where they are `apart`. `x_is_there`: in tiles.
    pub fn resize(
        &mut self,
        sizes: Sizes,
        gpu: &Gpu,
        height: usize,
        apart: bool,
        shared: Option<&Ffn>,
        x_is_there: bool,
    ) -> Result<()> {
        let device = Device::Cuda(gpu.clone());
        let Sizes { m, hidden, ff, n_experts, .. } = sizes;
        let pairs = sizes.pairs();
        if !self.sorted.iter().any(|sorted| sorted.n_experts() == n_experts) {
            self.sorted.push(SortedPairs::new(&device, n_experts)?);
        }
        let of_halves = if apart { pairs.saturating_mul(ff) } else { 0 };
        let [gate, up] = &mut self.halves;
        for (buffer, values) in
            [(&mut self.rows, pairs.saturating_mul(hidden)), (gate, of_halves), (up, of_halves)]
        {
            if buffer.len() < values {
                *buffer = gpu.alloc(LABEL, values)?;
            }
        }
        if let Some(sorted) = self.sorted.iter_mut().find(|sorted| sorted.n_experts() == n_experts) {
            sorted.grow(pairs, height)?;
        }
        let Some(w) = shared else { return Ok(()) };
        let widths = [hidden, sizes.ff_shared];
        if !self.shared.iter().any(|room| room.suits(widths)) {
            self.shared.push(SharedRoom::new(&device, widths)?);
        }
        match self.shared.iter_mut().find(|room| room.suits(widths)) {
            Some(room) => room.resize(m, w, x_is_there),
            None => Ok(()),
        }
    }

    /// The pairs that were sorted for so many experts, room for rows by place and for two halves before them, and that of a shared expert.
    pub fn parts(&mut self, sizes: Sizes) -> Result<Parts<'_>> {
        let Many { sorted, rows, halves, shared } = self;
        let widths = [sizes.hidden, sizes.ff_shared];
        match sorted.iter_mut().find(|sorted| sorted.n_experts() == sizes.n_experts) {
            Some(sorted) => Ok((sorted, rows, halves, shared.iter_mut().find(|room| room.suits(widths)))),
            None => Err(Error::unsupported("many tokens", "there is no room for them")),
        }
    }
}

/// Of [`Many::parts`].
type Parts<'a> =
    (&'a mut SortedPairs, &'a mut Buffer<f32>, &'a mut [Buffer<f32>; 2], Option<&'a mut SharedRoom>);

/// Kernels of a call, and where they run.
pub(super) struct ManyPlan {
    sort: SortOptions,
    up: Up,
    down: Product,
}

/// Gate, up and what is between them and down.
enum Up {
    /// Of one type: as one product, which ends with rounded rows; `x` by token, unless it is rounded already.
    Together(Option<Rounding>, Product),
    /// Of two: `x` by place, a product of each, SwiGLU and rounding.
    Apart { x: Rounding, products: [Product; 2], h: Rounding },
}

/// Launches of a product: experts with few rows, and those with more.
struct Product {
    rows: RowsConfig,
    gemm: GroupedConfig,
}

impl ManyPlan {
    /// Looks at what could fail. The shared expert is a layer of its own, which looks for itself; `y` is written by the last launch.
    pub fn new(call: &Call<'_>) -> Result<Self> {
        let Call { gpu, sizes, experts, .. } = *call;
        let Sizes { m, hidden, ff, n_experts, .. } = sizes;
        let (properties, pairs) = (gpu.properties(), sizes.pairs());
        let glu = experts.of_one_type();
        let kinds: &[_] = match glu {
            true => &[(experts.gate.ty, true), (experts.down.ty, false)],
            false => &[(experts.gate.ty, false), (experts.up.ty, false), (experts.down.ty, false)],
        };
        let height = GroupedConfig::height(kinds)?;
        let tiles = max_tiles(pairs, n_experts, height);
        let product = |ty, glu, problem: RowsProblem| -> Result<Product> {
            let gemm = GroupedConfig::pick(ty, glu, problem.expert.0, tiles, properties)?;
            Ok(Product { rows: RowsConfig::rows(problem, glu, properties), gemm })
        };
        let first = call.problem(0, false);
        let one = RowsProblem { expert: (experts.gate.rows, experts.gate.cols), ..first };
        let up = match glu {
            true => {
                let rounding = if call.rows.is_some() { None } else { Some(Rounding::new(m, hidden)?) };
                Up::Together(rounding, product(experts.gate.ty, true, first)?)
            }
            false => Up::Apart {
                x: Rounding::new(pairs, hidden)?,
                products: [product(experts.gate.ty, false, one)?, product(experts.up.ty, false, one)?],
                h: Rounding::new(pairs, ff)?,
            },
        };
        let down = product(experts.down.ty, false, call.problem(1, false))?;
        let sort = SortOptions {
            first_expert: call.options.first(),
            strict: call.options.first_expert.is_none(),
            height,
            kernel: None,
        };
        let (sorting, summing) = (SortConfig::pick(pairs, n_experts, None)?, SumConfig::pick(m, hidden)?);
        let mut launches = vec![(sorting.entry, sorting.grid), (summing.entry, summing.grid)];
        launches.extend(down.launches());
        match &up {
            Up::Together(x, product) => {
                launches.extend(x.as_ref().map(|x| (x.entry, x.grid)));
                launches.extend(product.launches());
            }
            Up::Apart { x, products, h } => {
                launches.extend([(x.entry, x.grid), (h.entry, h.grid)]);
                launches.extend(products.iter().flat_map(Product::launches));
                ffn::prepare(gpu, pairs.saturating_mul(ff))?;
            }
        }
        launches.into_iter().try_for_each(|(entry, grid)| gpu.prepare(entry, [grid, 1, 1]))?;
        Ok(ManyPlan { sort, up, down })
    }

    /// Places of a tile.
    pub fn height(&self) -> usize {
        self.sort.height
    }

    /// Whether the input is gathered: then so are gate and up.
    pub fn takes_x_by_place(&self) -> bool {
        matches!(self.up, Up::Apart { .. })
    }
}

/// What products of a call have in common.
struct Grouped<'a> {
    gpu: &'a Gpu,
    pairs: moe_pairs,
    partial: *mut f32,
    arrived: *mut u32,
    tiles: *const moe_tile,
    n_tiles: *const u32,
    /// The first of three.
    queues: *mut u32,
}

/// What one of them takes and gives: `h`, or `y` of one matrix.
struct Operands {
    experts: [moe_matrix; 2],
    x: *const row_act,
    h: *mut row_act,
    y: *mut f32,
    n: usize,
    k: usize,
}

impl Product {
    fn launches(&self) -> [(Entry, u32); 2] {
        [(self.rows.entry, self.rows.grid), (self.gemm.entry, self.gemm.grid)]
    }

    /// The product of a call that takes its work from queue `number`.
    ///
    /// # Safety
    /// The operands are what the params of `moe_rows` and `moe_gemm` ask for; no two products of a call have the same queue.
    unsafe fn launch(&self, of: &Grouped<'_>, operands: &Operands, number: usize) -> Result<()> {
        let Operands { experts, x, h, y, n, k } = *operands;
        let (n, k_tiles) = (count("rows of an expert", n)?, k.div_ceil(TILE_COLS) as u32);
        let rows = moe_rows_params {
            pairs: of.pairs,
            experts,
            shared: [NONE; 2],
            x,
            h,
            h_shared: ptr::null_mut(),
            y,
            partial: of.partial,
            arrived: of.arrived,
            n,
            n_shared: 0,
            k_tiles,
        };
        // SAFETY: the caller's promise.
        unsafe { of.gpu.launch(self.rows.entry, [self.rows.grid, 1, 1], &rows) }?;
        let gemm = moe_gemm_params {
            experts,
            x,
            sorted: of.pairs.sorted,
            tiles: of.tiles,
            n_tiles: of.n_tiles,
            queue: of.queues.wrapping_add(number),
            h,
            y,
            n,
            k_tiles,
            top_k: of.pairs.top_k,
        };
        // SAFETY: the caller's promise.
        unsafe { of.gpu.launch(self.gemm.entry, [self.gemm.grid, 1, 1], &gemm) }
    }
}

/// `y` for the rows of `x`. There is room for all of it.
pub(super) fn moe_many(
    call: &Call<'_>,
    plan: &ManyPlan,
    scratch: &mut MoeScratch,
    x_tiles: Option<&mut QuantizedTiles>,
    y: &mut Tensor,
) -> Result<()> {
    let Call { gpu, sizes, experts, .. } = *call;
    let Sizes { hidden, ff, n_experts, .. } = sizes;
    let MoeScratch { x: x_rounded, h, partial, arrived, many, .. } = scratch;
    let (sorted, rows, halves, room) = many.parts(sizes)?;
    let x = call.x.cuda()?.as_ptr();
    if let Up::Together(Some(rounding), _) = &plan.up {
        // SAFETY: x has `m` rows, as was checked, and the scratch room for them.
        unsafe { rounding.launch(gpu, x, x_rounded.as_mut_ptr().cast(), None) }?;
    }
    sort::moe_sort(&call.routing.ids, &plan.sort, sorted)?;
    let mut pairs = call.pairs()?;
    pairs.offsets = sorted.offsets.cuda()?.as_ptr();
    pairs.sorted = sorted.sorted.cuda()?.as_ptr();
    let counters = sorted.counters.cuda_mut()?.as_mut_ptr();
    let grouped = Grouped {
        gpu,
        pairs,
        partial: partial.as_mut_ptr(),
        arrived: arrived.as_mut_ptr(),
        tiles: sorted.tiles.cuda()?.as_ptr().cast(),
        n_tiles: counters.cast_const(),
        queues: counters.wrapping_add(1),
    };
    let [gate, up, down] = [experts.gate, experts.up, experts.down].map(|w| w.matrix());
    match &plan.up {
        Up::Together(_, product) => {
            let x = call.rows.map_or(x_rounded.as_ptr(), |rows| rows.rows().as_ptr()).cast();
            let h = h.as_mut_ptr().cast();
            let operands = Operands { experts: [gate, up], x, h, y: ptr::null_mut(), n: ff, k: hidden };
            // SAFETY: the stacks have the tiles that their shapes say, as was checked, and the scratch room for these sizes and for every
            // launch on this GPU; its counters are zeros. Pairs were sorted into tiles of at most as many places as the kernel takes, and
            // the queues cleared.
            unsafe { product.launch(&grouped, &operands, 0) }?;
        }
        Up::Apart { x: gathered, products, h: rounding } => {
            let places = Places {
                count: pairs.offsets.wrapping_add(n_experts),
                sorted: pairs.sorted,
                top_k: pairs.top_k,
            };
            // SAFETY: as many rows as there are places, each of which has its pair.
            unsafe { gathered.launch(gpu, x, x_rounded.as_mut_ptr().cast(), Some(places)) }?;
            for (i, ((product, w), y)) in products.iter().zip([gate, up]).zip(halves.iter_mut()).enumerate() {
                let (x, y) = (x_rounded.as_ptr().cast(), y.as_mut_ptr());
                let operands = Operands { experts: [w, NONE], x, h: ptr::null_mut(), y, n: ff, k: hidden };
                // SAFETY: as above.
                unsafe { product.launch(&grouped, &operands, i) }?;
            }
            let [gate, up] = halves;
            swiglu_in_place(gate, up, sizes.pairs() * ff)?;
            let places = Places { sorted: ptr::null(), ..places };
            // SAFETY: as above.
            unsafe { rounding.launch(gpu, gate.as_ptr(), h.as_mut_ptr().cast(), Some(places)) }?;
        }
    }
    let shared = match (room, call.shared_ffn) {
        (Some(room), Some(w)) => {
            room.run(w, call.x, x_tiles, Precision::Fast)?;
            Some(&room.y)
        }
        _ => None,
    };
    let (x, y_rows) = (h.as_ptr().cast(), rows.as_mut_ptr());
    let operands = Operands { experts: [down, NONE], x, h: ptr::null_mut(), y: y_rows, n: hidden, k: ff };
    // SAFETY: as above; there is a row of `hidden` values for each place.
    unsafe { plan.down.launch(&grouped, &operands, 2) }?;
    moe_sum::moe_sum(rows, sorted, &call.routing.weights, shared, y)
}
