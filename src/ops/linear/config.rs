//! Which kernel multiplies, and on how many blocks.

use std::fmt;

use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::quant::GgmlType;
use crate::quant::tiles::tile_bytes;

/// Up to this many tokens, dot products win over tiles: tiles are 64 tokens wide, full or not, and dot products of 8 tokens
/// at a time use the FMA units about half as well.
const DOT_TOKENS: usize = 32;

/// One matrix, or a stack of matrices of one shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearProblem {
    /// Type of the weights.
    pub ty: GgmlType,
    /// Tokens.
    pub m: usize,
    /// Outputs of each matrix.
    pub n: usize,
    /// Matrices.
    pub slabs: usize,
}

/// A launch: one block of threads for `rows` outputs of `tokens` tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearConfig {
    /// The kernel.
    pub entry: Entry,
    /// Outputs per block of threads.
    pub rows: u32,
    /// Tokens per block of threads.
    pub tokens: u32,
    /// Blocks of threads: tiles, matrices, 1.
    pub grid: [u32; 3],
}

impl LinearConfig {
    /// For weights as they lie in files, in f32 arithmetic.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no kernel for the type, [`Error::Capacity`] for more tiles than a grid has.
    pub fn pick(problem: LinearProblem) -> Result<Self> {
        let LinearProblem { ty, m, n, slabs } = problem;
        let (entry, rows, tokens) = instance(ty, m)
            .ok_or_else(|| Error::unsupported(format!("linear of {ty}"), "no kernel was built for it"))?;
        let tiles = n.div_ceil(rows as usize).saturating_mul(m.div_ceil(tokens as usize));
        let blocks = |n: usize| {
            let what = || Error::Capacity {
                what: "blocks of a grid".into(),
                needed: n as u64,
                available: u32::MAX.into(),
            };
            u32::try_from(n).map_err(|_| what())
        };
        Ok(LinearConfig { entry, rows, tokens, grid: [blocks(tiles)?, blocks(slabs)?, 1] })
    }
}

/// The kernel for `m` tokens, and the rows and tokens of its tiles. Of dot products that with the fewest rounds over the
/// weights, then with the fewest tokens.
fn instance(ty: GgmlType, m: usize) -> Option<(Entry, u32, u32)> {
    if m <= DOT_TOKENS {
        let fitting = kernels::linear_dot::INSTANCES.iter().filter(|i| i.ty == ty);
        let best = fitting.min_by_key(|i| (m.div_ceil(i.tokens as usize), i.tokens));
        return best.map(|i| (i.entry, i.rows, i.tokens));
    }
    let tile = kernels::linear_tile::INSTANCES.iter().find(|i| i.ty == ty);
    tile.map(|i| (i.entry, i.rows, i.tokens))
}

/// Integer linears of one launch for up to 8 tokens: matrices of one type in tiles, on one input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeProblem {
    /// Type of the weights.
    pub ty: GgmlType,
    /// Tokens.
    pub m: usize,
    /// Tiles along the outputs, of all matrices; of gate and up those of one.
    pub row_tiles: usize,
    /// Tiles along the inputs.
    pub k_tiles: usize,
    /// Gate and up, multiplied.
    pub glu: bool,
}

/// A launch of integer linears for up to 8 tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Int8Config {
    /// The kernel.
    pub entry: Entry,
    /// Blocks of threads, all of them there from the beginning: they go on to further rows, for which they copy ahead.
    pub grid: u32,
}

impl Int8Config {
    /// For a GPU with `sms` SMs that have `smem_per_sm` bytes of shared memory.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no kernel for the type.
    pub fn pick(problem: DecodeProblem, sms: u32, smem_per_sm: u32) -> Result<Self> {
        let best = Self::times(problem, sms, smem_per_sm).min_by(|(a, _), (b, _)| a.total_cmp(b));
        let none =
            || Error::unsupported(format!("integer linear of {}", problem.ty), "no kernel was built for it");
        best.map(|(_, config)| config).ok_or_else(none)
    }

    /// All that could be picked, the best first.
    pub fn candidates(problem: DecodeProblem, sms: u32, smem_per_sm: u32) -> Vec<Self> {
        let mut all: Vec<_> = Self::times(problem, sms, smem_per_sm).collect();
        all.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        all.into_iter().map(|(_, config)| config).collect()
    }

    /// With this kernel.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it is for other problems.
    pub fn of(entry: Entry, problem: DecodeProblem, sms: u32, smem_per_sm: u32) -> Result<Self> {
        let found = Self::times(problem, sms, smem_per_sm).find(|(_, config)| config.entry == entry);
        let none = || Error::unsupported(format!("{entry} for {problem:?}"), "it multiplies something else");
        found.map(|(_, config)| config).ok_or_else(none)
    }

    fn times(problem: DecodeProblem, sms: u32, smem_per_sm: u32) -> impl Iterator<Item = (f64, Self)> {
        let DecodeProblem { ty, m, row_tiles, glu, .. } = problem;
        let all = kernels::linear_decode::INSTANCES.iter();
        let suitable = all.filter(move |i| i.ty == ty && m <= i.tokens as usize && i.glu == u32::from(glu));
        let (row_tiles, sms) = (u32::try_from(row_tiles).unwrap_or(u32::MAX), sms.max(1));
        suitable.map(move |i| {
            let by_smem = smem_per_sm / (i.entry.smem_bytes() + SMEM_OF_BLOCK);
            let places = sms * i.blocks.min(by_smem).max(1);
            let grid = row_tiles.min(places);
            (decode_time(i, problem, grid.max(1), sms, places), Int8Config { entry: i.entry, grid })
        })
    }
}

/// Nanoseconds of a launch with a block of threads for each `grid`-th row tile, on `sms` SMs with places for `places` of them: an
/// estimate, of which the order counts.
///
/// Either memory is busy or the warps are, each with its tiles in a chain; what was last on its way is computed behind that, and
/// sums meet once a row tile, while other blocks on the SM go on. So few long row tiles want many warps, and many row tiles want
/// what keeps memory busy: deep rings, and several blocks on an SM. SMs with more row tiles than others get some of the bandwidth
/// that those leave. Without a free place on the SMs the next kernel has none of its weights on the way when this one ends.
fn decode_time(
    i: &kernels::linear_decode::Instance,
    problem: DecodeProblem,
    grid: u32,
    sms: u32,
    places: u32,
) -> f64 {
    let parts = 1 + usize::from(problem.glu);
    let row_tiles = problem.row_tiles as f64;
    let (rounds, on_sm) = ((row_tiles / f64::from(grid)).ceil(), f64::from(grid.div_ceil(sms)));
    let stages = f64::from(i.stages);

    let tile_bytes = tile_bytes(problem.ty).unwrap_or(0) as f64;
    let row_tile = (parts * problem.k_tiles) as f64 * tile_bytes / SM_BYTES_PER_NS;
    let mean = row_tiles / f64::from(sms);
    let memory = row_tile * (mean + IMBALANCE * (rounds * on_sm - mean));

    // Copies begin when the tile before them in the ring has been read.
    let of_warp = (parts * problem.k_tiles.div_ceil(i.warps as usize)) as f64;
    let at_once = of_warp.min(stages);
    let chain = rounds * of_warp * WARP_TILE.max((LATENCY + WARP_TILE) / stages);

    let next = if grid.div_ceil(sms) * sms < places { 0.0 } else { LATENCY };

    let registers = if i.blocks * i.warps > 16 { FEW_REGISTERS } else { 1.0 };
    let tokens = if i.tokens > 1 { EIGHT_TOKENS } else { 1.0 };
    (memory.max(chain) + at_once * WARP_TILE) * registers * tokens + rounds * MEETING / on_sm + next
}

/// A launch of an integer linear for more than 8 tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GemmConfig {
    /// The kernel.
    pub entry: Entry,
    /// Blocks of threads, all of them there from the beginning.
    pub grid: u32,
    /// Steps of 256 columns of a tile, in all.
    pub steps: u32,
}

impl GemmConfig {
    /// Whether several launches for 8 tokens each are faster: with few steps for each block of threads most of the time goes into
    /// what they do together. Measured on an H200.
    pub fn is_beaten_by_decode(&self, m: usize) -> bool {
        m <= 16 || m <= 64 && self.steps < 4 * self.grid
    }

    /// For a matrix `[n, k]` in tiles and `m` tokens, on a GPU with `sms` SMs that have `smem_per_sm` bytes of shared memory.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no kernel for the type.
    pub fn pick(ty: GgmlType, m: usize, [n, k]: [usize; 2], sms: u32, smem_per_sm: u32) -> Result<Self> {
        // The smallest tiles that hold all tokens, or the largest.
        let tokens = |i: &kernels::linear_gemm::Instance| 8 * (i.tokens * i.token_warps) as usize;
        let of_type = kernels::linear_gemm::INSTANCES.iter().filter(|i| i.ty == ty);
        let best = of_type.min_by_key(|i| match tokens(i) {
            held if held >= m => (0, held),
            held => (1, usize::MAX - held),
        });
        let none = || Error::unsupported(format!("integer linear of {ty}"), "no kernel was built for it");
        let i = best.ok_or_else(none)?;
        let by_smem = smem_per_sm / (i.entry.smem_bytes() + SMEM_OF_BLOCK);
        let resident = sms.max(1) * i.blocks.min(by_smem).max(1);
        let tiles = n.div_ceil((16 * i.rows * i.row_warps) as usize) * m.div_ceil(tokens(i));
        let steps = (tiles * k.div_ceil(256)).min(u32::MAX as usize) as u32;
        Ok(GemmConfig { entry: i.entry, grid: resident.min(steps), steps })
    }

    /// Values that the partial sums of a launch take, and blocks of threads of the largest.
    pub fn scratch(sms: u32) -> (usize, usize) {
        let all = kernels::linear_gemm::INSTANCES.iter();
        let sizes = all.map(|i| {
            let blocks = (sms.max(1) * i.blocks) as usize;
            (blocks * 2 * (16 * i.rows * i.row_warps * 8 * i.tokens * i.token_warps) as usize, blocks)
        });
        sizes.fold((0, 0), |(a, b), (c, d)| (a.max(c), b.max(d)))
    }
}

/// Shared memory that the system takes for each block of threads.
const SMEM_OF_BLOCK: u32 = 1024;

// Constants of `decode_time`, for an H200. Those marked are estimates that agree with what 8 warps a block take; still to be measured.

/// Of memory, for an SM: 4.4 TB/s for 132.
const SM_BYTES_PER_NS: f64 = 33.0;

/// How much of a work that only some SMs have counts. To be measured.
const IMBALANCE: f64 = 0.2;

/// A warp's time for a tile that is there. To be measured.
const WARP_TILE: f64 = 350.0;

/// From a copy to its tile. To be measured.
const LATENCY: f64 = 700.0;

/// From the last sums of the warps to the first ones of the next row tile. To be measured.
const MEETING: f64 = 500.0;

/// More than 16 warps on an SM have less than 128 registers a thread, and load less ahead; three blocks of 8, H200.
const FEW_REGISTERS: f64 = 1.0 / 0.9;

/// Time of the kernels that compute all tokens of a tile, against those that compute one; H200.
const EIGHT_TOKENS: f64 = 1.1;

impl fmt::Display for LinearConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [tiles, slabs, _] = self.grid;
        write!(f, "{} on {tiles} tiles", self.entry)?;
        if slabs == 1 { Ok(()) } else { write!(f, " of {slabs} matrices") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(ty: GgmlType, m: usize, n: usize, slabs: usize) -> LinearConfig {
        LinearConfig::pick(LinearProblem { ty, m, n, slabs }).unwrap()
    }

    #[test]
    fn every_supported_type_has_kernels_for_any_number_of_tokens() {
        let supported = GgmlType::ALL.iter().copied().filter(|ty| crate::quant::is_supported(*ty));
        let mut n = 0;
        for ty in supported {
            for (m, family) in [(1, "linear_dot"), (8, "linear_dot"), (32, "linear_dot"), (33, "linear_tile")]
            {
                assert_eq!(pick(ty, m, 7, 1).entry.family(), family, "{ty} {m}");
            }
            n += 1;
        }
        assert_eq!(n, 23);
        assert!(LinearConfig::pick(LinearProblem { ty: GgmlType::Q8_K, m: 1, n: 1, slabs: 1 }).is_err());
    }

    #[test]
    fn tiles_cover_all_outputs() {
        for m in (0..200).chain([8192]) {
            for n in [1, 3, 4, 5, 63, 64, 65, 154_880] {
                let config = pick(GgmlType::Q4_K, m, n, 5);
                let [tiles, slabs, _] = config.grid;
                let per_token_tile = n.div_ceil(config.rows as usize);
                assert_eq!(tiles as usize % per_token_tile, 0);
                let tokens = tiles as usize / per_token_tile * config.tokens as usize;
                assert!(tokens >= m && tokens < m + config.tokens as usize, "{m} {n}: {config}");
                assert_eq!(slabs, 5);
            }
        }
        let many = LinearProblem { ty: GgmlType::F32, m: usize::MAX, n: usize::MAX, slabs: 1 };
        assert!(matches!(LinearConfig::pick(many), Err(Error::Capacity { .. })));
    }

    const H200: (u32, u32) = (132, 228 << 10);
    const RTX_PRO_6000: (u32, u32) = (188, 100 << 10);

    fn decode(ty: GgmlType, m: usize, [n, k]: [usize; 2]) -> DecodeProblem {
        DecodeProblem { ty, m, row_tiles: n.div_ceil(16), k_tiles: k.div_ceil(256), glu: false }
    }

    #[test]
    fn integer_linears_fill_the_gpu() {
        let pick = |m, shape| Int8Config::pick(decode(GgmlType::Q4_K, m, shape), H200.0, H200.1).unwrap();
        let many = [pick(1, [24576, 6144]), pick(8, [24576, 6144])];
        let names = many.map(|config| config.entry.name());
        assert_eq!(names, ["linear_decode_q4_k_t1_g0_s3_b2_w8", "linear_decode_q4_k_t8_g0_s3_b2_w8"]);
        assert_eq!(many.map(|config| config.grid), [264; 2]);
        // Few rows: more warps for each, where each has a tile.
        let few = [pick(8, [2048, 6144]), pick(8, [2048, 2048])];
        assert_eq!(few.map(|config| config.entry.threads() / 32), [12, 8]);
        assert_eq!(few.map(|config| config.grid), [128; 2]);
        assert_eq!(pick(8, [100, 6144]).grid, 7);
        for problem in [decode(GgmlType::Q4_K, 9, [64, 256]), decode(GgmlType::Q3_K, 1, [64, 256])] {
            assert!(Int8Config::pick(problem, H200.0, H200.1).is_err());
            assert!(Int8Config::candidates(problem, H200.0, H200.1).is_empty());
        }
    }

    #[test]
    fn the_fastest_candidate_is_picked() {
        for (sms, smem) in [H200, RTX_PRO_6000, (1, 0)] {
            for ty in crate::quant::tiles::TYPES {
                for (m, glu) in [(1, false), (1, true), (8, false), (8, true)] {
                    for (n, k) in [(0, 256), (16, 256), (2048, 6144), (24576, 6144), (154_880, 6144)] {
                        let problem = DecodeProblem { glu, ..decode(ty, m, [n, k]) };
                        let all = Int8Config::candidates(problem, sms, smem);
                        assert_eq!(all[0], Int8Config::pick(problem, sms, smem).unwrap());
                        for config in &all {
                            let found = Int8Config::of(config.entry, problem, sms, smem);
                            assert_eq!(*config, found.unwrap());
                            assert!(config.grid as usize <= n.div_ceil(16));
                        }
                    }
                }
            }
        }
        let swiglu = DecodeProblem { glu: true, ..decode(GgmlType::Q4_K, 1, [16, 256]) };
        let entry = Int8Config::pick(swiglu, 1, 0).unwrap().entry;
        let refused = Int8Config::of(entry, decode(GgmlType::Q4_K, 1, [16, 256]), 1, 0);
        assert!(matches!(refused, Err(Error::Unsupported { .. })));
    }

    #[test]
    fn many_tokens_take_the_tiles_that_hold_them() {
        let pick = |m, shape| GemmConfig::pick(GgmlType::Q4_K, m, shape, 132, 228 << 10).unwrap();
        let names = [9, 16, 17, 64, 2048].map(|m| pick(m, [24576, 6144]).entry.name());
        let tiles = ["t2_rw4_tw1", "t2_rw4_tw1", "t4_rw4_tw1", "t4_rw4_tw2", "t4_rw4_tw2"]
            .map(|t| format!("linear_gemm_q4_k_r2_{t}"));
        assert!(names.iter().zip(&tiles).all(|(name, tile)| name.starts_with(tile)), "{names:?}");
        let beaten = |m, n| pick(m, [n, 6144]).is_beaten_by_decode(m);
        assert_eq!(
            [beaten(9, 24576), beaten(32, 2048), beaten(32, 24576), beaten(65, 2048)],
            [true, true, false, false]
        );
        // Never more blocks of threads than steps, and the scratch has room for all.
        assert_eq!(pick(16, [16, 256]).grid, 1);
        assert_eq!(pick(2048, [24576, 6144]).grid, 132);
        assert!(GemmConfig::scratch(132).1 >= 396);
    }

    #[test]
    fn single_tokens_have_a_kernel_of_their_own() {
        assert_eq!(pick(GgmlType::Q4_K, 1, 2048, 1).to_string(), "linear_dot_q4_k_r4_t1_c16_w4 on 512 tiles");
        assert_eq!(
            pick(GgmlType::Q5_0, 2, 512, 64).to_string(),
            "linear_dot_q5_0_r4_t8_c8_w4 on 128 tiles of 64 matrices"
        );
        assert_eq!(pick(GgmlType::F32, 512, 256, 1).to_string(), "linear_tile_f32_r64_t64_w4 on 32 tiles");
    }
}
