//! [`Buffer`]: typed device memory that is given back when dropped.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use bytemuck::Pod;

use super::Gpu;
use super::order::Written;
use crate::error::{Error, Result};

/// `len` values of `T` in the memory of a [`Gpu`], contiguous and aligned to 256 bytes.
///
/// Work on one device runs in the order in which it was issued, so `&` and `&mut` mean what they say, although a kernel
/// may still be at work when the call that launched it has returned.
#[derive(Debug)]
pub struct Buffer<T> {
    memory: Arc<Allocation>,
    len: usize,
    values: PhantomData<T>,
}

/// Memory of a device; empty ones have no address.
#[derive(Debug)]
pub(super) struct Allocation {
    gpu: Gpu,
    address: u64,
    bytes: usize,
    label: &'static str,
    written: Written,
}

impl Allocation {
    pub(super) fn new(gpu: &Gpu, label: &'static str, bytes: usize) -> Result<Self> {
        let address = if bytes == 0 { 0 } else { gpu.take(label, bytes)? };
        Ok(Allocation { gpu: gpu.clone(), address, bytes, label, written: Written::default() })
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.gpu.give_back(self.label, self.address, self.bytes);
        }
    }
}

impl<T: Pod> Buffer<T> {
    pub(super) fn new(gpu: &Gpu, label: &'static str, len: usize) -> Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|b| *b <= isize::MAX as usize);
        let bytes = bytes.ok_or_else(|| Error::Capacity {
            what: format!("values of {label}"),
            needed: len as u64,
            available: (isize::MAX as usize / size_of::<T>().max(1)) as u64,
        })?;
        Ok(Buffer { memory: Arc::new(Allocation::new(gpu, label, bytes)?), len, values: PhantomData })
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.memory.gpu
    }

    /// Whether a graph holds the memory, too.
    pub(crate) fn is_held(&self) -> bool {
        Arc::strong_count(&self.memory) > 1
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first value, for params that read. A graph that is being captured keeps the memory from now on.
    pub fn as_ptr(&self) -> *const T {
        ptr::with_exposed_provenance(self.address() as usize)
    }

    /// As [`Buffer::as_ptr`], for params that a kernel with programmatic dependent launch reads in its prologue, before it waits
    /// for those in front of it. If one of them may still be writing there, the next launch begins behind their end.
    pub fn as_prologue_ptr(&self) -> *const T {
        let order = self.gpu().order();
        if self.memory.written.perhaps_now(order) {
            order.next_waits();
        }
        self.as_ptr()
    }

    /// Address of the first value, for params that write. A graph that is being captured keeps the memory from now on.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.memory.written.mark(self.gpu().order());
        ptr::with_exposed_provenance_mut(self.address() as usize)
    }

    fn address(&self) -> u64 {
        self.memory.gpu.note_use(&self.memory);
        self.memory.address
    }

    /// Address of value `at`, if `n` values from there on exist.
    fn at(&self, op: &'static str, at: usize, n: usize) -> Result<u64> {
        match at.checked_add(n) {
            Some(end) if end <= self.len => Ok(self.address() + (at * size_of::<T>()) as u64),
            _ => {
                Err(Error::shape(op, format!("a range within {} values", self.len), format!("{n} from {at}")))
            }
        }
    }

    /// Copies values from host memory to position `at`.
    ///
    /// # Errors
    /// [`Error::Shape`] beyond the end; [`Error::Driver`].
    pub fn upload(&mut self, at: usize, values: &[T]) -> Result<()> {
        self.upload_with(at, values, &mut |_| {})
    }

    /// As [`Buffer::upload`]; `progress` is called with the number of bytes issued so far, a few times a second or more.
    ///
    /// # Errors
    /// As [`Buffer::upload`].
    pub fn upload_with(&mut self, at: usize, values: &[T], progress: &mut dyn FnMut(usize)) -> Result<()> {
        let to = self.at("upload", at, values.len())?;
        let bytes = bytemuck::cast_slice(values);
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: `at` checked the range, and `memory` holds the allocation.
        self.gpu().transfer(Some("an upload"), |runtime| unsafe { runtime.upload(to, bytes, progress) })
    }

    /// Copies values from position `at` on to host memory, after all work issued so far.
    ///
    /// # Errors
    /// [`Error::Shape`] beyond the end; [`Error::Driver`], also of earlier work.
    pub fn download(&self, at: usize, values: &mut [T]) -> Result<()> {
        let from = self.at("download", at, values.len())?;
        let bytes = bytemuck::cast_slice_mut(values);
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: as in `upload_with`.
        self.gpu().transfer(Some("a download"), |runtime| unsafe { runtime.download(from, bytes) })
    }

    /// All values, or those in a range.
    ///
    /// # Errors
    /// As [`Buffer::download`].
    pub fn to_vec(&self, range: Range<usize>) -> Result<Vec<T>> {
        let n = range.len();
        self.at("download", range.start, n)?; // before memory is taken for it
        let mut values = vec![T::zeroed(); n];
        self.download(range.start, &mut values)?;
        Ok(values)
    }

    /// Sets every byte of the values in `range`.
    ///
    /// # Errors
    /// [`Error::Shape`] beyond the end; [`Error::Driver`].
    pub fn fill_bytes(&mut self, range: Range<usize>, byte: u8) -> Result<()> {
        let (at, n) = (self.at("fill", range.start, range.len())?, range.len() * size_of::<T>());
        if n == 0 {
            return Ok(());
        }
        // SAFETY: as in `upload_with`.
        self.gpu().transfer(None, |runtime| unsafe { runtime.fill(at, byte, n) })
    }

    /// Copies the values `range` of another buffer of this device to position `at`.
    ///
    /// # Errors
    /// [`Error::Shape`] beyond an end; [`Error::Unsupported`] between devices; [`Error::Driver`].
    pub fn copy_from(&mut self, at: usize, src: &Buffer<T>, range: Range<usize>) -> Result<()> {
        self.gpu().with(src)?;
        let from = src.at("copy", range.start, range.len())?;
        self.copy(from, at, range.len())
    }

    /// Copies the values `range` to position `at`; the two may not overlap.
    ///
    /// # Errors
    /// [`Error::Shape`] beyond the end or with an overlap; [`Error::Driver`].
    pub fn copy_within(&mut self, range: Range<usize>, at: usize) -> Result<()> {
        let from = self.at("copy", range.start, range.len())?;
        if at < range.end && range.start < at.saturating_add(range.len()) {
            return Err(Error::shape("copy", format!("a place apart from {range:?}"), at));
        }
        self.copy(from, at, range.len())
    }

    fn copy(&mut self, from: u64, at: usize, n: usize) -> Result<()> {
        let (to, bytes) = (self.at("copy", at, n)?, n * size_of::<T>());
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: `at` checked both ranges; they lie in different allocations or apart in one.
        self.gpu().transfer(None, |runtime| unsafe { runtime.copy(from, to, bytes) })
    }
}
