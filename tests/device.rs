//! The property suites on this machine's GPU. Without one each test says that it was skipped, and why; with
//! `GLM5_REQUIRE_GPU=1` it fails then.

#[cfg(feature = "cuda")]
mod suites;

#[cfg(feature = "cuda")]
mod device {
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::io::Write;
    use std::sync::{Mutex, PoisonError};

    use glm5::tensor::{Device, DeviceChoice};
    use glm5::{Error, cuda};

    /// GPU 0, opened once for each test, since tests run side by side and a capture of one must not hold up another.
    /// Never closed: what is left in memory by one case may be read by the next.
    pub fn devices() -> Vec<Vec<Device>> {
        static OPEN: Mutex<BTreeMap<String, Device>> = Mutex::new(BTreeMap::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let device = match open.get(&test()) {
            Some(device) => device.clone(),
            None => match Device::cuda(0) {
                Ok(device) => open.entry(test()).or_insert(device).clone(),
                Err(why) => {
                    skipped(&why.to_string());
                    return Vec::new();
                }
            },
        };
        vec![vec![device]]
    }

    fn test() -> String {
        std::thread::current().name().unwrap_or("main").into()
    }

    /// Says so once per test, past the capture of what passing tests print.
    fn skipped(why: &str) {
        thread_local!(static SAID: Cell<bool> = const { Cell::new(false) });
        let required = std::env::var_os("GLM5_REQUIRE_GPU").is_some_and(|v| !v.is_empty() && v != "0");
        assert!(!required, "GLM5_REQUIRE_GPU is set: {why}");
        if !SAID.replace(true) {
            let line = format!("{}: skipped: {why}\n", test());
            std::io::stderr().write_all(line.as_bytes()).unwrap();
        }
    }

    crate::suites::attention::attention_properties!(crate::device::devices, 16);
    crate::suites::cache::cache_properties!(crate::device::devices, 256);
    crate::suites::decoding::decoding_properties!(crate::device::devices);
    crate::suites::dequantize::dequantize_properties!(crate::device::devices, 256);
    crate::suites::dsa_indexer::dsa_indexer_properties!(crate::device::devices, 256);
    crate::suites::dsa_select::dsa_select_properties!(crate::device::devices, 256);
    crate::suites::dsa_topk::dsa_topk_properties!(crate::device::devices, 512);
    crate::suites::embedding::embedding_properties!(crate::device::devices, 256);
    crate::suites::ffn::ffn_properties!(crate::device::devices, 64);
    crate::suites::goldens::goldens_properties!(crate::device::devices);
    crate::suites::large_caches::large_caches_properties!(crate::device::devices, 1);
    crate::suites::logits::logits_properties!(crate::device::devices, 64);
    crate::suites::linear::linear_properties!(crate::device::devices, 256);
    crate::suites::linear_heads::linear_heads_properties!(crate::device::devices, 256);
    crate::suites::linear_tiled::linear_tiled_properties!(crate::device::devices, 256);
    crate::suites::mla_attention::mla_attention_properties!(crate::device::devices, 128);
    crate::suites::mla_decode::mla_decode_properties!(crate::device::devices, 64);
    crate::suites::mla_parts::mla_parts_properties!(crate::device::devices, 64);
    crate::suites::mla_prefill::mla_prefill_properties!(crate::device::devices, 64);
    crate::suites::memory::memory_properties!(crate::device::devices, 1);
    crate::suites::moe_tiled::moe_tiled_properties!(crate::device::devices, 256);
    crate::suites::moe::moe_properties!(crate::device::devices, 64);
    crate::suites::moe_blocks::moe_blocks_properties!(crate::device::devices, 1);
    crate::suites::moe_sort::moe_sort_properties!(crate::device::devices, 256);
    crate::suites::moe_sum::moe_sum_properties!(crate::device::devices, 128);
    crate::suites::norm::norm_properties!(crate::device::devices, 128);
    crate::suites::overlap::overlap_properties!(crate::device::devices, 1);
    crate::suites::post_a::post_a_properties!(crate::device::devices, 256);
    crate::suites::roofs::roofs_properties!(crate::device::devices, 256);
    crate::suites::rope::rope_properties!(crate::device::devices, 256);
    crate::suites::router::router_properties!(crate::device::devices, 256);
    crate::suites::slices::slices_properties!(crate::device::devices);
    crate::suites::tensor::tensor_properties!(crate::device::devices, 1);

    /// Whatever this machine has, the answer is a device or one line that says why there is none.
    #[test]
    fn opening_a_gpu_never_panics() {
        println!("{}", cuda::Environment::look());
        for ordinal in [0, 1000] {
            match Device::cuda(ordinal) {
                Ok(device) => assert!(ordinal == 0 && device.name().contains("sm_"), "{}", device.name()),
                Err(e @ Error::NoGpu(_)) => {
                    assert!(!e.to_string().contains('\n'), "{e}");
                    if ordinal == 0 {
                        skipped(&e.to_string());
                    }
                }
                Err(e) => panic!("{e}"),
            }
        }
        let auto = Device::open(DeviceChoice::Auto, None).unwrap();
        assert_eq!(auto.device.gpu().is_ok(), Device::cuda(0).is_ok(), "{auto}");
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
    let auto = glm5::tensor::Device::open(glm5::tensor::DeviceChoice::Auto, None).unwrap();
    assert!(auto.device.gpu().is_err() && auto.why.contains("feature `cuda`"), "{auto}");
}
