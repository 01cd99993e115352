//! Exact top-k selection of keys.

pub mod config;
pub mod reference;

use config::{TopkConfig, TopkProblem};

use super::{expect, on_one_device};
use crate::error::{Error, Result};
use crate::sys::dsa_topk_row;
use crate::tensor::{Device, Tensor};
use crate::{cpu, cuda};

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

    /// The selected positions of every row, ascending: a copy in host memory, wherever the selection lives.
    ///
    /// # Errors
    /// [`Error::Shape`] if a row claims more than there is room for; [`Error::Driver`] of a GPU.
    pub fn to_rows(&self) -> Result<Vec<Vec<u32>>> {
        let (indices, lens, k) = (self.indices.to_vec()?, self.lens.to_vec()?, self.k());
        expect("selection", "indices", &self.indices, lens.len(), k)?;
        let row = |(row, n): (&[u32], &u32)| match row.get(..*n as usize) {
            Some(row) => Ok(row.to_vec()),
            None => Err(Error::shape("selection", format!("at most {k} positions"), n)),
        };
        indices.chunks(k.max(1)).zip(&lens).map(row).collect()
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

/// Memory of [`top_k`] on a GPU, in which blocks of threads that share a row meet. Reused from step to step: memory once grown is kept,
/// so that a graph may hold what has room for its step. One for each graph or stream of calls; on the CPU it is empty.
#[derive(Debug)]
pub struct TopkScratch {
    /// `[rows, words of a dsa_topk_row]`, which kernels leave as they found them.
    pub(crate) rows: Tensor<u32>,
}

impl TopkScratch {
    /// Nothing yet.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn new(device: &Device) -> Result<Self> {
        Ok(TopkScratch { rows: Tensor::zeros(device, 0, size_of::<dsa_topk_row>() / size_of::<u32>())? })
    }

    /// Grows to what a launch needs.
    pub(crate) fn grow(&mut self, rows: usize) -> Result<()> {
        if self.rows.rows() < rows { self.rows.resize(rows) } else { Ok(()) }
    }
}

/// The `k` largest of the first `visible[t]` scores of each row: exactly that set, ties going to the lower index, all of
/// them when fewer are visible; NaN counts as largest, so that it is seen and not hidden. `scores` `[m, s]`, `visible`
/// `[m, 1]`, each at most `s` (a GPU takes `s` for more); `out` is resized to `m` rows. One launch on GPUs.
///
/// # Errors
/// [`Error::Shape`] if they do not fit; [`Error::Unsupported`] across devices.
pub fn top_k(
    scores: &Tensor,
    visible: &Tensor<u32>,
    scratch: &mut TopkScratch,
    out: &mut Selection,
) -> Result<()> {
    top_k_with(scores, visible, None, scratch, out)
}

/// [`top_k`] by a launch of [`config::candidates`] in place of the one that is chosen: for benches and tests.
///
/// # Errors
/// As [`top_k`].
pub fn top_k_with(
    scores: &Tensor,
    visible: &Tensor<u32>,
    config: Option<TopkConfig>,
    scratch: &mut TopkScratch,
    out: &mut Selection,
) -> Result<()> {
    expect("top_k", "visible", visible, scores.rows(), 1)?;
    if out.k() == 0 {
        return Err(Error::shape("top_k", "room for at least one position", 0));
    }
    let devices =
        [scores.device(), visible.device(), scratch.rows.device(), out.indices.device(), out.lens.device()];
    on_one_device("top_k", &devices)?;
    match scores.device() {
        Device::Cpu(cpu) => {
            let visible = visible.cpu()?;
            if let Some(v) = visible.iter().find(|v| **v as usize > scores.cols()) {
                return Err(Error::shape("top_k", format!("visible at most {}", scores.cols()), v));
            }
            out.resize(scores.rows())?;
            cpu::dsa_topk::top_k(cpu, scores, visible, out)
        }
        Device::Cuda(gpu) => {
            let [m, n] = scores.shape();
            let config = match config {
                Some(config) => config,
                None => TopkConfig::pick(TopkProblem::new(m, n, gpu.properties()))?,
            };
            let rows = cuda::dsa_topk::Rows::of(scores, visible)?;
            cuda::dsa_topk::prepare(gpu, m, n, config)?;
            out.resize(m)?;
            cuda::dsa_topk::top_k(rows, config, scratch, 0, out)
        }
    }
}
