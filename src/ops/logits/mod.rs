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
    if let Device::Cpu(_) = x.device() {
        expect_rows(x, rows.cpu()?)?;
    }
    gathered.resize_to_overwrite(n)?;
    y.resize_to_overwrite(n)?;
    gather(x, rows, gathered.values_mut())?;
    linear_from(&[w], gathered, &mut [y], &mut [], precision)
}

/// `y[i] = x[rows[i]]`: those that [`logits_of`] applies the head to, themselves. `x` `[m, k]`, `rows` `[n, 1]`; `y` (`k` wide) is resized to `n`.
///
/// # Errors
/// As [`logits_of`].
pub fn chosen_rows(x: &Tensor, rows: &Tensor<u32>, y: &mut Tensor) -> Result<()> {
    let n = rows.rows();
    expect("chosen rows", "rows", rows, n, 1)?;
    if y.cols() != x.cols() {
        return Err(Error::shape("chosen rows", format!("room for rows of {}", x.cols()), y.cols()));
    }
    on_one_device("chosen rows", &[x.device(), rows.device(), y.device()])?;
    if let Device::Cpu(_) = x.device() {
        expect_rows(x, rows.cpu()?)?;
    }
    y.resize_to_overwrite(n)?;
    gather(x, rows, y)
}

/// To `y`, which has the size; a GPU alone looks whether rows exist.
fn gather(x: &Tensor, rows: &Tensor<u32>, y: &mut Tensor) -> Result<()> {
    let k = x.cols();
    match x.device() {
        Device::Cpu(_) => {
            let x = x.cpu()?;
            for (to, r) in y.cpu_mut()?.chunks_exact_mut(k).zip(rows.cpu()?) {
                to.copy_from_slice(&x[*r as usize * k..][..k]);
            }
            Ok(())
        }
        Device::Cuda(_) => cuda::dequantize::gather(x, rows.cuda()?, rows.rows(), y.cuda_mut()?),
    }
}

fn expect_rows(x: &Tensor, rows: &[u32]) -> Result<()> {
    match rows.iter().find(|r| **r as usize >= x.rows()) {
        Some(r) => Err(Error::shape("logits", format!("rows below {}", x.rows()), r)),
        None => Ok(()),
    }
}
