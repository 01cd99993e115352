//! Which kernel scores, and on how many blocks of threads.

use crate::cuda::Properties;
use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::ops::dsa_topk::config::{ALONE, LIST, MAX_PARTS};
use crate::quant::GgmlType;
use crate::tensor::{CacheType, Precision};

/// Of the kernels by matrix instructions: heads at most, and the width (`INDEXER_HEADS`, `INDEXER_DIM` of
/// `cuda/include/params/dsa_indexer.h`).
pub const TILED: (usize, usize) = (32, 128);

/// Keys of a warp of the kernel for any shape.
const KEYS: usize = 32;

/// Times that the blocks of a launch for many rows of sequences fill the GPU, at least: rows see different numbers of keys, so that the last blocks
/// would leave it half empty. A launch for rows by themselves fills it once, and leaves some of it empty rather than begin a second time.
const WAVES: usize = 2;

/// Rows of one sequence that do not share keys of int8.
const ALONE_INT8: usize = 16;

/// Shared memory that an SM keeps for itself, for each block of threads.
const RESERVED: usize = 1 << 10;

/// Keys of each block of threads that scores and selects, where there are blocks enough.
const SELECT_PIECE: usize = 512;

/// Beyond the keys of which one block of threads selects ([`ALONE`]), and up to so many of 16 bits, two launches take longer for any number of
/// rows, or hardly less; then for rows enough. Those over keys of int8 take longer, or hardly less, for any number of both
/// (`docs/kernels/dsa.md`).
const SELECT_SHORT: usize = 32_768;
const SELECT_ROWS: usize = 4;

/// Scores of a batch on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexerProblem {
    /// Rows.
    pub m: usize,
    /// Sequences that they belong to, or more.
    pub sequences: usize,
    /// Most keys that a row sees.
    pub visible: usize,
    /// Heads of a query.
    pub heads: usize,
    /// Values of a key.
    pub dim: usize,
    /// Type of the cache.
    pub ty: CacheType,
    /// How queries meet keys of 16 bits.
    pub precision: Precision,
    /// Streaming multiprocessors.
    pub sms: usize,
    /// Bytes of shared memory of each.
    pub smem_per_sm: usize,
}

impl IndexerProblem {
    /// As many SMs as this GPU has.
    pub(crate) fn on(self, gpu: &Properties) -> Self {
        IndexerProblem { sms: gpu.sms as usize, smem_per_sm: gpu.smem_per_sm as usize, ..self }
    }
}

/// A launch that scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexerConfig {
    /// The kernel.
    pub entry: Entry,
    /// Rows that share the keys that are loaded.
    pub rows: u32,
    /// Blocks of threads for each group of them.
    pub workers: u32,
}

/// All launches that could score, the one that is chosen first.
pub fn candidates(problem: IndexerProblem) -> Vec<IndexerConfig> {
    let IndexerProblem { m, sequences, visible, heads, dim, ty, precision, sms, smem_per_sm } = problem;
    let key = match ty {
        CacheType::F32 => Some(GgmlType::F32),
        CacheType::Bf16 => Some(GgmlType::BF16),
        CacheType::F16 => Some(GgmlType::F16),
        CacheType::Fp8 | CacheType::Int8 => None,
    };
    let config = |entry: Entry, rows: usize, blocks: u32, keys: usize, waves: usize| {
        let fit = smem_per_sm / (entry.smem_bytes() as usize + RESERVED);
        let (resident, groups) = ((sms * fit.clamp(1, blocks as usize)).max(1), m.div_ceil(rows).max(1));
        let workers = if waves > 1 {
            // The first of the numbers that leave least of the last wave empty, in sixteenths of the GPU's time.
            let least = (waves * resident).div_ceil(groups);
            let idle = |workers: &usize| {
                let (blocks, turns) = (groups * workers, (groups * workers).div_ceil(resident));
                16 * (turns * resident - blocks) / (turns * resident)
            };
            // With many workers for each of few groups one more or less matters little.
            (least..=(2 * least).min(least + 16)).min_by_key(idle).unwrap_or(least)
        } else {
            resident / groups
        };
        let workers = workers.min(visible.div_ceil(keys)).max(1);
        IndexerConfig { entry, rows: rows as u32, workers: workers as u32 }
    };
    let tiled = |entry: Entry, rows: u32, keys: u32, blocks: u32, warps: u32| {
        let waves = if rows > 1 && m > rows as usize { WAVES } else { 1 };
        config(entry, rows as usize, blocks, (keys * warps) as usize, waves)
    };
    let mut all = Vec::new();
    if heads <= TILED.0 && dim == TILED.1 {
        let floats = kernels::dsa_indexer::INSTANCES.iter();
        let floats = floats.filter(|i| Some(i.key) == key && i.terms == terms(precision));
        all.extend(floats.map(|i| tiled(i.entry, i.rows, i.keys, i.blocks, i.warps)));
        let int8 = kernels::dsa_indexer_int8::INSTANCES.iter().filter(|_| ty == CacheType::Int8);
        all.extend(int8.map(|i| tiled(i.entry, i.rows, i.keys, i.blocks, i.warps)));
    }
    // Rows of one sequence share keys; a group with rows of several takes these one after the other. A single group waits for keys behind the
    // scores of all its rows, which of int8 takes longer than to load them for each row. Fewer rows where shared memory lets fewer blocks run than
    // registers do.
    let shares = sequences < m && (ty != CacheType::Int8 || m > ALONE_INT8);
    all.sort_by_key(|config| {
        let fits = 2 * (config.entry.smem_bytes() as usize + RESERVED) <= smem_per_sm;
        ((config.rows > 1) != shares, !fits)
    });
    let any = kernels::dsa_indexer_any::INSTANCES.iter().filter(|i| Some(i.key) == key);
    all.extend(any.map(|i| config(i.entry, 1, i.blocks, KEYS * i.warps as usize, 1)));
    all
}

impl IndexerConfig {
    /// The launch for a problem.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if no kernel was built.
    pub fn pick(problem: IndexerProblem) -> Result<Self> {
        let first = candidates(problem).into_iter().next();
        first.ok_or_else(|| {
            Error::unsupported(
                format!(
                    "indexer scores of {} heads of {} with {} keys",
                    problem.heads, problem.dim, problem.ty
                ),
                "no kernel was built for them",
            )
        })
    }

    /// This launch, if it is one for the problem: on any number of blocks of threads.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it is not.
    pub(crate) fn of(self, problem: IndexerProblem) -> Result<Self> {
        let same = |other: &IndexerConfig| (other.entry, other.rows) == (self.entry, self.rows);
        match self.workers > 0 && candidates(problem).iter().any(same) {
            true => Ok(self),
            false => {
                Err(Error::unsupported(format!("indexer scores by {self:?}"), "it is not for these rows"))
            }
        }
    }
}

/// A launch that scores and selects, for few rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelectConfig {
    /// The kernel.
    pub entry: Entry,
    /// Blocks of threads of a row.
    pub parts: u32,
    /// Scores that each of them can hold, and how many of neighbouring keys it takes together.
    pub held: [u32; 2],
}

impl SelectConfig {
    /// The launch that selects `k` keys of each row of a problem, if there is one: for rows of sequences of their own, which share no keys, and so
    /// few and short that blocks that the GPU runs at a time can hold all scores.
    pub fn fitting(problem: IndexerProblem, k: usize) -> Option<Self> {
        let IndexerProblem { m, sequences, visible, heads, dim, ty, precision, sms, smem_per_sm } = problem;
        if m == 0
            || sequences < m
            || visible <= k
            || 2 * k > LIST as usize
            || heads > TILED.0
            || dim != TILED.1
        {
            return None;
        }
        let config = |entry: Entry, held: u32, keys: u32, blocks: u32| {
            let fit = smem_per_sm / (entry.smem_bytes() as usize + RESERVED);
            let resident = sms * fit.clamp(1, blocks as usize);
            let parts = (resident / m).min(MAX_PARTS).min(visible.div_ceil(SELECT_PIECE)) as u32;
            let config = SelectConfig { entry, parts, held: [held, keys] };
            (parts > 0 && config.holds(visible)).then_some(config)
        };
        if ty == CacheType::Int8 {
            let i = kernels::dsa_select_int8::INSTANCES.first()?;
            return config(i.entry, i.held, i.keys, i.blocks);
        }
        let key = match ty {
            CacheType::Bf16 => GgmlType::BF16,
            CacheType::F16 => GgmlType::F16,
            _ => return None,
        };
        let i =
            kernels::dsa_select::INSTANCES.iter().find(|i| i.key == key && i.terms == terms(precision))?;
        config(i.entry, i.held, i.keys, i.blocks)
    }

    /// The same where it is faster than two launches.
    pub fn pick(problem: IndexerProblem, k: usize) -> Option<Self> {
        let IndexerProblem { visible, m, ty, .. } = problem;
        let faster = match ty {
            CacheType::Int8 => visible >= ALONE,
            _ => visible > ALONE && (visible <= SELECT_SHORT || m >= SELECT_ROWS),
        };
        Self::fitting(problem, k).filter(|_| faster)
    }

    /// Whether blocks can hold the scores of so many keys.
    pub(crate) fn holds(&self, visible: usize) -> bool {
        let [held, keys] = self.held.map(|n| n as usize);
        visible.div_ceil(keys).div_ceil(self.parts.max(1) as usize) * keys <= held
    }
}

/// Numbers that a query is the sum of.
fn terms(precision: Precision) -> u32 {
    match precision {
        Precision::Exact => 2,
        Precision::Fast => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_fills_the_gpu_once_and_prompts_share_keys() {
        let h200 = |m, sequences, visible, ty, dim, precision| IndexerProblem {
            m,
            sequences,
            visible,
            heads: 32,
            dim,
            ty,
            precision,
            sms: 132,
            smem_per_sm: 228 << 10,
        };
        use CacheType::*;
        use Precision::*;
        for (m, sequences, visible, ty, dim, precision, name, workers) in [
            (1, 1, 131_072, Bf16, 128, Exact, "dsa_indexer_bf16_t2_r1_k32_b2_w8", 264),
            (1, 1, 4096, F16, 128, Fast, "dsa_indexer_f16_t1_r1_k32_b2_w8", 16),
            (16, 16, 131_072, Bf16, 128, Exact, "dsa_indexer_bf16_t2_r1_k32_b2_w8", 16),
            (4, 1, 131_072, Bf16, 128, Exact, "dsa_indexer_bf16_t2_r4_k32_b2_w8", 264),
            (2048, 1, 131_072, Bf16, 128, Exact, "dsa_indexer_bf16_t2_r4_k32_b2_w8", 2),
            (2048, 1, 131_072, Bf16, 128, Fast, "dsa_indexer_bf16_t1_r8_k32_b2_w8", 3),
            (1, 1, 131_072, Int8, 128, Exact, "dsa_indexer_int8_r1_k32_b2_w8", 264),
            (512, 1, 131_072, Bf16, 128, Exact, "dsa_indexer_bf16_t2_r4_k32_b2_w8", 6),
            (512, 1, 131_072, Bf16, 128, Fast, "dsa_indexer_bf16_t1_r8_k32_b2_w8", 12),
            (2048, 1, 131_072, Int8, 128, Fast, "dsa_indexer_int8_r8_k32_b2_w8", 3),
            (17, 1, 131_072, Int8, 128, Fast, "dsa_indexer_int8_r8_k32_b2_w8", 176),
            (16, 1, 131_072, Int8, 128, Fast, "dsa_indexer_int8_r1_k32_b2_w8", 16),
            (2048, 1, 3000, Bf16, 64, Exact, "dsa_indexer_any_bf16_b3_w4", 1),
            (1, 1, 1, F32, 128, Fast, "dsa_indexer_any_f32_b3_w4", 1),
            (0, 0, 0, F32, 128, Exact, "dsa_indexer_any_f32_b3_w4", 1),
        ] {
            let problem = h200(m, sequences, visible, ty, dim, precision);
            let config = IndexerConfig::pick(problem).unwrap();
            assert_eq!((config.entry.name(), config.workers), (name, workers), "{problem:?}");
        }
        assert_eq!(candidates(h200(4, 1, 100, Bf16, 128, Exact)).len(), 4);
        for (precision, rows) in [(Exact, 2), (Fast, 4)] {
            let sm120 = IndexerProblem { smem_per_sm: 100 << 10, ..h200(64, 1, 5000, Bf16, 128, precision) };
            assert_eq!(candidates(sm120).first().map(|config| config.rows), Some(rows));
        }
        let many = IndexerProblem { heads: 33, ..h200(1, 1, 100, Int8, 128, Exact) };
        assert!(matches!(IndexerConfig::pick(many), Err(Error::Unsupported { .. })));
    }

    #[test]
    fn few_rows_of_their_own_are_selected_at_once() {
        let h200 = |m, sequences, visible, ty, precision| IndexerProblem {
            m,
            sequences,
            visible,
            heads: 32,
            dim: 128,
            ty,
            precision,
            sms: 132,
            smem_per_sm: 228 << 10,
        };
        use CacheType::*;
        use Precision::*;
        let (exact, fast) = ("dsa_select_bf16_t2_h16384_k32_b1_w16", "dsa_select_f16_t1_h16384_k32_b1_w16");
        let int8 = "dsa_select_int8_h16384_k32_b1_w16";
        for (problem, chosen) in [
            (h200(1, 1, 32_768, Bf16, Exact), Some((exact, 64))),
            (h200(1, 1, 8193, F16, Fast), Some((fast, 17))),
            (h200(1, 1, 8192, F16, Fast), None), // two launches are faster
            (h200(3, 3, 65_536, Int8, Exact), Some((int8, 44))),
            (h200(1, 1, 8192, Int8, Exact), Some((int8, 16))),
            (h200(1, 1, 8191, Int8, Exact), None), // two launches are faster
            (h200(3, 3, 32_769, Bf16, Exact), None), // two launches are faster
            (h200(4, 4, 32_769, Bf16, Exact), Some((exact, 33))),
            (h200(16, 16, 131_072, Bf16, Exact), Some((exact, 8))),
            (h200(1, 1, 131_072, Bf16, Exact), None), // two launches are faster
            (h200(16, 16, 131_073, Bf16, Exact), None), // more scores than blocks hold
            (h200(133, 133, 9000, Bf16, Exact), None),
            (h200(2, 1, 9000, Bf16, Exact), None), // rows share keys
            (h200(1, 1, 2048, Bf16, Exact), None), // all are selected
            (h200(1, 1, 9000, F32, Exact), None),
            (h200(0, 0, 0, Bf16, Exact), None),
        ] {
            let config = SelectConfig::pick(problem, 2048);
            assert_eq!(config.map(|config| (config.entry.name(), config.parts)), chosen, "{problem:?}");
        }
        assert!(SelectConfig::fitting(h200(1, 1, 1 << 20, Bf16, Exact), 2048).is_some());
        assert!(SelectConfig::fitting(h200(1, 1, 32_768, Bf16, Exact), 4097).is_none());
    }
}
