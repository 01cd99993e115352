//! Finding the driver and the GPUs. Whatever is missing is said in words; nothing here panics on a machine without either.

use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use cudarc::driver::{DriverError, result};

use super::words;
use crate::cuda::runtime::Properties;
use crate::error::{Error, Result};

/// The oldest CUDA version whose functions we call; the first that knows sm_120.
const OLDEST: (u32, u32) = (12, 8);

/// The CUDA version that the driver speaks. Loads and starts the driver, once.
///
/// # Errors
/// [`Error::NoGpu`] with the reason.
pub fn driver_version() -> Result<(u32, u32)> {
    static STARTED: OnceLock<Result<(u32, u32), String>> = OnceLock::new();
    STARTED.get_or_init(start).clone().map_err(Error::NoGpu)
}

fn start() -> Result<(u32, u32), String> {
    // Asked first: the bindings panic where the library or a function of it is missing.
    // SAFETY: loads the driver's library, whose initializers are trusted.
    if !unsafe { sys::is_culib_present() } {
        return Err("there is no NVIDIA driver (libcuda.so cannot be loaded)".into());
    }
    let mut version = 0;
    // SAFETY: writes one number.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(words)?;
    let version = (version as u32 / 1000, version as u32 % 1000 / 10);
    if version < OLDEST {
        return Err(format!(
            "the NVIDIA driver speaks CUDA {}.{}; {}.{} or newer is needed: update the driver",
            version.0, version.1, OLDEST.0, OLDEST.1
        ));
    }
    match result::init() {
        Ok(()) => Ok(version),
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => Err("the NVIDIA driver finds no GPU".into()),
        Err(e) => Err(format!("the NVIDIA driver does not start: {}", words(e))),
    }
}

fn count() -> Result<usize> {
    driver_version()?;
    let n = result::device::get_count().map_err(|e| Error::NoGpu(words(e)))?;
    Ok(usize::try_from(n).unwrap_or(0))
}

pub(super) fn device(ordinal: usize) -> Result<sys::CUdevice> {
    let n = count()?;
    if ordinal >= n {
        return Err(Error::NoGpu(format!("no number {ordinal}; there are {n}, counted from 0")));
    }
    result::device::get(ordinal as i32).map_err(|e| Error::NoGpu(words(e)))
}

/// What is known of each GPU, without opening it.
///
/// # Errors
/// [`Error::NoGpu`] with the reason if the driver cannot be used.
pub fn devices() -> Result<Vec<Properties>> {
    (0..count()?).map(|ordinal| properties(device(ordinal)?)).collect()
}

pub(super) fn properties(device: sys::CUdevice) -> Result<Properties> {
    let driver = driver_version()?;
    let ask = || -> Result<Properties, DriverError> {
        // SAFETY: the device is one that the driver gave.
        let attribute = |a| unsafe { result::device::get_attribute(device, a) }.map(|v| v.unsigned_abs());
        Ok(Properties {
            name: result::device::get_name(device)?,
            compute_capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            sms: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            // SAFETY: as above.
            memory: unsafe { result::device::total_mem(device) }? as u64,
            l2: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
            smem_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            smem_per_sm: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
            driver,
        })
    };
    ask().map_err(|e| Error::NoGpu(words(e)))
}
