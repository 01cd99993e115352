//! Inputs and checks whose cost does not grow with the shape. Drawing and checking every value of a large matrix on the host
//! would take ten times as long as the measurement: few rows differ, and of many results some are compared.

use std::ops::Range;

use bytemuck::Pod;
use glm5::cuda::Buffer;
use glm5::tensor::{Device, Element, Tensor};

/// Rows that differ; the others repeat them. A prime: rows mixed up by a power of two show.
pub const DISTINCT: usize = 61;

/// Rows of a large result that are compared at a time, and how many times.
const PIECE: usize = 64;
const PIECES: usize = 16;

/// `len` values: `few` over and over.
pub fn repeated<T: Copy>(few: &[T], len: usize) -> Vec<T> {
    let mut all = few.repeat(len.div_ceil(few.len()));
    all.truncate(len);
    all
}

/// `[rows, cols]`: the rows `few` over and over, repeated on the device.
pub fn tiled<T: Element>(device: &Device, few: &[T], rows: usize, cols: usize) -> Tensor<T> {
    let some = Tensor::from_vec(device, few.len() / cols, cols, few.to_vec()).unwrap();
    let mut all = Tensor::zeros(device, rows, cols).unwrap();
    for start in (0..rows).step_by(DISTINCT) {
        let n = DISTINCT.min(rows - start) * cols;
        all.cuda_mut().unwrap().copy_from(start * cols, some.cuda().unwrap(), 0..n).unwrap();
    }
    all
}

/// The rows that are compared: all, or pieces at even distances, the first and the last included.
fn compared(rows: usize) -> impl Iterator<Item = Range<usize>> {
    let (piece, pieces) = if rows <= PIECE * PIECES { (rows, 1) } else { (PIECE, PIECES) };
    (0..pieces).map(move |i| {
        let start = (rows - piece) * i / (pieces - 1).max(1);
        start..start + piece
    })
}

/// From the device, those of `rows` rows that are compared, one after the other.
pub fn results<T: Pod>(buffer: &Buffer<T>, rows: usize) -> Vec<T> {
    let cols = buffer.len() / rows;
    let pieces = compared(rows).map(|r| buffer.to_vec(r.start * cols..r.end * cols).unwrap());
    pieces.collect::<Vec<_>>().concat()
}

/// What [`results`] must be if `few` are the results of the rows that differ.
pub fn expected<T: Copy>(few: &[T], rows: usize, cols: usize) -> Vec<T> {
    let wanted = compared(rows).flatten().map(|r| &few[r % DISTINCT * cols..][..cols]);
    wanted.collect::<Vec<_>>().concat()
}
