//! Linear layers on int8 activations: weights repacked into tiles, activations quantized, and their products. On GPUs only.

use std::collections::BTreeSet;

use glm5::Error;
use glm5::kernels::{Entry, linear_decode};
use glm5::ops::dequantize::dequantize;
use glm5::ops::ffn;
use glm5::ops::linear::{
    decode_kernels, linear, linear_many, linear_tiled, linear_tiled_by, quantize, reference, swiglu_tiled,
    swiglu_tiled_by,
};
use glm5::quant::{GgmlType, Weight, tiles};
use glm5::tensor::{Device, Matrix, Precision, QuantizedTiles, Tensor};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::{Rng, random_blocks};
use super::close::{EPS, close, equal, magnitudes, near_ideal, sum_slack};
use super::inputs::*;
use super::linear::Case;

macro_rules! linear_int8_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { linear_int8, $devices, $cases;
        is_the_reference_on_rounded_activations(case), repacking_keeps_every_bit(stack_case),
        tokens_do_not_depend_on_each_other(case), swiglu_is_the_reference(case);
        is_near_the_ideal, rows_need_not_fill_tiles, every_kernel_is_the_reference, matrices_of_a_launch_are_each_alone,
        waits_for_earlier_kernels, many_share_their_activations, refuses_what_does_not_fit }
    };
}
pub(crate) use linear_int8_properties;

/// A type with tiles, and columns: whole tiles, fewer tiles than warps and more, and what is left of one.
fn type_and_cols() -> impl Strategy<Value = (GgmlType, usize)> {
    let k_tiles = prop_oneof![3 => 1usize..5, 1 => prop::sample::select(vec![8usize, 9, 17, 24])];
    (prop::sample::select(tiles::TYPES.to_vec()), k_tiles, 0usize..8).prop_map(|(ty, k_tiles, less)| {
        let less = if ty.block_elems() == 32 { 32 * less } else { 0 };
        (ty, 256 * k_tiles - less)
    })
}

pub fn case() -> impl Strategy<Value = Case> {
    let n = prop_oneof![prop::sample::select(vec![1usize, 15, 16, 17, 33, 160]), 1usize..100];
    (type_and_cols(), any_m(), n, any::<bool>(), any::<u64>()).prop_map(|((ty, k), m, n, edges, seed)| Case {
        ty,
        m,
        n,
        k,
        edges,
        seed,
    })
}

fn tiled(d: &Device, w: &Weight) -> Matrix {
    let matrix = Matrix::for_fast_linear(d, w.clone()).unwrap();
    assert!(matrix.is_tiled());
    matrix
}

fn run(d: &Device, w: &Weight, x: &[f32]) -> glm5::Result<Vec<f32>> {
    let mut y = poisoned(d, x.len() / w.cols(), w.rows());
    linear(&tiled(d, w), &tensor(d, w.cols(), x), &mut y, Precision::Fast)?;
    Ok(host(&y))
}

/// Rounding of a sum of products with minimums apart from them: `sum |scale q x| + sum |minimum x|` instead of `sum |w x|`,
/// and of the sums of blocks, which are two bf16, good to 2^-17.
fn slack(w: &Weight, x: &[f32]) -> Vec<f64> {
    let (ty, k) = (w.ty(), w.cols());
    let whole = magnitudes(&values(w), x, k);
    if !matches!(ty, GgmlType::Q4_K | GgmlType::Q5_K) {
        return whole.iter().map(|sum| sum_slack(k, *sum)).collect();
    }
    // The minimums are the values of blocks whose quants are zeros.
    let mut zeros = w.bytes().to_vec();
    zeros.chunks_mut(ty.block_bytes()).for_each(|block| block[16..].fill(0));
    let zeros = Weight::new(ty, w.shape(), zeros.into()).unwrap();
    let mut out = Vec::new();
    for (t, x) in x.chunks(k).enumerate() {
        let sums: Vec<f64> =
            x.chunks(32).map(|b| b.iter().map(|v| f64::from(*v)).sum::<f64>().abs()).collect();
        for (j, mins) in values(&zeros).chunks(k).enumerate() {
            let all: f64 = mins.iter().zip(x).map(|(m, x)| f64::from(m * x).abs()).sum();
            let of_sums: f64 = mins.chunks(32).zip(&sums).map(|(m, sum)| f64::from(m[0]).abs() * sum).sum();
            out.push(sum_slack(k, whole[t * w.rows() + j] + 2.0 * all) + of_sums * 2f64.powi(-17));
        }
    }
    out
}

pub fn is_the_reference_on_rounded_activations(devices: &[Device], c: Case) -> TestCaseResult {
    let (w, x) = c.inputs();
    let got = on_each(devices, |d| run(d, &w, &x))?;
    let rounded = reference::round_int8(&x, c.k, reference::INT8_BLOCK).unwrap();
    let want = reference::linear(&values(&w), &rounded, c.n, c.k).unwrap();
    let slack = slack(&w, &rounded);
    close("y", &got, &want, |i| slack[i])
}

pub fn stack_case() -> impl Strategy<Value = (Case, usize)> {
    (case(), 1usize..4)
}

pub fn repacking_keeps_every_bit(devices: &[Device], (c, slabs): (Case, usize)) -> TestCaseResult {
    let blocks = slabs * c.n * (c.k / c.ty.block_elems());
    let bytes = random_blocks(c.ty, blocks, c.edges, c.seed);
    let w = Weight::new(c.ty, [slabs, c.n, c.k], bytes.into()).unwrap();
    for d in devices {
        let matrix = tiled(d, &w);
        let there = matrix.tiles().unwrap();
        let there = there.tiles.to_vec(0..there.tiles.len()).unwrap();
        prop_assert!(there == tiles::pack(&w).unwrap(), "{}: not the tiles of the specification", d.name());
        prop_assert!(tiles::unpack(c.ty, w.shape(), &there).unwrap() == w.bytes()[..]);
    }
    Ok(())
}

/// NaN in one token stays in that token; the others are what they are alone.
pub fn tokens_do_not_depend_on_each_other(devices: &[Device], c: Case) -> TestCaseResult {
    let (w, mut x) = c.inputs();
    let clean = on_each(devices, |d| run(d, &w, &x))?;
    let spoiled = Rng(c.seed).below(c.m);
    x[spoiled * c.k + Rng(!c.seed).below(c.k)] = f32::NAN;
    let got = on_each(devices, |d| run(d, &w, &x))?;
    for t in 0..c.m {
        let row = t * c.n..(t + 1) * c.n;
        if t == spoiled {
            prop_assert!(got[row].iter().all(|v| v.is_nan()), "NaN was lost");
        } else {
            equal("other tokens", &got[row.clone()], &clean[row])?;
        }
    }
    Ok(())
}

/// Gaussian activations, and such of which one in a hundred is 20 times as large.
pub fn is_near_the_ideal(devices: &[Device]) {
    for ty in tiles::TYPES {
        for outliers in [false, true] {
            let (m, n, k) = (5, 64, 512);
            let rng = &mut Rng(7);
            let mut x = rng.normals(m * k);
            if outliers {
                x.iter_mut().filter(|_| rng.below(100) == 0).for_each(|v| *v *= 20.0);
            }
            let bytes = random_blocks(ty, n * k / ty.block_elems(), false, 3);
            let w = Weight::new(ty, [1, n, k], bytes.into()).unwrap();
            let rounded = reference::round_int8(&x, k, reference::INT8_BLOCK).unwrap();
            let of = |x: &[f32]| reference::linear(&values(&w), x, n, k).unwrap();
            let slack = slack(&w, &rounded);
            for d in devices {
                near_ideal("y", &run(d, &w, &x).unwrap(), &of(&rounded), &slack, &of(&x)).unwrap();
            }
        }
    }
}

/// Random blocks of a type.
fn weight(ty: GgmlType, n: usize, k: usize, seed: u64) -> Weight {
    let bytes = random_blocks(ty, n * k / ty.block_elems(), false, seed);
    Weight::new(ty, [1, n, k], bytes.into()).unwrap()
}

fn rounded_on(d: &Device, x: &[f32], k: usize) -> QuantizedTiles {
    let mut q = QuantizedTiles::new(d, x.len() / k, k).unwrap();
    quantize(&tensor(d, k, x), &mut q).unwrap();
    q
}

/// Outputs of several matrices in one call.
fn tiled_by(kernel: Option<Entry>, ws: &[&Matrix], q: &mut QuantizedTiles) -> Vec<Vec<f32>> {
    let mut ys: Vec<Tensor> = ws.iter().map(|w| poisoned(w.device(), q.shape()[0], w.rows())).collect();
    let mut outs: Vec<&mut Tensor> = ys.iter_mut().collect();
    linear_tiled_by(kernel, ws, q, &mut outs).unwrap();
    ys.iter().map(host).collect()
}

/// Outputs as specified, and their bounds.
fn specified(w: &Weight, x: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let rounded = reference::round_int8(x, w.cols(), reference::INT8_BLOCK).unwrap();
    (reference::linear(&values(w), &rounded, w.rows(), w.cols()).unwrap(), slack(w, &rounded))
}

/// `silu(gate x) * (up x)` as specified, with the bounds of the two products carried through: silu has slopes up to 1.1. Far on
/// the negative side it is below 1e-35 and may be cut to zero.
fn specified_swiglu(gate: &Weight, up: &Weight, x: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let ((gate, gate_off), (up, up_off)) = (specified(gate, x), specified(up, x));
    let want = ffn::reference::swiglu(&gate, &up).unwrap();
    let silu = ffn::reference::swiglu(&gate, &vec![1.0; gate.len()]).unwrap();
    let bound = |i: usize| {
        let of_silu = 1.1 * gate_off[i] + 4.0 * EPS * silu[i].abs() + 1e-35;
        of_silu * (up[i].abs() + up_off[i]) + silu[i].abs() * up_off[i]
    };
    (want, (0..gate.len()).map(bound).collect())
}

fn swiglu_by(kernel: Option<Entry>, [gate, up]: [&Matrix; 2], q: &mut QuantizedTiles) -> Vec<f32> {
    let mut y = poisoned(gate.device(), q.shape()[0], gate.rows());
    swiglu_tiled_by(kernel, gate, up, q, &mut y).unwrap();
    host(&y)
}

pub fn swiglu_is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let (gate, up) = (weight(c.ty, c.n, c.k, c.seed), weight(c.ty, c.n, c.k, !c.seed));
    // Outputs around 1, where silu is not linear.
    let mut x: Vec<f32> = Rng(c.seed).normals(c.m * c.k);
    let (want, _) = specified(&gate, &x);
    let length = want.iter().map(|v| v * v).sum::<f64>() / want.len() as f64;
    x.iter_mut().for_each(|v| *v *= (2.0 / length.sqrt().max(1e-20)) as f32);
    let (want, bound) = specified_swiglu(&gate, &up, &x);
    let run = |x: &[f32]| {
        on_each(devices, |d| {
            Ok(swiglu_by(None, [&tiled(d, &gate), &tiled(d, &up)], &mut rounded_on(d, x, c.k)))
        })
    };
    let got = run(&x)?;
    close("y", &got, &want, |i| bound[i])?;
    let spoiled = Rng(c.seed).below(c.m);
    x[spoiled * c.k] = f32::NAN;
    for (t, (now, before)) in run(&x)?.chunks(c.n).zip(got.chunks(c.n)).enumerate() {
        if t == spoiled {
            prop_assert!(now.iter().all(|v| v.is_nan()), "NaN was lost");
        } else {
            equal("other tokens", now, before)?;
        }
    }
    Ok(())
}

/// Of types with blocks of 32: the rest of a tile is zeros, whatever the activations behind the end of a row would be.
pub fn rows_need_not_fill_tiles(devices: &[Device]) {
    for ty in tiles::TYPES.into_iter().filter(|ty| ty.block_elems() == 32) {
        for (m, k) in [(1, 192), (8, 192), (21, 192), (2, 32), (3, 480), (1, 512), (70, 512)] {
            let w = weight(ty, 35, k, k as u64);
            let x = Rng(m as u64).normals(m * k);
            let (want, off) = specified(&w, &x);
            for d in devices {
                close("y", &run(d, &w, &x).unwrap(), &want, |i| off[i]).unwrap();
            }
        }
    }
}

/// Whichever kernel multiplies, for one matrix or several: results are those of the reference, and a matrix has the same bits in
/// company.
pub fn every_kernel_is_the_reference(devices: &[Device]) {
    let mut reached = BTreeSet::new();
    for (at, ty) in tiles::TYPES.into_iter().enumerate() {
        for (m, k_tiles) in [(1, 5), (1, 26), (3, 9), (8, 2)] {
            let k = 256 * k_tiles;
            let weights = [33, 5, 16, 50].map(|n| weight(ty, n, k, (n + at) as u64));
            let up = weight(ty, 33, k, 7);
            let x: Vec<f32> = Rng(k as u64).normals(m * k).iter().map(|v| v / 64.0).collect();
            let wants = weights.each_ref().map(|w| specified(w, &x));
            let (of_swiglu, swiglu_off) = specified_swiglu(&weights[0], &up, &x);
            for d in devices {
                let (matrices, up) = (weights.each_ref().map(|w| tiled(d, w)), tiled(d, &up));
                let q = &mut rounded_on(d, &x, k);
                for kernel in decode_kernels(&matrices.each_ref(), m, false).unwrap() {
                    reached.insert(kernel);
                    let got = tiled_by(Some(kernel), &matrices.each_ref(), q);
                    for ((w, y), (want, off)) in matrices.iter().zip(&got).zip(&wants) {
                        close(kernel.name(), y, want, |i| off[i]).unwrap();
                        equal(kernel.name(), &tiled_by(Some(kernel), &[w], q)[0], y).unwrap();
                    }
                }
                for kernel in decode_kernels(&[&matrices[0], &up], m, true).unwrap() {
                    reached.insert(kernel);
                    let got = swiglu_by(Some(kernel), [&matrices[0], &up], q);
                    close(kernel.name(), &got, &of_swiglu, |i| swiglu_off[i]).unwrap();
                }
            }
        }
    }
    let missed: Vec<_> = linear_decode::INSTANCES.iter().filter(|i| !reached.contains(&i.entry)).collect();
    assert!(missed.is_empty(), "not run: {missed:?}");
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
            let q = &mut rounded_on(d, &x, k);
            let got = tiled_by(None, &matrices.each_ref(), q);
            for ((w, matrix), y) in weights.iter().zip(&matrices).zip(&got) {
                let (want, off) = specified(w, &x);
                close("y", y, &want, |i| off[i]).unwrap();
                let of_type = matrices.iter().filter(|other| other.tiles().unwrap().ty == w.ty());
                let chosen = |ws: &[&Matrix]| {
                    decode_kernels(ws, m, false).unwrap().first().map(|kernel| kernel.name())
                };
                let in_company = chosen(&of_type.take(4).collect::<Vec<_>>());
                if in_company == chosen(&[matrix]) {
                    equal("y", &tiled_by(None, &[matrix], q)[0], y).unwrap();
                }
            }
        }
    }
}

/// Activations that a kernel has just written: nothing of them may be read before it is sure to have ended.
pub fn waits_for_earlier_kernels(devices: &[Device]) {
    let (m, n, k) = (3, 40, 512);
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
            equal("y", &host(y), &host(&alone)).unwrap();
        }
    }
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
    let kernel = |w: &Matrix, m, glu| decode_kernels(&[w], m, glu).unwrap().into_iter();
    for wrong in kernel(&other_type, 3, false).chain(kernel(&w, 3, true)) {
        unsupported(linear_tiled_by(Some(wrong), &[&w], &mut q, &mut [&mut y]));
    }
    let for_one =
        |kernel: &Entry| linear_decode::INSTANCES.iter().any(|i| i.entry == *kernel && i.tokens == 1);
    for wrong in kernel(&w, 1, false).filter(for_one) {
        unsupported(linear_tiled_by(Some(wrong), &[&w], &mut q, &mut [&mut y]));
    }
    unsupported(linear_tiled_by(
        kernel(&w, 3, false).next(),
        &[&w, &other_type],
        &mut q,
        &mut [&mut y, &mut y2],
    ));
    unsupported(linear(&w, &x, &mut y, Precision::Exact));
    unsupported(dequantize(&w, 0, 0..1, &mut tensor(d, 256, &[0.0; 256])));
    assert!([y, y2, narrow, short].iter().all(untouched), "a refused call wrote something");
}
