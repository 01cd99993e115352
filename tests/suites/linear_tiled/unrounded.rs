//! Matrices of F32 beside those in tiles, on the activations as they were before they were rounded.

use std::collections::BTreeMap;

use glm5::cuda::Gpu;
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
        ..TiledOptions::default()
    };
    match glu {
        true => swiglu_tiled_with(options, ws[0], ws[1], q, outs[0]),
        false => linear_tiled_with(options, ws, q, &mut outs),
    }
    .unwrap();
    [ys, beside].map(|ys| ys.iter().map(host).collect())
}

/// Type and columns, rows of each matrix in tiles and of each of F32, tokens, whether edges are aimed at, and a seed.
#[derive(Debug, Clone)]
pub struct FloatCase {
    ty: GgmlType,
    k: usize,
    ns: Vec<usize>,
    floats: Vec<usize>,
    m: usize,
    glu: bool,
    edges: bool,
    seed: u64,
}

pub fn float_case() -> impl Strategy<Value = FloatCase> {
    let rows = || prop_oneof![prop::sample::select(vec![1usize, 3, 4, 5, 16, 17]), 1usize..40];
    let ns = prop::collection::vec(rows(), 1..4);
    let floats = prop::collection::vec(rows(), 1..4);
    let m = prop_oneof![4 => 1usize..=16, 1 => any_m()];
    (type_and_cols(), ns, floats, m, any::<bool>(), any::<bool>(), any::<u64>()).prop_map(
        |((ty, k), ns, floats, m, glu, edges, seed)| FloatCase { ty, k, ns, floats, m, glu, edges, seed },
    )
}

/// Values of F32 at the edges: zeros of either sign, subnormal, of the range of f16 and beyond, among Gaussian ones.
fn edge_values(n: usize, rng: &mut Rng) -> Vec<f32> {
    const EDGES: [f32; 8] = [0.0, -0.0, 1e-40, -3e-39, 65504.0, 1e6, -1e-20, 1.0];
    let mut values = rng.normals(n);
    values.iter_mut().filter(|_| rng.below(5) == 0).for_each(|v| *v = EDGES[(v.to_bits() % 8) as usize]);
    values
}

/// Whatever the shapes: rows of F32 in a launch or by themselves are those of the reference, and beside them nothing changes.
pub fn rows_of_f32_are_the_reference(devices: &[Device], c: FloatCase) -> TestCaseResult {
    let FloatCase { ty, k, ns, floats: of_floats, m, glu, edges, seed } = c;
    let ns = if glu { vec![ns[0]; 2] } else { ns };
    let rng = &mut Rng(seed);
    let weights: Vec<Weight> = ns.iter().map(|n| weight(ty, *n, k, rng.next())).collect();
    let mut of_edges = |n: usize| if edges { edge_values(n, rng) } else { rng.normals(n) };
    let beside: Vec<Weight> =
        of_floats.iter().map(|n| Weight::from_f32([1, *n, k], &of_edges(n * k)).unwrap()).collect();
    let x = activations(m, k, &mut Rng(!seed));
    let got = on_each(devices, |d| {
        let ws: Vec<Matrix> = weights.iter().map(|w| tiled(d, w)).collect();
        let of_float: Vec<Matrix> = beside.iter().map(|w| matrix(d, w)).collect();
        let (ws, of_float): (Vec<_>, Vec<_>) = (ws.iter().collect(), of_float.iter().collect());
        let q = &mut rounded_on(d, &x, k, None);
        let [ys, of_float] = run_beside(None, &ws, &of_float, (&tensor(d, k, &x), q), glu);
        if glu {
            let (want, off) = specified_swiglu(&weights[0], &weights[1], &x, q.format());
            close("y", &ys[0], &want, |i| off[i]).unwrap();
        } else {
            for (w, y) in weights.iter().zip(&ys) {
                let (want, off) = specified(w, &x, q.format());
                close("y", y, &want, |i| off[i]).unwrap();
            }
        }
        Ok(of_float.concat())
    })?;
    let mut at = 0;
    for w in &beside {
        let (want, off) = exact(w, &x);
        // A launch of its own is by `linear_float`, which is good to 2^-19 of each product and loses what is below 2^-116.
        close("y", &got[at..at + want.len()], &want, |i| 4.0 * off[i] + 1e-33)?;
        at += want.len();
    }
    Ok(())
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

/// Where there is no kernel or no room for them, they are launches of their own.
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
}

/// Kernels that ran in `call`, and how often.
fn launched(gpu: &Gpu, call: impl FnOnce()) -> BTreeMap<Entry, u64> {
    let before: BTreeMap<_, _> = gpu.launches().into_iter().collect();
    call();
    let ran = gpu.launches().into_iter().map(|(entry, n)| (entry, n - before.get(&entry).unwrap_or(&0)));
    ran.filter(|(_, n)| *n > 0).collect()
}

fn families(ran: &BTreeMap<Entry, u64>) -> Vec<&'static str> {
    let mut names: Vec<_> = ran.iter().flat_map(|(entry, n)| vec![entry.family(); *n as usize]).collect();
    names.sort();
    names
}

/// Which launch has them: only F32, only launches of `linear_decode`, the first that has room; and `linear_many` finds it by itself.
pub fn rows_of_f32_find_a_launch(devices: &[Device]) {
    let k = 256;
    let f16 =
        Weight::new(GgmlType::F16, [1, 6, k], random_blocks(GgmlType::F16, 6 * k, false, 5).into()).unwrap();
    let float = floats(6, k, 7);
    for d in devices {
        let gpu = d.gpu().unwrap();
        let x = |m: usize| tensor(d, k, &Rng(m as u64).normals(m * k));
        let round = |m: usize| rounded_on(d, &Rng(m as u64).normals(m * k), k, None);
        let [f16, f32] = [&f16, &float].map(|w| matrix(d, w));
        let of = |ty: GgmlType, n: usize| tiled(d, &weight(ty, n, k, n as u64));
        let check = |m: usize, ws: &[&Matrix], beside: &[&Matrix], want: &[&str]| {
            let (x, mut q) = (x(m), round(m));
            let ran = launched(gpu, || {
                let [_, got] = run_beside(None, ws, beside, (&x, &mut q), false);
                for (w, y) in beside.iter().zip(got) {
                    let mut alone = poisoned(d, m, w.rows());
                    linear(w, &x, &mut alone, Precision::Exact).unwrap();
                    let wide: Vec<f64> = host(&alone).iter().map(|v| f64::from(*v)).collect();
                    close("y", &y, &wide, |_| 1e-3).unwrap();
                }
            });
            let mut ran = families(&ran);
            for _ in beside {
                ran.remove(ran.iter().position(|name| *name == "linear_float").unwrap()); // of the comparison
            }
            assert_eq!(ran, want, "{m} tokens");
        };
        // F16 has room, and no kernel.
        check(3, &[&of(GgmlType::Q4_K, 20)], &[&f16], &["linear_decode", "linear_float"]);
        check(3, &[&of(GgmlType::Q4_K, 20)], &[&f32], &["linear_decode"]);
        // More rows than `linear_decode` is good at for 16 tokens.
        let many = of(GgmlType::Q4_K, 16 * 9 * gpu.properties().sms as usize);
        check(16, &[&many], &[&f32], &["linear_float", "linear_gemm"]);
        check(8, &[&many], &[&f32], &["linear_decode"]);
        // The first set is full, the second has room.
        let five = [1, 2, 3, 4].map(|n| of(GgmlType::Q4_K, n));
        let other = of(GgmlType::Q8_0, 5);
        let ws = [&five[0], &five[1], &five[2], &five[3], &other];
        check(3, &ws, &[&f32], &["linear_decode", "linear_decode"]);
        // Of activations that are f16 there is none.
        let mut q = rounded_on(d, &Rng(1).normals(k), k, Some(ActivationFormat::F16));
        let ran = launched(gpu, || drop(run_beside(None, &[&five[3]], &[&f32], (&x(1), &mut q), false)));
        assert_eq!(families(&ran), ["linear_float", "linear_gemm"]);
        let (mut y, mut of_float) = (poisoned(d, 3, 4), poisoned(d, 3, 6));
        let (x, ws) = (x(3), [&five[3], &f32]);
        let ran = launched(gpu, || {
            linear_many(&ws, &x, &mut [&mut y, &mut of_float], Precision::Fast).unwrap();
        });
        assert_eq!(families(&ran), ["linear_decode", "quantize"]);
    }
}

/// Activations that a kernel has just written: rows of F32, too, wait for it.
pub fn rows_of_f32_wait_for_earlier_kernels(devices: &[Device]) {
    let k = 512;
    let (w, float) = (weight(GgmlType::Q4_K, 40, k, 3), floats(9, k, 4));
    for (d, m) in devices.iter().flat_map(|d| [3, 16].map(|m| (d, m))) {
        let x = Rng(5).normals(m * k);
        let (w, float, source) =
            (tiled(d, &w), matrix(d, &float), matrix(d, &Weight::from_f32([1, m, k], &x).unwrap()));
        let mut q = rounded_on(d, &x, k, None);
        let mut results = |computed: bool| {
            // Whatever the host writes comes before, since that waits, too.
            let (mut there, mut y, mut of_float) = (tensor(d, k, &x), poisoned(d, m, 40), poisoned(d, m, 9));
            if computed {
                there.fill(0.0).unwrap();
                dequantize(&source, 0, 0..m, &mut there).unwrap();
            }
            let unrounded = Some(Unrounded { x: &there, ws: &[&float], ys: &mut [&mut of_float] });
            let options = TiledOptions { unrounded, ..TiledOptions::default() };
            linear_tiled_with(options, &[&w], &mut q, &mut [&mut y]).unwrap();
            [host(&y), host(&of_float)]
        };
        assert_eq!(results(true), results(false), "{}", d.name());
    }
}

/// Nothing is written by a call of which a part is refused.
pub fn refuses_rows_of_f32_that_do_not_fit(devices: &[Device]) {
    let k = 256;
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
        let options = TiledOptions { unrounded: Some(Unrounded { x, ws, ys }), ..TiledOptions::default() };
        linear_tiled_with(options, &[w], q, &mut [y])
    }
    let f16 =
        Weight::new(GgmlType::F16, [1, 6, k], random_blocks(GgmlType::F16, 6 * k, false, 5).into()).unwrap();
    let f16 = matrix(d, &f16);
    let (mut first, mut tall) = (poisoned(d, 2, 6), poisoned(d, 3, 6));
    // What is before the one that is refused could run.
    let in_tiles = tiled(d, &weight(GgmlType::Q5_K, 6, k, 1));
    for before in [&f, &f16] {
        let half = call((&w, &mut q, &mut y), &ones(2, k), &[before, &in_tiles], &mut [&mut first, &mut out]);
        assert!(matches!(half, Err(Error::Unsupported { .. })), "the second in tiles: {half:?}");
    }
    // Of another device, in each place.
    let cpu = Device::cpu(Some(1)).unwrap();
    let (x_there, f_there) = (tensor(&cpu, k, &vec![1.0; 2 * k]), matrix(&cpu, &floats(6, k, 1)));
    let mut y_there = poisoned(&cpu, 2, 6);
    for there in [
        call((&w, &mut q, &mut y), &x_there, &[&f], &mut [&mut out]),
        call((&w, &mut q, &mut y), &ones(2, k), &[&f_there], &mut [&mut out]),
        call((&w, &mut q, &mut y), &ones(2, k), &[&f], &mut [&mut y_there]),
    ] {
        assert!(matches!(there, Err(Error::Unsupported { .. })), "on the CPU: {there:?}");
    }
    let unsupported = call(
        (&w, &mut q, &mut y),
        &ones(2, k),
        &[&tiled(d, &weight(GgmlType::Q5_K, 6, k, 1))],
        &mut [&mut out],
    );
    assert!(matches!(unsupported, Err(Error::Unsupported { .. })), "tiles: {unsupported:?}");
    refused(vec![
        ("x and y rows", call((&w, &mut q, &mut y), &ones(3, k), &[&f], &mut [&mut tall])),
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
    let options = TiledOptions {
        unrounded: Some(Unrounded { x: &ones(2, k), ws: &[&f], ys }),
        ..TiledOptions::default()
    };
    refused(vec![("swiglu, y cols", swiglu_tiled_with(options, &w, &w, &mut q, &mut up_y))]);
    assert!(
        [y, out, narrow, up_y, first, tall, y_there].iter().all(untouched),
        "a refused call wrote something"
    );
}
