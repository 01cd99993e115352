//! [`Matrix`]: weights on a device, in blocks as they lie in a file or repacked into tiles.

use std::sync::Arc;

use super::{Device, DeviceTiles, elsewhere};
use crate::cuda::{Buffer, linear_tiled};
use crate::error::{Error, Result};
use crate::quant::tiles::tile_bytes;
use crate::quant::{GgmlType, Weight};

/// A stack of weight matrices `[slabs, rows, cols]` on a device; see [`Weight`].
#[derive(Debug, Clone)]
pub struct Matrix {
    device: Device,
    shape: [usize; 3],
    storage: MatrixStorage,
}

#[derive(Debug, Clone)]
enum MatrixStorage {
    Cpu(Weight),
    Cuda(Arc<DeviceWeight>),
    Tiles(Arc<DeviceTiles>),
}

/// A weight in the memory of a GPU: blocks as they lie in the file, slab after slab, row after row.
#[derive(Debug)]
pub struct DeviceWeight {
    /// Block type.
    pub ty: GgmlType,
    /// The blocks.
    pub blocks: Buffer<u8>,
}

impl Matrix {
    /// Brings a weight to a device. On the CPU nothing is copied: blocks are read where they lie.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for types that cannot be dequantized, by name; [`Error::Shape`] for an empty weight;
    /// [`Error::OutOfMemory`] or [`Error::Driver`] of a GPU.
    pub fn new(device: &Device, weight: Weight) -> Result<Self> {
        crate::quant::check_supported(weight.ty())?;
        let shape = weight.shape();
        if shape.contains(&0) {
            return Err(Error::shape("matrix", "slabs, rows and columns", format!("{shape:?}")));
        }
        let storage = match device {
            Device::Cpu(_) => {
                weight.bytes().ready();
                MatrixStorage::Cpu(weight)
            }
            Device::Cuda(gpu) => {
                let blocks = gpu.upload_shared("weights", weight.bytes())?;
                MatrixStorage::Cuda(Arc::new(DeviceWeight { ty: weight.ty(), blocks }))
            }
        };
        Ok(Matrix { device: device.clone(), shape, storage })
    }

    /// The same for linear layers on rounded activations ([`Precision::Fast`](super::Precision)) alone: on a GPU types that have tiles are repacked,
    /// which takes the memory of the blocks a second time meanwhile. Elsewhere, and for other types, as [`Matrix::new`]. Tiles are all
    /// that is kept: a matrix that [`Precision::Exact`](super::Precision) needs, too, is made a second time.
    ///
    /// # Errors
    /// As [`Matrix::new`].
    pub fn for_fast_linear(device: &Device, weight: Weight) -> Result<Self> {
        match device {
            Device::Cuda(gpu) if tile_bytes(weight.ty()).is_some() && !weight.shape().contains(&0) => {
                let storage = MatrixStorage::Tiles(Arc::new(linear_tiled::repack(gpu, &weight)?));
                Ok(Matrix { device: device.clone(), shape: weight.shape(), storage })
            }
            _ => Self::new(device, weight),
        }
    }

    /// Where it lives.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// `[slabs, rows, cols]`.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// Matrices in the stack (heads, experts; 1 for a plain matrix).
    pub fn slabs(&self) -> usize {
        self.shape[0]
    }

    /// Outputs of each matrix.
    pub fn rows(&self) -> usize {
        self.shape[1]
    }

    /// Inputs of each matrix.
    pub fn cols(&self) -> usize {
        self.shape[2]
    }

    /// The blocks in host memory.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the matrix lives elsewhere.
    pub fn cpu(&self) -> Result<&Weight> {
        match &self.storage {
            MatrixStorage::Cpu(w) => Ok(w),
            MatrixStorage::Cuda(_) | MatrixStorage::Tiles(_) => elsewhere("matrix", &self.device),
        }
    }

    /// The blocks in the memory of a GPU.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the matrix lives elsewhere.
    pub fn cuda(&self) -> Result<&DeviceWeight> {
        match &self.storage {
            MatrixStorage::Cuda(w) => Ok(w),
            MatrixStorage::Cpu(_) => elsewhere("matrix", &self.device),
            MatrixStorage::Tiles(_) => Err(Error::unsupported(
                format!("a matrix in tiles on {}", self.device.name()),
                "tiles are for linear layers on rounded activations alone",
            )),
        }
    }

    /// The tiles in the memory of a GPU.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the matrix lives elsewhere or was not repacked.
    pub fn tiles(&self) -> Result<&DeviceTiles> {
        match &self.storage {
            MatrixStorage::Tiles(w) => Ok(w),
            MatrixStorage::Cpu(_) => elsewhere("matrix", &self.device),
            MatrixStorage::Cuda(_) => Err(Error::unsupported(
                format!("a matrix in blocks on {}", self.device.name()),
                "linear layers in tiles take them",
            )),
        }
    }

    /// Whether it was repacked into tiles.
    pub fn is_tiled(&self) -> bool {
        matches!(self.storage, MatrixStorage::Tiles(_))
    }
}
