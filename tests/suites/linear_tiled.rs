//! Linear layers in tiles: weights repacked, activations rounded to int8 or f16, and their products. On GPUs only.

use std::collections::BTreeSet;

use glm5::Error;
use glm5::kernels::{Entry, linear_decode, linear_gemm, linear_gemm_wide};
use glm5::ops::dequantize::dequantize;
use glm5::ops::ffn;
use glm5::ops::linear::gemm::{GemmConfig, GemmProblem};
use glm5::ops::linear::{
    TiledOptions, head_linear, head_linear_tiled, linear, linear_many, linear_tiled, linear_tiled_with,
    quantize, quantize_heads, reference, swiglu_tiled, swiglu_tiled_with, tiled_kernels,
};
use glm5::quant::{GgmlType, Weight, tiles};
use glm5::tensor::{ActivationFormat, Device, Heads, Matrix, Precision, QuantizedTiles, TILE_TOKENS, Tensor};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::{Rng, random_blocks};
use super::close::{EPS, POISON, close, equal, magnitudes, near_ideal, sum_slack};
use super::inputs::*;
use super::linear::Case;

mod launches;
mod rotated;
mod unrounded;
pub use launches::*;
pub use rotated::*;
pub use unrounded::*;

macro_rules! linear_tiled_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { linear_tiled, $devices, $cases;
        is_the_reference_on_rounded_activations(case_and_format), repacking_keeps_every_bit(stack_case),
        tokens_do_not_depend_on_each_other(case_and_format), swiglu_is_the_reference(case_and_format),
        heads_are_the_reference(heads_case), rows_of_f32_are_the_reference(float_case),
        rotated_on_the_way_or_afterwards_is_the_same(case_and_format);
        is_near_the_ideal, rows_need_not_fill_tiles, every_int8_kernel_is_the_reference,
        every_f16_kernel_is_the_reference, every_token_stands_alone, listed_kernels_run, rows_for_many_rounds,
        formats_follow_the_tokens, matrices_of_a_launch_are_each_alone, launches_share_their_scratch,
        waits_for_earlier_kernels, many_share_their_activations, rounded_heads_are_multiplied_alike, no_tokens_are_no_work,
        refuses_what_does_not_fit, refuses_heads_that_do_not_fit, rows_of_f32_join_every_kernel, rows_of_f32_are_not_rounded,
        what_cannot_join_is_a_launch_of_its_own, rows_of_f32_find_a_launch, rows_of_f32_wait_for_earlier_kernels,
        refuses_rows_of_f32_that_do_not_fit, scales_may_be_of_any_size, every_kernel_rotates, queries_of_real_heads_are_rotated,
        refuses_rotations_that_do_not_fit }
    };
}
pub(crate) use linear_tiled_properties;

const FORMATS: [ActivationFormat; 2] = [ActivationFormat::Int8, ActivationFormat::F16];

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

/// As for this many tokens, or one in particular.
pub fn case_and_format() -> impl Strategy<Value = (Case, Option<ActivationFormat>)> {
    let formats = vec![None, Some(ActivationFormat::Int8), Some(ActivationFormat::F16)];
    (case(), prop::sample::select(formats))
}

fn tiled(d: &Device, w: &Weight) -> Matrix {
    let matrix = Matrix::for_fast_linear(d, w.clone()).unwrap();
    assert!(matrix.is_tiled());
    matrix
}

/// Outputs, and the format that the activations had.
fn run(d: &Device, w: &Weight, x: &[f32], format: Option<ActivationFormat>) -> glm5::Result<Vec<f32>> {
    let mut y = poisoned(d, x.len() / w.cols(), w.rows());
    match format {
        None => linear(&tiled(d, w), &tensor(d, w.cols(), x), &mut y, Precision::Fast)?,
        Some(_) => linear_tiled(&[&tiled(d, w)], &mut rounded_on(d, x, w.cols(), format), &mut [&mut y])?,
    }
    Ok(host(&y))
}

/// What a device makes of `format` for `m` tokens.
pub fn format_on(d: &Device, m: usize, format: Option<ActivationFormat>) -> ActivationFormat {
    format.unwrap_or_else(|| QuantizedTiles::new(d, m, 32).unwrap().format())
}

pub fn round(x: &[f32], k: usize, format: ActivationFormat) -> Vec<f32> {
    match format {
        ActivationFormat::Int8 => reference::round_int8(x, k, reference::INT8_BLOCK).unwrap(),
        ActivationFormat::F16 => reference::round_f16(x, k).unwrap(),
    }
}

/// Rounding of a sum of products with minimums apart from them: `sum |scale q x| + sum |minimum x|` instead of `sum |w x|`,
/// and of the sums of blocks, which are two bf16, good to 2^-17, or two f16, good to 2^-22. With f16, weights of Q6_K are rounded to 11
/// bits.
pub fn slack(w: &Weight, x: &[f32], format: ActivationFormat) -> Vec<f64> {
    let (ty, k) = (w.ty(), w.cols());
    let all = values(w);
    let whole = magnitudes(&all, x, k);
    if !matches!(ty, GgmlType::Q4_K | GgmlType::Q5_K) {
        let of_weight =
            if (ty, format) == (GgmlType::Q6_K, ActivationFormat::F16) { 2f64.powi(-11) } else { 0.0 };
        return whole.iter().map(|sum| sum_slack(k, *sum) + of_weight * sum).collect();
    }
    let of_sum = match format {
        ActivationFormat::Int8 => 2f64.powi(-17),
        ActivationFormat::F16 => 2f64.powi(-21),
    };
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
            out.push(sum_slack(k, whole[t * w.rows() + j] + 2.0 * all) + of_sums * of_sum);
        }
    }
    out
}

pub fn is_the_reference_on_rounded_activations(
    devices: &[Device],
    (c, format): (Case, Option<ActivationFormat>),
) -> TestCaseResult {
    let (w, x) = c.inputs();
    let got = on_each(devices, |d| run(d, &w, &x, format))?;
    let (want, slack) = specified(&w, &x, format_on(&devices[0], c.m, format));
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
pub fn tokens_do_not_depend_on_each_other(
    devices: &[Device],
    (c, format): (Case, Option<ActivationFormat>),
) -> TestCaseResult {
    let (w, mut x) = c.inputs();
    let clean = on_each(devices, |d| run(d, &w, &x, format))?;
    let spoiled = Rng(c.seed).below(c.m);
    x[spoiled * c.k + Rng(!c.seed).below(c.k)] = f32::NAN;
    let got = on_each(devices, |d| run(d, &w, &x, format))?;
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

/// The same for each place that a token can have in a tile, and in the second of two.
pub fn every_token_stands_alone(devices: &[Device]) {
    let (n, k) = (17, 256);
    let w = weight(GgmlType::Q4_K, n, k, 1);
    for (d, m) in devices.iter().flat_map(|d| [4, 8, 16].map(|m| (d, m))) {
        let x = Rng(m as u64).normals(m * k);
        let clean = run(d, &w, &x, None).unwrap();
        for spoiled in 0..m {
            let mut x = x.clone();
            x[spoiled * k + 5] = f32::NAN;
            let got = run(d, &w, &x, None).unwrap();
            for (t, (got, clean)) in got.chunks(n).zip(clean.chunks(n)).enumerate() {
                let same = got.iter().zip(clean).all(|(a, b)| a.to_bits() == b.to_bits());
                let lost = t == spoiled && !got.iter().all(|v| v.is_nan());
                assert!(!lost && (same || t == spoiled), "{m} tokens, NaN in {spoiled}: token {t}");
            }
        }
    }
}

/// Gaussian activations, and such of which one in a hundred is 20 times as large.
pub fn is_near_the_ideal(devices: &[Device]) {
    for ty in tiles::TYPES {
        for (outliers, format) in [false, true].into_iter().flat_map(|o| FORMATS.map(|format| (o, format))) {
            let (m, n, k) = if outliers { (5, 64, 512) } else { (20, 40, 1536) };
            let rng = &mut Rng(7);
            let mut x = rng.normals(m * k);
            if outliers {
                x.iter_mut().filter(|_| rng.below(100) == 0).for_each(|v| *v *= 20.0);
            }
            let w = weight(ty, n, k, 3);
            let rounded = round(&x, k, format);
            let of = |x: &[f32]| reference::linear(&values(&w), x, n, k).unwrap();
            // Without the slack of other bounds, which would hide what rounding costs. The weights of Q6_K are rounded to 11 bits for
            // f16, as the activations are.
            let times = if (ty, format) == (GgmlType::Q6_K, ActivationFormat::F16) { 1.3 } else { 1.1 };
            let slack = vec![0.0; m * n];
            for d in devices {
                let got = run(d, &w, &x, Some(format)).unwrap();
                near_ideal("y", &got, &of(&rounded), &slack, &of(&x), times).unwrap();
            }
        }
    }
}

/// Random blocks of a type.
fn weight(ty: GgmlType, n: usize, k: usize, seed: u64) -> Weight {
    let bytes = random_blocks(ty, n * k / ty.block_elems(), false, seed);
    Weight::new(ty, [1, n, k], bytes.into()).unwrap()
}

fn rounded_on(d: &Device, x: &[f32], k: usize, format: Option<ActivationFormat>) -> QuantizedTiles {
    let mut q = match format {
        None => QuantizedTiles::new(d, x.len() / k, k).unwrap(),
        Some(format) => QuantizedTiles::with_format(d, x.len() / k, k, format).unwrap(),
    };
    quantize(&tensor(d, k, x), &mut q).unwrap();
    q
}

fn by<'a>(kernel: Option<Entry>) -> TiledOptions<'a> {
    TiledOptions { kernel, ..TiledOptions::default() }
}

/// Outputs of several matrices in one call.
fn tiled_by(kernel: Option<Entry>, ws: &[&Matrix], q: &mut QuantizedTiles) -> Vec<Vec<f32>> {
    let mut ys: Vec<Tensor> = ws.iter().map(|w| poisoned(w.device(), q.shape()[0], w.rows())).collect();
    let mut outs: Vec<&mut Tensor> = ys.iter_mut().collect();
    linear_tiled_with(by(kernel), ws, q, &mut outs).unwrap();
    ys.iter().map(host).collect()
}

/// Outputs as specified, and their bounds.
fn specified(w: &Weight, x: &[f32], format: ActivationFormat) -> (Vec<f64>, Vec<f64>) {
    let rounded = round(x, w.cols(), format);
    (reference::linear(&values(w), &rounded, w.rows(), w.cols()).unwrap(), slack(w, &rounded, format))
}

/// `silu(gate x) * (up x)` as specified, with the bounds of the two products carried through: silu has slopes up to 1.1. Far on
/// the negative side it is below 1e-35 and may be cut to zero.
fn specified_swiglu(gate: &Weight, up: &Weight, x: &[f32], format: ActivationFormat) -> (Vec<f64>, Vec<f64>) {
    let ((gate, gate_off), (up, up_off)) = (specified(gate, x, format), specified(up, x, format));
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
    swiglu_tiled_with(by(kernel), gate, up, q, &mut y).unwrap();
    host(&y)
}

pub fn swiglu_is_the_reference(
    devices: &[Device],
    (c, format): (Case, Option<ActivationFormat>),
) -> TestCaseResult {
    let rounded = format_on(&devices[0], c.m, format);
    let (gate, up) = (weight(c.ty, c.n, c.k, c.seed), weight(c.ty, c.n, c.k, !c.seed));
    // Outputs around 1, where silu is not linear.
    let mut x: Vec<f32> = Rng(c.seed).normals(c.m * c.k);
    let (want, _) = specified(&gate, &x, rounded);
    let length = want.iter().map(|v| v * v).sum::<f64>() / want.len() as f64;
    x.iter_mut().for_each(|v| *v *= (2.0 / length.sqrt().max(1e-20)) as f32);
    let (want, bound) = specified_swiglu(&gate, &up, &x, rounded);
    let run = |x: &[f32]| {
        on_each(devices, |d| {
            Ok(swiglu_by(None, [&tiled(d, &gate), &tiled(d, &up)], &mut rounded_on(d, x, c.k, format)))
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

pub fn heads_case() -> impl Strategy<Value = (Case, usize)> {
    let k = prop_oneof![3 => Just(192usize), 3 => Just(512), 3 => Just(256), 1 => Just(2304)];
    (case(), k, 1usize..6).prop_map(|(c, k, heads)| {
        let k = if c.ty.block_elems() == 32 { k } else { k.next_multiple_of(256) };
        (Case { n: c.n.min(70), k, ..c }, heads)
    })
}

/// One matrix for each head, of which inputs and outputs are parts of rows: other columns stay.
pub fn heads_are_the_reference(devices: &[Device], (c, heads): (Case, usize)) -> TestCaseResult {
    let Case { ty, m, n, k, edges, seed } = c;
    let bytes = random_blocks(ty, heads * n * k / ty.block_elems(), edges, seed);
    let w = Weight::new(ty, [heads, n, k], bytes.into()).unwrap();
    let x_heads = Heads { n: heads, stride: k + 64, offset: 64, len: k };
    let y_heads = Heads { n: heads, stride: n + 3, offset: 2, len: n };
    let (x_cols, y_cols) = (heads * x_heads.stride, heads * y_heads.stride + 1);
    let x = activations(m, x_cols, &mut Rng(seed));
    let got = on_each(devices, |d| {
        let mut y = poisoned(d, m, y_cols);
        head_linear(&tiled(d, &w), &tensor(d, x_cols, &x), x_heads, &mut y, y_heads, Precision::Fast)?;
        Ok(host(&y))
    })?;
    let part = |row: &[f32], at: Heads, h: usize| row[h * at.stride + at.offset..][..at.len].to_vec();
    let matrix_bytes = w.bytes().len() / heads;
    for h in 0..heads {
        let bytes = w.bytes()[h * matrix_bytes..][..matrix_bytes].to_vec();
        let matrix = Weight::new(ty, [1, n, k], bytes.into()).unwrap();
        let x: Vec<f32> = x.chunks(x_cols).flat_map(|row| part(row, x_heads, h)).collect();
        let y: Vec<f32> = got.chunks(y_cols).flat_map(|row| part(row, y_heads, h)).collect();
        let (want, slack) = specified(&matrix, &x, ActivationFormat::F16);
        close("y", &y, &want, |i| slack[i])?;
    }
    let others = |row: &[f32]| {
        let mut row = row.to_vec();
        (0..heads).for_each(|h| row[h * y_heads.stride + y_heads.offset..][..n].fill(POISON));
        row.iter().all(|v| v.to_bits() == POISON.to_bits())
    };
    prop_assert!(got.chunks(y_cols).all(others), "columns between the heads were written");
    Ok(())
}

/// Of types with blocks of 32: the rest of a tile is zeros, whatever the activations behind the end of a row would be.
pub fn rows_need_not_fill_tiles(devices: &[Device]) {
    for ty in tiles::TYPES.into_iter().filter(|ty| ty.block_elems() == 32) {
        for (m, k) in [(1, 192), (8, 192), (21, 192), (2, 32), (3, 480), (1, 512), (70, 512)] {
            let w = weight(ty, 35, k, k as u64);
            let x = Rng(m as u64).normals(m * k);
            for format in FORMATS {
                let (want, off) = specified(&w, &x, format);
                for d in devices {
                    close("y", &run(d, &w, &x, Some(format)).unwrap(), &want, |i| off[i]).unwrap();
                }
            }
        }
    }
}

/// Whichever kernel multiplies, for one matrix or several: results are those of the reference, and a matrix has the same bits in
/// company where the sums are not cut elsewhere. Kernels that may cut sums, and share what they cut, do both.
fn every_kernel_is_the_reference(devices: &[Device], format: ActivationFormat, cases: &[(usize, usize)]) {
    // Tiles of 128 tokens, which take an emulator half a second, have cases with more of them.
    let suits = |kernel: &Entry, m| m > TILE_TOKENS || kernel.family() != "linear_gemm_wide";
    let (mut reached, mut whole, mut cut) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (at, ty) in tiles::TYPES.into_iter().enumerate() {
        for &(m, k_tiles) in cases {
            let k = 256 * k_tiles;
            let weights = [33, 5, 16, 50].map(|n| weight(ty, n, k, (n + at) as u64));
            let up = weight(ty, 33, k, 7);
            let x: Vec<f32> = Rng(k as u64).normals(m * k).iter().map(|v| v / 64.0).collect();
            let wants = weights.each_ref().map(|w| specified(w, &x, format));
            let (of_swiglu, swiglu_off) = specified_swiglu(&weights[0], &up, &x, format);
            for d in devices {
                let (matrices, up) = (weights.each_ref().map(|w| tiled(d, w)), tiled(d, &up));
                let q = &mut rounded_on(d, &x, k, Some(format));
                let mut reach = |kernel: Entry, rows: &[usize], glu| {
                    reached.insert(kernel);
                    let problem = GemmProblem { ty, format, m, rows, k, slabs: 1, glu };
                    if kernel.family() != "linear_decode" {
                        let config = GemmConfig::of(kernel, problem, d.gpu().unwrap().properties()).unwrap();
                        if config.cut { &mut cut } else { &mut whole }.insert(kernel);
                    }
                };
                let listed = tiled_kernels(&matrices.each_ref(), q, false).unwrap();
                for kernel in listed.into_iter().filter(|kernel| suits(kernel, m)) {
                    reach(kernel, &weights.each_ref().map(Weight::rows), false);
                    let got = tiled_by(Some(kernel), &matrices.each_ref(), q);
                    for ((w, y), (want, off)) in matrices.iter().zip(&got).zip(&wants) {
                        close(kernel.name(), y, want, |i| off[i]).unwrap();
                        if kernel.family() == "linear_decode" {
                            equal(kernel.name(), &tiled_by(Some(kernel), &[w], q)[0], y).unwrap();
                        }
                    }
                }
                let listed = tiled_kernels(&[&matrices[0], &up], q, true).unwrap();
                for kernel in listed.into_iter().filter(|kernel| suits(kernel, m)) {
                    reach(kernel, &[up.rows()], true);
                    let got = swiglu_by(Some(kernel), [&matrices[0], &up], q);
                    close(kernel.name(), &got, &of_swiglu, |i| swiglu_off[i]).unwrap();
                }
            }
        }
    }
    let decode = linear_decode::INSTANCES.iter().map(|i| i.entry);
    let gemm = linear_gemm::INSTANCES.iter().filter(|i| i.act == format.bits()).map(|i| i.entry);
    // Those that need more shared memory run where there is as much.
    let gpu = devices[0].gpu().unwrap().properties();
    let there = |entry: &Entry| gpu.compute_capability == (9, 0) && entry.smem_bytes() <= gpu.smem_per_block;
    let wide = linear_gemm_wide::INSTANCES.iter().filter(|i| i.act == format.bits()).map(|i| i.entry);
    let gemm: BTreeSet<_> = gemm.chain(wide.filter(there)).collect();
    let decode: BTreeSet<_> = decode.filter(|_| format == ActivationFormat::Int8).collect();
    assert_eq!(reached, &decode | &gemm, "other kernels were run");
    assert_eq!(cut, gemm, "kernels whose sums were cut");
    assert_eq!(whole, gemm, "kernels whose sums were not cut");
}

pub fn every_int8_kernel_is_the_reference(devices: &[Device]) {
    let cases = [(1, 5), (1, 26), (3, 9), (4, 1), (5, 1), (8, 2), (9, 1), (13, 9), (16, 1), (150, 2)];
    every_kernel_is_the_reference(devices, ActivationFormat::Int8, &cases);
}

pub fn every_f16_kernel_is_the_reference(devices: &[Device]) {
    let cases = [(6, 5), (6, 9), (20, 3), (20, 9), (150, 2)];
    every_kernel_is_the_reference(devices, ActivationFormat::F16, &cases);
}
