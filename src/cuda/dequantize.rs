//! Launches of dequantize and embed. Shapes were checked by [`crate::ops`].

use std::ops::Range;

use super::{Buffer, Gpu};
use crate::error::{Error, Result};
use crate::ops::dequantize::config::DequantizeConfig;
use crate::quant::GgmlType;
use crate::sys::{dequantize_params, embed_params};
use crate::tensor::{DeviceWeight, Float, Tensor};

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
    let [_, vocab, hidden] = shape;
    holds("embedding", &table.blocks, vocab * row_bytes(table, hidden)?)?;
    rows_of("embedding", table.ty, &table.blocks, [vocab, hidden], tokens, n, out)
}

/// Rows of `x` `[m, k]` by the first `n` of `rows`, to `out` `[n, k]`.
pub(crate) fn gather(x: &Tensor, rows: &Buffer<u32>, n: usize, out: &mut Buffer<f32>) -> Result<()> {
    let [m, k] = x.shape();
    holds("rows", x.cuda()?, m * k)?;
    rows_of("rows", GgmlType::F32, x.cuda()?, [m, k], rows, n, out)
}

/// Rows of a table `[vocab, hidden]` of type `ty`, which fills the front of `table`.
fn rows_of<B: bytemuck::Pod, T: Float>(
    op: &'static str,
    ty: GgmlType,
    table: &Buffer<B>,
    [vocab, hidden]: [usize; 2],
    rows: &Buffer<u32>,
    n: usize,
    out: &mut Buffer<T>,
) -> Result<()> {
    let gpu: &Gpu = table.gpu().with(out)?.with(rows)?;
    holds(op, rows, n)?;
    holds(op, out, n * hidden)?;
    let (vocab, hidden_32) = (count("rows of a table", vocab)?, count("columns of a table", hidden)?);
    let config = DequantizeConfig::pick_rows(ty, T::TYPE, n, hidden)?;
    let _turn = gpu.turn();
    let params = embed_params {
        table: table.as_ptr().cast(),
        tokens: rows.as_ptr(),
        out: out.as_mut_ptr().cast(),
        vocab,
        hidden: hidden_32,
    };
    // SAFETY: table, rows and `out` have the sizes that the params say, as was checked here and by the callers; buffers are aligned
    // to 256. The kernel traps on a row outside the table before it reads there.
    unsafe { gpu.launch(config.entry, [config.grid, 1, 1], &params) }
}

/// A number of things that a kernel counts in 32 bits and may add to.
pub(super) fn count(what: &str, n: usize) -> Result<u32> {
    match i32::try_from(n) {
        Ok(n) => Ok(n.unsigned_abs()),
        Err(_) => Err(Error::unsupported(format!("{n} {what}"), "counts are 31 bits wide")),
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
    fn counts_have_31_bits() {
        let most = i32::MAX as usize;
        assert_eq!(count("rows", most).unwrap(), u32::MAX / 2);
        for n in [most + 1, u32::MAX as usize, 1 << 40] {
            let refused = count("rows", n);
            assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
        }
    }
}
