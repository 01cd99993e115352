//! Values of a quantized matrix.

pub mod config;
pub mod reference;

use std::ops::Range;

use super::expect;
use crate::error::{Error, Result};
use crate::tensor::{Device, Float, Matrix, Tensor};
use crate::{cpu, cuda};

/// `out = w[slab][rows]`: f32 bit for bit as the format's reference has them, f16 and bf16 those rounded to nearest, ties
/// to even. `w` `[slabs, n, k]`, `out` `[rows.len(), k]`.
///
/// # Errors
/// [`Error::Shape`] if there is no such slab or row, or `out` does not fit.
pub fn dequantize<T: Float>(w: &Matrix, slab: usize, rows: Range<usize>, out: &mut Tensor<T>) -> Result<()> {
    if slab >= w.slabs() || rows.start > rows.end || rows.end > w.rows() {
        let expected = format!("a slab below {} and rows within 0..{}", w.slabs(), w.rows());
        return Err(Error::shape("dequantize", expected, format!("slab {slab}, rows {rows:?}")));
    }
    expect("dequantize", "out", out, rows.len(), w.cols())?;
    match w.device() {
        Device::Cpu(cpu) => {
            let w = w.cpu()?;
            let row = |r| w.rows_bytes(slab, rows.start + r..rows.start + r + 1);
            cpu::dequantize::rows(cpu, w.ty(), w.cols(), row, out.cpu_mut()?)
        }
        Device::Cuda(_) => cuda::dequantize::dequantize(w.cuda()?, w.shape(), slab, rows, out.cuda_mut()?),
    }
}
