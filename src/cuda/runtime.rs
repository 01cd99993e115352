//! What a device must be able to do: [`Runtime`]. The CUDA driver is one; the emulator of the tests is another.
//!
//! Everything above it, that is checks, configuration, params and launches of every operation, is written once, so tests
//! drive the same code on both.

use std::any::Any;
use std::fmt;
use std::mem::MaybeUninit;
use std::time::Duration;

use crate::error::Result;
use crate::kernels::Entry;

/// What is known of a device.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Properties {
    /// As the vendor calls it.
    pub name: String,
    /// Major and minor: (12, 0) is `sm_120`.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Bytes of memory, all of it.
    pub memory: u64,
    /// Bytes of the L2 cache.
    pub l2: u64,
    /// Bytes of shared memory that a block can have, static and dynamic together.
    pub smem_per_block: u32,
    /// Bytes of shared memory of an SM.
    pub smem_per_sm: u32,
    /// The CUDA version that the driver speaks, as (major, minor).
    pub driver: (u32, u32),
}

impl Properties {
    /// GPUs that are known by name, for planning without one.
    pub const KNOWN: [&'static str; 2] = ["h200", "rtx-pro-6000"];

    /// What a GPU of [`Properties::KNOWN`] has.
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "h200" => Some(Self::h200()),
            // Not seen here; memory as nvidia-smi tells it of the Blackwell Workstation Edition.
            "rtx-pro-6000" => Some(Properties {
                name: "NVIDIA RTX PRO 6000 Blackwell".into(),
                compute_capability: (12, 0),
                sms: 188,
                memory: 97_887 << 20,
                l2: 128 << 20,
                smem_per_block: 101_376,
                smem_per_sm: 100 << 10,
                driver: (13, 0),
            }),
            _ => None,
        }
    }

    pub(crate) fn h200() -> Self {
        Properties {
            name: "NVIDIA H200".into(),
            compute_capability: (9, 0),
            sms: 132,
            memory: 150_109_880_320,
            l2: 60 << 20,
            smem_per_block: 227 << 10,
            smem_per_sm: 228 << 10,
            driver: (13, 0),
        }
    }
}

/// Device memory now, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Memory {
    /// What an allocation could still get.
    pub free: u64,
    /// All of it.
    pub total: u64,
}

/// One launch of a kernel. Threads per block and shared memory are facts of the entry.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The kernel.
    pub entry: Entry,
    /// Blocks; no dimension is zero.
    pub grid: [u32; 3],
    /// The params struct; there may be padding in it.
    pub params: &'a [MaybeUninit<u8>],
    /// Whether it may begin before the kernels issued before it have ended.
    pub overlaps: bool,
}

/// A device: memory, launches in the order in which they were issued, recorded launches.
///
/// Whatever takes memory, a module that is loaded included, may fail with [`crate::Error::OutOfMemory`], with nothing in `held`,
/// which [`super::Gpu`] fills in; the device goes on then.
///
/// Addresses are those that kernels see; zero is none. Work may be asynchronous: an error of a kernel may come from any
/// later call. [`super::Gpu`] is the safe side, and it keeps the first [`crate::Error::Driver`] that comes out of here:
/// nothing is called after that.
pub trait Runtime: Send + Sync + fmt::Debug {
    /// What is known of the device.
    fn properties(&self) -> &Properties;

    /// Free and total memory.
    ///
    /// # Errors
    /// [`crate::Error::Driver`], as from every function here.
    fn memory(&self) -> Result<Memory>;

    /// Memory for `bytes` > 0, aligned to 256, contents undefined. `label` says what for.
    ///
    /// # Errors
    /// As [`Runtime::memory`]; [`crate::Error::OutOfMemory`].
    fn alloc(&self, bytes: usize, label: &'static str) -> Result<u64>;

    /// Gives memory back once the work issued so far is done.
    ///
    /// # Errors
    /// As [`Runtime::memory`].
    ///
    /// # Safety
    /// `address` is from [`Runtime::alloc`], not yet freed, and nothing issued later uses it.
    unsafe fn free(&self, address: u64) -> Result<()>;

    /// Whether it has a use for what is copied to it. One that only counts has none, so that contents need not be made.
    fn wants_contents(&self) -> bool {
        true
    }

    /// Copies host memory to the device; `from` may be reused on return. `progress` is told the bytes issued so far.
    ///
    /// # Errors
    /// As [`Runtime::memory`].
    ///
    /// # Safety
    /// `from.len()` bytes at `to` lie within one live allocation.
    unsafe fn upload(&self, to: u64, from: &[u8], progress: &mut dyn FnMut(usize)) -> Result<()>;

    /// Copies device memory to the host, after all work issued so far.
    ///
    /// # Errors
    /// As [`Runtime::memory`].
    ///
    /// # Safety
    /// `to.len()` bytes at `from` lie within one live allocation.
    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<()>;

    /// Copies within the device.
    ///
    /// # Errors
    /// As [`Runtime::memory`].
    ///
    /// # Safety
    /// Both ranges lie within live allocations and do not overlap.
    unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()>;

    /// Sets each of `bytes` bytes.
    ///
    /// # Errors
    /// As [`Runtime::memory`].
    ///
    /// # Safety
    /// The range lies within one live allocation.
    unsafe fn fill(&self, at: u64, byte: u8, bytes: usize) -> Result<()>;

    /// Makes a kernel ready, so that its launch does not fail for want of an image or of memory for it.
    ///
    /// # Errors
    /// As [`Runtime::launch`].
    fn prepare(&self, entry: Entry) -> Result<()>;

    /// Issues a kernel.
    ///
    /// # Errors
    /// As [`Runtime::memory`]; [`crate::Error::NoKernelImage`], [`crate::Error::Capacity`].
    ///
    /// # Safety
    /// `params` is what the kernel takes, and what it says of memory is true.
    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()>;

    /// Waits for all work issued so far.
    ///
    /// # Errors
    /// As [`Runtime::memory`]; errors of kernels come to light here.
    fn synchronize(&self) -> Result<()>;

    /// How long the device takes for what `work` issues, by its own clock. Waits for the end.
    ///
    /// # Errors
    /// As [`Runtime::memory`]; those of `work`.
    fn time(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Duration>;

    /// From here to [`Runtime::end_capture`] launches, copies and fills are recorded and not run; nothing else is called.
    ///
    /// # Errors
    /// As [`Runtime::memory`].
    fn begin_capture(&self) -> Result<()>;

    /// Ends the recording. `reuse` is an earlier graph of this runtime that may be changed into the new one, which is
    /// cheaper than to make one.
    ///
    /// # Errors
    /// As [`Runtime::memory`].
    fn end_capture(&self, reuse: Option<Box<dyn Recorded>>) -> Result<Box<dyn Recorded>>;
}

/// Recorded work, ready to run.
pub trait Recorded: Any + Send + fmt::Debug {
    /// Issues it.
    ///
    /// # Errors
    /// As [`Runtime::memory`].
    ///
    /// # Safety
    /// The memory that the recorded work uses is still allocated.
    unsafe fn launch(&mut self) -> Result<()>;
}
