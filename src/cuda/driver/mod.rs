//! The CUDA driver as a [`Runtime`]: one context, one stream, its memory pool. Loaded at run time; nothing is linked.

mod graph;
mod modules;
mod start;
mod upload;

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::{self, CUmemPool_attribute};
use cudarc::driver::{DriverError, result};

use super::gpu::Gpu;
use super::runtime::{Launch, Memory, Properties, Recorded, Runtime};
use crate::error::{Error, Result};
use crate::kernels::Entry;
use modules::Modules;
use upload::Staging;

pub use start::{devices, driver_version};

/// What shared memory of a block sm_120 gives, static and dynamic together.
const SM120_SMEM: u32 = 101_376;

/// How to open a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Its number, from zero, as `CUDA_VISIBLE_DEVICES` leaves them.
    pub ordinal: usize,
    /// Refuses whatever an sm_120 would refuse for lack of shared memory, on any GPU.
    pub sm120_limits: bool,
}

impl Options {
    /// GPU number `ordinal`; the limits of sm_120 if the environment variable `GLM5_SM120_LIMITS` is set, and not to 0.
    pub fn new(ordinal: usize) -> Self {
        let sm120_limits = std::env::var_os("GLM5_SM120_LIMITS").is_some_and(|v| !v.is_empty() && v != "0");
        Options { ordinal, sm120_limits }
    }
}

/// GPU number `ordinal` of this machine, with [`Options::new`].
///
/// # Errors
/// As [`open`].
pub fn gpu(ordinal: usize) -> Result<Gpu> {
    open(Options::new(ordinal))
}

/// A GPU of this machine, with a stream of its own.
///
/// # Errors
/// [`Error::NoGpu`] if there is no driver, one too old, or no such GPU, in words; [`Error::Driver`].
pub fn open(options: Options) -> Result<Gpu> {
    let device = start::device(options.ordinal)?;
    let mut properties = start::properties(device)?;
    if options.sm120_limits {
        properties.smem_per_block = properties.smem_per_block.min(SM120_SMEM);
    }
    Ok(Gpu::new(Box::new(Driver::new(device, properties)?)))
}

/// What work and recorded work share. Everything else is given back before it.
struct Core {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// The device's own, from which all its memory comes.
    pool: sys::CUmemoryPool,
    properties: Properties,
    /// Index of the entry that was launched last, for errors that come late.
    last: AtomicUsize,
}

// SAFETY: contexts, streams and pools may be used from any thread; each call makes the context current first.
unsafe impl Send for Core {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Core {}

impl Core {
    /// Makes the context current on this thread, and calls the driver; once more with all memory that can be had if it finds too
    /// little. `what` is for errors.
    fn call<T>(&self, what: impl fmt::Display, f: impl FnMut() -> Result<T, DriverError>) -> Result<T> {
        // SAFETY: the context is retained as long as `self` lives.
        let current = unsafe { result::ctx::set_current(self.context) };
        current.and_then(|()| with_memory(f, || self.reclaim())).map_err(|e| match lacks_memory(e) {
            true => self.out_of_memory(what.to_string(), None),
            false => self.error(what, e),
        })
    }

    /// Gives what the pool keeps back to the driver, which takes memory for code, graphs and local memory elsewhere. For
    /// allocations too: what is in the pool may be in pieces of the wrong size.
    fn reclaim(&self) -> Result<(), DriverError> {
        // SAFETY: the stream is ours.
        let capturing = unsafe { result::stream::is_capturing(self.stream) }?;
        // Frees that were issued have then happened. A wait would break a capture.
        if capturing == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            // SAFETY: as above.
            unsafe { result::stream::synchronize(self.stream) }?;
        }
        // SAFETY: the pool is the device's own.
        unsafe { result::mem_pool::trim_to(self.pool, 0) }
    }

    /// Free and total memory.
    fn memory(&self) -> Result<Memory, DriverError> {
        let pool = |attribute| -> Result<u64, DriverError> {
            let mut bytes = 0u64;
            // SAFETY: the attributes asked for are 64-bit numbers.
            unsafe { result::mem_pool::get_attribute(self.pool, attribute, (&raw mut bytes).cast()) }?;
            Ok(bytes)
        };
        let (free, total) = result::mem_get_info()?;
        let reserved = pool(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let used = pool(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        Ok(Memory { free: free as u64 + reserved.saturating_sub(used), total: total as u64 })
    }

    fn out_of_memory(&self, label: String, needed: Option<u64>) -> Error {
        let Memory { free, total } =
            self.memory().unwrap_or(Memory { free: 0, total: self.properties.memory });
        Error::OutOfMemory { label, needed, gpu: self.properties.to_string(), free, total, held: Vec::new() }
    }

    fn error(&self, what: impl fmt::Display, e: DriverError) -> Error {
        let mut message = words(e);
        if let Some(entry) = Entry::ALL.get(self.last.load(Ordering::Relaxed)) {
            message += &format!("; launched last: {entry}");
        }
        Error::Driver { gpu: self.properties.to_string(), call: what.to_string(), message }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // SAFETY: both are ours; whatever used them holds an `Arc` of this, and is gone. Errors change nothing now.
        _ = self.call("close", || unsafe { result::stream::destroy(self.stream) });
        // SAFETY: retained once, by `Driver::new`.
        _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.properties)
    }
}

fn lacks_memory(e: DriverError) -> bool {
    e.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

/// Calls again after `reclaim` if there was too little memory.
fn with_memory<T>(
    mut call: impl FnMut() -> Result<T, DriverError>,
    reclaim: impl FnOnce() -> Result<(), DriverError>,
) -> Result<T, DriverError> {
    match call() {
        Err(e) if lacks_memory(e) => {
            reclaim()?;
            call()
        }
        other => other,
    }
}

/// An error of the driver by name and in words.
fn words(e: DriverError) -> String {
    let text = |s: Result<&std::ffi::CStr, _>| s.map(|s| s.to_string_lossy().into_owned());
    match (text(e.error_name()), text(e.error_string())) {
        (Ok(name), Ok(words)) => format!("{name}: {words}"),
        _ => format!("error {}", e.0 as u32),
    }
}

#[derive(Debug)]
struct Driver {
    staging: [Mutex<Option<Staging>>; 2],
    modules: Modules,
    core: Arc<Core>,
}

impl Driver {
    fn new(device: sys::CUdevice, properties: Properties) -> Result<Self> {
        let failed = |what: &str, e| Error::Driver {
            gpu: properties.to_string(),
            call: what.into(),
            message: words(e),
        };
        // SAFETY: the device exists; the context is released by `Core`.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(|e| failed("context", e))?;
        // SAFETY: just retained.
        let made = unsafe { result::ctx::set_current(context) }.and_then(|()| pool_and_stream(device));
        let (pool, stream) = match made {
            Ok(made) => made,
            Err(e) => {
                // SAFETY: retained above, used by no one.
                _ = unsafe { result::primary_ctx::release(device) };
                return Err(failed("memory pool and stream", e));
            }
        };
        let last = AtomicUsize::new(usize::MAX);
        let core = Arc::new(Core { device, context, stream, pool, properties, last });
        Ok(Driver { staging: Default::default(), modules: Modules::new(&core), core })
    }

    fn call<T>(&self, what: impl fmt::Display, f: impl FnMut() -> Result<T, DriverError>) -> Result<T> {
        self.core.call(what, f)
    }
}

fn pool_and_stream(device: sys::CUdevice) -> Result<(sys::CUmemoryPool, sys::CUstream), DriverError> {
    // SAFETY: the device exists.
    let pool = unsafe { result::device::get_default_mem_pool(device) }?;
    // Freed memory stays in the pool: steps allocate what earlier steps freed, and waiting must not return it.
    let mut keep = u64::MAX;
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the attribute is a 64-bit number.
    unsafe { result::mem_pool::set_attribute(pool, attribute, (&raw mut keep).cast()) }?;
    Ok((pool, result::stream::create(result::stream::StreamKind::NonBlocking)?))
}

impl Drop for Driver {
    fn drop(&mut self) {
        _ = self.synchronize(); // before staging buffers and code go away
    }
}

impl Runtime for Driver {
    fn properties(&self) -> &Properties {
        &self.core.properties
    }

    fn memory(&self) -> Result<Memory> {
        self.call("memory", || self.core.memory())
    }

    fn alloc(&self, bytes: usize, label: &'static str) -> Result<u64> {
        let address = self.call(format_args!("allocation of {bytes} bytes for {label}"), || {
            // SAFETY: the stream lives as long as `self`.
            unsafe { result::malloc_async(self.core.stream, bytes) }
        });
        address.map_err(|e| match e {
            Error::OutOfMemory { .. } => self.core.out_of_memory(label.into(), Some(bytes as u64)),
            e => e,
        })
    }

    unsafe fn free(&self, address: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        self.call("free", || unsafe { result::free_async(address, self.core.stream) })
    }

    unsafe fn upload(&self, to: u64, from: &[u8], progress: &mut dyn FnMut(usize)) -> Result<()> {
        let kept = &self.staging[usize::from(from.len() > upload::SMALL.bytes)];
        let kept = || kept.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken out, since `progress` may ask for another upload.
        let taken = kept().take();
        let mut staging = match taken {
            Some(staging) => staging,
            None if from.len() <= upload::SMALL.bytes => Staging::new(&self.core, upload::SMALL)?,
            None => Staging::new(&self.core, upload::LARGE)?,
        };
        // SAFETY: the caller's promise.
        let done = unsafe { staging.upload(to, from, progress) };
        *kept() = Some(staging);
        done
    }

    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.call("download", || {
            // SAFETY: the caller's promise for the device side; `to` is borrowed until the wait is over, even if it fails:
            // then the driver does nothing any more.
            let copied = unsafe { result::memcpy_dtoh_async(to, from, self.core.stream) };
            // SAFETY: the stream is ours.
            let waited = unsafe { result::stream::synchronize(self.core.stream) };
            copied.and(waited)
        })
    }

    unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        self.call("copy", || unsafe { result::memcpy_dtod_async(to, from, bytes, self.core.stream) })
    }

    unsafe fn fill(&self, at: u64, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        self.call("fill", || unsafe { result::memset_d8_async(at, byte, bytes, self.core.stream) })
    }

    fn prepare(&self, entry: Entry) -> Result<()> {
        self.modules.function(entry).map(drop)
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let Launch { entry, grid, params, overlaps } = *launch;
        let function = self.modules.function(entry)?;
        self.core.last.store(entry as usize, Ordering::Relaxed);
        // The driver copies the params before it returns; it does not write to them, whatever its signature says.
        let mut arguments = [params.as_ptr().cast::<MaybeUninit<u8>>().cast_mut().cast()];
        let mut pdl = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: entry.threads(),
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: entry.smem_bytes(),
            hStream: self.core.stream,
            attrs: &mut pdl,
            numAttrs: u32::from(overlaps),
        };
        self.call(format_args!("launch of {entry}, grid {grid:?}"), || {
            // SAFETY: the function is of this entry and its module is loaded as long as `self` lives; the attribute outlives
            // the call; the params are the caller's promise.
            let launched = unsafe {
                sys::cuLaunchKernelEx(&config, function, arguments.as_mut_ptr(), std::ptr::null_mut())
            };
            launched.result()
        })
    }

    fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is ours.
        self.call("wait", || unsafe { result::stream::synchronize(self.core.stream) })
    }

    fn time(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Duration> {
        let start = Event::new(&self.core)?;
        let end = Event::new(&self.core)?;
        start.record()?;
        work()?;
        end.record()?;
        end.wait()?;
        // SAFETY: both events live and have happened.
        let ms = self.call("timing", || unsafe { result::event::elapsed(start.event, end.event) })?;
        Ok(Duration::from_secs_f64(f64::from(ms) / 1e3))
    }

    fn begin_capture(&self) -> Result<()> {
        // Relaxed: the first launch of a kernel loads its module, which other modes forbid meanwhile.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is ours.
        self.call("begin capture", || unsafe { result::stream::begin_capture(self.core.stream, mode) })
    }

    fn end_capture(&self, reuse: Option<Box<dyn Recorded>>) -> Result<Box<dyn Recorded>> {
        graph::end_capture(&self.core, reuse)
    }
}

/// A point in the stream.
#[derive(Debug)]
struct Event {
    event: sys::CUevent,
    core: Arc<Core>,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    fn new(core: &Arc<Core>) -> Result<Self> {
        let event = core.call("event", || result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT))?;
        Ok(Event { event, core: core.clone() })
    }

    /// Now, after all work issued so far.
    fn record(&self) -> Result<()> {
        // SAFETY: event and stream live.
        self.core.call("event", || unsafe { result::event::record(self.event, self.core.stream) })
    }

    fn wait(&self) -> Result<()> {
        // SAFETY: the event lives.
        self.core.call("wait", || unsafe { result::event::synchronize(self.event) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: ours, and not used after this.
        _ = self.core.call("event", || unsafe { result::event::destroy(self.event) });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use sys::CUresult::{CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_OUT_OF_MEMORY};

    use super::*;

    /// One more try after memory was given back, for want of memory alone.
    #[test]
    fn want_of_memory_is_mended_once() {
        let (calls, reclaims) = (Cell::new(0), Cell::new(0));
        let run = |results: &[Result<u32, sys::CUresult>]| {
            calls.set(0);
            reclaims.set(0);
            let call = || {
                calls.set(calls.get() + 1);
                results[calls.get() - 1].map_err(DriverError)
            };
            let reclaim = || {
                assert_eq!(calls.get(), 1);
                reclaims.set(reclaims.get() + 1);
                Ok(())
            };
            let result = with_memory(call, reclaim).map_err(|e| e.0);
            (result, calls.get(), reclaims.get())
        };
        let (none, bad) = (Err(CUDA_ERROR_OUT_OF_MEMORY), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
        assert_eq!(run(&[Ok(7)]), (Ok(7), 1, 0));
        assert_eq!(run(&[none, Ok(7)]), (Ok(7), 2, 1));
        assert_eq!(run(&[none, none]), (none, 2, 1));
        assert_eq!(run(&[bad]), (bad, 1, 0));
        assert_eq!(run(&[none, bad]), (bad, 2, 1));
    }
}
