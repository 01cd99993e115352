//! Which kernel sorts, and on how many blocks.

use crate::error::{Error, Result};
use crate::kernels::{self, Entry};

/// Experts of a stack, at most (`MOE_EXPERTS` of `cuda/include/params/moe_sort.h`).
pub const MAX_EXPERTS: usize = 512;

/// Pairs, at most.
pub const MAX_PAIRS: usize = (1 << 23) - 1;

/// A launch that sorts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SortConfig {
    /// The kernel.
    pub entry: Entry,
    /// Blocks of threads.
    pub grid: u32,
}

/// Pairs up to which one block of threads is faster than several. Measured on an H200: 512 pairs 3.9 us and 5.1, 4096 12 us and 5.7.
const FEW_PAIRS: usize = 1024;

/// All kernels that could sort so many pairs, the one that is chosen first.
pub fn candidates(pairs: usize, n_experts: usize) -> Vec<SortConfig> {
    let few = kernels::moe_sort_few::INSTANCES
        .iter()
        .find(|i| n_experts <= i.experts as usize)
        .filter(|i| pairs <= (32 * i.steps * i.warps) as usize)
        .map(|i| SortConfig { entry: i.entry, grid: 1 });
    let many = kernels::moe_sort::INSTANCES
        .iter()
        .find(|i| n_experts <= i.experts as usize)
        .map(|i| SortConfig { entry: i.entry, grid: n_experts.div_ceil(i.own as usize) as u32 });
    let mut all: Vec<_> = few.into_iter().chain(many).collect();
    if pairs > FEW_PAIRS {
        all.reverse();
    }
    all
}

impl SortConfig {
    /// The kernel for so many pairs, or the one that was asked for.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is none, or that one has no room.
    pub fn pick(pairs: usize, n_experts: usize, kernel: Option<Entry>) -> Result<Self> {
        let mut all = candidates(pairs, n_experts).into_iter();
        let none =
            || Error::unsupported(format!("{pairs} pairs of {n_experts} experts"), "no kernel has room");
        all.find(|config| kernel.is_none_or(|kernel| kernel == config.entry)).ok_or_else(none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_pairs_are_for_one_block_of_threads() {
        let pick = |pairs, experts| SortConfig::pick(pairs, experts, None).unwrap();
        for (pairs, experts, name, grid) in [
            (0, 1, "moe_sort_few_e256_s8_b1_w32", 1),
            (1024, 256, "moe_sort_few_e256_s8_b1_w32", 1),
            (1024, 257, "moe_sort_few_e512_s8_b1_w32", 1),
            (1025, 256, "moe_sort_e256_o4_b1_w32", 64),
            (MAX_PAIRS, 511, "moe_sort_e512_o4_b1_w32", 128),
        ] {
            let config = pick(pairs, experts);
            assert_eq!((config.entry.name(), config.grid), (name, grid));
        }
        assert_eq!(candidates(64, 8).len(), 2);
        let few = pick(0, 1).entry;
        for (pairs, experts, kernel) in [(1, 513, None), (8193, 8, Some(few)), (8, 300, Some(few))] {
            let refused = SortConfig::pick(pairs, experts, kernel);
            assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
        }
    }
}
