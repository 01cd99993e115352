//! Which kernels multiply the experts of a layer, and on how many blocks of threads.

use crate::cuda::Properties;
use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::ops::linear::config::blocks_on_sm;
use crate::quant::tiles::TILE_ROWS;
use crate::quant::{self, GgmlType};
use crate::tensor::TILE_TOKENS;

/// Pairs of a token and one of its experts that blocks of threads sort for themselves (`MOE_PAIRS` of `cuda/include/params/moe_sort.h`).
pub const FEW_PAIRS: usize = 128;

/// Tokens of which [`FEW_PAIRS`] are taken, and rows of an expert that its kernels for few rows take (`MOE_ROWS`).
pub const FEW_ROWS: usize = 8;

/// Pairs of a call, at most: places have 20 bits in the lists of experts.
pub const MAX_PAIRS: usize = 1 << 20;

/// Experts of a stack, at most (`MOE_EXPERTS`).
pub const MAX_EXPERTS: usize = 512;

/// Matrices in tiles that are multiplied for few rows each: those of a number of experts and of a shared one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowsProblem {
    /// Matrices of experts that have rows, as is expected.
    pub experts: f64,
    /// Rows and columns of each; gate and up count as one of twice the rows.
    pub expert: (usize, usize),
    /// Those of the shared expert.
    pub shared: Option<(usize, usize)>,
}

/// A launch for few rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowsConfig {
    /// The kernel.
    pub entry: Entry,
    /// Blocks of threads, all there from the beginning.
    pub grid: u32,
}

/// Experts that tokens go to, of `n`, if each of `m` chooses `k` of them at random.
pub fn expected_experts(m: usize, k: usize, n: usize) -> f64 {
    let n = n.max(1) as f64;
    n * (1.0 - (1.0 - (k as f64 / n).min(1.0)).powf(m as f64))
}

impl RowsConfig {
    /// Of gate and up together, or of one matrix.
    pub fn rows(problem: RowsProblem, glu: bool, gpu: &Properties) -> Self {
        let found = kernels::moe_rows::INSTANCES.iter().find(|i| (i.glu != 0) == glu);
        let found = found.unwrap_or(&kernels::moe_rows::INSTANCES[0]);
        Self::new(found.entry, found.blocks, problem, gpu)
    }

    /// Of down and the weighted sum.
    pub fn down(problem: RowsProblem, gpu: &Properties) -> Self {
        let down = &kernels::moe_down::INSTANCES[0];
        Self::new(down.entry, down.blocks, problem, gpu)
    }

    fn new(entry: Entry, blocks: u32, problem: RowsProblem, gpu: &Properties) -> Self {
        let RowsProblem { experts, expert, shared } = problem;
        let size = |(n, k)| {
            let [row_tiles, k_tiles] = quant::tiles::tiles(n, k);
            (row_tiles * k_tiles) as f64
        };
        let tiles = size(expert) * experts + shared.map_or(0.0, size);
        let places = gpu.sms.max(1) * blocks_on_sm(entry, blocks, gpu.smem_per_sm);
        let grid = places.min((tiles / MIN_TILES).ceil() as u32).max(1);
        RowsConfig { entry, grid }
    }

    /// The most blocks of threads of any launch on this GPU.
    pub fn most_blocks(gpu: &Properties) -> usize {
        let rows = kernels::moe_rows::INSTANCES.iter().map(|i| (i.entry, i.blocks));
        let down = kernels::moe_down::INSTANCES.iter().map(|i| (i.entry, i.blocks));
        let places = |(entry, blocks)| gpu.sms.max(1) * blocks_on_sm(entry, blocks, gpu.smem_per_sm);
        rows.chain(down).map(places).max().unwrap_or(0) as usize
    }
}

/// A launch of `moe_gemm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupedConfig {
    /// The kernel.
    pub entry: Entry,
    /// Blocks of threads, all there from the beginning.
    pub grid: u32,
}

impl GroupedConfig {
    /// Places of a tile of the sorting, at most: as many as the kernels of all these types, each for gate and up or for one matrix, take.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no kernel for a type.
    pub fn height(kinds: &[(GgmlType, bool)]) -> Result<usize> {
        kinds.iter().try_fold(usize::MAX, |most, (ty, glu)| {
            Ok(most.min(Self::instance(*ty, *glu)?.tokens as usize * TILE_TOKENS))
        })
    }

    fn instance(ty: GgmlType, glu: bool) -> Result<&'static kernels::moe_gemm::Instance> {
        let found = kernels::moe_gemm::INSTANCES.iter().find(|i| i.ty == ty && (i.glu != 0) == glu);
        found.ok_or_else(|| {
            Error::unsupported(format!("experts of {ty} in tiles"), "no kernel was built for them")
        })
    }

    /// For at most `tiles` tiles of places by experts of `n` rows, gate and up counted together.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no kernel for the type.
    pub fn pick(ty: GgmlType, glu: bool, n: usize, tiles: usize, gpu: &Properties) -> Result<Self> {
        let found = Self::instance(ty, glu)?;
        let places = gpu.sms.max(1) * blocks_on_sm(found.entry, found.blocks, gpu.smem_per_sm);
        let items = tiles.saturating_mul(n.div_ceil(TILE_ROWS * (found.rows * found.row_warps) as usize));
        let grid = u32::try_from(items).unwrap_or(u32::MAX).min(places).max(1);
        Ok(GroupedConfig { entry: found.entry, grid })
    }
}

/// Tiles that are worth a block of threads of its own: two for each warp.
const MIN_TILES: f64 = 16.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_work_has_few_blocks_of_threads() {
        let problem = RowsProblem {
            experts: expected_experts(1, 8, 256),
            expert: (4096, 6144),
            shared: Some((4096, 6144)),
        };
        let grid = |problem| RowsConfig::rows(problem, true, &Properties::h200()).grid;
        assert_eq!(grid(problem), 264);
        assert_eq!(264, RowsConfig::most_blocks(&Properties::h200()));
        let shard = RowsProblem { expert: (512, 6144), shared: None, experts: 1.0 };
        assert_eq!(grid(shard), 32 * 24 / 16);
        let nothing = RowsProblem { experts: 0.0, ..shard };
        assert_eq!((grid(nothing), RowsConfig::down(nothing, &Properties::h200()).grid), (1, 1));
    }

    #[test]
    fn few_tokens_go_to_nearly_distinct_experts() {
        assert!((expected_experts(1, 8, 256) - 8.0).abs() < 1e-9);
        assert!((expected_experts(8, 8, 256) - 57.4).abs() < 0.1);
        assert_eq!(expected_experts(5, 0, 256), 0.0);
        assert_eq!(expected_experts(2, 9, 8), 8.0);
    }
}
