//! Which kernel it is, and on how many blocks.

use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::tensor::TILE_TOKENS;

/// Widths of the rows that are worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PostAProblem {
    /// Rows.
    pub m: usize,
    /// Columns of the latent queries.
    pub q_cols: usize,
    /// Whether these are rounded, in tiles.
    pub tiles: bool,
    /// Columns of the latent keys.
    pub latent: usize,
    /// Rotated columns, behind the latent ones and first in the indexer's keys.
    pub rope: usize,
    /// Columns of the indexer's keys, if there are some.
    pub key_cols: Option<usize>,
}

/// A launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PostAConfig {
    /// The kernel.
    pub entry: Entry,
    /// Blocks of threads of which each has a row of the latent queries; others follow.
    pub q_rows: u32,
    /// Blocks of threads.
    pub grid: u32,
}

/// Columns that a warp has per piece.
const PIECE: usize = 128;

impl PostAConfig {
    /// For these widths.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for widths that no kernel has, [`Error::Capacity`] for more rows than a grid has.
    pub fn pick(problem: PostAProblem) -> Result<Self> {
        let PostAProblem { m, q_cols, tiles, latent, rope, key_cols } = problem;
        let found = &kernels::post_a::INSTANCES[0];
        let most = (found.vecs * found.warps) as usize * PIECE;
        let step = if tiles { 32 } else { 4 };
        let key = key_cols.unwrap_or(PIECE);
        let fours = [latent, rope, key].iter().all(|n| n.is_multiple_of(4));
        let fit = q_cols <= most && latent <= 4 * PIECE && rope <= PIECE.min(key) && key <= PIECE;
        if !(fit && fours && q_cols.is_multiple_of(step)) {
            return Err(Error::unsupported(
                format!("post_a of {problem:?} on a GPU"),
                format!("up to {most}, 512, 128 and 128 columns, in fours, and of tiles whole blocks of 32"),
            ));
        }
        let q_rows = if tiles { m.next_multiple_of(TILE_TOKENS) } else { m };
        let units = if key_cols.is_some() { m.saturating_mul(2) } else { m };
        let grid = q_rows.saturating_add(units.div_ceil(found.warps as usize));
        if u32::try_from(grid).is_err() {
            let what = "blocks of a grid".into();
            return Err(Error::Capacity { what, needed: grid as u64, available: u32::MAX.into() });
        }
        Ok(PostAConfig { entry: found.entry, q_rows: q_rows as u32, grid: grid as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REAL: PostAProblem =
        PostAProblem { m: 1, q_cols: 2048, tiles: true, latent: 512, rope: 64, key_cols: Some(128) };

    #[test]
    fn rows_are_covered_once() {
        for (problem, q_rows, grid) in [
            (REAL, 8, 9),
            (PostAProblem { tiles: false, ..REAL }, 1, 2),
            (PostAProblem { m: 9, ..REAL }, 16, 19),
            (PostAProblem { m: 9, key_cols: None, ..REAL }, 16, 18),
            (PostAProblem { m: 0, ..REAL }, 0, 0),
        ] {
            let config = PostAConfig::pick(problem).unwrap();
            assert_eq!((config.q_rows, config.grid), (q_rows, grid), "{problem:?}");
        }
    }

    #[test]
    fn what_no_kernel_has_is_refused() {
        for problem in [
            PostAProblem { q_cols: 2052, ..REAL },
            PostAProblem { q_cols: 2052, tiles: false, ..REAL },
            PostAProblem { q_cols: 36, ..REAL },
            PostAProblem { latent: 516, ..REAL },
            PostAProblem { latent: 510, ..REAL },
            PostAProblem { rope: 62, ..REAL },
            PostAProblem { rope: 68, key_cols: Some(64), ..REAL },
            PostAProblem { key_cols: Some(132), ..REAL },
        ] {
            assert!(matches!(PostAConfig::pick(problem), Err(Error::Unsupported { .. })), "{problem:?}");
        }
        let huge = PostAProblem { m: usize::MAX - 8, ..REAL };
        assert!(matches!(PostAConfig::pick(huge), Err(Error::Capacity { .. })));
    }
}
