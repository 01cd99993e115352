//! Which kernels attend, and on how many blocks of threads.

use crate::cuda::Properties;
use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::ops::linear::config::blocks_on_sm;
use crate::quant::GgmlType;
use crate::tensor::CacheType;

/// Widths of a row that matrix instructions take, and of its latent part; in f32 arithmetic rows may be as wide (`MLA_WIDTH` and `MLA_LATENT`
/// of `cuda/include/params/mla_attention.h`, which has the next two, too).
pub const WIDTH: usize = 576;
/// See [`WIDTH`].
pub const LATENT: usize = 512;

/// Most blocks of threads that attend by matrix instructions.
const MAX_BLOCKS: u32 = 1024;

/// Attention on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MlaProblem {
    /// Rows.
    pub m: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Width of the latent part of a cache row.
    pub kv_lora_rank: usize,
    /// Width of a cache row.
    pub width: usize,
    /// Type of the cache.
    pub ty: CacheType,
    /// The most keys that a row may attend.
    pub keys: usize,
}

impl MlaProblem {
    /// Tiles of keys of all rows.
    fn tiles(self, by: Tiled) -> usize {
        let of_row =
            self.n_heads.div_ceil(by.heads as usize).saturating_mul(self.keys.div_ceil(by.keys).max(1));
        self.m.saturating_mul(of_row)
    }

    /// Query heads for which a kernel has the keys at a time: the more, the fewer times these come from L2, and the more sums are to be put together
    /// where blocks of threads share a row.
    fn heads_at_once(self, gpu: &Properties) -> u32 {
        match self.n_heads {
            ..=16 => 16,
            17..=32 => 32,
            // Less than 64 keys of a row for each multiprocessor.
            _ if self.m.saturating_mul(self.keys) < 64 * gpu.sms as usize => 32,
            _ => 64,
        }
    }

    fn is_tiled(self) -> bool {
        let sizes = (self.kv_lora_rank, self.width) == (LATENT, WIDTH);
        sizes && self.ty != CacheType::F32
    }
}

/// The type of a cache in the names of kernels, if there are any for it: what values become, and whether rows are fp8.
fn named(ty: CacheType) -> Option<(GgmlType, u32)> {
    match ty {
        CacheType::F32 => Some((GgmlType::F32, 0)),
        CacheType::F16 => Some((GgmlType::F16, 0)),
        CacheType::Bf16 => Some((GgmlType::BF16, 0)),
        CacheType::Fp8 => Some((GgmlType::BF16, 1)),
        CacheType::Int8 => None,
    }
}

/// A kernel of matrix instructions.
#[derive(Debug, Clone, Copy)]
struct Tiled {
    entry: Entry,
    named: (GgmlType, u32),
    heads: u32,
    blocks: u32,
    /// Of a tile: `MLA_KEYS` and `MLA_FEW_KEYS` of `cuda/include/params/mla_attention.h`.
    keys: usize,
}

/// All of them.
fn tiled() -> impl Iterator<Item = Tiled> {
    let few = kernels::mla_few::INSTANCES.iter().map(|i| Tiled {
        entry: i.entry,
        named: (i.ty, i.fp8),
        heads: i.heads,
        blocks: i.blocks,
        keys: 32,
    });
    let many = kernels::mla_decode::INSTANCES.iter().map(|i| Tiled {
        entry: i.entry,
        named: (i.ty, i.fp8),
        heads: i.heads,
        blocks: i.blocks,
        keys: 16,
    });
    few.chain(many)
}

/// Launches that attend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MlaLaunch {
    /// In f32 arithmetic: one launch.
    Float {
        /// The kernel.
        entry: Entry,
        /// Blocks of threads.
        grid: u32,
    },
    /// By matrix instructions: one launch that attends, and one that adds up what several blocks of threads have of a row.
    Tiles {
        /// The kernel.
        entry: Entry,
        /// Blocks of threads, all there from the beginning.
        grid: u32,
        /// The kernel that adds up.
        merge: Entry,
        /// Its blocks of threads.
        merge_grid: u32,
    },
}

impl MlaLaunch {
    /// For a problem; `kernel` is the one that attends, if it is not for this function to choose.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for rows wider than kernels take, and for a kernel that does not suit; [`Error::Capacity`] for more blocks of
    /// threads than a grid has, or more tiles than can be numbered.
    pub fn pick(problem: MlaProblem, kernel: Option<Entry>, gpu: &Properties) -> Result<Self> {
        let MlaProblem { m, n_heads, width, ty, .. } = problem;
        let wanted = |entry: Entry| kernel.is_none_or(|kernel| kernel == entry);
        let heads = problem.heads_at_once(gpu);
        let tiled = tiled().filter(|i| problem.is_tiled() && Some(i.named) == named(ty));
        let mut tiled = tiled.filter(|i| if kernel.is_some() { wanted(i.entry) } else { i.heads == heads });
        if let Some(found) = tiled.next() {
            return Self::tiles(problem, found, gpu);
        }
        let mut float = kernels::mla_float::INSTANCES
            .iter()
            .filter(|i| Some((i.ty, i.fp8)) == named(ty) && wanted(i.entry));
        let found = float.next().filter(|_| width <= WIDTH).ok_or_else(|| {
            let by = kernel.map_or(String::new(), |kernel| format!(" by {kernel}"));
            Error::unsupported(
                format!("attention over {ty} rows of {width}{by}"),
                "no kernel was built for it",
            )
        })?;
        let grid = m.saturating_mul(n_heads);
        Ok(MlaLaunch::Float { entry: found.entry, grid: u32::try_from(grid).map_err(|_| blocks(grid))? })
    }

    fn tiles(problem: MlaProblem, found: Tiled, gpu: &Properties) -> Result<Self> {
        let tiles = problem.tiles(found);
        if u32::try_from(tiles).is_err() {
            let what = "tiles of keys".into();
            return Err(Error::Capacity { what, needed: tiles as u64, available: u32::MAX.into() });
        }
        let grid = most_blocks(found, gpu).min(tiles as u32);
        let units = problem.m * problem.n_heads.div_ceil(found.heads as usize);
        // Of one row, or of few for the GPU, a block of threads for each half of a head, else a quarter of a block.
        let halves = units.min(grid as usize) as u32 * found.heads * 2;
        let split = problem.m == 1 || halves <= 8 * gpu.sms;
        let merge_grid = if split { halves } else { halves / 4 };
        let mut merges = kernels::mla_merge::INSTANCES.iter();
        let merge = merges.find(|i| i.heads == found.heads && (i.split == 1) == split);
        let merge = merge.ok_or_else(|| Error::unsupported("mla_merge", "no kernel was built for it"))?;
        Ok(MlaLaunch::Tiles { entry: found.entry, grid, merge: merge.entry, merge_grid })
    }
}

fn blocks(needed: usize) -> Error {
    Error::Capacity { what: "blocks of a grid".into(), needed: needed as u64, available: u32::MAX.into() }
}

/// Blocks of threads of a kernel that run at a time.
fn most_blocks(found: Tiled, gpu: &Properties) -> u32 {
    (gpu.sms.max(1) * blocks_on_sm(found.entry, found.blocks, gpu.smem_per_sm)).min(MAX_BLOCKS)
}

/// Heads that have room in what a launch leaves in pieces, and cuts, at most.
pub(crate) fn most_pieces(gpu: &Properties) -> (usize, usize) {
    let blocks = tiled().map(|i| (most_blocks(i, gpu) as usize, i.heads as usize));
    blocks.fold((0, 0), |(heads, cuts), (blocks, of)| (heads.max(2 * blocks * of), cuts.max(blocks)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(m: usize, n_heads: usize, keys: usize) -> MlaProblem {
        MlaProblem { m, n_heads, kv_lora_rank: 512, width: 576, ty: CacheType::Bf16, keys }
    }

    fn tiles(problem: MlaProblem) -> (&'static str, u32, &'static str, u32) {
        match MlaLaunch::pick(problem, None, &Properties::h200()).unwrap() {
            MlaLaunch::Tiles { entry, grid, merge, merge_grid } => {
                (entry.name(), grid, merge.name(), merge_grid)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn heads_at_a_time_and_grids() {
        let name = |heads, blocks| match heads {
            16 => "mla_few_bf16_f0_h16_b2_w8",
            32 => "mla_decode_bf16_f0_h32_b1_w8",
            _ => blocks,
        };
        let (many, few, halves) =
            ("mla_decode_bf16_f0_h64_b1_w8", "mla_merge_h16_s1_b4_w8", "mla_merge_h64_s0_b6_w8");
        assert_eq!(tiles(problem(1, 64, 2048)), (name(32, many), 132, "mla_merge_h32_s1_b4_w8", 2 * 64));
        assert_eq!(tiles(problem(8, 64, 2048)), (many, 132, "mla_merge_h64_s1_b4_w8", 8 * 128));
        assert_eq!(tiles(problem(64, 64, 2048)), (many, 132, halves, 64 * 32));
        assert_eq!(tiles(problem(512, 40, 2048)), (many, 132, halves, 132 * 32));
        assert_eq!(tiles(problem(1, 64, 200_000)).0, many);
        assert_eq!(tiles(problem(64, 16, 200_000)), (name(16, many), 264, "mla_merge_h16_s0_b6_w8", 64 * 8));
        assert_eq!(tiles(problem(512, 20, 2048)), (name(32, many), 132, "mla_merge_h32_s0_b6_w8", 132 * 16));
        assert_eq!(tiles(problem(1, 1, 1)), (name(16, many), 1, few, 32));
        assert_eq!(most_pieces(&Properties::h200()), (2 * 132 * 64, 264));
    }

    #[test]
    fn other_widths_are_computed_in_f32() {
        for (width, ty, name) in [
            (576, CacheType::F32, "mla_float_f32_f0_w8"),
            (96, CacheType::Bf16, "mla_float_bf16_f0_w8"),
            (575, CacheType::F16, "mla_float_f16_f0_w8"),
            (192, CacheType::Fp8, "mla_float_bf16_f1_w8"),
        ] {
            let found =
                MlaLaunch::pick(MlaProblem { width, ty, ..problem(3, 5, 70) }, None, &Properties::h200())
                    .unwrap();
            let MlaLaunch::Float { entry, grid } = found else { panic!("{found:?}") };
            assert_eq!((entry.name(), grid), (name, 15));
        }
    }

    #[test]
    fn what_no_kernel_takes_is_refused() {
        let pick = |problem, kernel| MlaLaunch::pick(problem, kernel, &Properties::h200());
        let wide = MlaProblem { width: 577, ..problem(1, 1, 1) };
        assert!(matches!(pick(wide, None), Err(Error::Unsupported { .. })));
        let f16 = kernels::mla_few::INSTANCES.iter().find(|i| i.ty == GgmlType::F16).unwrap().entry;
        assert!(matches!(pick(problem(1, 1, 1), Some(f16)), Err(Error::Unsupported { .. })));
        assert!(matches!(pick(problem(1 << 20, 64, 1 << 20), None), Err(Error::Capacity { .. })));
        let plain = MlaProblem { ty: CacheType::F32, ..problem(usize::MAX, 2, 1) };
        assert!(matches!(pick(plain, None), Err(Error::Capacity { .. })));
    }
}
