//! Which kernel dequantizes, and on how many blocks.

use std::fmt;

use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::quant::GgmlType;

/// A launch: one block of threads per tile of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DequantizeConfig {
    /// The kernel.
    pub entry: Entry,
    /// Values per block of threads.
    pub tile: u32,
    /// Blocks of threads.
    pub grid: u32,
}

impl DequantizeConfig {
    /// For `n` values of type `ty` to values of type `out`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no kernel for the types, [`Error::Capacity`] for more values than a grid has.
    pub fn pick(ty: GgmlType, out: GgmlType, n: usize) -> Result<Self> {
        let instance = kernels::dequantize::INSTANCES.iter().find(|i| i.ty == ty && i.out == out);
        let instance = instance.ok_or_else(|| no_instance("dequantize", ty, out))?;
        Ok(DequantizeConfig {
            entry: instance.entry,
            tile: instance.tile,
            grid: blocks(n, 1, instance.tile)?,
        })
    }

    /// For `rows` rows of `cols` values each, of a table of type `ty`.
    ///
    /// # Errors
    /// As [`DequantizeConfig::pick`].
    pub fn pick_rows(ty: GgmlType, out: GgmlType, rows: usize, cols: usize) -> Result<Self> {
        let instance = kernels::embed::INSTANCES.iter().find(|i| i.ty == ty && i.out == out);
        let instance = instance.ok_or_else(|| no_instance("embed", ty, out))?;
        let grid = blocks(cols, rows, instance.tile)?;
        Ok(DequantizeConfig { entry: instance.entry, tile: instance.tile, grid })
    }
}

fn no_instance(what: &str, ty: GgmlType, out: GgmlType) -> Error {
    Error::unsupported(format!("{what} of {ty} to {out}"), "no kernel was built for it")
}

fn blocks(n: usize, rows: usize, tile: u32) -> Result<u32> {
    let blocks = n.div_ceil(tile as usize).saturating_mul(rows);
    u32::try_from(blocks).map_err(|_| Error::Capacity {
        what: "blocks of a grid".into(),
        needed: blocks as u64,
        available: u32::MAX.into(),
    })
}

impl fmt::Display for DequantizeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {} blocks", self.entry, self.grid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_supported_type_has_a_kernel() {
        let supported = GgmlType::ALL.iter().copied().filter(|ty| crate::quant::is_supported(*ty));
        let outs = [GgmlType::F32, GgmlType::F16, GgmlType::BF16];
        let mut n = 0;
        for ty in supported {
            for out in outs {
                let config = DequantizeConfig::pick(ty, out, 1).unwrap();
                assert_eq!((config.grid, config.entry.family()), (1, "dequantize"), "{ty} {out}");
                assert!(config.tile.is_multiple_of(256));
                let rows = DequantizeConfig::pick_rows(ty, out, 3, 1);
                assert_eq!(rows.is_ok(), out != GgmlType::F16, "{ty} {out}");
                n += 1;
            }
        }
        assert_eq!(n, 23 * 3);
        assert!(DequantizeConfig::pick(GgmlType::Q8_K, GgmlType::F32, 1).is_err());
    }

    #[test]
    fn tiles_cover_all_values() {
        let pick = |n| DequantizeConfig::pick(GgmlType::Q4_K, GgmlType::BF16, n).unwrap();
        let tile = pick(1).tile as usize;
        assert_eq!([pick(0), pick(tile), pick(tile + 1), pick(5 * tile)].map(|c| c.grid), [0, 1, 2, 5]);
        assert_eq!(pick(3 * tile).to_string(), "dequantize_q4_k_bf16_t4096_w4 on 3 blocks");
        let rows = DequantizeConfig::pick_rows(GgmlType::Q6_K, GgmlType::F32, 7, 6144).unwrap();
        assert_eq!(rows.grid, 7 * 6144 / rows.tile);
        let many = DequantizeConfig::pick(GgmlType::F32, GgmlType::F32, usize::MAX);
        assert!(matches!(many, Err(Error::Capacity { .. })));
    }
}
