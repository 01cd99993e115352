//! The property suites on this machine's GPU. Without one each test says that it was skipped, and why; with
//! `GLM5_REQUIRE_GPU=1` it fails then.

#[cfg(feature = "cuda")]
mod suites;

#[cfg(feature = "cuda")]
mod device {
    use std::cell::Cell;
    use std::io::Write;
    use std::sync::LazyLock;

    use glm5::tensor::Device;
    use glm5::{Error, cuda};

    /// GPU 0, opened once: after the first error of the driver nothing more can be learned from it.
    pub fn devices() -> Vec<Vec<Device>> {
        static DEVICE: LazyLock<Result<Device, String>> =
            LazyLock::new(|| Device::cuda(0).map_err(|e| e.to_string()));
        match &*DEVICE {
            Ok(device) => vec![vec![device.clone()]],
            Err(why) => {
                skipped(why);
                Vec::new()
            }
        }
    }

    /// Says so once per test, past the capture of what passing tests print.
    fn skipped(why: &str) {
        thread_local!(static SAID: Cell<bool> = const { Cell::new(false) });
        let required = std::env::var_os("GLM5_REQUIRE_GPU").is_some_and(|v| !v.is_empty() && v != "0");
        assert!(!required, "GLM5_REQUIRE_GPU is set: {why}");
        if !SAID.replace(true) {
            let thread = std::thread::current();
            let test = thread.name().unwrap_or("test");
            let line = format!("{test}: skipped: {why}\n");
            std::io::stderr().write_all(line.as_bytes()).unwrap();
        }
    }

    crate::suites::memory::memory_properties!(crate::device::devices, 1);
    crate::suites::roofs::roofs_properties!(crate::device::devices, 256);
    crate::suites::tensor::tensor_properties!(crate::device::devices, 1);

    /// Whatever this machine has, the answer is a device or one line that says why there is none.
    #[test]
    fn opening_a_gpu_never_panics() {
        println!("{}", cuda::Environment::look());
        for ordinal in [0, 1000] {
            match Device::cuda(ordinal) {
                Ok(device) => assert!(ordinal == 0 && device.name().contains("sm_"), "{}", device.name()),
                Err(e @ Error::NoGpu(_)) => assert!(!e.to_string().contains('\n'), "{e}"),
                Err(e) => panic!("{e}"),
            }
        }
        let auto = Device::auto().unwrap();
        assert_eq!(auto.gpu().is_ok(), Device::cuda(0).is_ok());
    }

    /// The limits of sm_120 bind on every GPU that is asked to keep to them.
    #[test]
    fn limits_of_sm120_can_be_imposed() {
        let options = cuda::driver::Options { ordinal: 0, sm120_limits: true };
        match cuda::driver::open(options) {
            Ok(gpu) => assert!(gpu.properties().smem_per_block <= 101_376),
            Err(e) => skipped(&e.to_string()),
        }
    }
}

#[cfg(not(feature = "cuda"))]
#[test]
fn skipped_without_the_feature_cuda() {
    use std::io::Write;
    writeln!(std::io::stderr(), "skipped: this build holds no kernels (feature `cuda`)").unwrap();
    assert!(glm5::tensor::Device::auto().unwrap().gpu().is_err());
}
