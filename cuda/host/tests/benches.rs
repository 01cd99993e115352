//! The benches of the kernels, each row once on an emulated GPU: what they call, and what they compare before they would measure.
//! The tests beside their code run here, too, since a bench has no harness.

#[path = "../../../benches/kernels/main.rs"]
mod kernels;

use glm5::kernels::linear_gemm;
use glm5::tensor::Device;

fn run(device: Device, filter: &str) {
    let bench = kernels::Bench::new(device, false, filter.into());
    kernels::run(&bench, &mut criterion::Criterion::default());
}

#[test]
fn every_bench_runs_once() {
    run(glm5_emu::device(), "");
}

/// These run only if they are asked for.
#[test]
fn every_variant_runs_once() {
    let device = glm5_emu::device();
    let gpu = device.gpu().unwrap().clone();
    run(device, "linear_variants");
    let launched = gpu.launches();
    assert!(launched.iter().any(|(entry, _)| entry.family() == "linear_decode"));
    // Kernels for many tokens multiply few, too: only these are int8.
    let int8 = |entry| linear_gemm::INSTANCES.iter().any(|i| i.entry == entry && i.act == 8);
    assert!(launched.iter().any(|(entry, _)| int8(*entry)));
}

#[test]
fn every_attention_runs_once() {
    let device = glm5_emu::device();
    let gpu = device.gpu().unwrap().clone();
    for filter in ["mla_attention", "mla_variants", "mla_prefill"] {
        run(device.clone(), filter);
    }
    let kernels = [
        "mla_decode_bf16_h16",
        "mla_decode_bf16_h32",
        "mla_decode_f16",
        "mla_merge_h16",
        "mla_merge_h32",
        "mla_float_f32",
        "mla_gather_c1",
        "mla_expand_v0",
        "mla_expand_v1",
        "mla_prefill",
    ];
    for kernel in kernels {
        let ran = gpu.launches().iter().any(|(entry, _)| entry.name().starts_with(kernel));
        assert!(ran, "{kernel} did not run");
    }
}
