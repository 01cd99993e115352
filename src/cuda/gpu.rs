//! [`Gpu`]: a device as the rest of the crate sees it.

use std::collections::BTreeMap;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytemuck::Pod;

use super::buffer::{Allocation, Buffer};
use super::order::Order;
use super::runtime::{Launch, Memory, Properties, Runtime};
use super::turns::{Turn, Turns};
use crate::error::{Error, Result};
use crate::kernels::{Entry, Params};
use crate::quant::SharedBytes;

/// Most blocks in each dimension of a grid.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

/// A GPU. Clones are handles to the same device. All work is issued in order on one stream, by one thread at a time: others wait.
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
    turns: Turns,
    order: Order,
    /// By the thread whose turn it is.
    capturing: AtomicBool,
    capture: Mutex<Option<Capture>>,
    /// Launches of each of [`Entry::ALL`].
    launches: Box<[AtomicU64]>,
    /// So far.
    allocations: AtomicU64,
}

/// What a graph that is being captured asks for.
#[derive(Debug, Default)]
struct Capture {
    /// Memory that it uses.
    used: Vec<Arc<Allocation>>,
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
            turns: Turns::default(),
            order: Order::default(),
            capturing: AtomicBool::new(false),
            capture: Mutex::default(),
            launches: Entry::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            allocations: AtomicU64::new(0),
        }))
    }

    /// Waits until no other thread uses this device, and keeps others waiting until what it returns is dropped. Every call takes a
    /// turn by itself; this one is for calls that belong together. It may be taken within another of the same thread.
    pub fn turn(&self) -> Turn<'_> {
        self.0.turns.take()
    }

    pub(super) fn order(&self) -> &Order {
        &self.0.order
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

    /// How often memory was taken so far. Between two equal numbers no buffer has moved.
    pub fn allocations(&self) -> u64 {
        self.0.allocations.load(Ordering::Relaxed)
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

    /// As [`Gpu::upload`], of the bytes of a weight: a device that only counts does not look at them.
    ///
    /// # Errors
    /// As [`Gpu::alloc`].
    pub fn upload_shared(&self, label: &'static str, bytes: &SharedBytes) -> Result<Buffer<u8>> {
        match self.0.runtime.wants_contents() {
            true => self.upload(label, bytes),
            false => self.alloc(label, bytes.len()),
        }
    }

    /// Issues a kernel on `grid` blocks; an empty grid is no work.
    ///
    /// # Errors
    /// Before anything runs: [`Error::Argument`] if the kernel takes other params, [`Error::Capacity`] if the grid or its
    /// shared memory is too large, [`Error::NoKernelImage`]. [`Error::Driver`].
    ///
    /// # Safety
    /// What the params say is true: pointers come from live buffers of this device, which have the sizes that `params/*.h`
    /// asks for; those that the kernel writes come from [`Buffer::as_mut_ptr`], and those that it reads before
    /// `griddep_wait()` from [`Buffer::as_prologue_ptr`], unless the kernel in front waits before it lets this one begin and does not
    /// write there itself. They were taken in the same [`Gpu::turn`] as this call, if another
    /// thread uses the device, and nothing was copied, cleared or waited for in between.
    pub unsafe fn launch<P: Params>(&self, entry: Entry, grid: [u32; 3], params: &P) -> Result<()> {
        if entry.params() != P::NAME {
            return Err(Error::argument("params", format!("{} for {entry}", entry.params()), P::NAME));
        }
        self.expect_fits(entry, grid)?;
        if grid.contains(&0) {
            return Ok(());
        }
        // SAFETY: any value can be seen as bytes of which some, its padding, may be uninitialized.
        let params: &[MaybeUninit<u8>] =
            unsafe { std::slice::from_raw_parts((&raw const *params).cast(), size_of::<P>()) };
        let _turn = self.turn();
        let overlaps = entry.pdl() && self.order().may_overlap();
        // SAFETY: the params are of this kernel, as was checked above; the rest is the caller's promise.
        self.call(|runtime| unsafe { runtime.launch(&Launch { entry, grid, params, overlaps }) })?;
        self.order().launched();
        self.0.launches[entry as usize].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Finds out before a launch whether it can begin: for operations of several, of which none is to run unless all can.
    ///
    /// # Errors
    /// As [`Gpu::launch`].
    pub(crate) fn prepare(&self, entry: Entry, grid: [u32; 3]) -> Result<()> {
        self.expect_fits(entry, grid)?;
        if grid.contains(&0) {
            return Ok(());
        }
        self.call(|runtime| runtime.prepare(entry))
    }

    fn expect_fits(&self, entry: Entry, grid: [u32; 3]) -> Result<()> {
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
        limit("bytes of shared memory per block", entry.smem_bytes(), self.properties().smem_per_block)
    }

    /// The kernels that were issued so far, in the order of [`Entry::ALL`], and how often: which configuration was chosen. A launch
    /// that a graph records counts once, however often the graph runs.
    pub fn launches(&self) -> Vec<(Entry, u64)> {
        let counts = self.0.launches.iter().map(|n| n.load(Ordering::Relaxed));
        Entry::ALL.iter().copied().zip(counts).filter(|(_, n)| *n > 0).collect()
    }

    /// Waits for all work issued so far.
    ///
    /// # Errors
    /// [`Error::Driver`], also of kernels that ran.
    pub fn synchronize(&self) -> Result<()> {
        self.transfer(Some("a wait"), |runtime| runtime.synchronize())
    }

    /// How long the device takes for what `work` issues, by its own clock. Waits for the end.
    ///
    /// # Errors
    /// [`Error::Driver`]; those of `work`.
    pub fn time(&self, mut work: impl FnMut() -> Result<()>) -> Result<Duration> {
        self.transfer(Some("timing"), |runtime| runtime.time(&mut work))
    }

    /// Calls the runtime, unless an earlier call has failed.
    pub(super) fn call<T>(&self, f: impl FnOnce(&dyn Runtime) -> Result<T>) -> Result<T> {
        let _turn = self.turn();
        if let Some([gpu, call, message]) = self.0.failed.get().cloned() {
            return Err(Error::Driver { gpu, call, message });
        }
        f(&*self.0.runtime).map_err(|mut e| {
            match &mut e {
                Error::Driver { gpu, call, message } => {
                    let first = [gpu.clone(), call.clone(), message.clone()];
                    _ = self.0.failed.set(first); // A call within this one may have been before it.
                }
                Error::OutOfMemory { held, .. } => *held = self.held(),
                _ => {}
            }
            e
        })
    }

    /// As [`Gpu::call`], for what cannot be part of a graph.
    pub(super) fn outside_capture<T>(
        &self,
        what: &str,
        f: impl FnOnce(&dyn Runtime) -> Result<T>,
    ) -> Result<T> {
        let _turn = self.turn();
        if self.capturing() {
            return Err(Error::unsupported(
                what,
                "a graph is being captured, which only launches, copies and fills join",
            ));
        }
        self.call(f)
    }

    /// As [`Gpu::call`], for what begins when all work issued so far has ended, and ends before any that is issued later begins.
    /// What cannot be part of a graph has a name.
    pub(super) fn transfer<T>(
        &self,
        outside_capture: Option<&str>,
        f: impl FnOnce(&dyn Runtime) -> Result<T>,
    ) -> Result<T> {
        let _turn = self.turn();
        let issued = self.order().issued();
        let done = match outside_capture {
            Some(what) => self.outside_capture(what, f),
            None => self.call(f),
        }?;
        self.order().passed(issued);
        Ok(done)
    }

    /// Whether this thread captures a graph.
    pub(crate) fn capturing(&self) -> bool {
        self.0.capturing.load(Ordering::Relaxed) && self.0.turns.mine()
    }

    /// Marks the start of a capture, by the thread whose turn it is.
    pub(super) fn start_capture(&self) {
        *lock(&self.0.capture) = Some(Capture::default());
        self.0.capturing.store(true, Ordering::Relaxed);
        self.order().passed(self.order().issued()); // a graph begins when all before it has ended
    }

    /// Marks the end of a capture, and returns the memory that it uses.
    pub(super) fn stop_capture(&self) -> Vec<Arc<Allocation>> {
        self.0.capturing.store(false, Ordering::Relaxed);
        self.order().graph_ended();
        let Capture { used, dropped } = lock(&self.0.capture).take().unwrap_or_default();
        for address in dropped {
            self.free(address);
        }
        used
    }

    /// Called whenever an address is handed out.
    pub(super) fn note_use(&self, memory: &Arc<Allocation>) {
        if self.capturing()
            && let Some(capture) = &mut *lock(&self.0.capture)
            && !capture.used.iter().any(|m| Arc::ptr_eq(m, memory))
        {
            capture.used.push(memory.clone());
        }
    }

    pub(super) fn take(&self, label: &'static str, bytes: usize) -> Result<u64> {
        let address = self.outside_capture("an allocation", |runtime| runtime.alloc(bytes, label))?;
        *lock(&self.0.held).entry(label).or_default() += bytes as u64;
        self.0.allocations.fetch_add(1, Ordering::Relaxed);
        Ok(address)
    }

    pub(super) fn give_back(&self, label: &'static str, address: u64, bytes: usize) {
        if let Some(held) = lock(&self.0.held).get_mut(label) {
            *held = held.saturating_sub(bytes as u64);
        }
        if let Some(capture) = &mut *lock(&self.0.capture) {
            return capture.dropped.push(address);
        }
        self.free(address);
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
