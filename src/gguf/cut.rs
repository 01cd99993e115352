//! The part of a weight that one rank of several needs: rows, columns or slabs, never a part of a quant block.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::quant::{GgmlType, SharedBytes, Weight};

/// Which of `size` equal parts: `rank` counts from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// This part, below `size`.
    pub rank: usize,
    /// Number of parts, 1 or more.
    pub size: usize,
}

impl Shard {
    /// Everything: one rank of one.
    pub const WHOLE: Shard = Shard { rank: 0, size: 1 };

    /// Rank `rank` of `size`.
    ///
    /// # Errors
    /// [`Error::Argument`] unless `rank < size`.
    pub fn new(rank: usize, size: usize) -> Result<Self> {
        match rank < size {
            true => Ok(Shard { rank, size }),
            false => Err(Error::argument("rank", format!("less than the {size} ranks"), rank)),
        }
    }
}

/// Along which extent a weight is divided among ranks. `unit` is the number of rows or columns that stay together: the
/// width of a head, or 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Every rank gets the whole weight.
    None,
    /// Output rows (`ne1`), of each slab.
    Rows {
        /// Rows that stay together.
        unit: usize,
    },
    /// Input columns (`ne0`), of each row. Parts must be whole quant blocks.
    Cols {
        /// Columns that stay together.
        unit: usize,
    },
    /// Matrices of the stack (`ne2`): heads or experts.
    Slabs,
}

impl Cut {
    /// Name, extent and unit of the axis that is divided, and how many runs along it the weight consists of: each run
    /// holds all parts, one after another.
    fn axis(self, [slabs, rows, cols]: [usize; 3]) -> Option<(&'static str, usize, usize, usize)> {
        match self {
            Cut::None => None,
            Cut::Slabs => Some(("slabs", slabs, 1, 1)),
            Cut::Rows { unit } => Some(("rows", rows, unit, slabs)),
            Cut::Cols { unit } => Some(("columns", cols, unit, slabs * rows)),
        }
    }
}

/// Shape of each part of the weight `[slabs, rows, cols]` of type `ty`; the error says why the cut is illegal.
pub(super) fn part(
    ty: GgmlType,
    [slabs, rows, cols]: [usize; 3],
    cut: Cut,
    Shard { size, .. }: Shard,
) -> Result<[usize; 3], String> {
    let Some((what, extent, unit, _)) = cut.axis([slabs, rows, cols]).filter(|_| size > 1) else {
        return Ok([slabs, rows, cols]);
    };
    let illegal =
        |why: String| Err(format!("{extent} {what} of {ty} cannot be cut into {size} parts: {why}"));
    match size.checked_mul(unit) {
        Some(step) if step > 0 && extent.is_multiple_of(step) => {}
        _ if unit == 1 => return illegal(format!("{extent} is not a multiple of {size}")),
        _ => return illegal(format!("parts must be multiples of {unit} {what}")),
    }
    let part = extent / size;
    let shape = match cut {
        Cut::Slabs => [part, rows, cols],
        Cut::Rows { .. } => [slabs, part, cols],
        _ => [slabs, rows, part],
    };
    if ty.row_bytes(shape[2] as u64).is_none() {
        let block = ty.block_elems();
        return illegal(format!("{part} columns are not whole blocks of {block}, and blocks are never cut"));
    }
    Ok(shape)
}

/// Shard `shard` of the weight `[slabs, rows, cols]` of type `ty` in `bytes`. Parts that are contiguous share the bytes,
/// others are copied. The error says why the cut is illegal.
pub(super) fn cut(
    ty: GgmlType,
    whole: [usize; 3],
    bytes: SharedBytes,
    cut: Cut,
    shard: Shard,
) -> Result<Weight, String> {
    let weight = |shape, bytes| Weight::new(ty, shape, bytes).map_err(|e| e.to_string());
    let shape = part(ty, whole, cut, shard)?;
    let Shard { rank, size } = shard;
    let Some((.., outer)) = cut.axis(whole).filter(|_| size > 1) else {
        return weight(shape, bytes);
    };
    // All parts have the same size, so it follows from that of the whole.
    let run = bytes.len().checked_div(outer).unwrap_or(0);
    let size_of_part = run / size;
    let own = |i: usize| -> Range<usize> {
        let start = i * run + rank * size_of_part;
        start..start + size_of_part
    };
    if size_of_part == 0 {
        return weight(shape, Vec::new().into()); // an extent is 0; the others may be astronomical
    }
    if outer == 1 {
        return weight(shape, bytes.slice(own(0)).map_err(|e| e.to_string())?);
    }
    let mut copy = Vec::with_capacity(outer * size_of_part);
    (0..outer).for_each(|i| copy.extend_from_slice(&bytes[own(i)]));
    weight(shape, copy.into())
}
