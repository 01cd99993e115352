//! Which kernel normalizes rows. A row stays in the registers of one block of threads, so its width decides.

use std::fmt;

use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::quant::{ActBlockSize, GgmlType};
use crate::tensor::TILE_TOKENS;

/// Columns that a warp holds per piece: 4 for each lane.
const PIECE: u32 = 128;

/// What is to be normalized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NormProblem {
    /// Rows.
    pub rows: usize,
    /// Values per row.
    pub n: usize,
    /// Type of the normalized values, if they are wanted.
    pub out: GgmlType,
    /// Values per scale of the quants, if they are wanted.
    pub block: ActBlockSize,
    /// Whether all rows begin at multiples of 16 bytes and `n` is a multiple of 4.
    pub aligned: bool,
}

/// A launch: one block of threads per row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NormConfig {
    /// The kernel.
    pub entry: Entry,
    /// Columns that it can hold.
    pub capacity: u32,
    /// Blocks of threads.
    pub grid: u32,
}

impl NormConfig {
    /// For RMSNorm, with or without its additions, on a device with `sms` multiprocessors.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for rows that no kernel can hold, [`Error::Capacity`] for more rows than a grid has.
    pub fn pick(problem: NormProblem, sms: u32) -> Result<Self> {
        let NormProblem { rows, n, out, block, aligned } = problem;
        let load = if aligned { 4 } else { 1 };
        let block = if aligned { block.elems() as u32 } else { 32 }; // What is not aligned cannot be quantized.
        let fitting = kernels::norm_quantize::INSTANCES
            .iter()
            .filter(|i| (i.out, i.block, i.load) == (out, block, load))
            .map(|i| (i.vecs * i.warps * PIECE, i.warps, i.entry));
        choose(fitting, rows, n, sms).ok_or_else(|| too_wide("norm", n))?.with_grid(rows)
    }

    /// For RMSNorm of `rows` rows of `n` values that are rounded, a multiple of 32; with tiles of them blocks of threads are there for whole ones.
    ///
    /// # Errors
    /// As [`NormConfig::pick`].
    pub fn pick_tiles(rows: usize, n: usize, tiles: bool, sms: u32) -> Result<Self> {
        let instances = kernels::norm_tiles::INSTANCES.iter();
        let fitting = instances.map(|i| (i.vecs * i.warps * PIECE, i.warps, i.entry));
        let rows_there = if tiles { rows.next_multiple_of(TILE_TOKENS) } else { rows };
        choose(fitting, rows, n, sms).ok_or_else(|| too_wide("norm", n))?.with_grid(rows_there)
    }

    /// For LayerNorm of `rows` rows of `n` values.
    ///
    /// # Errors
    /// As [`NormConfig::pick`].
    pub fn pick_layer_norm(rows: usize, n: usize, sms: u32) -> Result<Self> {
        let load = if n.is_multiple_of(4) { 4 } else { 1 };
        let fitting = kernels::layer_norm::INSTANCES
            .iter()
            .filter(|i| i.load == load)
            .map(|i| (i.vecs * i.warps * PIECE, i.warps, i.entry));
        choose(fitting, rows, n, sms).ok_or_else(|| too_wide("layer norm", n))?.with_grid(rows)
    }

    fn with_grid(mut self, rows: usize) -> Result<Self> {
        self.grid = u32::try_from(rows).map_err(|_| Error::Capacity {
            what: "rows of one call".into(),
            needed: rows as u64,
            available: u32::MAX.into(),
        })?;
        Ok(self)
    }
}

/// The instance (capacity, warps, entry) that leaves the fewest threads idle. Of two that hold as much: with a row or two
/// for each multiprocessor the one of more threads, which has more loads in flight for a row; with many rows the one of
/// fewer, of which more blocks fit.
fn choose(
    instances: impl Iterator<Item = (u32, u32, Entry)>,
    rows: usize,
    n: usize,
    sms: u32,
) -> Option<NormConfig> {
    let few = rows <= 2 * sms as usize;
    let fitting = instances.filter(|(capacity, ..)| *capacity as usize >= n);
    let best = fitting.min_by_key(|(capacity, warps, _)| (*capacity, if few { 64 - warps } else { *warps }));
    best.map(|(capacity, _, entry)| NormConfig { entry, capacity, grid: 0 })
}

fn too_wide(what: &str, n: usize) -> Error {
    Error::unsupported(format!("{what} over {n} columns on a GPU"), "no kernel holds so long a row")
}

impl fmt::Display for NormConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {} rows", self.entry, self.grid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTS: [GgmlType; 2] = [GgmlType::F32, GgmlType::BF16];

    fn pick(rows: usize, n: usize, out: GgmlType, block: ActBlockSize, aligned: bool) -> Result<NormConfig> {
        NormConfig::pick(NormProblem { rows, n, out, block, aligned }, 132)
    }

    #[test]
    fn every_width_up_to_16384_has_a_kernel() {
        for n in (1..=16384).step_by(31).chain([128, 256, 512, 768, 2048, 6144, 16384]) {
            for out in OUTS {
                for block in [ActBlockSize::B32, ActBlockSize::B256] {
                    for aligned in [n % 4 == 0, false] {
                        let config = pick(1, n, out, block, aligned).unwrap();
                        assert!(config.capacity as usize >= n, "{n}: {config}");
                    }
                }
            }
            assert!(NormConfig::pick_layer_norm(1, n, 132).unwrap().capacity as usize >= n);
        }
        assert!(pick(1, 16388, GgmlType::F32, ActBlockSize::B32, true).is_err());
        assert!(pick(1, 4, GgmlType::F16, ActBlockSize::B32, true).is_err());
        assert!(NormConfig::pick_layer_norm(1, 20000, 132).is_err());
    }

    #[test]
    fn widths_of_the_model_waste_no_thread() {
        for n in [256, 512, 2048, 6144] {
            let config = pick(1, n, GgmlType::F32, ActBlockSize::B32, true).unwrap();
            assert_eq!(config.capacity as usize, n);
        }
        assert_eq!(
            NormConfig::pick_layer_norm(5, 128, 132).unwrap().to_string(),
            "layer_norm_l4_v1_w1 on 5 rows"
        );
    }

    #[test]
    fn few_rows_get_more_threads_each() {
        let entry = |rows| pick(rows, 6144, GgmlType::F32, ActBlockSize::B256, true).unwrap().entry.name();
        assert_eq!(entry(1), "norm_quantize_f32_b256_l4_v2_w24");
        assert_eq!(entry(264), "norm_quantize_f32_b256_l4_v2_w24");
        assert_eq!(entry(265), "norm_quantize_f32_b256_l4_v4_w12");
    }
}
