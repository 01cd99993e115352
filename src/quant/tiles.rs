//! Weights in tiles of 16 rows and 256 columns, in the order in which matrix instructions take them: the layout of
//! `cuda/include/params/tiles.h`, told here once more in plain loops over bits. Kernels repack on the device; this is what they are
//! held to, and the way back.
//!
//! A tile has the bytes of the blocks that it holds. What is behind the end of a matrix is zeros.

use super::{GgmlType, Weight};
use crate::error::{Error, Result};

/// Rows of a tile.
pub const TILE_ROWS: usize = 16;

/// Columns of a tile.
pub const TILE_COLS: usize = 256;

/// Types that have tiles.
pub const TYPES: [GgmlType; 5] =
    [GgmlType::Q5_0, GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::Q5_K, GgmlType::Q6_K];

/// Bytes of a tile; `None` if the type has no tiles.
pub fn tile_bytes(ty: GgmlType) -> Option<usize> {
    TYPES.contains(&ty).then(|| TILE_ROWS * TILE_COLS / ty.block_elems() * ty.block_bytes())
}

/// Tiles of a matrix `[n, k]`: `[n / 16, k / 256]`, rounded up.
pub fn tiles(n: usize, k: usize) -> [usize; 2] {
    [n.div_ceil(TILE_ROWS), k.div_ceil(TILE_COLS)]
}

/// The tiles of a stack of matrices, slab after slab.
///
/// # Errors
/// [`Error::Unsupported`] for types without tiles.
pub fn pack(w: &Weight) -> Result<Vec<u8>> {
    let [row_tiles, k_tiles] = tiles(w.rows(), w.cols());
    let size = supported(w.ty())?;
    let mut out = vec![0; w.slabs() * row_tiles * k_tiles * size];
    for (place, bit) in places(w.ty(), [w.slabs(), w.rows(), w.cols()]) {
        let from = w.bytes()[place / 8] >> (place % 8) & 1;
        out[bit / 8] |= from << (bit % 8);
    }
    Ok(out)
}

/// The blocks that [`pack`] made the tiles from.
///
/// # Errors
/// [`Error::Unsupported`] for types without tiles, [`Error::Shape`] if the size is not that of the tiles of `shape`.
pub fn unpack(ty: GgmlType, shape: [usize; 3], tiles_bytes: &[u8]) -> Result<Vec<u8>> {
    let size = supported(ty)?;
    let [slabs, n, k] = shape;
    let [row_tiles, k_tiles] = tiles(n, k);
    if tiles_bytes.len() != slabs * row_tiles * k_tiles * size {
        return Err(Error::shape(
            "unpack",
            format!("tiles of {ty} {shape:?}"),
            format!("{} bytes", tiles_bytes.len()),
        ));
    }
    let mut out = vec![0; slabs * n * k / ty.block_elems() * ty.block_bytes()];
    for (place, bit) in places(ty, shape) {
        out[place / 8] |= (tiles_bytes[bit / 8] >> (bit % 8) & 1) << (place % 8);
    }
    Ok(out)
}

/// [`tile_bytes`] of a type that has tiles.
pub(crate) fn supported(ty: GgmlType) -> Result<usize> {
    tile_bytes(ty)
        .ok_or_else(|| Error::unsupported(format!("tiles of {ty}"), format!("only {TYPES:?} have them")))
}

/// For every bit of the blocks of a stack where it is there and where in the tiles.
fn places(ty: GgmlType, [slabs, n, k]: [usize; 3]) -> impl Iterator<Item = (usize, usize)> {
    let [row_tiles, k_tiles] = tiles(n, k);
    let tile_bits = 8 * tile_bytes(ty).unwrap_or(0);
    let (elems, block_bits) = (ty.block_elems(), 8 * ty.block_bytes());
    (0..slabs * n * (k / elems)).flat_map(move |block| {
        let (row, b) = (block / (k / elems), block % (k / elems));
        let (slab, row) = (row / n, row % n);
        let col = b * elems;
        let tile = (slab * row_tiles + row / TILE_ROWS) * k_tiles + col / TILE_COLS;
        (0..block_bits).map(move |bit| {
            (
                block * block_bits + bit,
                tile * tile_bits + bit_in_tile(ty, row % TILE_ROWS, col % TILE_COLS, bit),
            )
        })
    })
}

/// Where in its tile bit `bit` of a block is, that begins in row `row`, column `col`.
fn bit_in_tile(ty: GgmlType, row: usize, col: usize, bit: usize) -> usize {
    let (byte, in_byte) = (bit / 8, bit % 8);
    // Word of the lane that has columns `c` to c + 3 of a group of 32, and the register that they are.
    let lane = |c: usize| row % 8 * 4 + c % 16 / 4;
    let register = |c: usize| row / 8 + c / 16 * 2;
    // A nibble of byte l of the low bits of columns 64 i + l and 64 i + l + 32.
    let nibbles = |i: usize, l: usize| 8 * (((i * 32 + lane(l)) * 4 + register(l)) * 4 + l % 4);
    // The fifth bit of column 32 j + l.
    let fifth = |j: usize, l: usize| {
        8 * (4 * 32 * 16 + (j / 2 * 32 + lane(l)) * 4 + l % 4) + 4 * (j % 2) + register(l)
    };
    let (qs, heads) = (4 * 32 * 16, |planes: usize, bytes: usize| 8 * (planes + row * bytes));
    match ty {
        GgmlType::Q4_K => match byte {
            0..16 => heads(qs, 16) + bit,
            _ => nibbles((byte - 16) / 32, (byte - 16) % 32) + in_byte,
        },
        GgmlType::Q5_K => match byte {
            0..16 => heads(qs + 512, 16) + bit,
            16..48 => fifth(in_byte, byte - 16),
            _ => nibbles((byte - 48) / 32, (byte - 48) % 32) + in_byte,
        },
        GgmlType::Q6_K => match byte {
            0..128 => {
                // Byte 64 h + 32 a + l: columns 128 h + 32 a + l and, in the upper nibble, 64 further.
                let (h, a, l) = (byte / 64, byte % 64 / 32, byte % 32);
                nibbles(2 * h + in_byte / 4, l) + 4 * a + in_byte % 4
            }
            128..192 => {
                // Byte 32 h + l: two bits each of columns 128 h + l and 32, 64, 96 further.
                let (h, l, quarter) = ((byte - 128) / 32, (byte - 128) % 32, in_byte / 2);
                let word = ((2 * h + quarter / 2) * 32 + lane(l)) * 2 + quarter % 2;
                8 * (qs + word * 4 + l % 4) + 2 * register(l) + in_byte % 2
            }
            192..208 => heads(qs + 1024, 16) + bit - 8 * 192,
            _ => heads(qs + 1024 + 256, 2) + bit - 8 * 208,
        },
        GgmlType::Q5_0 => {
            let j = col / 32;
            match byte {
                0..2 => 8 * (qs + 512 + (row * 8 + j) * 2) + bit,
                2..6 => fifth(j, bit - 16),
                _ => nibbles(j / 2, byte - 6 + in_byte / 4 * 16) + 4 * (j % 2) + in_byte % 4,
            }
        }
        _ => {
            let j = col / 32;
            match byte {
                0..2 => 8 * (8 * 32 * 16 + (row * 8 + j) * 2) + bit,
                _ => nibbles(j, byte - 2) + in_byte,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(ty: GgmlType, shape: [usize; 3]) -> Weight {
        let bytes: usize = shape.iter().product::<usize>() / ty.block_elems() * ty.block_bytes();
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        Weight::new(ty, shape, (0..bytes).map(|_| next()).collect::<Vec<_>>().into()).unwrap()
    }

    #[test]
    fn tiles_hold_every_bit_once() {
        for ty in TYPES {
            for shape in [[1, 16, 256], [2, 17, 512], [1, 3, 256]] {
                let w = weight(ty, shape);
                let packed = pack(&w).unwrap();
                let [row_tiles, k_tiles] = tiles(shape[1], shape[2]);
                assert_eq!(packed.len(), shape[0] * row_tiles * k_tiles * tile_bytes(ty).unwrap());
                assert_eq!(unpack(ty, shape, &packed).unwrap(), w.bytes()[..], "{ty} {shape:?}");
                let ones = |bytes: &[u8]| bytes.iter().map(|b| b.count_ones()).sum::<u32>();
                assert_eq!(ones(&packed), ones(w.bytes()), "{ty} {shape:?}");
            }
        }
        for ty in [GgmlType::Q5_0, GgmlType::Q8_0] {
            let w = weight(ty, [1, 5, 96]);
            assert_eq!(unpack(ty, [1, 5, 96], &pack(&w).unwrap()).unwrap(), w.bytes()[..]);
        }
    }

    #[test]
    fn other_types_and_sizes_are_refused() {
        let w = Weight::from_f32([1, 2, 32], &[0.0; 64]).unwrap();
        assert!(matches!(pack(&w), Err(Error::Unsupported { .. })));
        assert!(matches!(unpack(GgmlType::Q4_K, [1, 16, 256], &[0; 2303]), Err(Error::Shape { .. })));
    }
}
