//! Which kernel rotates, and on how many blocks.

use crate::error::{Error, Result};
use crate::kernels::{self, Entry};

/// Pairs of a rotated part for which a GPU computes angles, at most (`ROPE_PAIRS` of `cuda/include/params/rope.h`).
pub const MAX_PAIRS: usize = 64;

/// A launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RopeConfig {
    /// The kernel.
    pub entry: Entry,
    /// Blocks of threads.
    pub grid: u32,
}

impl RopeConfig {
    /// For `m` rows of `heads` heads with `pairs` pairs each; `aligned` if two pairs can be loaded at once, wherever they are.
    ///
    /// # Errors
    /// [`Error::Capacity`] for more than a grid has.
    pub fn pick(m: usize, heads: usize, pairs: usize, aligned: bool) -> Result<Self> {
        let wanted = if aligned { 2 } else { 1 };
        let found = kernels::rope::INSTANCES.iter().find(|i| i.pairs == wanted);
        let found = found.ok_or_else(|| Error::unsupported("rope", "no kernel was built for it"))?;
        let of_row = heads.saturating_mul(pairs / wanted as usize);
        Self::new(found.entry, m.saturating_mul(of_row.div_ceil(32 * found.warps as usize)))
    }

    /// For the angles of `m` positions.
    ///
    /// # Errors
    /// As [`RopeConfig::pick`].
    pub fn pick_angles(m: usize) -> Result<Self> {
        let found = &kernels::rope_angles::INSTANCES[0];
        Self::new(found.entry, m.div_ceil(found.warps as usize))
    }

    fn new(entry: Entry, blocks: usize) -> Result<Self> {
        let what = || Error::Capacity {
            what: "blocks of a grid".into(),
            needed: blocks as u64,
            available: u32::MAX.into(),
        };
        Ok(RopeConfig { entry, grid: u32::try_from(blocks).map_err(|_| what())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_covered_once() {
        for (m, heads, pairs, aligned, name, grid) in [
            (1, 64, 32, true, "rope_p2_w4", 8),
            (2, 96, 32, true, "rope_p2_w4", 24),
            (3, 1, 3, false, "rope_p1_w4", 3),
            (1, 5, 32, false, "rope_p1_w4", 2),
            (0, 64, 32, true, "rope_p2_w4", 0),
        ] {
            let config = RopeConfig::pick(m, heads, pairs, aligned).unwrap();
            assert_eq!((config.entry.name(), config.grid), (name, grid));
        }
        assert_eq!(RopeConfig::pick_angles(9).unwrap().grid, 3);
        assert!(matches!(RopeConfig::pick(usize::MAX, 64, 32, true), Err(Error::Capacity { .. })));
    }
}
