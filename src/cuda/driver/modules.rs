//! The kernels of this binary on one GPU: images are loaded when first needed, handles are looked up once.

use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUfunction_attribute as Attribute, CUresult};
use cudarc::driver::{DriverError, result};
use once_cell::sync::OnceCell;

use super::Core;
use crate::cuda::runtime::Properties;
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
        let image = suitable(entry, entry.image(), &self.core.properties)?;
        let Some(cell) = self.modules.get(entry.unit()) else {
            return Err(self.no_image(entry, "nothing"));
        };
        let module = cell.get_or_try_init(|| self.load(entry, image))?;
        let name = CString::new(entry.name()).map_err(|_| self.no_image(entry, "names without end"))?;
        let (function, smem) = self.core.call(format_args!("look-up of {entry}"), || {
            // SAFETY: the module is loaded.
            let function = unsafe { result::module::get_function(module.0, name.clone()) }?;
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
        loaded.map_err(|e| refused(entry, image, &self.core.properties, e))
    }

    fn no_image(&self, entry: Entry, built_for: &str) -> Error {
        no_image(entry, &self.core.properties, built_for)
    }
}

/// The image, if it is there and has code for this GPU.
fn suitable<'a>(entry: Entry, image: Option<&'a Image>, gpu: &Properties) -> Result<&'a Image> {
    match image {
        Some(image) if image.runs_on(gpu.compute_capability) => Ok(image),
        Some(image) => Err(no_image(entry, gpu, &image.archs.join(", "))),
        None => Err(no_image(entry, gpu, "nothing")),
    }
}

/// What the driver makes of an image that should suit: an old one does not know a new compiler's PTX, or has no compiler.
fn refused(entry: Entry, image: &Image, gpu: &Properties, e: DriverError) -> Error {
    let (major, minor) = gpu.driver;
    let nvcc = Image::NVCC.unwrap_or("an unknown release");
    let (archs, says) = (image.archs.join(", "), super::words(e));
    let built_for =
        format!("{archs}, made by nvcc {nvcc}; the driver speaks CUDA {major}.{minor} and says {says}");
    no_image(entry, gpu, &built_for)
}

fn no_image(entry: Entry, gpu: &Properties, built_for: &str) -> Error {
    Error::NoKernelImage { entry: entry.name(), gpu: gpu.to_string(), built_for: built_for.into() }
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

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: Entry = crate::kernels::copy::INSTANCES[0].entry;

    fn gpu(compute_capability: (u32, u32)) -> Properties {
        let name = "a GPU".into();
        let (memory, l2, smem_per_block, smem_per_sm) = (1 << 30, 1 << 20, 1 << 16, 1 << 17);
        let (sms, driver) = (1, (12, 9));
        Properties { name, compute_capability, sms, memory, l2, smem_per_block, smem_per_sm, driver }
    }

    fn image(archs: &'static [&'static str]) -> Image {
        Image { unit: "copy.0", archs, bytes: &[] }
    }

    #[test]
    fn only_images_with_code_for_the_gpu_are_loaded() {
        let both = image(&["sm_90a", "sm_120a"]);
        for there in [(9, 0), (12, 0)] {
            assert_eq!(suitable(ENTRY, Some(&both), &gpu(there)).unwrap().archs, both.archs);
        }
        assert!(suitable(ENTRY, Some(&image(&["compute_90"])), &gpu((12, 1))).is_ok());
        let told = |image: Option<&Image>, capability| match suitable(ENTRY, image, &gpu(capability)) {
            Err(e @ Error::NoKernelImage { .. }) => e.to_string(),
            other => panic!("{other:?}"),
        };
        let text = told(Some(&both), (12, 1));
        for part in [ENTRY.name(), "a GPU (sm_121)", "only sm_90a, sm_120a"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(told(None, (9, 0)).contains("only nothing"));
        assert!(told(Some(&image(&["compute_90"])), (8, 9)).contains("(sm_89), only compute_90"));
    }

    /// Refused images are told apart from errors that end the device.
    #[test]
    fn what_the_driver_says_of_an_image() {
        use CUresult::*;
        for code in [
            CUDA_ERROR_NO_BINARY_FOR_GPU,
            CUDA_ERROR_INVALID_IMAGE,
            CUDA_ERROR_INVALID_PTX,
            CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
        ] {
            assert!(does_not_suit(DriverError(code)), "{code:?}");
        }
        for code in [CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_VALUE] {
            assert!(!does_not_suit(DriverError(code)), "{code:?}");
        }
    }
}
