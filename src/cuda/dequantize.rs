//! Launches of dequantize and embed. Shapes were checked by [`crate::ops`].

use std::ops::Range;

use super::{Buffer, Gpu};
use crate::error::{Error, Result};
use crate::ops::dequantize::config::DequantizeConfig;
use crate::sys::{dequantize_params, embed_params};
use crate::tensor::{DeviceWeight, Float};

/// Values of rows `rows` of matrix `slab` of `w` `[slabs, n, k]` to `out` `[rows.len(), k]`.
pub(crate) fn dequantize<T: Float>(
    w: &DeviceWeight,
    shape: [usize; 3],
    slab: usize,
    rows: Range<usize>,
    out: &mut Buffer<T>,
) -> Result<()> {
    let gpu = w.blocks.gpu().with(out)?;
    let [slabs, n_rows, cols] = shape;
    let row_bytes = row_bytes(w, cols)?;
    holds("dequantize", &w.blocks, slabs * n_rows * row_bytes)?;
    let n = rows.len() * cols;
    holds("dequantize", out, n)?;
    let config = DequantizeConfig::pick(w.ty, T::TYPE, n)?;
    let _turn = gpu.turn();
    let params = dequantize_params {
        src: w.blocks.as_ptr().cast(),
        out: out.as_mut_ptr().cast(),
        src_bytes: w.blocks.len() as u64,
        first: ((slab * n_rows + rows.start) * row_bytes) as u64,
        n: n as u64,
    };
    // SAFETY: the rows lie within the blocks, as the caller checked against `shape`, which the blocks fill; `out` has `n`
    // values. Buffers are aligned to 256.
    unsafe { gpu.launch(config.entry, [config.grid, 1, 1], &params) }
}

/// Rows of a table `[1, vocab, hidden]` by the first `n` of `tokens`, to `out` `[n, hidden]`.
pub(crate) fn embed<T: Float>(
    table: &DeviceWeight,
    shape: [usize; 3],
    tokens: &Buffer<u32>,
    n: usize,
    out: &mut Buffer<T>,
) -> Result<()> {
    let gpu: &Gpu = table.blocks.gpu().with(out)?.with(tokens)?;
    let [_, vocab, hidden] = shape;
    holds("embedding", &table.blocks, vocab * row_bytes(table, hidden)?)?;
    holds("embedding", tokens, n)?;
    holds("embedding", out, n * hidden)?;
    let [vocab, hidden_32] = counts(vocab, hidden)?;
    let config = DequantizeConfig::pick_rows(table.ty, T::TYPE, n, hidden)?;
    let _turn = gpu.turn();
    let params = embed_params {
        table: table.blocks.as_ptr().cast(),
        tokens: tokens.as_ptr(),
        out: out.as_mut_ptr().cast(),
        vocab,
        hidden: hidden_32,
    };
    // SAFETY: table, tokens and `out` have the sizes that the params say, as was checked; buffers are aligned to 256. The
    // kernel traps on a token outside the table before it reads there.
    unsafe { gpu.launch(config.entry, [config.grid, 1, 1], &params) }
}

/// Rows and columns of a table, which the kernel adds to in 32 bits.
fn counts(vocab: usize, hidden: usize) -> Result<[u32; 2]> {
    match (i32::try_from(vocab), i32::try_from(hidden)) {
        (Ok(vocab), Ok(hidden)) => Ok([vocab.unsigned_abs(), hidden.unsigned_abs()]),
        _ => Err(Error::unsupported(
            format!("a table of [{vocab}, {hidden}]"),
            "rows and columns are 31 bits wide",
        )),
    }
}

pub(super) fn row_bytes(w: &DeviceWeight, cols: usize) -> Result<usize> {
    let bytes = w.ty.row_bytes(cols as u64);
    bytes.map(|bytes| bytes as usize).ok_or_else(|| {
        Error::shape("dequantize", format!("rows of whole {} blocks", w.ty), format!("{cols} columns"))
    })
}

/// A kernel must not run on a buffer that is shorter than its shape, whatever happened to either.
pub(super) fn holds<T: bytemuck::Pod>(op: &'static str, buffer: &Buffer<T>, n: usize) -> Result<()> {
    match buffer.len() >= n {
        true => Ok(()),
        false => Err(Error::shape(op, format!("a buffer of {n} values"), buffer.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_31_bits_of_rows_and_columns() {
        let most = i32::MAX as usize;
        assert_eq!(counts(most, most).unwrap(), [u32::MAX / 2; 2]);
        for (vocab, hidden) in [(1, most + 1), (most + 1, 1), (1, u32::MAX as usize), (1, 1 << 40)] {
            let refused = counts(vocab, hidden);
            assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
        }
    }
}
