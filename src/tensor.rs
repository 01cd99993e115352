//! Matrices on a device: [`Device`], [`Tensor`] (activations), [`Matrix`] (weights), [`PagedRows`] (caches).
//!
//! Everything an operation touches carries its device; operations dispatch on it.

mod device;
mod matrix;
mod paged;
mod quantized;
mod ragged;
mod tiles;

pub use device::{Chosen, Device, DeviceChoice};
pub use matrix::{DeviceWeight, Matrix};
pub use paged::{CacheType, PAGE_ROWS, PagedRows};
pub use quantized::{DeviceActivations, QuantizedRows};
pub use ragged::RaggedRows;
pub use tiles::{ActivationFormat, DeviceTiles, GemmScratch, QuantizedTiles, RoundedRows, TILE_TOKENS};

use std::borrow::Cow;
use std::ops::Range;

use half::{bf16, f16};

use crate::cuda::Buffer;
use crate::error::{Error, Result};
use crate::quant::GgmlType;

/// Data of one device asked for on another.
fn elsewhere<T>(what: &str, device: &Device) -> Result<T> {
    Err(Error::unsupported(
        format!("access to a {what} from elsewhere"),
        format!("it lies on {}", device.name()),
    ))
}

/// How quantized linear layers treat their activations, and the indexer its queries where keys have 16 bits. Always printed in reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Activations and queries stay f32, or sums of numbers that are as good; weights are dequantized.
    #[default]
    Exact,
    /// Activations are rounded to int8 with one f32 scale for 32 values; on GPUs, by number of tokens, to f16 where that is as fast
    /// ([`ActivationFormat`]). Queries are rounded to the type of keys.
    /// On the CPU this follows the numerics of the integer kernels, for comparison; it is not faster.
    Fast,
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Precision::Exact => "exact",
            Precision::Fast => "fast",
        })
    }
}

/// Element types of a [`Tensor`]. The default value has zero bytes only.
pub trait Element: bytemuck::Pod + Default + Send + Sync + std::fmt::Debug {}
impl Element for f32 {}
impl Element for f16 {}
impl Element for bf16 {}
impl Element for u32 {}

/// Element types that results of f32 arithmetic are rounded to.
pub trait Float: Element {
    /// The type of these values in files and in the names of kernels.
    const TYPE: GgmlType;

    /// The nearest value; of two equally near the one with an even mantissa.
    fn from_f32(value: f32) -> Self;
}

impl Float for f32 {
    const TYPE: GgmlType = GgmlType::F32;
    fn from_f32(value: f32) -> Self {
        value
    }
}

impl Float for f16 {
    const TYPE: GgmlType = GgmlType::F16;
    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }
}

impl Float for bf16 {
    const TYPE: GgmlType = GgmlType::BF16;
    fn from_f32(value: f32) -> Self {
        bf16::from_f32(value)
    }
}

#[derive(Debug)]
enum Storage<T> {
    Cpu(Vec<T>),
    /// At least as long as the values; what is behind them is left over from larger steps.
    Cuda(Buffer<T>),
}

/// In [`Gpu::held`](crate::cuda::Gpu::held).
const LABEL: &str = "activations";

/// A dense row-major matrix `[rows, cols]` on a device. Rows are tokens; heads lie side by side in a row.
#[derive(Debug)]
pub struct Tensor<T: Element = f32> {
    device: Device,
    rows: usize,
    cols: usize,
    storage: Storage<T>,
}

impl<T: Element> Tensor<T> {
    /// All zeros.
    ///
    /// # Errors
    /// [`Error::Capacity`] for more values than there is memory; [`Error::OutOfMemory`] or [`Error::Driver`] of a GPU.
    pub fn zeros(device: &Device, rows: usize, cols: usize) -> Result<Self> {
        let n = values::<T>(rows, cols)?;
        let storage = match device {
            Device::Cpu(_) => Storage::Cpu(zeroed(n)?),
            Device::Cuda(gpu) => Storage::Cuda(gpu.zeros(LABEL, n)?),
        };
        Ok(Tensor { device: device.clone(), rows, cols, storage })
    }

    /// Takes `[rows, cols]` values, row after row.
    ///
    /// # Errors
    /// [`Error::Shape`] unless there are exactly `rows * cols` of them; [`Error::OutOfMemory`] or [`Error::Driver`] of a
    /// GPU.
    pub fn from_vec(device: &Device, rows: usize, cols: usize, values: Vec<T>) -> Result<Self> {
        if Some(values.len()) != rows.checked_mul(cols) {
            return Err(Error::shape(
                "tensor",
                format!("[{rows}, {cols}]"),
                format!("{} values", values.len()),
            ));
        }
        let storage = match device {
            Device::Cpu(_) => Storage::Cpu(values),
            Device::Cuda(gpu) => Storage::Cuda(gpu.upload(LABEL, &values)?),
        };
        Ok(Tensor { device: device.clone(), rows, cols, storage })
    }

    /// Where it lives.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// `[rows, cols]`.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.cols]
    }

    /// Changes the number of rows; new rows are zero. Memory once grown is kept, so steps of varying size do not
    /// allocate after the largest. On a GPU growing changes the address.
    ///
    /// # Errors
    /// As [`Tensor::zeros`]; nothing is changed then.
    pub fn resize(&mut self, rows: usize) -> Result<()> {
        let n = values::<T>(rows, self.cols)?;
        match &mut self.storage {
            Storage::Cpu(v) => {
                v.try_reserve(n.saturating_sub(v.len())).map_err(|_| no_memory::<T>(n))?;
                v.resize(n, T::default());
            }
            Storage::Cuda(buffer) => {
                let before = self.rows * self.cols;
                grow(buffer, before, n)?;
                if n > before {
                    buffer.fill_bytes(before..n, 0)?;
                }
            }
        }
        self.rows = rows;
        Ok(())
    }

    /// As [`Tensor::resize`], but new rows are not cleared: somebody writes all of them next.
    pub(crate) fn resize_to_overwrite(&mut self, rows: usize) -> Result<()> {
        let n = values::<T>(rows, self.cols)?;
        match &mut self.storage {
            Storage::Cpu(_) => return self.resize(rows),
            Storage::Cuda(buffer) => grow(buffer, 0, n)?,
        }
        self.rows = rows;
        Ok(())
    }

    /// Takes other values, row after row, and as many rows as they make. Memory once grown is kept, as by [`Tensor::resize`].
    ///
    /// # Errors
    /// [`Error::Shape`] unless they are whole rows; as [`Tensor::zeros`]. The rows are what they were then, but for [`Error::Driver`].
    pub fn assign(&mut self, values: &[T]) -> Result<()> {
        if self.cols == 0 || !values.len().is_multiple_of(self.cols) {
            let want = format!("whole rows of {}", self.cols);
            return Err(Error::shape("tensor", want, format!("{} values", values.len())));
        }
        match &mut self.storage {
            Storage::Cpu(v) => {
                v.try_reserve(values.len().saturating_sub(v.len()))
                    .map_err(|_| no_memory::<T>(values.len()))?;
                v.clear();
                v.extend_from_slice(values);
            }
            Storage::Cuda(buffer) => {
                grow(buffer, 0, values.len())?;
                buffer.upload(0, values)?;
            }
        }
        self.rows = values.len() / self.cols;
        Ok(())
    }

    /// Adds the rows of another tensor of the same width.
    ///
    /// # Errors
    /// [`Error::Shape`] if widths differ, [`Error::Unsupported`] if devices do; [`Error::OutOfMemory`] or
    /// [`Error::Driver`] of a GPU. Nothing is changed then.
    pub fn append(&mut self, other: &Self) -> Result<()> {
        if other.cols != self.cols {
            return Err(Error::shape("append", format!("rows of {}", self.cols), other.cols));
        }
        match (&mut self.storage, &other.storage) {
            (Storage::Cpu(to), Storage::Cpu(from)) => {
                to.try_reserve(from.len()).map_err(|_| no_memory::<T>(from.len()))?;
                to.extend_from_slice(from);
            }
            (Storage::Cuda(to), Storage::Cuda(from)) => {
                let (before, more) = (self.rows * self.cols, other.rows * other.cols);
                grow(to, before, before + more)?;
                to.copy_from(before, from, 0..more)?;
            }
            _ => return elsewhere("tensor", &other.device),
        }
        self.rows += other.rows;
        Ok(())
    }

    /// Copies rows of another tensor of the same width over those from `to` on.
    ///
    /// # Errors
    /// [`Error::Shape`] if widths differ or rows are not there, [`Error::Unsupported`] if devices differ: nothing is changed then. [`Error::Driver`]
    /// of a GPU.
    pub fn copy_rows(&mut self, to: usize, other: &Self, rows: Range<usize>) -> Result<()> {
        let fits = |start: usize, n: usize, of: usize| start.checked_add(n).is_some_and(|end| end <= of);
        let n = rows.len();
        if other.cols != self.cols
            || rows.end > other.rows
            || rows.start > rows.end
            || !fits(to, n, self.rows)
        {
            let want = format!("rows within {:?}, to rows within {:?}", other.shape(), self.shape());
            return Err(Error::shape("copy of rows", want, format!("{rows:?}, to {to}")));
        }
        let (to, from) = (to * self.cols, rows.start * self.cols..rows.end * self.cols);
        match (&mut self.storage, &other.storage) {
            (Storage::Cpu(own), Storage::Cpu(other)) => {
                own[to..to + from.len()].copy_from_slice(&other[from])
            }
            (Storage::Cuda(own), Storage::Cuda(other)) => own.copy_from(to, other, from)?,
            _ => return elsewhere("tensor", &other.device),
        }
        Ok(())
    }

    /// A copy on the same device.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn try_clone(&self) -> Result<Self> {
        let storage = match &self.storage {
            Storage::Cpu(v) => Storage::Cpu(copied(v)?),
            Storage::Cuda(from) => {
                let n = self.rows * self.cols;
                let mut buffer = from.gpu().alloc(LABEL, n)?;
                buffer.copy_from(0, from, 0..n)?;
                Storage::Cuda(buffer)
            }
        };
        Ok(Tensor { device: self.device.clone(), storage, ..*self })
    }

    /// Sets all values to one.
    ///
    /// # Errors
    /// [`Error::Driver`] of a GPU.
    pub fn fill(&mut self, value: T) -> Result<()> {
        match &mut self.storage {
            Storage::Cpu(v) => v.fill(value),
            Storage::Cuda(buffer) => buffer.upload(0, &vec![value; self.rows * self.cols])?,
        }
        Ok(())
    }

    /// A copy of the values in host memory, row after row, wherever the tensor lives.
    ///
    /// # Errors
    /// [`Error::Driver`] of a GPU, also of earlier work.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        match &self.storage {
            Storage::Cpu(v) => copied(v),
            Storage::Cuda(buffer) => buffer.to_vec(0..self.rows * self.cols),
        }
    }

    /// The values in host memory, row after row: where they are if they are there, else a copy.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`].
    pub fn host(&self) -> Result<Cow<'_, [T]>> {
        match &self.storage {
            Storage::Cpu(v) => Ok(Cow::Borrowed(v)),
            Storage::Cuda(_) => self.to_vec().map(Cow::Owned),
        }
    }

    /// The values in host memory, row after row.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the tensor lives elsewhere.
    pub fn cpu(&self) -> Result<&[T]> {
        match &self.storage {
            Storage::Cpu(v) => Ok(v),
            Storage::Cuda(_) => elsewhere("tensor", &self.device),
        }
    }

    /// As [`Tensor::cpu`], writable.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the tensor lives elsewhere.
    pub fn cpu_mut(&mut self) -> Result<&mut [T]> {
        match &mut self.storage {
            Storage::Cpu(v) => Ok(v),
            Storage::Cuda(_) => elsewhere("tensor", &self.device),
        }
    }

    /// The values on a GPU, row after row, in the front of a buffer that may be longer.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the tensor lives elsewhere.
    pub fn cuda(&self) -> Result<&Buffer<T>> {
        match &self.storage {
            Storage::Cuda(buffer) => Ok(buffer),
            Storage::Cpu(_) => elsewhere("tensor", &self.device),
        }
    }

    /// As [`Tensor::cuda`], writable.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the tensor lives elsewhere.
    pub fn cuda_mut(&mut self) -> Result<&mut Buffer<T>> {
        match &mut self.storage {
            Storage::Cuda(buffer) => Ok(buffer),
            Storage::Cpu(_) => elsewhere("tensor", &self.device),
        }
    }
}

/// Makes room for `n` values; the first `keep` stay.
fn grow<T: Element>(buffer: &mut Buffer<T>, keep: usize, n: usize) -> Result<()> {
    if n > buffer.len() {
        let mut larger = buffer.gpu().alloc(LABEL, n)?;
        larger.copy_from(0, buffer, 0..keep)?;
        *buffer = larger;
    }
    Ok(())
}

/// Number of values of a matrix.
fn values<T>(rows: usize, cols: usize) -> Result<usize> {
    rows.checked_mul(cols).ok_or_else(|| no_memory::<T>(usize::MAX))
}

/// `n` zeros, which the system commits only as they are written.
fn zeroed<T: bytemuck::Zeroable>(n: usize) -> Result<Vec<T>> {
    bytemuck::allocation::try_zeroed_vec(n).map_err(|()| no_memory::<T>(n))
}

fn copied<T: Copy>(values: &[T]) -> Result<Vec<T>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(values.len()).map_err(|_| no_memory::<T>(values.len()))?;
    copy.extend_from_slice(values);
    Ok(copy)
}

fn no_memory<T>(n: usize) -> Error {
    let what = format!("values of {} bytes: the system gives no memory", size_of::<T>());
    Error::Capacity { what, needed: n as u64, available: 0 }
}

/// Which columns of a row belong to the heads: head `h` has columns `h * stride + offset .. + len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Number of heads.
    pub n: usize,
    /// Columns from one head to the next.
    pub stride: usize,
    /// First column of the part within its head.
    pub offset: usize,
    /// Width of the part.
    pub len: usize,
}

impl Heads {
    /// A single part `offset .. offset + len` of each row.
    pub fn one(offset: usize, len: usize) -> Self {
        Heads { n: 1, stride: offset.saturating_add(len), offset, len }
    }

    /// Columns of head `h`, for heads that fit.
    pub(crate) fn cols(&self, h: usize) -> std::ops::Range<usize> {
        let start = h * self.stride + self.offset;
        start..start + self.len
    }

    /// Whether all heads lie within rows of `cols` columns and do not overlap.
    pub fn fits(&self, cols: usize) -> bool {
        let part_end = self.offset.checked_add(self.len);
        let last_start = self.n.checked_sub(1).and_then(|last| last.checked_mul(self.stride));
        let end = last_start.zip(part_end).and_then(|(start, end)| start.checked_add(end));
        part_end.is_some_and(|end| end <= self.stride) && end.is_some_and(|end| end <= cols)
    }
}
