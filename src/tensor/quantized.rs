//! Rows of int8 activations on a device: [`QuantizedRows`].

use super::{Device, elsewhere};
use crate::cuda::Buffer;
use crate::error::{Error, Result};
use crate::quant::activations::ACT_SUM_ELEMS;
use crate::quant::{ActBlockSize, Activations};

/// In [`Gpu::held`](crate::cuda::Gpu::held).
const LABEL: &str = "int8 activations";

/// A matrix `[rows, cols]` of [`Activations`] on a device: the input of linear layers in tiles or on integers.
#[derive(Debug)]
pub struct QuantizedRows {
    device: Device,
    rows: usize,
    cols: usize,
    storage: Storage,
}

#[derive(Debug)]
enum Storage {
    Cpu(Activations),
    Cuda(DeviceActivations),
}

/// Activations on a GPU: those of the rows lie in the front of buffers that may be longer.
#[derive(Debug)]
pub struct DeviceActivations {
    /// Values that share a scale.
    pub block: ActBlockSize,
    /// Quants, `[rows, cols]`.
    pub qs: Buffer<i8>,
    /// Scales, `[rows, cols / block]`.
    pub scales: Buffer<f32>,
    /// Sums of 16 quants each, `[rows, cols / 16]`.
    pub sums: Buffer<i16>,
}

impl QuantizedRows {
    /// Room for rows of `cols` values. They have no contents before an operation writes them all.
    ///
    /// # Errors
    /// [`Error::Shape`] unless rows are whole blocks; [`Error::OutOfMemory`] or [`Error::Driver`] of a GPU.
    pub fn new(device: &Device, rows: usize, cols: usize, block: ActBlockSize) -> Result<Self> {
        if cols == 0 || !cols.is_multiple_of(block.elems()) {
            let expected = format!("rows of whole blocks of {} values", block.elems());
            return Err(Error::shape("int8 activations", expected, cols));
        }
        let storage = match device {
            Device::Cpu(_) => Storage::Cpu(Activations::new(block)),
            Device::Cuda(gpu) => Storage::Cuda(DeviceActivations {
                block,
                qs: gpu.alloc(LABEL, 0)?,
                scales: gpu.alloc(LABEL, 0)?,
                sums: gpu.alloc(LABEL, 0)?,
            }),
        };
        let mut new = QuantizedRows { device: device.clone(), rows: 0, cols, storage };
        new.resize(rows)?;
        Ok(new)
    }

    /// Changes the number of rows; the contents are lost. Memory once grown is kept.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::Driver`] of a GPU, [`Error::Capacity`] for more than can be addressed; nothing
    /// is changed then.
    pub fn resize(&mut self, rows: usize) -> Result<()> {
        if let Storage::Cuda(on_gpu) = &mut self.storage {
            // An overflow is left to the allocation to refuse.
            let n = rows.saturating_mul(self.cols);
            if n > on_gpu.qs.len() {
                let gpu = on_gpu.qs.gpu().clone();
                let qs = gpu.alloc(LABEL, n)?;
                let scales = gpu.alloc(LABEL, n / on_gpu.block.elems())?;
                let sums = gpu.alloc(LABEL, n / ACT_SUM_ELEMS)?;
                *on_gpu = DeviceActivations { block: on_gpu.block, qs, scales, sums };
            }
        }
        self.rows = rows;
        Ok(())
    }

    /// Where they live.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// `[rows, cols]`.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.cols]
    }

    /// Values that share a scale.
    pub fn block(&self) -> ActBlockSize {
        match &self.storage {
            Storage::Cpu(activations) => activations.block(),
            Storage::Cuda(on_gpu) => on_gpu.block,
        }
    }

    /// A copy in host memory, wherever they live.
    ///
    /// # Errors
    /// [`Error::Driver`] of a GPU, also of earlier work.
    pub fn to_activations(&self) -> Result<Activations> {
        match &self.storage {
            Storage::Cpu(activations) => Ok(activations.clone()),
            Storage::Cuda(DeviceActivations { block, qs, scales, sums }) => {
                let n = self.rows * self.cols;
                Ok(Activations::from_parts(
                    *block,
                    scales.to_vec(0..n / block.elems())?,
                    qs.to_vec(0..n)?,
                    sums.to_vec(0..n / ACT_SUM_ELEMS)?,
                ))
            }
        }
    }

    /// Those in host memory.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if they live elsewhere.
    pub fn cpu(&self) -> Result<&Activations> {
        match &self.storage {
            Storage::Cpu(activations) => Ok(activations),
            Storage::Cuda(_) => elsewhere("set of int8 activations", &self.device),
        }
    }

    /// As [`QuantizedRows::cpu`], writable.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if they live elsewhere.
    pub fn cpu_mut(&mut self) -> Result<&mut Activations> {
        match &mut self.storage {
            Storage::Cpu(activations) => Ok(activations),
            Storage::Cuda(_) => elsewhere("set of int8 activations", &self.device),
        }
    }

    /// Those on a GPU.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if they live elsewhere.
    pub fn cuda(&self) -> Result<&DeviceActivations> {
        match &self.storage {
            Storage::Cuda(on_gpu) => Ok(on_gpu),
            Storage::Cpu(_) => elsewhere("set of int8 activations", &self.device),
        }
    }

    /// As [`QuantizedRows::cuda`], writable.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if they live elsewhere.
    pub fn cuda_mut(&mut self) -> Result<&mut DeviceActivations> {
        match &mut self.storage {
            Storage::Cuda(on_gpu) => Ok(on_gpu),
            Storage::Cpu(_) => elsewhere("set of int8 activations", &self.device),
        }
    }
}
