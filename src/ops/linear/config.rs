//! Which kernel multiplies, and on how many blocks.

use std::fmt;

use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::quant::GgmlType;
use crate::tensor::TILE_TOKENS;

/// Up to this many tokens, dot products win over tiles: tiles are 64 tokens wide, full or not, and dot products of 8 tokens
/// at a time use the FMA units about half as well.
const DOT_TOKENS: usize = 32;

/// Tokens, and columns of a head's part, that `linear_heads` has room for (`LINEAR_HEADS_TOKENS`, `LINEAR_HEADS_COLS` of
/// `cuda/include/params/linear_tiled.h`).
pub const HEADS_TOKENS: usize = 16;
/// See [`HEADS_TOKENS`].
pub const HEADS_COLS: usize = 512;

/// Tokens that `linear_decode` multiplies, at most.
pub const DECODE_TOKENS: usize = 16;

/// One matrix, or a stack of matrices of one shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearProblem {
    /// Type of the weights.
    pub ty: GgmlType,
    /// Tokens.
    pub m: usize,
    /// Outputs of each matrix.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    /// Matrices.
    pub slabs: usize,
    /// Whether parts of rows of activations can be loaded by 16 bytes: all begin at multiples of that.
    pub aligned: bool,
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
    /// For weights as they lie in files, in f32 arithmetic, on a GPU with `sms` SMs.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no kernel for the type, [`Error::Capacity`] for more tiles than a grid has.
    pub fn pick(problem: LinearProblem, sms: u32) -> Result<Self> {
        let LinearProblem { ty, .. } = problem;
        let none = || Error::unsupported(format!("linear of {ty}"), "no kernel was built for it");
        Self::new(*instances(problem, sms).first().ok_or_else(none)?, problem)
    }

    /// With this kernel.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it is for other problems; as [`LinearConfig::pick`].
    pub fn of(entry: Entry, problem: LinearProblem, sms: u32) -> Result<Self> {
        let found = instances(problem, sms).into_iter().find(|i| i.entry == entry);
        let none = || Error::unsupported(format!("{entry} for {problem:?}"), "it multiplies something else");
        Self::new(found.ok_or_else(none)?, problem)
    }

    /// All kernels that could be picked, first the one that is.
    pub fn candidates(problem: LinearProblem, sms: u32) -> Vec<Entry> {
        instances(problem, sms).into_iter().map(|i| i.entry).collect()
    }

    fn new(Instance { entry, rows, tokens }: Instance, problem: LinearProblem) -> Result<Self> {
        let LinearProblem { m, n, slabs, .. } = problem;
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

/// A kernel, and the rows and tokens of its tiles.
#[derive(Clone, Copy)]
struct Instance {
    entry: Entry,
    rows: u32,
    tokens: u32,
}

/// All that suit a problem, the best first: for unquantized weights `linear_float` if it takes such rows; dot products for few tokens,
/// with the fewest rounds over the weights and then with the fewest tokens, and tiles for more.
fn instances(problem: LinearProblem, sms: u32) -> Vec<Instance> {
    let LinearProblem { ty, m, .. } = problem;
    macro_rules! of {
        ($instances:expr) => {
            $instances.iter().filter(|i| i.ty == ty).map(|i| Instance {
                entry: i.entry,
                rows: i.rows,
                tokens: i.tokens,
            })
        };
    }
    let takes = problem.aligned && problem.k.is_multiple_of(FLOAT_STEP);
    let float = kernels::linear_float::INSTANCES.iter().filter(|i| i.ty == ty && takes);
    let mut float: Vec<_> = float.collect();
    float.sort_by_key(|i| float_time(i, problem, sms));
    let float = float
        .into_iter()
        .map(|i| Instance { entry: i.entry, rows: 8 * i.rows, tokens: FLOAT_TOKENS })
        .collect();
    let mut dot: Vec<_> = of!(kernels::linear_dot::INSTANCES).collect();
    dot.sort_by_key(|i| (m.div_ceil(i.tokens as usize), i.tokens));
    let tile = of!(kernels::linear_tile::INSTANCES).collect();
    if m <= DOT_TOKENS { [float, dot, tile].concat() } else { [float, tile, dot].concat() }
}

/// Columns that `linear_float` takes at a time, and its tokens.
const FLOAT_STEP: usize = 32;
const FLOAT_TOKENS: u32 = 16;

/// Time of a launch of `linear_float`, in no unit: rounds of blocks of threads, each as long as it has rows. On an H200 a block of 32
/// rows takes 3.6 to 4.5 times as long as one of 8.
fn float_time(i: &kernels::linear_float::Instance, problem: LinearProblem, sms: u32) -> usize {
    let LinearProblem { m, n, slabs, .. } = problem;
    let rows = i.rows as usize;
    let tiles = n.div_ceil(8 * rows).saturating_mul(m.div_ceil(FLOAT_TOKENS as usize)).saturating_mul(slabs);
    tiles.div_ceil((sms.max(1) * i.blocks) as usize).saturating_mul(rows)
}

/// Linear layers of one launch for up to [`DECODE_TOKENS`]: matrices of one type in tiles, on one input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeProblem {
    /// Type of the weights.
    pub ty: GgmlType,
    /// Tokens.
    pub m: usize,
    /// Tiles along the outputs, of all matrices; of gate and up those of one.
    pub row_tiles: usize,
    /// Tiles of the outputs of matrices of F32 ([`float_tiles`]).
    pub float_tiles: usize,
    /// Tiles along the inputs.
    pub k_tiles: usize,
    /// Gate and up, multiplied.
    pub glu: bool,
}

/// Tiles of the outputs of a matrix of F32 that `linear_decode` multiplies besides (`cuda/common/float_rows.cuh`): 4 rows by 4 tokens, for
/// a block of threads as much as a row tile.
pub fn float_tiles(rows: usize, m: usize) -> usize {
    rows.div_ceil(4).saturating_mul(m.div_ceil(4))
}

impl DecodeProblem {
    fn all_row_tiles(&self) -> usize {
        self.row_tiles.saturating_add(self.float_tiles)
    }
}

/// A launch of linear layers in tiles for few tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecodeConfig {
    /// The kernel.
    pub entry: Entry,
    /// Blocks of threads for quantized matrices, all of them there from the beginning: they go on to further rows, for which they copy
    /// ahead.
    pub blocks: u32,
    /// All blocks of threads: one more for each tile of F32.
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

    /// Whether this kernel is as fast as `linear_gemm`, for up to [`DECODE_TOKENS`]. It reads all activations for every 16 rows: those
    /// of more than 8 tokens take longer than the weights where an SM has many such tiles.
    pub fn is_best(problem: DecodeProblem, sms: u32) -> bool {
        let row_tiles = problem.row_tiles << u32::from(problem.glu);
        problem.m <= TILE_TOKENS || row_tiles <= ROW_TILES * sms.max(1) as usize
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
        // Kernels of two tiles of tokens read both.
        let tokens = move |i: &kernels::linear_decode::Instance| {
            let least = (i.tokens as usize).saturating_sub(TILE_TOKENS);
            m <= i.tokens as usize && (m > least || least == 0)
        };
        let suitable = all.filter(move |i| i.ty == ty && tokens(i) && i.glu == u32::from(glu));
        let tiles = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (row_tiles, float, sms) = (tiles(row_tiles), tiles(problem.float_tiles), sms.max(1));
        suitable.map(move |i| {
            let places = sms * blocks_on_sm(i.entry, i.blocks, smem_per_sm);
            let blocks = row_tiles.min(places);
            let config = DecodeConfig { entry: i.entry, blocks, grid: blocks.saturating_add(float) };
            (decode_time(i, problem, sms, places), config)
        })
    }
}

/// Time of a launch on `sms` SMs with places for `places` blocks of threads, in no unit: the order counts.
///
/// With a row tile for each SM at most, all of an SM's warps share one, and more of them are better as long as each has a tile.
/// With more, what counts is that the last round is full, and how well the blocks of threads on an SM fill each other's gaps.
fn decode_time(i: &kernels::linear_decode::Instance, problem: DecodeProblem, sms: u32, places: u32) -> f64 {
    let row_tiles = problem.all_row_tiles().max(1) as f64;
    let few_tokens = if (i.tokens as usize) < TILE_TOKENS { FEW_TOKENS } else { 1.0 };
    if row_tiles <= f64::from(sms) {
        let rounds = problem.k_tiles.div_ceil(i.warps as usize).max(1) as f64;
        // For as many rounds: fewer warps have fewer sums to add up.
        return rounds * (1.0 + 0.02 * f64::from(i.warps)) / few_tokens;
    }
    let rounds = (row_tiles / f64::from(places)).ceil();
    let busy = row_tiles / (rounds * f64::from(places));
    let filled = if i.blocks > 1 { 1.0 } else { ONE_BLOCK };
    let short = if 2 * problem.k_tiles <= i.warps as usize { SHORT_ROWS } else { 1.0 };
    1.0 / (busy * filled * short * few_tokens)
}

/// Blocks of threads of a kernel that run on an SM at a time: as many as there are registers for, `by_registers`, and shared memory.
pub(crate) fn blocks_on_sm(entry: Entry, by_registers: u32, smem_per_sm: u32) -> u32 {
    /// What the system takes for each.
    const SMEM_OF_BLOCK: u32 = 1024;
    by_registers.min(smem_per_sm / (entry.smem_bytes() + SMEM_OF_BLOCK)).max(1)
}

/// Of 16 rows, for an SM: up to so many `linear_decode` is faster for 9 to 16 tokens. Measured on an H200.
const ROW_TILES: usize = 8;

// Of `decode_time`, measured on an H200: rates against two blocks of 8 warps on an SM.

/// One of 16.
const ONE_BLOCK: f64 = 0.77;

/// Where rows are so short that half of the warps have no tile.
const SHORT_ROWS: f64 = 0.8;

/// Rate of the kernels that compute half of the tokens of a tile, against those that compute all.
const FEW_TOKENS: f64 = 1.1;

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
        LinearConfig::pick(LinearProblem { ty, m, n, k: 6144, slabs, aligned: false }, 132).unwrap()
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
        let none = LinearProblem { ty: GgmlType::Q8_K, m: 1, n: 1, k: 256, slabs: 1, aligned: true };
        assert!(LinearConfig::pick(none, 132).is_err());
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
        let (ty, m, n) = (GgmlType::F32, usize::MAX, usize::MAX);
        for aligned in [false, true] {
            let many = LinearProblem { ty, m, n, k: 256, slabs: 1, aligned };
            assert!(matches!(LinearConfig::pick(many, 132), Err(Error::Capacity { .. })));
        }
    }

    #[test]
    fn unquantized_weights_have_kernels_of_their_own() {
        let pick = |ty, m, n, k, aligned| {
            let problem = LinearProblem { ty, m, n, k, slabs: 1, aligned };
            LinearConfig::pick(problem, H200.0).unwrap().to_string()
        };
        assert_eq!(pick(GgmlType::F32, 1, 256, 6144, true), "linear_float_f32_r1_b1_w16 on 32 tiles");
        assert_eq!(pick(GgmlType::BF16, 64, 256, 6144, true), "linear_float_bf16_r1_b1_w16 on 128 tiles");
        assert_eq!(pick(GgmlType::F16, 2048, 2048, 6144, true), "linear_float_f16_r4_b2_w8 on 8192 tiles");
        // Loads of 16 bytes need rows that begin at such, and steps are 32 columns.
        for (k, aligned) in [(6144, false), (48, true)] {
            assert!(pick(GgmlType::F32, 1, 256, k, aligned).starts_with("linear_dot"));
            assert!(pick(GgmlType::F32, 64, 256, k, aligned).starts_with("linear_tile"));
        }
        assert!(pick(GgmlType::Q8_0, 1, 256, 6144, true).starts_with("linear_dot"));
    }

    const H200: (u32, u32) = (132, 228 << 10);
    const RTX_PRO_6000: (u32, u32) = (188, 100 << 10);

    fn decode(ty: GgmlType, m: usize, [n, k]: [usize; 2]) -> DecodeProblem {
        DecodeProblem {
            ty,
            m,
            row_tiles: n.div_ceil(16),
            float_tiles: 0,
            k_tiles: k.div_ceil(256),
            glu: false,
        }
    }

    #[test]
    fn integer_linears_fill_the_gpu() {
        let pick = |m, shape| DecodeConfig::pick(decode(GgmlType::Q4_K, m, shape), H200.0, H200.1).unwrap();
        let many = [pick(1, [24576, 6144]), pick(8, [24576, 6144])];
        let names = many.map(|config| config.entry.name());
        assert_eq!(names, ["linear_decode_q4_k_t4_g0_s3_b2_w8", "linear_decode_q4_k_t8_g0_s3_b2_w8"]);
        assert_eq!(many.map(|config| config.grid), [264; 2]);
        // Few rows: more warps for each, where each has a tile. Rows that would leave a second round half empty, too, unless they are
        // short.
        let few = [[2048, 6144], [2048, 2048], [6144, 6144], [6144, 2048]].map(|shape| pick(8, shape));
        assert_eq!(few.map(|config| config.entry.threads() / 32), [16, 8, 16, 8]);
        assert_eq!(few.map(|config| config.grid), [128, 128, 132, 264]);
        assert_eq!(pick(8, [100, 6144]).grid, 7);
        for problem in [decode(GgmlType::Q4_K, 17, [64, 256]), decode(GgmlType::Q3_K, 1, [64, 256])] {
            assert!(DecodeConfig::pick(problem, H200.0, H200.1).is_err());
            assert!(DecodeConfig::candidates(problem, H200.0, H200.1).is_empty());
        }
    }

    #[test]
    fn tokens_have_kernels_that_read_no_tile_of_them_in_vain() {
        let tokens = |m| {
            let entry =
                DecodeConfig::pick(decode(GgmlType::Q6_K, m, [6144, 6144]), H200.0, H200.1).unwrap().entry;
            kernels::linear_decode::INSTANCES.iter().find(|i| i.entry == entry).unwrap().tokens
        };
        assert_eq!([1, 2, 4, 5, 8, 9, 16].map(tokens), [4, 4, 4, 8, 8, 16, 16]);
        // A kernel of two tiles would read one that is not there.
        let of_eight = DecodeConfig::candidates(decode(GgmlType::Q6_K, 8, [16, 256]), H200.0, H200.1);
        let tokens_of = |i: &kernels::linear_decode::Instance| {
            of_eight.iter().any(|c| c.entry == i.entry).then_some(i.tokens)
        };
        assert!(kernels::linear_decode::INSTANCES.iter().filter_map(tokens_of).all(|tokens| tokens == 8));
    }

    #[test]
    fn many_rows_by_more_than_a_tile_of_tokens_are_for_linear_gemm() {
        let best = |m, n, glu| {
            DecodeConfig::is_best(DecodeProblem { glu, ..decode(GgmlType::Q4_K, m, [n, 6144]) }, H200.0)
        };
        assert!(best(8, 154_880, false) && best(16, 16_384, false) && best(16, 8192, true));
        assert!(!best(9, 24_576, false) && !best(16, 12_288, true));
    }

    #[test]
    fn the_fastest_candidate_is_picked() {
        for (sms, smem) in [H200, RTX_PRO_6000, (1, 0)] {
            for ty in crate::quant::tiles::TYPES {
                for (m, glu) in [(1, false), (1, true), (8, false), (8, true), (16, false), (16, true)] {
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
