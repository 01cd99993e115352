//! Launches of mixtures of experts in blocks. Shapes were checked by [`crate::ops`].

use std::ptr;

use super::dequantize::{count, holds, row_bytes};
use super::linear::round;
use super::moe::{Forms, MoeScratch, Sizes};
use super::{Buffer, ffn, moe_sum};
use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::ops::ffn::Ffn;
use crate::ops::moe::MoeOptions;
use crate::ops::moe_sort::config::SortConfig;
use crate::ops::moe_sort::{self as sort, SortOptions, SortedPairs};
use crate::ops::moe_sum::config::SumConfig;
use crate::ops::router::Routing;
use crate::quant::GgmlType;
use crate::sys::{ROUND_INT8, linear_round, moe_dot_params};
use crate::tensor::{Matrix, Precision, Tensor};

/// Tokens up to which tiles have one place: most experts have one token then, or none.
const SINGLE_TOKENS: usize = 2;

/// Places of a tile of the routing of `m` tokens.
fn tile_height(m: usize) -> usize {
    if m <= SINGLE_TOKENS { 1 } else { 8 }
}

/// A launch: one block of threads for `rows` outputs of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DotConfig {
    /// The kernel.
    entry: Entry,
    /// Outputs per block of threads.
    rows: u32,
    /// Blocks of threads.
    grid: u32,
}

impl DotConfig {
    /// For `tiles` tiles of at most `height` places at most, by experts of `n` outputs in blocks of type `ty`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no kernel for the type; [`Error::Capacity`] for more than a grid has.
    fn pick(ty: GgmlType, tiles: usize, height: usize, n: usize) -> Result<Self> {
        let found = kernels::moe_dot::INSTANCES.iter().find(|i| i.ty == ty && i.tokens as usize >= height);
        let none = || Error::unsupported(format!("experts of {ty}"), "no kernel was built for them");
        let found = found.ok_or_else(none)?;
        let blocks = tiles.saturating_mul(n.div_ceil(found.rows as usize));
        let what = || Error::Capacity {
            what: "blocks of a grid".into(),
            needed: blocks as u64,
            available: i32::MAX as u64,
        };
        // Numbers of blocks of threads are also numbers of rows and tiles, of 32 bits.
        let grid = i32::try_from(blocks).map_err(|_| what())?.unsigned_abs();
        Ok(DotConfig { entry: found.entry, rows: found.rows, grid })
    }
}

/// Experts in blocks, in f32 arithmetic: sort, gate, up, SwiGLU, down, sum. With `first_expert` ids of other experts are left out; without
/// it they trap.
pub(crate) fn moe(
    MoeOptions { first_expert, scratch }: MoeOptions<'_>,
    experts: &Ffn,
    shared: Option<&Ffn>,
    Forms { x, tiles: x_tiles, .. }: Forms<'_>,
    routing: &Routing,
    y: &mut Tensor,
    precision: Precision,
) -> Result<()> {
    let (m, n_experts, hidden, ff) = (x.rows(), experts.slabs(), experts.hidden(), experts.ff());
    let rows = x.cuda()?;
    let (ids, weights) = (routing.ids.cuda()?, routing.weights.cuda()?);
    let gpu = rows.gpu().with(ids)?.with(weights)?.with(y.cuda()?)?.clone();
    for w in [experts.gate(), experts.up(), experts.down()] {
        let (blocks, [slabs, n, k]) = (w.cuda()?, w.shape());
        gpu.with(&blocks.blocks)?;
        holds("moe", &blocks.blocks, slabs * n * row_bytes(blocks, k)?)?;
    }
    holds("moe", rows, m * hidden)?;
    let _turn = gpu.turn();
    let options = SortOptions {
        first_expert: first_expert.unwrap_or(0),
        strict: first_expert.is_none(),
        height: tile_height(m),
        kernel: None,
    };
    // None runs unless all can.
    let pairs = m * routing.ids.cols();
    let sorting = SortConfig::pick(pairs, n_experts, None)?;
    let tiles = sort::max_tiles(pairs, n_experts, options.height);
    let dot = |w: &Matrix| DotConfig::pick(w.cuda()?.ty, tiles, options.height, w.rows());
    let [gate_by, up_by, down_by] = [dot(experts.gate())?, dot(experts.up())?, dot(experts.down())?];
    let summing = SumConfig::pick(m, hidden)?;
    for (entry, grid) in [
        (sorting.entry, sorting.grid),
        (gate_by.entry, gate_by.grid),
        (up_by.entry, up_by.grid),
        (down_by.entry, down_by.grid),
        (summing.entry, summing.grid),
    ] {
        gpu.prepare(entry, [grid, 1, 1])?;
    }
    ffn::prepare(&gpu, pairs * ff)?;
    // All memory before the first launch: clearing some ends what runs.
    let ff_shared = shared.map_or(0, Ffn::ff);
    let sizes = Sizes { m, top_k: routing.ids.cols(), hidden, ff, ff_shared, n_experts };
    let mut own = None;
    let scratch = match scratch {
        Some(scratch) => scratch,
        None => own.insert(MoeScratch::on(&gpu)?),
    };
    gpu.with(&scratch.x)?;
    scratch.many.resize(sizes, &gpu, options.height, true, shared, x_tiles.is_some())?;
    let (sorted, out, [gate, up], room) = scratch.many.parts(sizes)?;
    let shared = match (room, shared) {
        (Some(room), Some(w)) => {
            room.run(w, x, x_tiles, precision)?;
            Some(&room.y)
        }
        _ => None,
    };

    sort::moe_sort(&routing.ids, &options, sorted)?;
    let round = |w: &Matrix| round(w, precision, ROUND_INT8);
    let (gate_w, up_w, down_w) = (experts.gate(), experts.up(), experts.down());
    products(gate_w, rows, true, gate, sorted, gate_by, round(gate_w)?)?;
    products(up_w, rows, true, up, sorted, up_by, round(up_w)?)?;
    ffn::swiglu_in_place(gate, up, pairs * ff)?;
    products(down_w, gate, false, out, sorted, down_by, round(down_w)?)?;
    moe_sum::moe_sum(out, sorted, &routing.weights, shared, y)
}

/// `y[place] = w[expert of place] x[row]`; with `gather` rows are tokens, else places. `w` and `x` hold their shapes.
fn products(
    w: &Matrix,
    x: &Buffer<f32>,
    gather: bool,
    y: &mut Buffer<f32>,
    sorted: &SortedPairs,
    config: DotConfig,
    round: linear_round,
) -> Result<()> {
    let [_, n, k] = w.shape();
    holds("moe", y, sorted.pairs() * n)?;
    if !gather {
        holds("moe", x, sorted.pairs() * k)?;
    }
    let params = moe_dot_params {
        // Behind griddep_wait(), as everything of this kernel.
        w: w.cuda()?.blocks.as_ptr().cast(),
        x: x.as_ptr(),
        y: y.as_mut_ptr(),
        tiles: sorted.tiles.cuda()?.as_ptr().cast(),
        counters: sorted.counters.cuda()?.as_ptr(),
        sorted: if gather { sorted.sorted.cuda()?.as_ptr() } else { ptr::null() },
        top_k: count("slots of a token", sorted.top_k())?,
        n: count("outputs", n)?,
        k: count("inputs", k)?,
        round,
    };
    // SAFETY: experts of the tiles are below the number of slabs of `w`, which holds its shape, and places below that of pairs, for which
    // `y`, and `x` unless its rows are those of tokens, have room, as was checked here or by the caller; all lie on this device.
    // Buffers are aligned to 256.
    unsafe { x.gpu().launch(config.entry, [config.grid, 1, 1], &params) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_supported_type_has_kernels_for_any_height() {
        for ty in GgmlType::ALL.iter().copied().filter(|ty| crate::quant::is_supported(*ty)) {
            for (m, tokens) in [(1, "_t1_"), (2, "_t1_"), (3, "_t8_"), (8192, "_t8_")] {
                let config = DotConfig::pick(ty, 10, tile_height(m), 33).unwrap();
                assert!(config.entry.name().contains(tokens), "{}", config.entry.name());
                assert_eq!(config.grid, 10 * 33u32.div_ceil(config.rows));
            }
        }
        assert!(matches!(DotConfig::pick(GgmlType::Q8_K, 1, 1, 1), Err(Error::Unsupported { .. })));
        assert!(matches!(DotConfig::pick(GgmlType::Q4_K, 1, 9, 1), Err(Error::Unsupported { .. })));
        let many = DotConfig::pick(GgmlType::Q4_K, usize::MAX, 8, 2048);
        assert!(matches!(many, Err(Error::Capacity { .. })), "{many:?}");
    }
}
