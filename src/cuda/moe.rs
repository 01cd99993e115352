//! Launches of a mixture of experts in tiles, activations rounded to int8: what all calls need, and those of few tokens. Shapes were
//! checked by [`crate::ops`].

use std::ptr;

use super::dequantize::{count, holds};
use super::moe_many::{Many, ManyPlan, moe_many};
use super::{Buffer, Gpu};
use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::ops::ffn::Ffn;
use crate::ops::moe::MoeOptions;
use crate::ops::moe::config::{self, FEW_PAIRS, FEW_ROWS, RowsConfig, RowsProblem};
use crate::ops::router::Routing;
use crate::quant::GgmlType;
use crate::quant::tiles::{TILE_COLS, tile_bytes, tiles};
use crate::sys::{
    TILES_Q4_K, TILES_Q5_0, TILES_Q5_K, TILES_Q6_K, TILES_Q8_0, moe_down_params, moe_matrix, moe_pairs,
    moe_rows_params, quantize_rows_params, row_act, tiles_type,
};
use crate::tensor::{Device, Matrix, Precision, QuantizedTiles, RoundedRows, Tensor};

/// In [`Gpu::held`].
pub(super) const LABEL: &str = "experts";

/// What a mixture of experts in tiles needs besides its input and output, on a GPU. Nothing in it outlives a call; memory once grown is
/// kept, so that a call that can be recorded in a graph is any but the first of its size. 8192 tokens of 8 experts, 6144 columns, 2048
/// between: 1.9 GB, and 1.6 more where gate and up are of two types.
#[derive(Debug)]
pub struct MoeScratch {
    /// The input, rounded: by token, or by place where gate and up are of two types.
    pub(super) x: Buffer<u8>,
    /// Between the two halves, rounded: of experts by place, and of the shared one.
    pub(super) h: Buffer<u8>,
    h_shared: Buffer<u8>,
    /// Sums and counters of the blocks of threads.
    pub(super) partial: Buffer<f32>,
    pub(super) arrived: Buffer<u32>,
    /// Of many tokens.
    pub(super) many: Many,
}

/// Sizes of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub m: usize,
    pub top_k: usize,
    pub hidden: usize,
    pub ff: usize,
    pub ff_shared: usize,
    pub n_experts: usize,
}

impl Sizes {
    pub fn pairs(&self) -> usize {
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

    pub(super) fn on(gpu: &Gpu) -> Result<Self> {
        Ok(MoeScratch {
            x: gpu.alloc(LABEL, 0)?,
            h: gpu.alloc(LABEL, 0)?,
            h_shared: gpu.alloc(LABEL, 0)?,
            partial: gpu.alloc(LABEL, 0)?,
            arrived: gpu.alloc(LABEL, 0)?,
            many: Many::on(gpu)?,
        })
    }

    /// Room for a call.
    fn resize(
        &mut self,
        sizes: Sizes,
        gpu: &Gpu,
        many: Option<&ManyPlan>,
        shared: Option<&Ffn>,
        (x_is_there, tiles_are_there): (bool, bool),
    ) -> Result<()> {
        let Sizes { m, hidden, ff, ff_shared, .. } = sizes;
        let pairs = sizes.pairs();
        let by_place = many.is_some_and(ManyPlan::takes_x_by_place);
        let x_rows = if by_place {
            pairs
        } else if x_is_there {
            0
        } else {
            m
        };
        grow(&mut self.x, row_bytes(x_rows, hidden))?;
        grow(&mut self.h, row_bytes(pairs, ff))?;
        grow(&mut self.h_shared, row_bytes(if many.is_some() { 0 } else { m }, ff_shared))?;
        let blocks = RowsConfig::most_blocks(gpu.properties());
        grow(&mut self.partial, blocks * 2 * 4 * 128)?;
        grow(&mut self.arrived, blocks)?;
        match many {
            None => Ok(()),
            Some(plan) => {
                self.many.resize(sizes, gpu, plan.height(), plan.takes_x_by_place(), shared, tiles_are_there)
            }
        }
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

pub(super) const NONE: moe_matrix = moe_matrix { w: ptr::null(), ty: TILES_Q4_K };

/// Tiles of a stack, checked.
#[derive(Clone, Copy)]
pub(super) struct Stack<'a> {
    tiles: &'a Buffer<u8>,
    pub ty: GgmlType,
    code: tiles_type,
    pub rows: usize,
    pub cols: usize,
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

    pub fn matrix(&self) -> moe_matrix {
        moe_matrix { w: self.tiles.as_prologue_ptr().cast(), ty: self.code }
    }
}

/// Experts of a layer, or the shared one.
pub(super) struct Layer<'a> {
    pub gate: Stack<'a>,
    pub up: Stack<'a>,
    pub down: Stack<'a>,
}

impl<'a> Layer<'a> {
    fn new(gpu: &Gpu, w: &'a Ffn) -> Result<Self> {
        let [gate, up, down] = [w.gate(), w.up(), w.down()].map(|w| Stack::new(gpu, w));
        Ok(Layer { gate: gate?, up: up?, down: down? })
    }

    /// Whether kernels can take gate and up together.
    pub fn of_one_type(&self) -> bool {
        self.gate.ty == self.up.ty
    }

    /// Rows and columns of the two halves: gate and up, and down.
    fn halves(&self) -> [(usize, usize); 2] {
        let Layer { gate, down, .. } = self;
        [(2 * gate.rows, gate.cols), (down.rows, down.cols)]
    }
}

/// A launch of `quantize_rows`.
pub(super) struct Rounding {
    pub entry: Entry,
    pub grid: u32,
    rows: u32,
    cols: u32,
}

/// Of rows by place: those that there are, and perhaps which token's row each is.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub count: *const u32,
    pub sorted: *const u32,
    pub top_k: u32,
}

impl Rounding {
    pub fn new(rows: usize, cols: usize) -> Result<Self> {
        let kernel = &kernels::quantize_rows::INSTANCES[0];
        let [_, k_tiles] = tiles(0, cols);
        let grid = count("rows", rows.saturating_mul(k_tiles).div_ceil(kernel.warps as usize))?;
        Ok(Rounding { entry: kernel.entry, grid, rows: count("rows", rows)?, cols: count("columns", cols)? })
    }

    /// # Safety
    /// What `quantize_rows_params` asks for, of as many rows and columns as these.
    pub unsafe fn launch(
        &self,
        gpu: &Gpu,
        x: *const f32,
        out: *mut row_act,
        places: Option<Places>,
    ) -> Result<()> {
        let none = Places { count: ptr::null(), sorted: ptr::null(), top_k: 1 };
        let Places { count, sorted, top_k } = places.unwrap_or(none);
        let params =
            quantize_rows_params { x, out, sorted, places: count, m: self.rows, k: self.cols, top_k };
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(self.entry, [self.grid, 1, 1], &params) }
    }
}

/// What a call is of, checked.
pub(super) struct Call<'a> {
    pub gpu: &'a Gpu,
    pub sizes: Sizes,
    pub options: &'a MoeOptions<'a>,
    pub experts: &'a Layer<'a>,
    /// The shared expert, if it is in tiles; and wherever it is.
    pub shared: Option<&'a Layer<'a>>,
    pub shared_ffn: Option<&'a Ffn>,
    pub x: &'a Tensor,
    /// `x` rounded by token, if it is there.
    pub rows: Option<&'a RoundedRows>,
    pub routing: &'a Routing,
}

impl Call<'_> {
    /// Pairs as they come from the router.
    pub fn pairs(&self) -> Result<moe_pairs> {
        Ok(moe_pairs {
            ids: self.routing.ids.cuda()?.as_ptr(),
            offsets: ptr::null(),
            sorted: ptr::null(),
            m: count("tokens", self.sizes.m)?,
            top_k: count("experts of a token", self.sizes.top_k)?,
            n_experts: self.sizes.n_experts as u32,
            first: self.options.first() as u32, // ids are u32, which was checked
            strict: self.options.first_expert.is_none().into(),
            early: 0,
        })
    }

    pub fn problem(&self, half: usize, with_shared: bool) -> RowsProblem {
        let Sizes { m, top_k, n_experts, .. } = self.sizes;
        RowsProblem {
            experts: config::expected_experts(m, top_k, n_experts),
            expert: self.experts.halves()[half],
            shared: self.shared.filter(|_| with_shared).map(|w| w.halves()[half]),
        }
    }
}

impl Call<'_> {
    /// Kernels for few tokens deal out weights in pieces of 16 bytes, which they count in 32 bits, rounded up to as many for each block of threads.
    fn expect_countable(&self, half: usize) -> Result<()> {
        let bytes = |w: &Layer<'_>| {
            let (ty, (n, k)) = (if half == 0 { w.gate.ty } else { w.down.ty }, w.halves()[half]);
            let [row_tiles, k_tiles] = tiles(n, k);
            (row_tiles * k_tiles * tile_bytes(ty).unwrap_or(0)) as u64
        };
        let needed = self.sizes.pairs() as u64 * bytes(self.experts) + self.shared.map_or(0, bytes);
        countable(needed, RowsConfig::most_blocks(self.gpu.properties()))
    }
}

fn countable(bytes: u64, blocks: usize) -> Result<()> {
    let available = (u64::from(u32::MAX) - blocks as u64) * 16;
    match bytes <= available {
        true => Ok(()),
        false => {
            Err(Error::Capacity { what: "bytes of experts in a launch".into(), needed: bytes, available })
        }
    }
}

/// Kernels of a call, and where they run. Rows that are rounded already need no rounding.
enum Plan {
    Few { x: Option<Rounding>, rows: RowsConfig, down: RowsConfig },
    Many(ManyPlan),
}

impl Plan {
    /// Looks, before the first launch, at what could fail.
    fn new(call: &Call<'_>) -> Result<Self> {
        let Sizes { m, hidden, .. } = call.sizes;
        let of_one_type = call.experts.of_one_type() && call.shared.is_none_or(Layer::of_one_type);
        let in_tiles = call.shared.is_some() == call.shared_ffn.is_some();
        if m > FEW_ROWS || call.sizes.pairs() > FEW_PAIRS || !of_one_type || !in_tiles {
            return Ok(Plan::Many(ManyPlan::new(call)?));
        }
        for half in [0, 1] {
            call.expect_countable(half)?;
        }
        let x = if call.rows.is_some() { None } else { Some(Rounding::new(m, hidden)?) };
        let properties = call.gpu.properties();
        let rows = RowsConfig::rows(call.problem(0, true), true, properties);
        let down = RowsConfig::down(call.problem(1, true), properties);
        let rounding = x.as_ref().map(|x| (x.entry, x.grid));
        for (entry, grid) in rounding.into_iter().chain([(rows.entry, rows.grid), (down.entry, down.grid)]) {
            call.gpu.prepare(entry, [grid, 1, 1])?;
        }
        Ok(Plan::Few { x, rows, down })
    }
}

/// The input of a call, and its rounded forms if they are there.
#[derive(Debug)]
pub(crate) struct Forms<'a> {
    pub x: &'a Tensor,
    pub rows: Option<&'a RoundedRows>,
    pub tiles: Option<&'a mut QuantizedTiles>,
}

/// `y` for the rows of `x`.
pub(crate) fn moe(
    mut options: MoeOptions<'_>,
    experts: &Ffn,
    shared: Option<&Ffn>,
    Forms { x, rows, tiles }: Forms<'_>,
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
    let (m, top_k, hidden) = (x.rows(), routing.ids.cols(), experts.hidden());
    let ff_shared = shared.map_or(0, Ffn::ff);
    let sizes = Sizes { m, top_k, hidden, ff: experts.ff(), ff_shared, n_experts: experts.slabs() };
    let layer = Layer::new(&gpu, experts)?;
    let shared_layer = shared.filter(|w| w.is_tiled()).map(|w| Layer::new(&gpu, w)).transpose()?;
    holds("moe", values, m * hidden)?;
    holds("moe", ids, m * top_k)?;
    holds("moe", weights, m * top_k)?;
    holds("moe", y.cuda()?, m * hidden)?;
    if sizes.n_experts > config::MAX_EXPERTS {
        let most = format!("kernels have room for {}", config::MAX_EXPERTS);
        return Err(Error::unsupported(format!("{} experts in tiles", sizes.n_experts), most));
    }
    count("columns", hidden)?;
    if sizes.pairs() > config::MAX_PAIRS {
        return Err(Error::Capacity {
            what: "pairs of tokens and experts".into(),
            needed: sizes.pairs() as u64,
            available: config::MAX_PAIRS as u64,
        });
    }
    if let Some(rows) = rows {
        gpu.with(rows.rows())?;
        holds("moe", rows.rows(), row_bytes(m, hidden))?;
    }
    if m == 0 {
        return Ok(());
    }
    let given = options.scratch.take();
    let call = Call {
        gpu: &gpu,
        sizes,
        options: &options,
        experts: &layer,
        shared: shared_layer.as_ref(),
        shared_ffn: shared,
        x,
        rows,
        routing,
    };
    let plan = Plan::new(&call)?;
    // All memory before the first launch: clearing some ends what runs.
    let mut own = None;
    let scratch = match given {
        Some(scratch) => scratch,
        None => own.insert(MoeScratch::on(&gpu)?),
    };
    gpu.with(&scratch.x)?;
    let many = match &plan {
        Plan::Few { .. } => None,
        Plan::Many(plan) => Some(plan),
    };
    scratch.resize(sizes, &gpu, many, shared, (rows.is_some(), tiles.is_some()))?;
    match &plan {
        Plan::Few { x, rows, down } => few(&call, (x.as_ref(), rows, down), scratch, y),
        Plan::Many(plan) => moe_many(&call, plan, scratch, tiles, y),
    }
}

/// Two launches, and one that rounds the rows. Those behind one of these read ids, weights and matrices before they wait: `quantize_rows` and
/// `moe_rows` wait for all before them before they let the next one begin, so that what was there before this call is there then.
fn few(
    call: &Call<'_>,
    (x, rows, down): (Option<&Rounding>, &RowsConfig, &RowsConfig),
    scratch: &mut MoeScratch,
    y: &mut Tensor,
) -> Result<()> {
    let Call { gpu, sizes, experts, shared, .. } = *call;
    let [k_tiles, h_tiles, h_shared_tiles] =
        [sizes.hidden, sizes.ff, sizes.ff_shared].map(|n| n.div_ceil(TILE_COLS) as u32);
    if let Some(x) = x {
        // SAFETY: x has `m` rows, as was checked, and the scratch room for them.
        unsafe { x.launch(gpu, call.x.cuda()?.as_ptr(), scratch.x.as_mut_ptr().cast(), None) }?;
    }
    let pairs = moe_pairs { early: x.is_some().into(), ..call.pairs()? };
    let params = moe_rows_params {
        pairs,
        experts: [experts.gate.matrix(), experts.up.matrix()],
        shared: shared.map_or([NONE; 2], |w| [w.gate.matrix(), w.up.matrix()]),
        x: call.rows.map_or(scratch.x.as_ptr(), |rows| rows.rows().as_ptr()).cast(),
        h: scratch.h.as_mut_ptr().cast(),
        h_shared: scratch.h_shared.as_mut_ptr().cast(),
        y: ptr::null_mut(),
        partial: scratch.partial.as_mut_ptr(),
        arrived: scratch.arrived.as_mut_ptr(),
        n: sizes.ff as u32,
        n_shared: sizes.ff_shared as u32,
        k_tiles,
    };
    // SAFETY: the stacks have the tiles that their shapes say, as was checked, and the scratch room for these sizes and for every launch on
    // this GPU; its counters are zeros. The kernel sorts up to as many pairs.
    unsafe { gpu.launch(rows.entry, [rows.grid, 1, 1], &params) }?;
    let params = moe_down_params {
        pairs,
        weights: call.routing.weights.cuda()?.as_ptr(),
        experts: experts.down.matrix(),
        shared: shared.map_or(NONE, |w| w.down.matrix()),
        h: scratch.h.as_ptr().cast(),
        h_shared: scratch.h_shared.as_ptr().cast(),
        y: y.cuda_mut()?.as_mut_ptr(),
        partial: scratch.partial.as_mut_ptr(),
        arrived: scratch.arrived.as_mut_ptr(),
        n: sizes.hidden as u32,
        k_tiles: h_tiles,
        k_shared: h_shared_tiles,
    };
    // SAFETY: as above; `y` has `m` rows.
    unsafe { gpu.launch(down.entry, [down.grid, 1, 1], &params) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_a_launch_are_counted_in_32_bits() {
        let most = ((1 << 32) - 1 - 264) * 16;
        assert!(countable(most, 264).is_ok());
        assert!(
            matches!(countable(most + 1, 264), Err(Error::Capacity { needed, .. }) if needed == most + 1)
        );
    }
}
