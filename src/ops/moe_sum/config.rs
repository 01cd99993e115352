//! Which kernel adds up, and on how many blocks.

use crate::error::{Error, Result};
use crate::kernels::{self, Entry};

/// A launch that adds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SumConfig {
    /// The kernel.
    pub entry: Entry,
    /// Blocks of threads.
    pub grid: u32,
}

impl SumConfig {
    /// For `m` tokens of `hidden` columns.
    ///
    /// # Errors
    /// [`Error::Capacity`] for more than a grid has.
    pub fn pick(m: usize, hidden: usize) -> Result<Self> {
        let load = if hidden.is_multiple_of(4) { 4 } else { 1 };
        let found = kernels::moe_sum::INSTANCES.iter().find(|i| i.load == load);
        let found = found.ok_or_else(|| Error::unsupported("moe_sum", "no kernel was built for it"))?;
        let cols = (32 * found.warps * found.load) as usize;
        let blocks = m.saturating_mul(hidden.div_ceil(cols));
        let what = || Error::Capacity {
            what: "blocks of a grid".into(),
            needed: blocks as u64,
            available: u32::MAX.into(),
        };
        Ok(SumConfig { entry: found.entry, grid: u32::try_from(blocks).map_err(|_| what())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_covered_once() {
        for (m, hidden, name, grid) in [
            (1, 6144, "moe_sum_l4_s8_b4_w8", 6),
            (512, 6144, "moe_sum_l4_s8_b4_w8", 3072),
            (3, 1028, "moe_sum_l4_s8_b4_w8", 6),
            (3, 257, "moe_sum_l1_s8_b4_w8", 6),
            (0, 6144, "moe_sum_l4_s8_b4_w8", 0),
        ] {
            let config = SumConfig::pick(m, hidden).unwrap();
            assert_eq!((config.entry.name(), config.grid), (name, grid));
        }
        assert!(matches!(SumConfig::pick(usize::MAX, 8), Err(Error::Capacity { .. })));
    }
}
