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
    properties: Properties,
    /// Index of the entry that was launched last, for errors that come late.
    last: AtomicUsize,
}

// SAFETY: contexts and streams may be used from any thread; each call makes the context current first.
unsafe impl Send for Core {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Core {}

impl Core {
    /// Makes the context current on this thread, and calls the driver. `what` is for errors.
    fn call<T>(&self, what: impl fmt::Display, f: impl FnOnce() -> Result<T, DriverError>) -> Result<T> {
        // SAFETY: the context is retained as long as `self` lives.
        let current = unsafe { result::ctx::set_current(self.context) };
        current.and_then(|()| f()).map_err(|e| self.error(what, e))
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
    staging: Mutex<Option<Staging>>,
    modules: Modules,
    pool: Pool,
    core: Arc<Core>,
}

#[derive(Debug, Clone, Copy)]
struct Pool(sys::CUmemoryPool);
// SAFETY: the device's own pool; it may be used from any thread.
unsafe impl Send for Pool {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Pool {}

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
        let stream = unsafe { result::ctx::set_current(context) }
            .and_then(|()| result::stream::create(result::stream::StreamKind::NonBlocking));
        let stream = match stream {
            Ok(stream) => stream,
            Err(e) => {
                // SAFETY: retained above, used by no one.
                _ = unsafe { result::primary_ctx::release(device) };
                return Err(failed("stream", e));
            }
        };
        let last = AtomicUsize::new(usize::MAX);
        let core = Arc::new(Core { device, context, stream, properties, last });
        let pool = core.call("memory pool", || {
            // SAFETY: the device exists.
            let pool = unsafe { result::device::get_default_mem_pool(device) }?;
            // Freed memory stays in the pool: steps allocate what earlier steps freed, and waiting must not return it.
            let mut keep = u64::MAX;
            let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            // SAFETY: the attribute is a 64-bit number.
            unsafe { result::mem_pool::set_attribute(pool, attribute, (&raw mut keep).cast()) }?;
            Ok(pool)
        })?;
        Ok(Driver { staging: Mutex::new(None), modules: Modules::new(&core), pool: Pool(pool), core })
    }

    fn call<T>(&self, what: impl fmt::Display, f: impl FnOnce() -> Result<T, DriverError>) -> Result<T> {
        self.core.call(what, f)
    }

    fn pool_bytes(&self, attribute: CUmemPool_attribute) -> Result<u64> {
        let mut bytes = 0u64;
        // SAFETY: the attributes asked for are 64-bit numbers.
        self.call("memory", || unsafe {
            result::mem_pool::get_attribute(self.pool.0, attribute, (&raw mut bytes).cast())
        })?;
        Ok(bytes)
    }

    fn try_alloc(&self, bytes: usize, label: &str) -> Result<Option<u64>> {
        self.call(format_args!("allocation of {bytes} bytes for {label}"), || {
            // SAFETY: the stream lives as long as `self`.
            match unsafe { result::malloc_async(self.core.stream, bytes) } {
                Ok(address) => Ok(Some(address)),
                Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Ok(None),
                Err(e) => Err(e),
            }
        })
    }
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
        let (free, total) = self.call("memory", result::mem_get_info)?;
        let reserved = self.pool_bytes(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let used = self.pool_bytes(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        Ok(Memory { free: free as u64 + reserved.saturating_sub(used), total: total as u64 })
    }

    fn alloc(&self, bytes: usize, label: &'static str) -> Result<Option<u64>> {
        if let Some(address) = self.try_alloc(bytes, label)? {
            return Ok(Some(address));
        }
        // What the pool keeps may be in pieces of the wrong size.
        self.synchronize()?;
        // SAFETY: the pool is the device's own.
        self.call("memory pool", || unsafe { result::mem_pool::trim_to(self.pool.0, 0) })?;
        self.try_alloc(bytes, label)
    }

    unsafe fn free(&self, address: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        self.call("free", || unsafe { result::free_async(address, self.core.stream) })
    }

    unsafe fn upload(&self, to: u64, from: &[u8], progress: &mut dyn FnMut(usize)) -> Result<()> {
        if from.len() <= upload::DIRECT {
            // SAFETY: the caller's promise. The driver has copied memory that is not pinned when it returns.
            self.call("upload", || unsafe { result::memcpy_htod_async(to, from, self.core.stream) })?;
            progress(from.len());
            return Ok(());
        }
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        if staging.is_none() {
            *staging = Some(Staging::new(&self.core)?);
        }
        match &mut *staging {
            // SAFETY: the caller's promise.
            Some(staging) => unsafe { staging.upload(to, from, progress) },
            None => Ok(()), // was just set
        }
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
