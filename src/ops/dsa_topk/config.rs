//! Which kernel selects, and how many blocks of threads share a row.

use std::mem::offset_of;

use crate::cuda::Properties;
use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::sys::dsa_topk_row;

/// Blocks of threads that can share a row (`TOPK_PARTS` of `cuda/include/params/dsa_topk.h`).
pub const MAX_PARTS: usize = 128;

/// Scores that the blocks of a row can list for each other (`TOPK_LIST`).
pub(crate) const LIST: u32 = 8192;
const _: () = assert!(offset_of!(dsa_topk_row, places) - offset_of!(dsa_topk_row, keys) == 4 * LIST as usize);

/// Scores of a row for each block of threads, where there are blocks enough.
const PIECE: usize = 2048;

/// Scores that one block selects from as quickly as several that meet.
pub(crate) const ALONE: usize = 8192;

/// Blocks of a row that are worth their meeting even if their pieces do not fit shared memory.
const MANY_PARTS: usize = 4;

/// Shared memory that an SM keeps for itself, for each block of threads.
const RESERVED: usize = 1 << 10;

/// Rows on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopkProblem {
    /// Rows.
    pub m: usize,
    /// Scores of each.
    pub n: usize,
    /// Streaming multiprocessors.
    pub sms: usize,
    /// Bytes of shared memory of each.
    pub smem_per_sm: usize,
}

impl TopkProblem {
    /// `m` rows of `n` scores on such a GPU.
    pub fn new(m: usize, n: usize, gpu: &Properties) -> Self {
        TopkProblem { m, n, sms: gpu.sms as usize, smem_per_sm: gpu.smem_per_sm as usize }
    }
}

/// A launch that selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopkConfig {
    /// The kernel.
    pub entry: Entry,
    /// Blocks of threads of a row.
    pub parts: u32,
}

/// All launches that could select, the one that is chosen first.
pub fn candidates(problem: TopkProblem) -> Vec<TopkConfig> {
    let TopkProblem { m, n, sms, smem_per_sm } = problem;
    let instances = || kernels::dsa_topk::INSTANCES.iter();
    let mut all: Vec<_> =
        instances().filter(|i| i.found > 0).map(|i| TopkConfig { entry: i.entry, parts: 1 }).collect();
    for i in instances().filter(|i| i.held > 0) {
        let held = i.held as usize;
        // Blocks that meet should be on the GPU together.
        let fit = smem_per_sm / (i.entry.smem_bytes() as usize + RESERVED);
        let resident = sms * fit.clamp(1, i.blocks as usize);
        let most = (resident / m.max(1)).clamp(1, MAX_PARTS);
        let parts = match n <= ALONE {
            true => 1,
            false => n.div_ceil(PIECE).min(most),
        };
        let config = |parts: usize| TopkConfig { entry: i.entry, parts: parts as u32 };
        let chosen = m * parts <= resident && (n.div_ceil(parts) <= held || parts >= MANY_PARTS);
        all.insert(if chosen { 0 } else { all.len() }, config(parts));
        all.extend((0..=MAX_PARTS.ilog2()).map(|log| 1 << log).filter(|other| *other != parts).map(config));
    }
    all
}

impl TopkConfig {
    /// How many scores each block of a row can list for the others, and how many it lists at least: six standard deviations more than its
    /// share of the `k`, which is enough if it does not matter where a score stands. Where it is not, blocks go on to count together.
    pub(crate) fn listed(parts: u32, k: u32) -> (u32, u32) {
        let (most, share) = (LIST / parts.max(1), k.div_ceil(parts.max(1)));
        let want = most.min(share.saturating_add(6 * share.isqrt() + 1));
        (most, want)
    }

    /// The launch for a problem.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if no kernel was built.
    pub fn pick(problem: TopkProblem) -> Result<Self> {
        let first = candidates(problem).into_iter().next();
        first.ok_or_else(|| Error::unsupported("top_k", "no kernel was built for it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_rows_are_shared_as_long_as_all_blocks_are_there_together() {
        let h200 = |m, n| TopkProblem { m, n, sms: 132, smem_per_sm: 228 << 10 };
        let (held, found) = ("dsa_topk_h16384_f0_b1_w16", "dsa_topk_h0_f8192_b2_w16");
        for (m, n, name, parts) in [
            (1, 0, held, 1),
            (1, 8192, held, 1),
            (512, 8192, found, 1),
            (1, 32_768, held, 16),
            (1, 131_072, held, 64),
            (1, 204_800, held, 100),
            (1, 1 << 20, held, 128),
            (2, 3 << 20, held, 66),
            (16, 131_072, held, 8),
            (33, 131_072, held, 4),
            (34, 131_072, found, 1),
            (512, 131_072, found, 1),
        ] {
            let config = TopkConfig::pick(h200(m, n)).unwrap();
            assert_eq!((config.entry.name(), config.parts), (name, parts), "{m} rows of {n}");
            assert!(parts == 1 || m * parts as usize <= 132);
            let all = candidates(h200(m, n));
            assert!(all.len() == 9 || all.len() == 10);
            assert!(all.iter().enumerate().all(|(i, a)| !all[..i].contains(a)), "{all:?}");
        }
        // Of 2048, blocks list their share and six times its root more, with some room.
        assert_eq!(TopkConfig::listed(64, 2048), (128, 63));
        assert_eq!(TopkConfig::listed(1, 2048), (8192, 2319));
        assert_eq!(TopkConfig::listed(128, 9000), (64, 64));
        // An sm_120 with room for one block of threads on an SM.
        let small = TopkProblem { m: 1, n: 204_800, sms: 3, smem_per_sm: 100 << 10 };
        assert_eq!(TopkConfig::pick(small).unwrap().entry.name(), "dsa_topk_h0_f8192_b2_w16");
    }
}
