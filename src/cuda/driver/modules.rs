//! The kernels of this binary on one GPU: images are loaded when first needed, handles are looked up once.

use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUfunction_attribute as Attribute, CUresult};
use cudarc::driver::{DriverError, result};
use once_cell::sync::OnceCell;

use super::Core;
use crate::error::{Error, Result};
use crate::kernels::{Entry, Image};

#[derive(Debug)]
pub(super) struct Modules {
    /// By [`Entry::unit`].
    modules: Vec<OnceCell<Module>>,
    /// By entry.
    functions: Vec<OnceCell<Function>>,
    core: Arc<Core>,
}

#[derive(Debug)]
struct Module(sys::CUmodule);
// SAFETY: modules may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

#[derive(Debug)]
struct Function(sys::CUfunction);
// SAFETY: functions may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Modules {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        Modules {
            modules: Image::ALL.iter().map(|_| OnceCell::new()).collect(),
            functions: Entry::ALL.iter().map(|_| OnceCell::new()).collect(),
            core: core.clone(),
        }
    }

    /// The handle of an entry, good as long as `self` lives.
    pub(super) fn function(&self, entry: Entry) -> Result<sys::CUfunction> {
        let Some(cell) = self.functions.get(entry as usize) else {
            return Err(self.no_image(entry, "nothing"));
        };
        cell.get_or_try_init(|| self.look_up(entry)).map(|function| function.0)
    }

    fn look_up(&self, entry: Entry) -> Result<Function> {
        let (Some(image), Some(cell)) = (entry.image(), self.modules.get(entry.unit())) else {
            return Err(self.no_image(entry, "nothing"));
        };
        if !image.runs_on(self.core.properties.compute_capability) {
            return Err(self.no_image(entry, &image.archs.join(", ")));
        }
        let module = cell.get_or_try_init(|| self.load(entry, image))?;
        let name = CString::new(entry.name()).map_err(|_| self.no_image(entry, "names without end"))?;
        let (function, smem) = self.core.call(format_args!("look-up of {entry}"), || {
            // SAFETY: the module is loaded.
            let function = unsafe { result::module::get_function(module.0, name) }?;
            // SAFETY: the function was just found.
            let fixed = unsafe {
                result::function::get_function_attribute(
                    function,
                    Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                )
            }?;
            Ok((function, fixed.unsigned_abs() + entry.smem_bytes()))
        })?;
        let available = self.core.properties.smem_per_block;
        if smem > available {
            return Err(Error::Capacity {
                what: format!("{entry} on {}: bytes of shared memory per block", self.core.properties),
                needed: smem.into(),
                available: available.into(),
            });
        }
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function was just found.
        self.core.call(format_args!("shared memory of {entry}"), || unsafe {
            result::function::set_function_attribute(function, attribute, entry.smem_bytes() as i32)
        })?;
        Ok(Function(function))
    }

    fn load(&self, entry: Entry, image: &Image) -> Result<Module> {
        // An image that does not suit is no error of the device: it is as good as before.
        let loaded = self.core.call(format_args!("load of {}", image.unit), || {
            // SAFETY: the image is a fat binary that nvcc made, whole and aligned.
            match unsafe { result::module::load_data(image.bytes.as_ptr().cast()) } {
                Ok(module) => Ok(Ok(Module(module))),
                Err(e) if does_not_suit(e) => Ok(Err(e)),
                Err(e) => Err(e),
            }
        })?;
        loaded.map_err(|e| {
            let (major, minor) = self.core.properties.driver;
            let nvcc = Image::NVCC.unwrap_or("an unknown release");
            let built_for = format!(
                "{}, made by nvcc {nvcc}; the driver speaks CUDA {major}.{minor} and says {}",
                image.archs.join(", "),
                super::words(e)
            );
            self.no_image(entry, &built_for)
        })
    }

    fn no_image(&self, entry: Entry, built_for: &str) -> Error {
        let gpu = self.core.properties.to_string();
        Error::NoKernelImage { entry: entry.name(), gpu, built_for: built_for.into() }
    }
}

fn does_not_suit(e: DriverError) -> bool {
    matches!(
        e.0,
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
            | CUresult::CUDA_ERROR_INVALID_IMAGE
            | CUresult::CUDA_ERROR_INVALID_PTX
            | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            | CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND
    )
}

impl Drop for Modules {
    fn drop(&mut self) {
        for module in self.modules.iter().filter_map(OnceCell::get) {
            // SAFETY: loaded by `load`, and its functions are not used any more.
            _ = self.core.call("unload", || unsafe { result::module::unload(module.0) });
        }
    }
}
