//! Output head: logits of chosen rows.

pub mod reference;

use super::linear::linear;
use super::{no_kernel, on_one_device};
use crate::error::{Error, Result};
use crate::tensor::{Device, Matrix, Precision, Tensor};

/// `y[i] = w x[rows[i]]`. `w` `[1, vocab, hidden]`, `x` `[m, hidden]`; `gathered` (`hidden` wide) and `y` (`vocab` wide) are
/// resized to `rows.len()`.
///
/// # Errors
/// [`Error::Shape`] if they do not fit or a row does not exist.
pub fn logits(
    w: &Matrix,
    x: &Tensor,
    rows: &[u32],
    gathered: &mut Tensor,
    y: &mut Tensor,
    precision: Precision,
) -> Result<()> {
    let k = x.cols();
    if let Some(r) = rows.iter().find(|r| **r as usize >= x.rows()) {
        return Err(Error::shape("logits", format!("rows below {}", x.rows()), r));
    }
    if w.cols() != k || gathered.cols() != k || y.cols() != w.rows() {
        let want = format!("room for rows of {k} and {}", w.rows());
        return Err(Error::shape("logits", want, format!("{} and {}", gathered.cols(), y.cols())));
    }
    on_one_device("logits", &[x.device(), w.device(), gathered.device(), y.device()])?;
    match x.device() {
        Device::Cpu(_) => {
            gathered.resize(rows.len())?;
            y.resize(rows.len())?;
            let x = x.cpu()?;
            for (to, r) in gathered.cpu_mut()?.chunks_exact_mut(k).zip(rows) {
                to.copy_from_slice(&x[*r as usize * k..][..k]);
            }
        }
        Device::Cuda(gpu) => return no_kernel("logits", gpu),
    }
    linear(w, gathered, y, precision)
}
