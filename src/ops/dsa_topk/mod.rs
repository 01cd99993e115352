//! Exact top-k selection of keys.

pub mod reference;

use super::{no_kernel, on_one_device};
use crate::cpu;
use crate::error::{Error, Result};
use crate::tensor::{Device, Tensor};

/// Selected key positions per row, from whichever layer computed them.
#[derive(Debug)]
pub struct Selection {
    /// `[m, k]`: the first `lens[t]` entries of row `t` are positions in ascending order; the rest means nothing.
    pub indices: Tensor<u32>,
    /// `[m, 1]`: how many are selected, `min(k, visible)`.
    pub lens: Tensor<u32>,
}

impl Selection {
    /// Room for no rows yet, `k` positions each.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn new(device: &Device, k: usize) -> Result<Self> {
        Ok(Selection { indices: Tensor::zeros(device, 0, k)?, lens: Tensor::zeros(device, 0, 1)? })
    }

    /// Most positions a row can select.
    pub fn k(&self) -> usize {
        self.indices.cols()
    }

    /// Changes the number of rows.
    ///
    /// # Errors
    /// As [`Tensor::resize`].
    pub fn resize(&mut self, rows: usize) -> Result<()> {
        self.indices.resize(rows)?;
        self.lens.resize(rows)
    }

    /// The selected positions of row `t`, ascending, in host memory.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the selection lives elsewhere, [`Error::Shape`] if there is no such row or it claims
    /// more than there is room for.
    pub fn row(&self, t: usize) -> Result<&[u32]> {
        let (k, lens) = (self.k(), self.lens.cpu()?);
        let Some(n) = lens.get(t) else {
            return Err(Error::shape("selection", format!("a row below {}", lens.len()), t));
        };
        if *n as usize > k {
            return Err(Error::shape("selection", format!("at most {k} positions"), n));
        }
        Ok(&self.indices.cpu()?[t * k..t * k + *n as usize])
    }
}

/// The `k` largest of the first `visible[t]` scores of each row: exactly that set, ties going to the lower index, all of
/// them when fewer are visible; NaN counts as largest, so that it is seen and not hidden. `scores` `[m, s]`,
/// `visible` one count per row, at most `s`; `out` is resized to `m` rows.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub fn top_k(scores: &Tensor, visible: &[u32], out: &mut Selection) -> Result<()> {
    if visible.len() != scores.rows() {
        return Err(Error::shape("top_k", format!("{} visible counts", scores.rows()), visible.len()));
    }
    if let Some(v) = visible.iter().find(|v| **v as usize > scores.cols()) {
        return Err(Error::shape("top_k", format!("visible at most {}", scores.cols()), v));
    }
    if out.k() == 0 {
        return Err(Error::shape("top_k", "room for at least one position", 0));
    }
    on_one_device("top_k", &[scores.device(), out.indices.device(), out.lens.device()])?;
    match scores.device() {
        Device::Cpu(cpu) => {
            out.resize(scores.rows())?;
            cpu::dsa_topk::top_k(cpu, scores, visible, out)
        }
        Device::Cuda(gpu) => no_kernel("top_k", gpu),
    }
}
