//! The property suites on the emulated GPU: the kernels' own source, run on the host.

#[path = "../../../tests/suites/mod.rs"]
mod suites;

mod emu {
    use glm5::tensor::Device;
    use glm5_emu::Options;

    /// A new device for every case: the first error of a device is the last thing that it does, and a case that failed
    /// must be able to shrink.
    pub fn devices() -> Vec<Vec<Device>> {
        device(Options::default())
    }

    fn device(options: Options) -> Vec<Vec<Device>> {
        let device = Device::Cuda(glm5_emu::gpu(options));
        println!("{}", device.name());
        vec![vec![device]]
    }

    crate::suites::attention::attention_properties!(crate::emu::devices, 1);
    crate::suites::cache::cache_properties!(crate::emu::devices, 24);
    crate::suites::decoding::decoding_properties!(crate::emu::devices);
    crate::suites::dequantize::dequantize_properties!(crate::emu::devices, 48);
    crate::suites::dsa_indexer::dsa_indexer_properties!(crate::emu::devices, 16);
    crate::suites::dsa_select::dsa_select_properties!(crate::emu::devices, 24);
    crate::suites::dsa_topk::dsa_topk_properties!(crate::emu::devices, 48);
    crate::suites::embedding::embedding_properties!(crate::emu::devices, 48);
    crate::suites::ffn::ffn_properties!(crate::emu::devices, 4);
    crate::suites::goldens::goldens_properties!(crate::emu::devices, short);
    crate::suites::logits::logits_properties!(crate::emu::devices, 12);
    crate::suites::linear::linear_properties!(crate::emu::devices, 16);
    crate::suites::linear_heads::linear_heads_properties!(crate::emu::devices, 16);
    crate::suites::linear_tiled::linear_tiled_properties!(crate::emu::devices, 16);
    crate::suites::mla_attention::mla_attention_properties!(crate::emu::devices, 12);
    crate::suites::mla_decode::mla_decode_properties!(crate::emu::devices, 3);
    crate::suites::mla_prefill::mla_prefill_properties!(crate::emu::devices, 3);
    crate::suites::moe_tiled::moe_tiled_properties!(crate::emu::devices, 3);
    crate::suites::moe::moe_properties!(crate::emu::devices, 2);
    crate::suites::moe_blocks::moe_blocks_properties!(crate::emu::devices, 1);
    crate::suites::moe_sort::moe_sort_properties!(crate::emu::devices, 24);
    crate::suites::moe_sum::moe_sum_properties!(crate::emu::devices, 24);
    crate::suites::norm::norm_properties!(crate::emu::devices, 24);
    crate::suites::overlap::overlap_properties!(crate::emu::devices, 1);
    crate::suites::memory::memory_properties!(crate::emu::devices, 1);
    crate::suites::post_a::post_a_properties!(crate::emu::devices, 8);
    crate::suites::roofs::roofs_properties!(crate::emu::devices, 24);
    crate::suites::rope::rope_properties!(crate::emu::devices, 24);
    crate::suites::router::router_properties!(crate::emu::devices, 24);
    crate::suites::slices::slices_properties!(crate::emu::devices);
    crate::suites::tensor::tensor_properties!(crate::emu::devices, 1);

    /// Kernels and formats that only GPUs with the shared memory of an H200 have.
    mod sm_90 {
        use super::{Device, Options};

        pub fn devices() -> Vec<Vec<Device>> {
            super::device(Options::sm_90())
        }

        crate::suites::linear_tiled::linear_tiled_properties!(crate::emu::sm_90::devices, 8);
    }

    /// As many multiprocessors as it takes to cut a row's keys into more pieces than a warp has lanes.
    mod many_sms {
        use super::{Device, Options};

        pub fn devices() -> Vec<Vec<Device>> {
            super::device(Options { sms: 40, ..Options::default() })
        }

        crate::suites::mla_parts::mla_parts_properties!(crate::emu::many_sms::devices, 3);
    }
}
