//! Matrices of F32 beside those in tiles, on the activations as they were before they were rounded.

use std::collections::BTreeMap;

use glm5::ops::linear::Unrounded;

use super::*;

fn floats(n: usize, k: usize, seed: u64) -> Weight {
    Weight::from_f32([1, n, k], &Rng(seed).normals(n * k)).unwrap()
}

/// Outputs as specified, and their bounds.
fn exact(w: &Weight, x: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let (n, k, all) = (w.rows(), w.cols(), values(w));
    let slack = magnitudes(&all, x, k).iter().map(|sum| sum_slack(k, *sum)).collect();
    (reference::linear(&all, x, n, k).unwrap(), slack)
}

/// Outputs of matrices in tiles, and of `unrounded`, in one call. With `glu` the first two are gate and up.
fn run_beside(
    kernel: Option<Entry>,
    ws: &[&Matrix],
    unrounded: &[&Matrix],
    (x, q): (&Tensor, &mut QuantizedTiles),
    glu: bool,
) -> [Vec<Vec<f32>>; 2] {
    let m = x.rows();
    let ws_out = if glu { &ws[..1] } else { ws };
    let [mut ys, mut beside] = [ws_out, unrounded]
        .map(|ws| ws.iter().map(|w| poisoned(w.device(), m, w.rows())).collect::<Vec<Tensor>>());
    let mut outs: Vec<&mut Tensor> = ys.iter_mut().collect();
    let options = TiledOptions {
        kernel,
        unrounded: Some(Unrounded { x, ws: unrounded, ys: &mut beside.iter_mut().collect::<Vec<_>>() }),
    };
    match glu {
        true => swiglu_tiled_with(options, ws[0], ws[1], q, outs[0]),
        false => linear_tiled_with(options, ws, q, &mut outs),
    }
    .unwrap();
    [ys, beside].map(|ys| ys.iter().map(host).collect())
}

/// By every kernel of few tokens, one launch has the sums of both: the quantized ones are the bits that they are without company, and a
/// token those that it has among any others. Rows fewer than a tile of them, columns fewer than a tile or a warp for each.
pub fn rows_of_f32_join_every_kernel(devices: &[Device]) {
    let mut reached = BTreeSet::new();
    for (ty, k) in tiles::TYPES.into_iter().flat_map(|ty| [256, 768, 4352].map(|k| (ty, k))) {
        let k = if ty.block_elems() == 32 { k - 96 } else { k };
        let (gate, up) = (weight(ty, 33, k, 1), weight(ty, 33, k, 2));
        let weights = [floats(5, k, 3), floats(32, k, 4)];
        for (d, m) in devices.iter().flat_map(|d| [1, 4, 7, 16].map(|m| (d, m))) {
            let host_x: Vec<f32> = Rng(m as u64).normals(m * k);
            let x = tensor(d, k, &host_x);
            let q = &mut rounded_on(d, &host_x, k, Some(ActivationFormat::Int8));
            let [gate, up] = [&gate, &up].map(|w| tiled(d, w));
            let beside = weights.each_ref().map(|w| matrix(d, w));
            let wants = weights.each_ref().map(|w| exact(w, &host_x));
            for glu in [false, true] {
                let listed = tiled_kernels(&[&gate, &up], q, glu).unwrap();
                for kernel in listed.into_iter().filter(|kernel| kernel.family() == "linear_decode") {
                    reached.insert(kernel);
                    let gpu = d.gpu().unwrap();
                    let before: BTreeMap<_, _> = gpu.launches().into_iter().collect();
                    let [ys, floats] =
                        run_beside(Some(kernel), &[&gate, &up], &beside.each_ref(), (&x, q), glu);
                    let ran = gpu.launches().into_iter();
                    let ran = ran.map(|(entry, n)| (entry, n - before.get(&entry).unwrap_or(&0)));
                    assert_eq!(ran.filter(|(_, n)| *n > 0).collect::<Vec<_>>(), [(kernel, 1)]);
                    for (y, (want, off)) in floats.iter().zip(&wants) {
                        close(kernel.name(), y, want, |i| off[i]).unwrap();
                    }
                    let alone = match glu {
                        true => vec![swiglu_by(Some(kernel), [&gate, &up], q)],
                        false => tiled_by(Some(kernel), &[&gate, &up], q),
                    };
                    for (y, alone) in ys.iter().zip(&alone) {
                        equal(kernel.name(), y, alone).unwrap();
                    }
                }
            }
        }
    }
    assert_eq!(reached, linear_decode::INSTANCES.iter().map(|i| i.entry).collect(), "kernels that were run");
}

/// NaN, and values that int8 would lose beside others, stay where they are: what was rounded is not looked at.
pub fn rows_of_f32_are_not_rounded(devices: &[Device]) {
    let (n, k) = (6, 512);
    let (w, float) = (weight(GgmlType::Q4_K, 20, k, 1), floats(n, k, 2));
    for (d, m) in devices.iter().flat_map(|d| [3, 8, 13].map(|m| (d, m))) {
        let mut host_x: Vec<f32> = Rng(m as u64).normals(m * k).iter().map(|v| v * 1e-3).collect();
        host_x.iter_mut().step_by(97).for_each(|v| *v = 1e4);
        let spoiled = m / 2;
        host_x[spoiled * k + k - 1] = f32::NAN;
        let (x, q) = (tensor(d, k, &host_x), &mut rounded_on(d, &host_x, k, None));
        let (w, beside) = (tiled(d, &w), matrix(d, &float));
        let (want, off) = exact(&float, &host_x);
        let [_, got] = run_beside(None, &[&w], &[&beside], (&x, q), false);
        close("y", &got[0], &want, |i| off[i]).unwrap();
        assert!((0..m).all(|t| got[0][t * n..][..n].iter().all(|v| v.is_nan()) == (t == spoiled)));
        // The others have the bits that they have alone, by a kernel for fewer tokens.
        let mut alone = rounded_on(d, &host_x[..k], k, None);
        let first = tensor(d, k, &host_x[..k]);
        let kernel = tiled_kernels(&[&w], &alone, false).unwrap()[0];
        let warps = |kernel| linear_decode::INSTANCES.iter().find(|i| i.entry == kernel).unwrap().warps;
        let of_all = tiled_kernels(&[&w], q, false).unwrap()[0];
        let [_, one] = run_beside(Some(kernel), &[&w], &[&beside], (&first, &mut alone), false);
        assert_eq!(warps(kernel), warps(of_all), "else sums have another order");
        equal("a token by itself", &one[0], &got[0][..n]).unwrap();
    }
}

/// Where there is no kernel or no room for them, they are launches of their own, and what does not fit is refused before any runs.
pub fn what_cannot_join_is_a_launch_of_its_own(devices: &[Device]) {
    let k = 256;
    let types = [GgmlType::F32, GgmlType::F16, GgmlType::Q8_0, GgmlType::F32, GgmlType::F32];
    let random = |ty: GgmlType, n: usize| {
        Weight::new(ty, [1, n, k], random_blocks(ty, n * k / ty.block_elems(), false, 5).into()).unwrap()
    };
    let weights =
        [3, 5, 9, 6, 20].map(|n| random(types[[3, 5, 9, 6, 20].iter().position(|i| *i == n).unwrap()], n));
    for (d, m) in devices.iter().flat_map(|d| [2, 16, 40].map(|m| (d, m))) {
        let host_x: Vec<f32> = Rng(m as u64).normals(m * k);
        let (x, q) = (tensor(d, k, &host_x), &mut rounded_on(d, &host_x, k, None));
        let ws = [20, 7, 33].map(|n| tiled(d, &weight(GgmlType::Q5_K, n, k, n as u64)));
        let beside = weights.each_ref().map(|w| matrix(d, w));
        let gpu = d.gpu().unwrap();
        let count = || gpu.launches().iter().map(|(_, n)| n).sum::<u64>();
        let before = count();
        let [ys, floats] = run_beside(None, &ws.each_ref(), &beside.each_ref(), (&x, q), false);
        // Of few tokens one of the three F32 has room beside three matrices.
        assert_eq!(count() - before, if m <= 16 { 5 } else { 6 }, "{m} tokens");
        for (w, y) in weights.iter().zip(&floats) {
            let (want, off) = exact(w, &host_x);
            // `linear_float` is good to 2^-19 of each product.
            close("y", y, &want, |i| off[i] * 4.0).unwrap();
        }
        for (y, alone) in ys.iter().zip(tiled_by(None, &ws.each_ref(), q)) {
            equal("y", y, &alone).unwrap();
        }
    }
    let d = &devices[0];
    let ones = |m: usize, k: usize| tensor(d, k, &vec![1.0; m * k]);
    let (w, f) = (tiled(d, &weight(GgmlType::Q5_K, 20, k, 1)), matrix(d, &floats(6, k, 1)));
    let mut q = QuantizedTiles::new(d, 2, k).unwrap();
    quantize(&ones(2, k), &mut q).unwrap();
    let (mut y, mut out, mut narrow) = (poisoned(d, 2, 20), poisoned(d, 2, 6), poisoned(d, 2, 5));
    fn call<'a>(
        on: (&Matrix, &mut QuantizedTiles, &mut Tensor),
        x: &'a Tensor,
        ws: &'a [&'a Matrix],
        ys: &'a mut [&'a mut Tensor],
    ) -> glm5::Result<()> {
        let (w, q, y) = on;
        let options = TiledOptions { unrounded: Some(Unrounded { x, ws, ys }), kernel: None };
        linear_tiled_with(options, &[w], q, &mut [y])
    }
    let unsupported = call(
        (&w, &mut q, &mut y),
        &ones(2, k),
        &[&tiled(d, &weight(GgmlType::Q5_K, 6, k, 1))],
        &mut [&mut out],
    );
    assert!(matches!(unsupported, Err(Error::Unsupported { .. })), "tiles: {unsupported:?}");
    refused(vec![
        ("x rows", call((&w, &mut q, &mut y), &ones(3, k), &[&f], &mut [&mut out])),
        ("x cols", call((&w, &mut q, &mut y), &ones(2, k + 32), &[&f], &mut [&mut out])),
        ("outputs", call((&w, &mut q, &mut y), &ones(2, k), &[&f, &f], &mut [&mut out])),
        ("y cols", call((&w, &mut q, &mut y), &ones(2, k), &[&f], &mut [&mut narrow])),
        (
            "w cols",
            call((&w, &mut q, &mut y), &ones(2, k), &[&matrix(d, &floats(6, 128, 1))], &mut [&mut out]),
        ),
    ]);
    let mut up_y = poisoned(d, 2, 20);
    let ys: &mut [&mut Tensor] = &mut [&mut narrow];
    let options = TiledOptions { unrounded: Some(Unrounded { x: &ones(2, k), ws: &[&f], ys }), kernel: None };
    refused(vec![("swiglu, y cols", swiglu_tiled_with(options, &w, &w, &mut q, &mut up_y))]);
    assert!([y, out, narrow, up_y].iter().all(untouched), "a refused call wrote something");
}
