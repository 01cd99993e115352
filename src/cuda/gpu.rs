//! [`Gpu`]: a device as the rest of the crate sees it.

use std::collections::BTreeMap;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytemuck::Pod;

use super::buffer::{Allocation, Buffer};
use super::runtime::{Launch, Memory, Properties, Runtime};
use crate::error::{Error, Result};
use crate::kernels::{Entry, Params};

/// Most blocks in each dimension of a grid.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

/// A GPU. Clones are handles to the same device. All work is issued in order on one stream.
///
/// The first error of the driver ends the run: what is in the device's memory can no longer be trusted, so every later
/// call on this device fails with the same error.
#[derive(Debug, Clone)]
pub struct Gpu(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    runtime: Box<dyn Runtime>,
    /// What [`Error::Driver`] said first.
    failed: OnceLock<[String; 3]>,
    /// Bytes held, by label.
    held: Mutex<BTreeMap<&'static str, u64>>,
    capturing: AtomicBool,
    capture: Mutex<Capture>,
}

/// What a graph that is being captured asks for.
#[derive(Debug, Default)]
pub(super) struct Capture {
    /// Memory that it uses.
    pub(super) used: Vec<Arc<Allocation>>,
    /// Memory that was dropped meanwhile; it cannot be freed before the capture ends.
    dropped: Vec<u64>,
}

/// The guarded data stays whole whatever panics: each change is one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpu {
    /// A device on `runtime`.
    pub fn new(runtime: Box<dyn Runtime>) -> Self {
        Gpu(Arc::new(Inner {
            runtime,
            failed: OnceLock::new(),
            held: Mutex::default(),
            capturing: AtomicBool::new(false),
            capture: Mutex::default(),
        }))
    }

    /// What is known of it.
    pub fn properties(&self) -> &Properties {
        self.0.runtime.properties()
    }

    /// Name for reports and errors, for example `NVIDIA H200 (sm_90)`.
    pub fn name(&self) -> String {
        self.properties().to_string()
    }

    /// Whether both are handles to one device.
    pub fn same(&self, other: &Gpu) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// This device, if `buffer` lies on it too.
    pub(super) fn with<T: Pod>(&self, buffer: &Buffer<T>) -> Result<&Self> {
        match self.same(buffer.gpu()) {
            true => Ok(self),
            false => {
                Err(Error::unsupported("work across GPUs", "all buffers of a call must be of one device"))
            }
        }
    }

    /// Free and total memory.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn memory(&self) -> Result<Memory> {
        self.outside_capture("a look at memory", |runtime| runtime.memory())
    }

    /// Bytes held by live buffers, by label.
    pub fn held(&self) -> Vec<(&'static str, u64)> {
        lock(&self.0.held).iter().map(|(label, bytes)| (*label, *bytes)).collect()
    }

    /// Memory for `len` values with undefined contents. `label` says what for, in the breakdown of
    /// [`Error::OutOfMemory`] and of [`Gpu::held`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::Capacity`] for more than can be addressed; [`Error::Driver`].
    pub fn alloc<T: Pod>(&self, label: &'static str, len: usize) -> Result<Buffer<T>> {
        Buffer::new(self, label, len)
    }

    /// As [`Gpu::alloc`], all zeros.
    ///
    /// # Errors
    /// As [`Gpu::alloc`].
    pub fn zeros<T: Pod>(&self, label: &'static str, len: usize) -> Result<Buffer<T>> {
        let mut buffer = self.alloc(label, len)?;
        buffer.fill_bytes(0..len, 0)?;
        Ok(buffer)
    }

    /// As [`Gpu::alloc`], with values from host memory.
    ///
    /// # Errors
    /// As [`Gpu::alloc`].
    pub fn upload<T: Pod>(&self, label: &'static str, values: &[T]) -> Result<Buffer<T>> {
        let mut buffer = self.alloc(label, values.len())?;
        buffer.upload(0, values)?;
        Ok(buffer)
    }

    /// Issues a kernel on `grid` blocks; an empty grid is no work.
    ///
    /// # Errors
    /// Before anything runs: [`Error::Argument`] if the kernel takes other params, [`Error::Capacity`] if the grid or its
    /// shared memory is too large, [`Error::NoKernelImage`]. [`Error::Driver`].
    ///
    /// # Safety
    /// What the params say is true: pointers come from live buffers of this device, which have the sizes that `params.h`
    /// asks for, and those that the kernel writes come from [`Buffer::as_mut_ptr`].
    pub unsafe fn launch<P: Params>(&self, entry: Entry, grid: [u32; 3], params: &P) -> Result<()> {
        if entry.params() != P::NAME {
            return Err(Error::argument("params", format!("{} for {entry}", entry.params()), P::NAME));
        }
        let limit = |what: &str, needed: u32, available: u32| match needed <= available {
            true => Ok(()),
            false => Err(Error::Capacity {
                what: format!("{entry} on {}: {what}", self.name()),
                needed: needed.into(),
                available: available.into(),
            }),
        };
        for (n, max) in grid.into_iter().zip(MAX_GRID) {
            limit("blocks in one dimension of the grid", n, max)?;
        }
        limit("bytes of shared memory per block", entry.smem_bytes(), self.properties().smem_per_block)?;
        if grid.contains(&0) {
            return Ok(());
        }
        // SAFETY: any value can be seen as bytes of which some, its padding, may be uninitialized.
        let params: &[MaybeUninit<u8>] =
            unsafe { std::slice::from_raw_parts((&raw const *params).cast(), size_of::<P>()) };
        // SAFETY: the params are of this kernel, as was checked above; the rest is the caller's promise.
        self.call(|runtime| unsafe { runtime.launch(&Launch { entry, grid, params }) })
    }

    /// Waits for all work issued so far.
    ///
    /// # Errors
    /// [`Error::Driver`], also of kernels that ran.
    pub fn synchronize(&self) -> Result<()> {
        self.outside_capture("a wait", |runtime| runtime.synchronize())
    }

    /// How long the device takes for what `work` issues, by its own clock. Waits for the end.
    ///
    /// # Errors
    /// [`Error::Driver`]; those of `work`.
    pub fn time(&self, mut work: impl FnMut() -> Result<()>) -> Result<Duration> {
        self.outside_capture("timing", |runtime| runtime.time(&mut work))
    }

    /// Calls the runtime, unless an earlier call has failed.
    pub(super) fn call<T>(&self, f: impl FnOnce(&dyn Runtime) -> Result<T>) -> Result<T> {
        if let Some([gpu, call, message]) = self.0.failed.get().cloned() {
            return Err(Error::Driver { gpu, call, message });
        }
        f(&*self.0.runtime).inspect_err(|e| {
            if let Error::Driver { gpu, call, message } = e {
                let first = [gpu.clone(), call.clone(), message.clone()];
                _ = self.0.failed.set(first); // Another thread's may have been before it.
            }
        })
    }

    /// As [`Gpu::call`], for what cannot be part of a graph.
    pub(super) fn outside_capture<T>(
        &self,
        what: &str,
        f: impl FnOnce(&dyn Runtime) -> Result<T>,
    ) -> Result<T> {
        if self.0.capturing.load(Ordering::Acquire) {
            return Err(Error::unsupported(
                what,
                "a graph is being captured, which only launches, copies and fills join",
            ));
        }
        self.call(f)
    }

    /// Marks the start of a capture; `false` if there is one already.
    pub(super) fn start_capture(&self) -> bool {
        !self.0.capturing.swap(true, Ordering::AcqRel)
    }

    /// Marks the end of a capture, and returns what was noted.
    pub(super) fn stop_capture(&self) -> Capture {
        self.0.capturing.store(false, Ordering::Release);
        let mut capture = std::mem::take(&mut *lock(&self.0.capture));
        for address in capture.dropped.drain(..) {
            self.free(address);
        }
        capture
    }

    /// Called whenever an address is handed out.
    pub(super) fn note_use(&self, memory: &Arc<Allocation>) {
        if self.0.capturing.load(Ordering::Acquire) {
            let used = &mut lock(&self.0.capture).used;
            if !used.iter().any(|m| Arc::ptr_eq(m, memory)) {
                used.push(memory.clone());
            }
        }
    }

    pub(super) fn take(&self, label: &'static str, bytes: usize) -> Result<u64> {
        match self.outside_capture("an allocation", |runtime| runtime.alloc(bytes, label))? {
            Some(address) => {
                *lock(&self.0.held).entry(label).or_default() += bytes as u64;
                Ok(address)
            }
            None => {
                let Memory { free, total } = self.memory()?;
                let (gpu, held) = (self.name(), self.held());
                Err(Error::OutOfMemory { label, needed: bytes as u64, gpu, free, total, held })
            }
        }
    }

    pub(super) fn give_back(&self, label: &'static str, address: u64, bytes: usize) {
        if let Some(held) = lock(&self.0.held).get_mut(label) {
            *held = held.saturating_sub(bytes as u64);
        }
        match self.0.capturing.load(Ordering::Acquire) {
            true => lock(&self.0.capture).dropped.push(address),
            false => self.free(address),
        }
    }

    /// An error is kept for the next call, since a drop cannot report it.
    fn free(&self, address: u64) {
        // SAFETY: called once for each address that `take` gave, when its only owner is dropped.
        _ = self.call(|runtime| unsafe { runtime.free(address) });
    }
}

impl fmt::Display for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (sm_{}{})", self.name, self.compute_capability.0, self.compute_capability.1)
    }
}
