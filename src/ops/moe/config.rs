//! Which kernels multiply experts in blocks, and on how many blocks of threads.

use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::quant::GgmlType;

/// Tokens up to which tiles have one place: most experts have one token then, or none.
const SINGLE_TOKENS: usize = 2;

/// Places of a tile of the routing of `m` tokens.
pub fn tile_height(m: usize) -> usize {
    if m <= SINGLE_TOKENS { 1 } else { 8 }
}

/// A launch: one block of threads for `rows` outputs of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DotConfig {
    /// The kernel.
    pub entry: Entry,
    /// Outputs per block of threads.
    pub rows: u32,
    /// Blocks of threads.
    pub grid: u32,
}

impl DotConfig {
    /// For `tiles` tiles of at most `height` places at most, by experts of `n` outputs in blocks of type `ty`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no kernel for the type; [`Error::Capacity`] for more than a grid has.
    pub fn pick(ty: GgmlType, tiles: usize, height: usize, n: usize) -> Result<Self> {
        let found = kernels::moe_dot::INSTANCES.iter().find(|i| i.ty == ty && i.tokens as usize >= height);
        let none = || Error::unsupported(format!("experts of {ty}"), "no kernel was built for them");
        let found = found.ok_or_else(none)?;
        let blocks = tiles.saturating_mul(n.div_ceil(found.rows as usize));
        let what = || Error::Capacity {
            what: "blocks of a grid".into(),
            needed: blocks as u64,
            available: i32::MAX as u64,
        };
        // Numbers of blocks of threads are also numbers of rows and tiles, of 32 bits.
        let grid = i32::try_from(blocks).map_err(|_| what())?.unsigned_abs();
        Ok(DotConfig { entry: found.entry, rows: found.rows, grid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_supported_type_has_kernels_for_any_height() {
        for ty in GgmlType::ALL.iter().copied().filter(|ty| crate::quant::is_supported(*ty)) {
            for (m, tokens) in [(1, "_t1_"), (2, "_t1_"), (3, "_t8_"), (8192, "_t8_")] {
                let config = DotConfig::pick(ty, 10, tile_height(m), 33).unwrap();
                assert!(config.entry.name().contains(tokens), "{}", config.entry.name());
                assert_eq!(config.grid, 10 * 33u32.div_ceil(config.rows));
            }
        }
        assert!(matches!(DotConfig::pick(GgmlType::Q8_K, 1, 1, 1), Err(Error::Unsupported { .. })));
        assert!(matches!(DotConfig::pick(GgmlType::Q4_K, 1, 9, 1), Err(Error::Unsupported { .. })));
        let many = DotConfig::pick(GgmlType::Q4_K, usize::MAX, 8, 2048);
        assert!(matches!(many, Err(Error::Capacity { .. })), "{many:?}");
    }
}
