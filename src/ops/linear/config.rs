//! Which kernel multiplies, and on how many blocks.

use std::fmt;

use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::quant::GgmlType;

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

/// Linear layers of one launch for up to 8 tokens: matrices of one type in tiles, on one input.
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

/// A launch of linear layers in tiles for up to 8 tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecodeConfig {
    /// The kernel.
    pub entry: Entry,
    /// Blocks of threads, all of them there from the beginning: they go on to further rows, for which they copy ahead.
    pub grid: u32,
}

impl DecodeConfig {
    /// For a GPU with `sms` SMs that have `smem_per_sm` bytes of shared memory.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no kernel for the type.
    pub fn pick(problem: DecodeProblem, sms: u32, smem_per_sm: u32) -> Result<Self> {
        let best = Self::times(problem, sms, smem_per_sm).min_by(|(a, _), (b, _)| a.total_cmp(b));
        let none = || {
            Error::unsupported(
                format!("linear of {} on int8 activations", problem.ty),
                "no kernel was built for it",
            )
        };
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
            let places = sms * blocks_on_sm(i.entry, i.blocks, smem_per_sm);
            let config = DecodeConfig { entry: i.entry, grid: row_tiles.min(places) };
            (decode_time(i, problem, sms, places), config)
        })
    }
}

/// Time of a launch on `sms` SMs with places for `places` blocks of threads, in no unit: the order counts.
///
/// With a row tile for each SM at most, all of an SM's warps share one, and more of them are better as long as each has a tile.
/// With more, what counts is that the last round is full, and how well the blocks of threads on an SM fill each other's gaps.
fn decode_time(i: &kernels::linear_decode::Instance, problem: DecodeProblem, sms: u32, places: u32) -> f64 {
    let row_tiles = problem.row_tiles.max(1) as f64;
    let one_token = if i.tokens == 1 { ONE_TOKEN } else { 1.0 };
    if row_tiles <= f64::from(sms) {
        let rounds = problem.k_tiles.div_ceil(i.warps as usize).max(1) as f64;
        // For as many rounds: fewer warps have fewer sums to add up, and two blocks have more registers and tiles on the way than three.
        let blocks = if i.blocks > 2 { 1.1 } else { 1.0 };
        return rounds * (1.0 + 0.02 * f64::from(i.warps)) * blocks / one_token;
    }
    let rounds = (row_tiles / f64::from(places)).ceil();
    let busy = row_tiles / (rounds * f64::from(places));
    let filled = match i.blocks {
        1 => ONE_BLOCK,
        2 => 1.0,
        _ => THREE_BLOCKS,
    };
    1.0 / (busy * filled * one_token)
}

/// Blocks of threads of a kernel that run on an SM at a time: as many as there are registers for, `by_registers`, and shared memory.
pub(super) fn blocks_on_sm(entry: Entry, by_registers: u32, smem_per_sm: u32) -> u32 {
    /// What the system takes for each.
    const SMEM_OF_BLOCK: u32 = 1024;
    by_registers.min(smem_per_sm / (entry.smem_bytes() + SMEM_OF_BLOCK)).max(1)
}

// Of `decode_time`, measured on an H200: rates against two blocks of 8 warps on an SM.

/// One of 16 warps.
const ONE_BLOCK: f64 = 0.77;

/// Three of 8, with two thirds of the registers each.
const THREE_BLOCKS: f64 = 0.9;

/// Rate of the kernels that compute one token of a tile, against those that compute all.
const ONE_TOKEN: f64 = 1.1;

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
        let pick = |m, shape| DecodeConfig::pick(decode(GgmlType::Q4_K, m, shape), H200.0, H200.1).unwrap();
        let many = [pick(1, [24576, 6144]), pick(8, [24576, 6144])];
        let names = many.map(|config| config.entry.name());
        assert_eq!(names, ["linear_decode_q4_k_t1_g0_s3_b2_w8", "linear_decode_q4_k_t8_g0_s3_b2_w8"]);
        assert_eq!(many.map(|config| config.grid), [264; 2]);
        // Few rows: more warps for each, where each has a tile. Rows that would leave a second round half empty: three blocks.
        let few = [pick(8, [2048, 6144]), pick(8, [2048, 2048]), pick(1, [6144, 6144])];
        assert_eq!(few.map(|config| config.entry.threads() / 32), [16, 8, 8]);
        assert_eq!(few[2].grid, 384);
        assert_eq!([few[0].grid, few[1].grid], [128; 2]);
        assert_eq!(pick(8, [100, 6144]).grid, 7);
        for problem in [decode(GgmlType::Q4_K, 9, [64, 256]), decode(GgmlType::Q3_K, 1, [64, 256])] {
            assert!(DecodeConfig::pick(problem, H200.0, H200.1).is_err());
            assert!(DecodeConfig::candidates(problem, H200.0, H200.1).is_empty());
        }
    }

    #[test]
    fn the_fastest_candidate_is_picked() {
        for (sms, smem) in [H200, RTX_PRO_6000, (1, 0)] {
            for ty in crate::quant::tiles::TYPES {
                for (m, glu) in [(1, false), (1, true), (8, false), (8, true)] {
                    for (n, k) in [(0, 256), (16, 256), (2048, 6144), (24576, 6144), (154_880, 6144)] {
                        let problem = DecodeProblem { glu, ..decode(ty, m, [n, k]) };
                        let all = DecodeConfig::candidates(problem, sms, smem);
                        assert_eq!(all[0], DecodeConfig::pick(problem, sms, smem).unwrap());
                        for config in &all {
                            let found = DecodeConfig::of(config.entry, problem, sms, smem);
                            assert_eq!(*config, found.unwrap());
                            assert!(config.grid as usize <= n.div_ceil(16));
                        }
                    }
                }
            }
        }
        let swiglu = DecodeProblem { glu: true, ..decode(GgmlType::Q4_K, 1, [16, 256]) };
        let entry = DecodeConfig::pick(swiglu, 1, 0).unwrap().entry;
        let refused = DecodeConfig::of(entry, decode(GgmlType::Q4_K, 1, [16, 256]), 1, 0);
        assert!(matches!(refused, Err(Error::Unsupported { .. })));
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
