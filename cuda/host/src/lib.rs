//! Runs the GPU kernels of `glm5` on the host: an emulated device, for tests on machines without a GPU.
//!
//! [`device`] gives a [`Device`] on which operations run exactly as on a GPU (the same checks, params and launches), with
//! the kernels' own source compiled for the host: threads in an order drawn from a seed, races in shared memory,
//! deadlocks, divergence, misaligned accesses and writes beyond allocations reported as errors.

#![allow(unsafe_code)] // calls into C++, and memory by address

mod memory;
mod runtime;

use std::env;
use std::ffi::{c_char, c_int, c_void};
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use glm5::cuda::Gpu;
use glm5::tensor::Device;

pub use runtime::Emulator;

/// `emu_launch` of `emu.h`.
#[repr(C)]
struct EmuLaunch {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    params_bytes: u32,
    pdl: u32,
    resident_blocks: u32,
    seed: u64,
    buffers: *mut EmuBuffer,
    n_buffers: u64,
    report: *mut c_char,
    report_bytes: u64,
    early: *mut u32,
}

/// `emu_buffer` of `emu.h`.
#[repr(C)]
struct EmuBuffer {
    data: *const c_void,
    bytes: u64,
    guard_bytes: u64,
    writable: u32,
    written: u32,
}

/// The most buffers that a launch can name.
const MAX_BUFFERS: usize = 64;

type EmuKernel = unsafe extern "C" fn(params: *const c_void, launch: *const EmuLaunch) -> c_int;

include!(concat!(env!("OUT_DIR"), "/functions.rs"));

/// What an emulated device is like.
#[derive(Debug, Clone)]
pub struct Options {
    /// From which the seed of each launch follows.
    pub seed: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Multiprocessors, which kernels take as a hint for their grids.
    pub sms: u32,
    /// Compute capability, which decides on the kernels that it can run.
    pub compute_capability: (u32, u32),
    /// Bytes of shared memory that a block of threads can have.
    pub smem_per_block: u32,
    /// Bytes of shared memory of a multiprocessor.
    pub smem_per_sm: u32,
    /// A family whose kernels are said not to be there.
    pub refused: Option<&'static str>,
}

impl Default for Options {
    /// A small sm_120: 4 GiB, three multiprocessors, so that grids are small and blocks have several tiles to do. The seed
    /// is that of this process: `GLM5_EMU_SEED`, or a new one for every run.
    fn default() -> Self {
        static SEED: LazyLock<u64> = LazyLock::new(|| {
            let set = env::var("GLM5_EMU_SEED").ok().and_then(|text| text.parse().ok());
            set.unwrap_or_else(|| RandomState::new().hash_one(0) >> 32)
        });
        Options {
            seed: *SEED,
            memory: 4 << 30,
            sms: 3,
            compute_capability: (12, 0),
            smem_per_block: 99 << 10,
            smem_per_sm: 100 << 10,
            refused: None,
        }
    }
}

impl Options {
    /// A small sm_90: the default with the shared memory of an H200.
    pub fn sm_90() -> Self {
        let (smem_per_block, smem_per_sm) = (227 << 10, 228 << 10);
        Options { compute_capability: (9, 0), smem_per_block, smem_per_sm, ..Options::default() }
    }
}

/// An emulated GPU.
pub fn gpu(options: Options) -> Gpu {
    Gpu::new(Box::new(Emulator::new(options)))
}

/// An emulated GPU as a device for tensors, with [`Options::default`].
pub fn device() -> Device {
    Device::Cuda(gpu(Options::default()))
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Layouts agree with those of `emu.h`, as the C++ compiler sees them.
    #[test]
    fn structs_are_those_of_emu_h() {
        let here = [
            size_of::<EmuLaunch>(),
            offset_of!(EmuLaunch, seed),
            offset_of!(EmuLaunch, buffers),
            offset_of!(EmuLaunch, report_bytes),
            size_of::<EmuBuffer>(),
            offset_of!(EmuBuffer, writable),
        ];
        // SAFETY: a constant of this length, written by the build script.
        let there = unsafe { EMU_LAYOUT };
        assert_eq!(here.map(|n| n as u64), there);
    }
}
