//! Output head: logits of chosen rows.

pub mod reference;

use super::linear::{LinearInput, linear_from};
use super::{expect, on_one_device};
use crate::cuda;
use crate::error::{Error, Result};
use crate::tensor::{Device, Matrix, Precision, Tensor};

/// `y[i] = w x[rows[i]]`. `w` `[1, vocab, hidden]`, `x` `[m, hidden]`; `gathered` (`hidden` wide) and `y` (`vocab` wide) are
/// resized to `rows.len()`.
///
/// # Errors
/// [`Error::Shape`] if they do not fit or a row does not exist; those of a launch.
pub fn logits(
    w: &Matrix,
    x: &Tensor,
    rows: &[u32],
    gathered: &mut LinearInput,
    y: &mut Tensor,
    precision: Precision,
) -> Result<()> {
    expect_rows(x, rows)?;
    let rows = Tensor::from_vec(x.device(), rows.len(), 1, rows.to_vec())?;
    logits_of(w, x, &rows, gathered, y, precision)
}

/// As [`logits`], with rows that already are where `x` is, as in a graph that is replayed. `rows` `[n, 1]`.
///
/// # Errors
/// As [`logits`], but a GPU finds a row that does not exist only while it runs: [`Error::Driver`] from a later call.
pub fn logits_of(
    w: &Matrix,
    x: &Tensor,
    rows: &Tensor<u32>,
    gathered: &mut LinearInput,
    y: &mut Tensor,
    precision: Precision,
) -> Result<()> {
    let (n, k) = (rows.rows(), x.cols());
    expect("logits", "rows", rows, n, 1)?;
    if w.slabs() != 1 || w.cols() != k || gathered.values().cols() != k || y.cols() != w.rows() {
        let want = format!("room for rows of {k} and {}", w.rows());
        return Err(Error::shape("logits", want, format!("{} and {}", gathered.values().cols(), y.cols())));
    }
    on_one_device(
        "logits",
        &[x.device(), rows.device(), w.device(), gathered.values().device(), y.device()],
    )?;
    match x.device() {
        Device::Cpu(_) => {
            expect_rows(x, rows.cpu()?)?;
            gathered.resize(n)?;
            y.resize(n)?;
            let x = x.cpu()?;
            for (to, r) in gathered.values_mut().cpu_mut()?.chunks_exact_mut(k).zip(rows.cpu()?) {
                to.copy_from_slice(&x[*r as usize * k..][..k]);
            }
        }
        Device::Cuda(_) => {
            gathered.resize_to_overwrite(n)?;
            y.resize_to_overwrite(n)?;
            cuda::dequantize::gather(x, rows.cuda()?, n, gathered.values_mut().cuda_mut()?)?;
        }
    }
    linear_from(&[w], gathered, &mut [y], &mut [], precision)
}

fn expect_rows(x: &Tensor, rows: &[u32]) -> Result<()> {
    match rows.iter().find(|r| **r as usize >= x.rows()) {
        Some(r) => Err(Error::shape("logits", format!("rows below {}", x.rows()), r)),
        None => Ok(()),
    }
}
