//! The property suites on the CPU: every instruction set that this machine has, one thread and several.

mod suites;

use std::sync::LazyLock;

use glm5::cpu::{Cpu, SimdLevel};
use glm5::tensor::Device;

/// For each instruction set, devices that promise the same bits.
fn devices() -> Vec<Vec<Device>> {
    static DEVICES: LazyLock<Vec<Vec<Device>>> = LazyLock::new(|| {
        let with = |level, threads| Device::Cpu(Cpu::with_simd(Some(threads), level).unwrap());
        SimdLevel::available().into_iter().map(|level| vec![with(level, 1), with(level, 3)]).collect()
    });
    DEVICES.clone()
}

suites::attention::attention_properties!(crate::devices, 24);
suites::cache::cache_properties!(crate::devices, 96);
suites::dequantize::dequantize_properties!(crate::devices, 96);
suites::dsa_indexer::dsa_indexer_properties!(crate::devices, 64);
suites::dsa_topk::dsa_topk_properties!(crate::devices, 128);
suites::embedding::embedding_properties!(crate::devices, 128);
suites::ffn::ffn_properties!(crate::devices, 48);
suites::linear::linear_properties!(crate::devices, 192);
suites::logits::logits_properties!(crate::devices, 64);
suites::mla_attention::mla_attention_properties!(crate::devices, 48);
suites::mla_prefill::mla_prefill_properties!(crate::devices, 8);
suites::moe_sort::moe_sort_properties!(crate::devices, 256);
suites::moe_sum::moe_sum_properties!(crate::devices, 128);
suites::moe::moe_properties!(crate::devices, 32);
suites::norm::norm_properties!(crate::devices, 48);
suites::post_a::post_a_properties!(crate::devices, 48);
suites::rope::rope_properties!(crate::devices, 96);
suites::router::router_properties!(crate::devices, 64);
suites::slices::slices_properties!(crate::devices);
suites::tensor::tensor_properties!(crate::devices, 1);
