//! The property suites on the CPU: every instruction set that this machine has, one thread and several.

mod suites;

use std::sync::LazyLock;

use glm5::cpu::{Cpu, SimdLevel};
use glm5::tensor::Device;

/// All of them promise the same bits.
fn devices() -> Vec<Device> {
    static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| {
        let mut devices = Vec::new();
        for level in SimdLevel::available() {
            for threads in [1, 3] {
                devices.push(Device::Cpu(Cpu::with_simd(Some(threads), level).unwrap()));
            }
        }
        devices
    });
    DEVICES.clone()
}

suites::dsa_indexer::dsa_indexer_properties!(crate::devices, 48);
suites::dsa_topk::dsa_topk_properties!(crate::devices, 96);
suites::embedding::embedding_properties!(crate::devices, 96);
suites::ffn::ffn_properties!(crate::devices, 32);
suites::linear::linear_properties!(crate::devices, 64);
suites::logits::logits_properties!(crate::devices, 48);
suites::mla_attention::mla_attention_properties!(crate::devices, 32);
suites::moe::moe_properties!(crate::devices, 32);
suites::norm::norm_properties!(crate::devices, 64);
suites::rope::rope_properties!(crate::devices, 64);
suites::router::router_properties!(crate::devices, 48);
