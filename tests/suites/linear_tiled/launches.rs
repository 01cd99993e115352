//! What launches promise besides sums: which kernels are listed and chosen, several matrices, scratch, order, and what is refused.

use std::collections::BTreeMap;

use super::*;

/// Whatever kernel is said to multiply these activations can do so, with scratch or without.
pub fn listed_kernels_run(devices: &[Device]) {
    let k = 2304;
    let weights = [33, 5].map(|n| weight(GgmlType::Q5_K, n, k, n as u64));
    for (d, m) in devices.iter().flat_map(|d| [1, 8, 9, 16, 40].map(|m| (d, m))) {
        let x: Vec<f32> = Rng(m as u64).normals(m * k).iter().map(|v| v / 64.0).collect();
        let (matrices, q) = (weights.each_ref().map(|w| tiled(d, w)), &mut rounded_on(d, &x, k, None));
        let of_each = weights.each_ref().map(|w| specified(w, &x, q.format()));
        let listed = tiled_kernels(&matrices.each_ref(), q, false).unwrap();
        assert!(!listed.is_empty());
        for kernel in listed {
            for (y, (want, off)) in tiled_by(Some(kernel), &matrices.each_ref(), q).iter().zip(&of_each) {
                close(kernel.name(), y, want, |i| off[i]).unwrap();
            }
        }
        let gate_and_up = [&matrices[0], &matrices[0]];
        let (want, off) = specified_swiglu(&weights[0], &weights[0], &x, q.format());
        let listed = tiled_kernels(&gate_and_up, q, true).unwrap();
        assert!(!listed.is_empty());
        for kernel in listed {
            close(kernel.name(), &swiglu_by(Some(kernel), gate_and_up, q), &want, |i| off[i]).unwrap();
        }
    }
}

/// Scales of blocks that are zero, of either sign, subnormal and as large as can be, next to each other in a row; quants of a block whose
/// scale is zero count for nothing.
pub fn scales_may_be_of_any_size(devices: &[Device]) {
    const SCALES: [u16; 8] = [0, 0x3c00, 0x8001, 0x8000, 0x7bff, 0xb000, 0x0001, 0x2e66];
    let (n, k) = (35, 512);
    for ty in tiles::TYPES {
        let mut bytes = weight(ty, n, k, 5).bytes().to_vec();
        let at = if ty == GgmlType::Q6_K { 208 } else { 0 };
        for (i, block) in bytes.chunks_mut(ty.block_bytes()).enumerate() {
            // All of a row of the same scale, and all in turn.
            let row = i / (k / ty.block_elems());
            let scale = SCALES[if row < SCALES.len() { row } else { i * 7 + row } % SCALES.len()];
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
        let w = Weight::new(ty, [1, n, k], bytes.into()).unwrap();
        for (m, format) in [3, 20].into_iter().flat_map(|m| FORMATS.map(|format| (m, format))) {
            let x = Rng(m as u64).normals(m * k);
            let (want, off) = specified(&w, &x, format);
            for d in devices {
                close("y", &run(d, &w, &x, Some(format)).unwrap(), &want, |i| off[i]).unwrap();
            }
        }
    }
}

/// More rows than blocks of threads: each goes on to a second and to further row tiles. The kernel that is chosen is the first that is
/// listed; for more than 8 tokens and so many rows it is `linear_gemm`.
pub fn rows_for_many_rounds(devices: &[Device]) {
    let (ty, distinct, k) = (GgmlType::Q4_K, 61, 512);
    for d in devices {
        let gpu = d.gpu().unwrap();
        let n = 16 * 9 * gpu.properties().sms as usize + 7;
        let few = weight(ty, distinct, k, 1);
        let row = few.bytes().len() / distinct;
        let bytes: Vec<u8> = few.bytes().iter().copied().cycle().take(n * row).collect();
        let w = tiled(d, &Weight::new(ty, [1, n, k], bytes.into()).unwrap());
        for m in [4, 8, 16] {
            let x: Vec<f32> = Rng(m as u64).normals(m * k).iter().map(|v| v / 64.0).collect();
            let q = &mut rounded_on(d, &x, k, None);
            let (want, off) = specified(&few, &x, q.format());
            let compare = |kernel: Entry, y: &[f32], want: &[f64], off: &[f64]| {
                for (t, y) in y.chunks(n).enumerate() {
                    let of = |v: &[f64]| (0..n).map(|j| v[t * distinct + j % distinct]).collect::<Vec<_>>();
                    let off = of(off);
                    close(kernel.name(), y, &of(want), |i| off[i]).unwrap();
                }
            };
            let listed = tiled_kernels(&[&w], q, false).unwrap();
            assert_eq!(listed[0].family(), if m <= TILE_TOKENS { "linear_decode" } else { "linear_gemm" });
            let before: BTreeMap<_, _> = gpu.launches().into_iter().collect();
            compare(listed[0], &tiled_by(None, &[&w], q)[0], &want, &off);
            let ran = gpu.launches().into_iter().filter(|(entry, n)| before.get(entry) != Some(n));
            assert_eq!(ran.map(|(entry, _)| entry).collect::<Vec<_>>(), [listed[0]]);
            for kernel in listed.into_iter().filter(|kernel| kernel.family() == "linear_decode") {
                compare(kernel, &tiled_by(Some(kernel), &[&w], q)[0], &want, &off);
            }
            let (want, off) = specified_swiglu(&few, &few, &x, q.format());
            let listed = tiled_kernels(&[&w, &w], q, true).unwrap();
            for kernel in listed.into_iter().filter(|kernel| kernel.family() == "linear_decode") {
                compare(kernel, &swiglu_by(Some(kernel), [&w, &w], q), &want, &off);
            }
        }
    }
}

/// Int8 as far as `linear_decode` goes; also where room is made for more tokens, or fewer, than before.
pub fn formats_follow_the_tokens(devices: &[Device]) {
    use ActivationFormat::{F16, Int8};
    for d in devices {
        let sm_90 = d.gpu().unwrap().properties().compute_capability == (9, 0);
        let many = if sm_90 { F16 } else { Int8 };
        let mut q = QuantizedTiles::new(d, 1, 256).unwrap();
        for (m, format) in
            [(1, Int8), (8, Int8), (9, Int8), (16, Int8), (17, F16), (32, F16), (33, many), (2, Int8)]
        {
            q.resize(m, 256).unwrap();
            assert_eq!(
                (q.format(), QuantizedTiles::new(d, m, 256).unwrap().format()),
                (format, format),
                "{m} tokens"
            );
        }
    }
}

/// Several types, and more matrices of one than a launch takes. Where the same kernel is chosen for a matrix and for all of its
/// type, which may depend on the number of their rows, results are the same bits.
pub fn matrices_of_a_launch_are_each_alone(devices: &[Device]) {
    let k = 512;
    let types = [
        (GgmlType::Q4_K, 20),
        (GgmlType::Q6_K, 48),
        (GgmlType::Q4_K, 7),
        (GgmlType::Q8_0, 33),
        (GgmlType::Q4_K, 16),
        (GgmlType::Q4_K, 100),
        (GgmlType::Q4_K, 1),
    ];
    let weights = types.map(|(ty, n)| weight(ty, n, k, n as u64));
    for d in devices {
        let matrices = weights.each_ref().map(|w| tiled(d, w));
        for m in [1, 4, 8, 19, 70] {
            let x = Rng(m as u64).normals(m * k);
            let q = &mut rounded_on(d, &x, k, None);
            let got = tiled_by(None, &matrices.each_ref(), q);
            for ((w, matrix), y) in weights.iter().zip(&matrices).zip(&got) {
                let (want, off) = specified(w, &x, q.format());
                close("y", y, &want, |i| off[i]).unwrap();
                let of_type = matrices.iter().filter(|other| other.tiles().unwrap().ty == w.ty());
                let chosen = |ws: &[&Matrix]| tiled_kernels(ws, q, false).unwrap()[0];
                let in_company = chosen(&of_type.take(4).collect::<Vec<_>>());
                if in_company.family() == "linear_decode" && in_company == chosen(&[matrix]) {
                    equal("y", &tiled_by(None, &[matrix], q)[0], y).unwrap();
                }
            }
        }
    }
}

/// One right behind the other, with sums that are cut: nothing of one is left in what the next one adds up, nor of a replay.
pub fn launches_share_their_scratch(devices: &[Device]) {
    let (m, k) = (19, 2304);
    let x = Rng(13).normals(m * k);
    let weights = [(GgmlType::Q4_K, 33), (GgmlType::Q6_K, 50)].map(|(ty, n)| weight(ty, n, k, n as u64));
    for d in devices {
        let (matrices, q) = (weights.each_ref().map(|w| tiled(d, w)), &mut rounded_on(d, &x, k, None));
        let gpu = d.gpu().unwrap();
        for w in &weights {
            let (ty, format, rows) = (w.ty(), q.format(), &[w.rows()][..]);
            let problem = GemmProblem { ty, format, m, rows, k, slabs: 1, glu: false };
            assert!(
                GemmConfig::pick(problem, gpu.properties()).unwrap().cut,
                "{}: {ty} is not cut",
                d.name()
            );
        }
        // Outputs of two calls.
        let fresh = || [0; 2].map(|_| weights.each_ref().map(|w| poisoned(d, m, w.rows())));
        let call = |q: &mut QuantizedTiles, ys: &mut [[Tensor; 2]; 2]| {
            ys.iter_mut().try_for_each(|[a, b]| linear_tiled(&matrices.each_ref(), q, &mut [a, b]))
        };
        let results = |ys: &[[Tensor; 2]; 2]| ys.each_ref().map(|ys| ys.each_ref().map(host));
        let mut ys = fresh();
        call(q, &mut ys).unwrap();
        let [first, second] = results(&ys);
        for ((w, y), again) in weights.iter().zip(&first).zip(&second) {
            let (want, off) = specified(w, &x, q.format());
            close("y", y, &want, |i| off[i]).unwrap();
            equal("the second call", again, y).unwrap();
        }
        let mut ys = fresh();
        let mut graph = gpu.capture(|| call(q, &mut ys)).unwrap();
        for _ in 0..2 {
            for y in ys.iter_mut().flatten() {
                let poison = vec![POISON; m * y.cols()];
                y.cuda_mut().unwrap().upload(0, &poison).unwrap();
            }
            graph.launch().unwrap();
            for (y, want) in results(&ys).iter().flatten().zip(first.iter().cycle()) {
                equal("a replay", y, want).unwrap();
            }
        }
    }
}

/// Activations that a kernel has just written: nothing of them may be read before it is sure to have ended.
pub fn waits_for_earlier_kernels(devices: &[Device]) {
    let (n, k) = (40, 512);
    for m in [3, 20] {
        let x = Rng(5).normals(m * k);
        let bytes = random_blocks(GgmlType::Q4_K, n * k / 256, false, 3);
        let w = Weight::new(GgmlType::Q4_K, [1, n, k], bytes.into()).unwrap();
        for d in devices {
            let (w, source) = (tiled(d, &w), matrix(d, &Weight::from_f32([1, m, k], &x).unwrap()));
            let results = |computed: bool| {
                let (mut x, mut q) = (tensor(d, k, &x), QuantizedTiles::new(d, m, k).unwrap());
                let mut y = poisoned(d, m, n);
                if computed {
                    dequantize(&source, 0, 0..m, &mut x).unwrap();
                }
                quantize(&x, &mut q).unwrap();
                linear_tiled(&[&w], &mut q, &mut [&mut y]).unwrap();
                host(&y)
            };
            assert_eq!(results(true), results(false), "{}", d.name());
        }
    }
}

/// Matrices in tiles and in blocks on one input, in one call.
pub fn many_share_their_activations(devices: &[Device]) {
    let (m, k) = (9, 512);
    let x = activations(m, k, &mut Rng(11));
    let types = [(GgmlType::Q4_K, 20), (GgmlType::Q3_K, 7), (GgmlType::Q6_K, 48), (GgmlType::F32, 3)];
    for d in devices {
        let weights = types.map(|(ty, n)| {
            let bytes = random_blocks(ty, n * k / ty.block_elems(), false, n as u64);
            Matrix::for_fast_linear(d, Weight::new(ty, [1, n, k], bytes.into()).unwrap()).unwrap()
        });
        assert_eq!(weights.each_ref().map(Matrix::is_tiled), [true, false, true, false]);
        let x = tensor(d, k, &x);
        let mut ys = types.map(|(_, n)| poisoned(d, m, n));
        let mut outs: Vec<&mut Tensor> = ys.iter_mut().collect();
        linear_many(&weights.each_ref(), &x, &mut outs, Precision::Fast).unwrap();
        for (w, y) in weights.iter().zip(&ys) {
            let mut alone = poisoned(d, m, w.rows());
            linear(w, &x, &mut alone, Precision::Fast).unwrap();
            let (y, alone) = (host(y), host(&alone));
            // Sums of several matrices may be cut elsewhere than those of one.
            let wide = |y: &[f32]| y.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
            let largest = y.iter().fold(0.0, |a, v| f64::max(a, f64::from(v.abs())));
            close("y", &y, &wide(&alone), |_| largest * 1e-5).unwrap();
        }
    }
}

/// Rounded before or by the call: the same bits.
pub fn rounded_heads_are_multiplied_alike(devices: &[Device]) {
    let (m, heads, n, k) = (9, 3, 20, 256);
    let w = Weight::new(GgmlType::Q5_0, [heads, n, k], random_blocks(GgmlType::Q5_0, 480, false, 3).into())
        .unwrap();
    let x_heads = Heads { n: heads, stride: k + 64, offset: 64, len: k };
    let y_heads = Heads { n: heads, stride: n + 3, offset: 2, len: n };
    let (x_cols, y_cols) = (heads * x_heads.stride, heads * y_heads.stride + 1);
    let x = Rng(5).normals(m * x_cols);
    for d in devices {
        let (w, x) = (tiled(d, &w), tensor(d, x_cols, &x));
        let mut q = QuantizedTiles::for_heads(d, m, heads, k).unwrap();
        assert_eq!((q.slabs(), q.shape(), q.format()), (heads, [m, k], ActivationFormat::F16));
        let [mut before, mut at_once] = [0; 2].map(|_| poisoned(d, m, y_cols));
        quantize_heads(&x, x_heads, &mut q).unwrap();
        head_linear_tiled(&w, &mut q, &mut before, y_heads).unwrap();
        head_linear(&w, &x, x_heads, &mut at_once, y_heads, Precision::Fast).unwrap();
        let (before, at_once) = (host(&before), host(&at_once));
        equal("y", &gather(&before, y_cols, y_heads), &gather(&at_once, y_cols, y_heads)).unwrap();
        assert_eq!(before.bits(), at_once.bits(), "{}: columns between the heads", d.name());
    }
}

pub fn no_tokens_are_no_work(devices: &[Device]) {
    let (n, k) = (20, 2304);
    for d in devices {
        let w = tiled(d, &weight(GgmlType::Q4_K, n, k, 1));
        let (x, mut y, mut q) =
            (tensor(d, k, &[]), poisoned(d, 0, n), QuantizedTiles::new(d, 20, k).unwrap());
        let mut of_heads = QuantizedTiles::for_heads(d, 0, 1, k).unwrap();
        let (x_heads, y_heads) = (Heads::one(0, k), Heads::one(0, n));
        let gpu = d.gpu().unwrap();
        let launches = gpu.launches();
        linear(&w, &x, &mut y, Precision::Fast).unwrap();
        head_linear(&w, &x, x_heads, &mut y, y_heads, Precision::Fast).unwrap();
        quantize_heads(&x, x_heads, &mut of_heads).unwrap();
        head_linear_tiled(&w, &mut of_heads, &mut y, y_heads).unwrap();
        // New ones, and such as have held tokens.
        q.resize(0, k).unwrap();
        for q in FORMATS
            .map(|format| QuantizedTiles::with_format(d, 0, k, format).unwrap())
            .iter_mut()
            .chain([&mut q])
        {
            quantize(&x, q).unwrap();
            linear_tiled(&[&w], q, &mut [&mut y]).unwrap();
            swiglu_tiled(&w, &w, q, &mut y).unwrap();
        }
        gpu.synchronize().unwrap();
        assert_eq!(gpu.launches(), launches, "{}", d.name());
    }
}

pub fn refuses_heads_that_do_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let (m, heads, n, k, x_cols, y_cols) = (3, 2, 6, 64, 160, 15);
    let stack = |n, k| {
        let bytes = random_blocks(GgmlType::Q8_0, heads * n * k / 32, false, 1);
        Weight::new(GgmlType::Q8_0, [heads, n, k], bytes.into()).unwrap()
    };
    let (w, blocks) = (tiled(d, &stack(n, k)), matrix(d, &stack(n, k)));
    let parts = |n, stride, offset, len| Heads { n, stride, offset, len };
    let (x_heads, y_heads) = (parts(heads, 80, 16, k), parts(heads, 7, 1, n));
    let rows = |m: usize, cols: usize| tensor(d, cols, &vec![1.0; m * cols]);
    let (x, mut q) = (rows(m, x_cols), QuantizedTiles::for_heads(d, m, heads, k).unwrap());
    quantize_heads(&x, x_heads, &mut q).unwrap();
    let held = |q: &QuantizedTiles| q.tiles().to_vec(0..q.tiles().len()).unwrap();
    let before = held(&q);
    let on = |m, heads, k| QuantizedTiles::for_heads(d, m, heads, k).unwrap();
    let mut odd = on(m, heads, 48);
    refused(vec![
        ("parts of x", quantize_heads(&x, parts(1, 80, 16, k), &mut q)),
        ("width of x", quantize_heads(&x, parts(heads, 80, 16, 32), &mut q)),
        ("rows of x", quantize_heads(&rows(2, x_cols), x_heads, &mut q)),
        ("x beyond its rows", quantize_heads(&x, parts(heads, 96, 16, k), &mut q)),
        ("x that overlaps", quantize_heads(&x, parts(heads, 60, 0, k), &mut q)),
        ("columns", quantize_heads(&x, parts(heads, 80, 16, 48), &mut odd)),
        ("rows for several heads", quantize(&rows(m, k), &mut q)),
    ]);
    let (mut y, mut short, mut y_of_one) =
        (poisoned(d, m, y_cols), poisoned(d, 2, y_cols), poisoned(d, m, n));
    let one = tiled(d, &weight(GgmlType::Q8_0, n, k, 1));
    let wide = tiled(d, &stack(n, 2 * k));
    refused(vec![
        ("matrices", head_linear_tiled(&one, &mut q, &mut y, parts(1, 7, 1, n))),
        ("inputs", head_linear_tiled(&wide, &mut q, &mut y, y_heads)),
        ("parts of y", head_linear_tiled(&w, &mut q, &mut y, parts(1, 7, 1, n))),
        ("width of y", head_linear_tiled(&w, &mut q, &mut y, parts(heads, 7, 1, n - 1))),
        ("y beyond its rows", head_linear_tiled(&w, &mut q, &mut y, parts(heads, 9, 1, n))),
        ("y that overlaps", head_linear_tiled(&w, &mut q, &mut y, parts(heads, 6, 1, n))),
        ("rows of y", head_linear_tiled(&w, &mut q, &mut short, y_heads)),
        ("a layer for several heads", linear_tiled(&[&one], &mut q, &mut [&mut y_of_one])),
        ("swiglu for several heads", swiglu_tiled(&one, &one, &mut q, &mut y_of_one)),
    ]);
    let unsupported = |result: glm5::Result<()>| assert!(matches!(result, Err(Error::Unsupported { .. })));
    unsupported(head_linear_tiled(&blocks, &mut q, &mut y, y_heads));
    for odd in [parts(heads, 80, 2, k), parts(heads, 78, 8, k)] {
        unsupported(quantize_heads(&x, odd, &mut q));
        unsupported(head_linear(&w, &x, odd, &mut y, y_heads, Precision::Fast));
    }
    let odd_rows = rows(m, x_cols + 2);
    unsupported(quantize_heads(&odd_rows, x_heads, &mut q));
    unsupported(head_linear(&w, &x, x_heads, &mut y, y_heads, Precision::Exact));
    assert_eq!(held(&q), before, "a refused call rounded something");
    assert!([y, short, y_of_one].iter().all(untouched), "a refused call wrote something");
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let weight = |ty: GgmlType, n: usize, k: usize| weight(ty, n, k, 1);
    let w = tiled(d, &weight(GgmlType::Q8_0, 6, 256));
    let blocks = matrix(d, &weight(GgmlType::Q8_0, 6, 256));
    let x = tensor(d, 256, &[1.0; 3 * 256]);
    let mut q = QuantizedTiles::new(d, 3, 256).unwrap();
    quantize(&x, &mut q).unwrap();
    let (mut y, mut narrow, mut short) = (poisoned(d, 3, 6), poisoned(d, 3, 5), poisoned(d, 2, 6));
    let mut wide = QuantizedTiles::new(d, 3, 512).unwrap();
    let mut odd = QuantizedTiles::new(d, 3, 48).unwrap();
    refused(vec![
        ("y cols", linear_tiled(&[&w], &mut q, &mut [&mut narrow])),
        ("y rows", linear_tiled(&[&w], &mut q, &mut [&mut short])),
        ("x cols", linear_tiled(&[&w], &mut wide, &mut [&mut y])),
        ("outputs", linear_tiled(&[&w, &w], &mut q, &mut [&mut y])),
        ("the second y", linear_tiled(&[&w, &w], &mut q, &mut [&mut y, &mut narrow])),
        ("up", swiglu_tiled(&w, &tiled(d, &weight(GgmlType::Q8_0, 7, 256)), &mut q, &mut y)),
        ("swiglu x cols", swiglu_tiled(&w, &w, &mut wide, &mut y)),
        ("swiglu y cols", swiglu_tiled(&w, &w, &mut q, &mut narrow)),
        ("swiglu y rows", swiglu_tiled(&w, &w, &mut q, &mut short)),
        ("q shape", quantize(&x, &mut QuantizedTiles::new(d, 2, 256).unwrap())),
        ("columns", quantize(&tensor(d, 48, &[1.0; 3 * 48]), &mut odd)),
    ]);
    let unsupported = |result: glm5::Result<()>| assert!(matches!(result, Err(Error::Unsupported { .. })));
    let other_type = tiled(d, &weight(GgmlType::Q4_K, 6, 256));
    let mut y2 = poisoned(d, 3, 6);
    unsupported(linear_tiled(&[&blocks], &mut q, &mut [&mut y]));
    unsupported(linear_tiled(&[&w, &blocks], &mut q, &mut [&mut y, &mut y2]));
    unsupported(swiglu_tiled(&w, &blocks, &mut q, &mut y));
    unsupported(swiglu_tiled(&w, &other_type, &mut q, &mut y));
    // Kernels of another type, for fewer tokens, and of swiglu.
    let kernel = |w: &Matrix, m: usize, glu| {
        let x = QuantizedTiles::new(d, m, 256).unwrap();
        tiled_kernels(&[w], &x, glu).unwrap().into_iter()
    };
    for wrong in kernel(&other_type, 3, false).chain(kernel(&w, 3, true)) {
        unsupported(linear_tiled_with(by(Some(wrong)), &[&w], &mut q, &mut [&mut y]));
    }
    let (mut five, mut y5) = (QuantizedTiles::new(d, 5, 256).unwrap(), poisoned(d, 5, 6));
    quantize(&tensor(d, 256, &[1.0; 5 * 256]), &mut five).unwrap();
    let for_four =
        |kernel: &Entry| linear_decode::INSTANCES.iter().any(|i| i.entry == *kernel && i.tokens == 4);
    let wrong: Vec<Entry> = kernel(&w, 4, false).filter(for_four).collect();
    assert!(!wrong.is_empty());
    for wrong in wrong {
        unsupported(linear_tiled_with(by(Some(wrong)), &[&w], &mut five, &mut [&mut y5]));
    }
    unsupported(linear_tiled_with(
        by(kernel(&w, 3, false).next()),
        &[&w, &other_type],
        &mut q,
        &mut [&mut y, &mut y2],
    ));
    unsupported(linear(&w, &x, &mut y, Precision::Exact));
    unsupported(dequantize(&w, 0, 0..1, &mut tensor(d, 256, &[0.0; 256])));
    assert!([y, y2, y5, narrow, short].iter().all(untouched), "a refused call wrote something");
}
