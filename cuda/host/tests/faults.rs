//! What the emulated device reports: writes beyond allocations, misuse, too little memory; and that nothing goes on after.
#![allow(unsafe_code)] // launches with params that no operation would make

use glm5::Error;
use glm5::cuda::roofs::{Vector, copy};
use glm5::cuda::{Buffer, Gpu};
use glm5::kernels;
use glm5::ops::dsa_topk::{Selection, TopkScratch, top_k};
use glm5::ops::embedding::embedding_of;
use glm5::ops::linear::LinearInput;
use glm5::ops::linear::{TiledOptions, Unrounded, linear_many, linear_tiled_with, quantize};
use glm5::ops::logits::logits;
use glm5::ops::router::{Gating, RouterConfig, Routing, router};
use glm5::quant::{GgmlType, Weight};
use glm5::sys::{copy_params, reduce_params};
use glm5::tensor::{Device, Matrix, Precision, QuantizedTiles, Tensor};
use glm5_emu::{Options, gpu};

fn small() -> Gpu {
    gpu(Options { memory: 1 << 20, seed: 7, ..Options::default() })
}

/// Copies `n` vectors, whatever the buffers hold.
fn copy_blindly(gpu: &Gpu, src: &Buffer<Vector>, dst: &mut Buffer<Vector>, n: u64) -> glm5::Result<()> {
    let params = copy_params { src: src.as_ptr().cast(), dst: dst.as_mut_ptr().cast(), n_vecs: n };
    // SAFETY: what lies up to 32 vectors behind a buffer is its guard zone.
    unsafe { gpu.launch(kernels::copy::INSTANCES[0].entry, [1, 1, 1], &params) }
}

#[test]
fn a_write_behind_a_buffer_is_reported_and_ends_the_run() {
    let gpu = small();
    let (src, mut dst) = (gpu.zeros("src", 101).unwrap(), gpu.zeros("dst", 100).unwrap());
    copy_blindly(&gpu, &src, &mut dst, 100).unwrap();
    let e = copy_blindly(&gpu, &src, &mut dst, 101).unwrap_err();
    let text = e.to_string();
    for part in ["at offset 1600 of buffer", "\"dst\"", "copy_u4_w8", "GLM5_EMU_SEED=7", "launch 2"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // The first error stays, whatever is tried afterwards.
    let again = [
        gpu.synchronize().unwrap_err(),
        gpu.alloc::<u8>("more", 1).unwrap_err(),
        src.to_vec(0..1).unwrap_err(),
        copy_blindly(&gpu, &src, &mut dst, 100).unwrap_err(),
    ];
    again.iter().for_each(|e| assert_eq!(e.to_string(), text));
}

#[test]
fn a_read_behind_a_buffer_is_reported() {
    let gpu = small();
    let (src, mut partial) = (gpu.zeros::<Vector>("src", 100).unwrap(), gpu.zeros("partial", 1).unwrap());
    let params = reduce_params { src: src.as_ptr().cast(), partial: partial.as_mut_ptr(), n_vecs: 101 };
    // SAFETY: what lies behind a buffer is its guard zone.
    let e = unsafe { gpu.launch(kernels::reduce::INSTANCES[0].entry, [1, 1, 1], &params) };
    let text = e.unwrap_err().to_string();
    assert!(text.contains("reads") && text.contains("at offset 1600 of buffer"), "{text}");
    assert!(text.contains("\"src\""), "{text}");
}

/// Tokens on the device are not known to the host, so the kernel itself must stop at one outside the table.
#[test]
fn a_token_outside_the_table_traps() {
    let device = Device::Cuda(small());
    let table = Matrix::new(&device, Weight::from_f32([1, 3, 8], &[0.5; 24]).unwrap()).unwrap();
    let mut out = Tensor::<f32>::zeros(&device, 2, 8).unwrap();
    let embed = |tokens: Vec<u32>, out: &mut Tensor| {
        embedding_of(&table, &Tensor::from_vec(&device, 2, 1, tokens).unwrap(), out)
    };
    embed(vec![2, 0], &mut out).unwrap();
    assert_eq!(out.to_vec().unwrap(), [0.5; 16]);
    let text = embed(vec![2, 3], &mut out).unwrap_err().to_string();
    assert!(text.contains("trap") && text.contains("embed_f32_f32"), "{text}");
}

#[test]
fn launches_that_do_not_fit_are_refused_before_they_run() {
    let gpu = small();
    let entry = kernels::copy::INSTANCES[0].entry;
    let mut dst = gpu.zeros::<Vector>("dst", 8).unwrap();
    let src = gpu.zeros::<Vector>("src", 8).unwrap();
    let other = reduce_params { src: src.as_ptr().cast(), partial: dst.as_mut_ptr().cast(), n_vecs: 8 };
    // SAFETY: both buffers are large enough; nothing is to run.
    let refused = unsafe { gpu.launch(entry, [1, 1, 1], &other) };
    assert!(matches!(refused, Err(Error::Argument { .. })), "{refused:?}");
    let params = copy_params { src: src.as_ptr().cast(), dst: dst.as_mut_ptr().cast(), n_vecs: 8 };
    for grid in [[1 << 31, 1, 1], [1, 1 << 16, 1], [1, 1, 1 << 16]] {
        // SAFETY: as above.
        let refused = unsafe { gpu.launch(entry, grid, &params) };
        assert!(matches!(refused, Err(Error::Capacity { .. })), "{refused:?}");
    }
    gpu.synchronize().unwrap(); // the device is as good as before
}

#[test]
fn memory_runs_out_with_a_breakdown() {
    let gpu = small();
    let weights = gpu.zeros::<u32>("weights", 150_000).unwrap();
    let cache = gpu.zeros::<u8>("cache", 300_000).unwrap();
    match gpu.alloc::<u8>("activations", 200_000) {
        Err(e @ Error::OutOfMemory { .. }) => {
            let text = e.to_string();
            for part in
                ["0.2 MiB for activations", "0.1 MiB of 1.0 MiB free", "cache 0.3 MiB", "weights 0.6 MiB"]
            {
                assert!(text.contains(part), "{part} in {text}");
            }
        }
        other => panic!("{other:?}"),
    }
    drop(cache);
    assert_eq!(gpu.held(), [("cache", 0), ("weights", 600_000)]);
    assert_eq!(gpu.memory().unwrap().free, (1 << 20) - 600_000);
    gpu.alloc::<u8>("activations", 200_000).unwrap();
    assert!(matches!(gpu.alloc::<u64>("x", usize::MAX / 2), Err(Error::Capacity { .. })));
    drop(weights);
}

#[test]
fn fresh_memory_is_poisoned_and_devices_are_apart() {
    let (a, b) = (small(), small());
    let fresh = a.alloc::<f32>("fresh", 100).unwrap();
    assert!(fresh.to_vec(0..100).unwrap().iter().all(|v| v.is_nan()));
    let (src, mut dst) = (a.zeros::<Vector>("src", 8).unwrap(), b.zeros::<Vector>("dst", 8).unwrap());
    let refused = copy(&kernels::copy::INSTANCES[0], &src, &mut dst);
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    assert!(matches!(dst.copy_from(0, &src, 0..8), Err(Error::Unsupported { .. })));
}

/// Outputs that lie elsewhere keep their rows, and so do those of an operation that is refused.
#[test]
fn refused_operations_resize_nothing() {
    let (cpu, emulated) = (Device::cpu(Some(1)).unwrap(), Device::Cuda(small()));
    let config = RouterConfig {
        n_experts_per_tok: 2,
        gating: Gating::Sigmoid,
        norm_topk_prob: true,
        routed_scaling_factor: 1.0,
        n_groups: 1,
        n_groups_used: 1,
    };
    for (input, output) in [(&cpu, &emulated), (&emulated, &cpu), (&emulated, &emulated)] {
        let x = Tensor::from_vec(input, 3, 8, vec![1f32; 24]).unwrap();
        let w = Matrix::new(input, Weight::from_f32([1, 4, 8], &[1.0; 32]).unwrap()).unwrap();
        let mut selection = Selection::new(output, 2).unwrap();
        // With both on one GPU it is what is visible that lies elsewhere.
        let visible = Tensor::from_vec(&cpu, 3, 1, vec![8u32; 3]).unwrap();
        let mut scratch = TopkScratch::new(output).unwrap();
        top_k(&x, &visible, &mut scratch, &mut selection).unwrap_err();
        let experts = if input.name() == output.name() { 513 } else { 4 }; // more than kernels have room for
        let mut routing = Routing::new(output, experts, 2).unwrap();
        let bias = Tensor::zeros(input, 1, experts).unwrap();
        let of_router = Weight::from_f32([1, experts, 8], &vec![1.0; experts * 8]).unwrap();
        router(&Matrix::new(input, of_router).unwrap(), &bias, &x, &config, &mut routing).unwrap_err();
        let (mut gathered, mut y) =
            (LinearInput::new(output, 8).unwrap(), Tensor::zeros(output, 0, 4).unwrap());
        // With both on one GPU it is a row that does not exist.
        let last = if input.name() == output.name() { 3 } else { 2 };
        logits(&w, &x, &[1, last], &mut gathered, &mut y, Precision::Exact).unwrap_err();
        let rows = [
            selection.indices.rows(),
            selection.lens.rows(),
            routing.ids.rows(),
            routing.weights.rows(),
            routing.logits.rows(),
            gathered.values().rows(),
            y.rows(),
        ];
        assert_eq!(rows, [0; 7], "{} to {}", input.name(), output.name());
    }
}

/// A kernel that is not there, or for which there is no memory, is found before any other of the call runs.
#[test]
fn no_kernel_runs_unless_all_can() {
    let ones = |ty: GgmlType, n: usize| {
        let values = vec![1.0; n * 256];
        let bytes = match ty {
            GgmlType::F32 => return Weight::from_f32([1, n, 256], &values).unwrap(),
            GgmlType::F16 => [0u8, 0x3c].repeat(n * 256),
            _ => [&[0u8, 0x3c][..], &[1; 32]].concat().repeat(n * 8),
        };
        Weight::new(ty, [1, n, 256], bytes.into()).unwrap()
    };
    let device = |refused| Device::Cuda(gpu(Options { refused: Some(refused), ..Options::default() }));
    let absent =
        |result: glm5::Result<()>| assert!(matches!(result, Err(Error::NoKernelImage { .. })), "{result:?}");

    let d = &device("linear_float");
    let x = Tensor::from_vec(d, 2, 256, vec![1f32; 512]).unwrap();
    let [tiles, f16] =
        [GgmlType::Q8_0, GgmlType::F16].map(|ty| Matrix::for_fast_linear(d, ones(ty, 6)).unwrap());
    let mut q = QuantizedTiles::new(d, 2, 256).unwrap();
    quantize(&x, &mut q).unwrap();
    let [mut y, mut beside] = [0; 2].map(|_| Tensor::from_vec(d, 2, 6, vec![7f32; 12]).unwrap());
    let unrounded = Some(Unrounded { x: &x, ws: &[&f16], ys: &mut [&mut beside] });
    absent(linear_tiled_with(
        TiledOptions { unrounded, ..TiledOptions::default() },
        &[&tiles],
        &mut q,
        &mut [&mut y],
    ));
    absent(linear_many(&[&tiles, &f16], &x, &mut [&mut y, &mut beside], Precision::Fast));
    assert!([&y, &beside].iter().all(|y| y.to_vec().unwrap() == [7.0; 12]), "a refused call wrote something");

    let config = RouterConfig {
        n_experts_per_tok: 2,
        gating: Gating::Sigmoid,
        norm_topk_prob: true,
        routed_scaling_factor: 1.0,
        n_groups: 1,
        n_groups_used: 1,
    };
    for refused in ["router_choose", "linear_float"] {
        let d = &device(refused);
        let x = Tensor::from_vec(d, 40, 256, vec![1f32; 40 * 256]).unwrap();
        let (w, bias) = (Matrix::new(d, ones(GgmlType::F32, 6)).unwrap(), Tensor::zeros(d, 1, 6).unwrap());
        let mut routing = Routing::new(d, 6, 2).unwrap();
        let launches = d.gpu().unwrap().launches();
        absent(router(&w, &bias, &x, &config, &mut routing));
        let rows = routing.logits.rows() + routing.ids.rows() + routing.weights.rows();
        assert_eq!((rows, d.gpu().unwrap().launches()), (0, launches));
    }
    // What is of another GPU inside.
    let (here, there) = (device("copy"), device("copy"));
    let x = Tensor::from_vec(&here, 1, 256, vec![1f32; 256]).unwrap();
    let (w, bias) =
        (Matrix::new(&here, ones(GgmlType::F32, 6)).unwrap(), Tensor::zeros(&here, 1, 6).unwrap());
    let (mut of_here, mut of_there) =
        (Routing::new(&here, 6, 2).unwrap(), Routing::new(&there, 6, 2).unwrap());
    of_there.ids = Tensor::zeros(&here, 0, 2).unwrap();
    of_there.weights = Tensor::zeros(&here, 0, 2).unwrap();
    of_there.logits = Tensor::zeros(&here, 0, 6).unwrap();
    assert!(matches!(router(&w, &bias, &x, &config, &mut of_there), Err(Error::Unsupported { .. })));
    router(&w, &bias, &x, &config, &mut of_here).unwrap();
}

/// Activations, weights and outputs of unrounded matrices may not lie on another GPU.
#[test]
fn unrounded_matrices_lie_on_one_gpu() {
    let [here, there] = [0; 2].map(|_| Device::Cuda(gpu(Options::default())));
    let float = |d: &Device| Matrix::new(d, Weight::from_f32([1, 6, 256], &[1.0; 6 * 256]).unwrap()).unwrap();
    let blocks = [&[0u8, 0x3c][..], &[1; 32]].concat().repeat(6 * 8);
    let w = Weight::new(GgmlType::Q8_0, [1, 6, 256], blocks.into()).unwrap();
    let w = Matrix::for_fast_linear(&here, w).unwrap();
    let ones = |d: &Device| Tensor::from_vec(d, 2, 256, vec![1f32; 512]).unwrap();
    let out = |d: &Device| Tensor::from_vec(d, 2, 6, vec![7f32; 12]).unwrap();
    let mut q = QuantizedTiles::new(&here, 2, 256).unwrap();
    quantize(&ones(&here), &mut q).unwrap();
    for moved in 0..4 {
        let [x, f, y] = [0, 1, 2].map(|part| if part == moved { &there } else { &here });
        let (x, f, mut beside, mut y) = (ones(x), float(f), out(y), out(&here));
        let unrounded = Some(Unrounded { x: &x, ws: &[&f], ys: &mut [&mut beside] });
        let result = linear_tiled_with(
            TiledOptions { unrounded, ..TiledOptions::default() },
            &[&w],
            &mut q,
            &mut [&mut y],
        );
        if moved == 3 {
            result.unwrap();
            assert_eq!(beside.to_vec().unwrap(), [256.0; 12]);
        } else {
            assert!(matches!(result, Err(Error::Unsupported { .. })), "{moved}: {result:?}");
            assert!([y, beside].iter().all(|y| y.to_vec().unwrap() == [7.0; 12]), "{moved}");
        }
    }
}

/// The last of a result's parts has no room: the others are as they were.
#[test]
fn a_routing_without_room_is_as_before() {
    let d = Device::Cuda(small());
    let (m, n) = (600, 512);
    let x = Tensor::from_vec(&d, m, 8, vec![1f32; m * 8]).unwrap();
    let w = Matrix::new(&d, Weight::from_f32([1, n, 8], &vec![1.0; n * 8]).unwrap()).unwrap();
    let config = RouterConfig {
        n_experts_per_tok: 2,
        gating: Gating::Sigmoid,
        norm_topk_prob: true,
        routed_scaling_factor: 1.0,
        n_groups: 1,
        n_groups_used: 1,
    };
    let mut routing = Routing::new(&d, n, 2).unwrap();
    let result = router(&w, &Tensor::zeros(&d, 1, n).unwrap(), &x, &config, &mut routing);
    assert!(matches!(result, Err(Error::OutOfMemory { .. })), "{result:?}");
    assert_eq!([routing.ids.rows(), routing.weights.rows(), routing.logits.rows()], [0; 3]);
}
