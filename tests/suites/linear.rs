//! Quantized linear layers: single, several on one input, one per head.

use std::collections::BTreeSet;

use glm5::error::Error;
use glm5::kernels::{Entry, linear_float};
use glm5::ops::linear::{
    Rotated, head_linear, linear, linear_by, linear_kernels, linear_many, linear_rotated, reference,
};
use glm5::ops::rope::{rope, rope_into};
use glm5::quant::{GgmlType, Weight};
use glm5::tensor::{Device, Heads, Precision};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::{Rng, any_type, random_blocks, random_weight};
use super::close::{POISON, close, equal, magnitudes, sum_slack};
use super::inputs::*;

macro_rules! linear_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { linear, $devices, $cases;
        exact_is_the_reference(case), fast_is_the_reference_on_rounded_activations(case),
        many_are_the_same_as_each_alone(many_case), rotated_or_afterwards_is_the_same(many_case), rows_do_not_depend_on_each_other(case),
        head_linear_is_the_reference_and_leaves_other_columns(head_case);
        every_type_and_width_is_computed, float_weights_are_nearly_as_exact_as_f32, float_heads_are_the_reference, tells_rows_from_columns, waits_for_earlier_kernels, refuses_what_does_not_fit }
    };
}
pub(crate) use linear_properties;

#[derive(Debug, Clone)]
pub struct Case {
    pub ty: GgmlType,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Blocks with zero, negative, subnormal and largest scales among the others.
    pub edges: bool,
    pub seed: u64,
}

impl Case {
    pub fn inputs(&self) -> (Weight, Vec<f32>) {
        let blocks = self.n * (self.k / self.ty.block_elems());
        let bytes = random_blocks(self.ty, blocks, self.edges, self.seed);
        let w = Weight::new(self.ty, [1, self.n, self.k], bytes.into()).unwrap();
        (w, activations(self.m, self.k, &mut Rng(!self.seed)))
    }
}

fn outputs() -> impl Strategy<Value = usize> {
    prop_oneof![prop::sample::select(vec![1usize, 7, 8, 9, 31, 33, 65]), 1usize..80]
}

pub fn case() -> impl Strategy<Value = Case> {
    (type_and_width(1536), any_m(), outputs(), any::<bool>(), any::<u64>())
        .prop_map(|((ty, k), m, n, edges, seed)| Case { ty, m, n, k, edges, seed })
}

fn run(d: &Device, w: &Weight, x: &[f32], precision: Precision) -> glm5::Result<Vec<f32>> {
    let mut y = poisoned(d, x.len() / w.cols(), w.rows());
    linear(&matrix(d, w), &tensor(d, w.cols(), x), &mut y, precision)?;
    Ok(host(&y))
}

pub fn exact_is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let (w, x) = c.inputs();
    let got = on_each(devices, |d| run(d, &w, &x, Precision::Exact))?;
    let w = values(&w);
    let want = reference::linear(&w, &x, c.n, c.k).unwrap();
    let magnitudes = magnitudes(&w, &x, c.k);
    close("y", &got, &want, |i| sum_slack(c.k, magnitudes[i]))
}

/// Tight against the reference fed the same rounded activations, of which each is within half a step of what it was: the
/// two say how far the result may be from the ideal.
pub fn fast_is_the_reference_on_rounded_activations(devices: &[Device], c: Case) -> TestCaseResult {
    let (w, x) = c.inputs();
    let got = on_each(devices, |d| run(d, &w, &x, Precision::Fast))?;
    let w = values(&w);
    let block = reference::INT8_BLOCK;
    let rounded = if is_quantized(c.ty) { reference::round_int8(&x, c.k, block).unwrap() } else { x.clone() };
    let want = reference::linear(&w, &rounded, c.n, c.k).unwrap();
    let sums = magnitudes(&w, &rounded, c.k);
    close("y", &got, &want, |i| sum_slack(c.k, sums[i]))?;

    for (x, rounded) in x.chunks(c.k).zip(rounded.chunks(c.k)) {
        for (x, rounded) in x.chunks(block).zip(rounded.chunks(block)) {
            let step = f64::from(x.iter().fold(0.0f32, |a, v| a.max(v.abs()))) / 127.0;
            let off = x.iter().zip(rounded).map(|(x, r)| (f64::from(*x) - f64::from(*r)).abs());
            let worst = off.fold(0.0, f64::max);
            prop_assert!(worst <= 0.501 * step, "rounded by {worst:e}, a step is {step:e}");
        }
    }
    Ok(())
}

#[derive(Debug, Clone)]
pub struct ManyCase {
    m: usize,
    k: usize,
    weights: Vec<(usize, u64)>,
    precision: Precision,
}

pub fn many_case() -> impl Strategy<Value = ManyCase> {
    let weights = prop::collection::vec((outputs(), any::<u64>()), 1..5);
    let precision = prop::sample::select(vec![Precision::Exact, Precision::Fast]);
    let k = prop::sample::select(vec![256usize, 512]);
    (any_m(), k, weights, precision).prop_map(|(m, k, weights, precision)| ManyCase {
        m,
        k,
        weights,
        precision,
    })
}

pub fn many_are_the_same_as_each_alone(devices: &[Device], c: ManyCase) -> TestCaseResult {
    let weights: Vec<Weight> = c
        .weights
        .iter()
        .map(|(n, seed)| random_weight(type_for(c.k, &mut Rng(*seed)), 1, *n, c.k, *seed))
        .collect();
    let x = activations(c.m, c.k, &mut Rng(c.weights[0].1));
    let together = on_each(devices, |d| {
        let on_device: Vec<_> = weights.iter().map(|w| matrix(d, w)).collect();
        let mut ys: Vec<_> = weights.iter().map(|w| poisoned(d, c.m, w.rows())).collect();
        let (ws, mut outs): (Vec<_>, Vec<_>) = on_device.iter().zip(&mut ys).unzip();
        linear_many(&ws, &tensor(d, c.k, &x), &mut outs, c.precision)?;
        Ok(ys.iter().map(host).collect::<Vec<_>>())
    })?;
    for (w, together) in weights.iter().zip(together) {
        let alone = on_each(&devices[..1], |d| run(d, w, &x, c.precision))?;
        equal("y", &together, &alone)?;
    }
    Ok(())
}

/// Parts of the outputs, in place and elsewhere, have the bits of a rotation afterwards.
pub fn rotated_or_afterwards_is_the_same(devices: &[Device], c: ManyCase) -> TestCaseResult {
    let rng = &mut Rng(c.weights[0].1);
    let (n, len) = (1 + rng.below(3), 2 * (1 + rng.below(6)));
    let heads = Heads { n, stride: len + 2 * rng.below(4), offset: 0, len };
    let (to_heads, to_cols) = spread_heads(n, len, rng);
    let weights = [7, 9].map(|seed| random_weight(type_for(c.k, rng), 1, n * heads.stride, c.k, seed));
    let (x, turns) = (activations(c.m, c.k, rng), rng.normals(c.m * len / 2));
    let turns: Vec<f32> = turns.iter().flat_map(|phi| [phi.cos(), phi.sin()]).collect();
    let run = |d: &Device, on_the_way: bool| {
        let (x, angles) = (tensor(d, c.k, &x), tensor(d, len, &turns));
        let ws = weights.each_ref().map(|w| matrix(d, w));
        let [mut a, mut b] = weights.each_ref().map(|w| poisoned(d, c.m, w.rows()));
        let mut to = tensor(d, to_cols, &vec![0.5; c.m * to_cols]);
        let (ws, ys) = (ws.each_ref(), &mut [&mut a, &mut b]);
        match on_the_way {
            true => {
                let rotated = &mut [
                    Rotated { matrix: 1, heads, angles: &angles, to: Some((&mut to, to_heads)) },
                    Rotated { matrix: 0, heads, angles: &angles, to: None },
                ];
                linear_rotated(&ws, &x, ys, rotated, c.precision)?;
            }
            false => {
                linear_many(&ws, &x, ys, c.precision)?;
                rope(ys[0], heads, &angles)?;
                rope_into(ys[1], heads, &angles, &mut to, to_heads)?;
            }
        }
        Ok(vec![host(&a), outside(&host(&b), n * heads.stride, heads), host(&to)])
    };
    let (fused, after) = (on_each(devices, |d| run(d, true))?, on_each(devices, |d| run(d, false))?);
    for (fused, after) in fused.iter().zip(&after) {
        equal("outputs", fused, after)?;
    }
    Ok(())
}

/// NaN in one row of a batch stays in that row.
pub fn rows_do_not_depend_on_each_other(devices: &[Device], c: Case) -> TestCaseResult {
    let (w, mut x) = c.inputs();
    let spoiled = Rng(c.seed).below(c.m);
    for precision in [Precision::Exact, Precision::Fast] {
        let clean = on_each(devices, |d| run(d, &w, &x, precision))?;
        x[spoiled * c.k] = f32::NAN;
        let got = on_each(devices, |d| run(d, &w, &x, precision))?;
        x[spoiled * c.k] = 1.0;
        for t in 0..c.m {
            let row = t * c.n..(t + 1) * c.n;
            if t == spoiled {
                prop_assert!(got[row].iter().all(|v| v.is_nan()), "{}: NaN was lost", precision);
            } else {
                equal("other rows", &got[row.clone()], &clean[row])?;
            }
        }
    }
    Ok(())
}

#[derive(Debug, Clone)]
pub struct HeadCase {
    ty: GgmlType,
    m: usize,
    heads: usize,
    n: usize,
    k: usize,
    precision: Precision,
    seed: u64,
}

pub fn head_case() -> impl Strategy<Value = HeadCase> {
    let shape = prop_oneof![2 => type_and_width(512), 1 => (any_type(), Just(512usize))];
    let heads = prop::sample::select(vec![1usize, 2, 3, 5, 16, 64]);
    let precision = prop::sample::select(vec![Precision::Exact, Precision::Fast]);
    (shape, any_m(), heads, outputs(), precision, any::<u64>()).prop_map(
        |((ty, k), m, heads, n, precision, seed)| {
            let n = n.min(600 / heads); // Enough to show, quick enough to run.
            HeadCase { ty, m, heads, n: n.max(1), k, precision, seed }
        },
    )
}

pub fn head_linear_is_the_reference_and_leaves_other_columns(
    devices: &[Device],
    c: HeadCase,
) -> TestCaseResult {
    let rng = &mut Rng(!c.seed);
    let w = random_weight(c.ty, c.heads, c.n, c.k, c.seed);
    let (x_heads, x_cols) = spread_heads(c.heads, c.k, rng);
    let (y_heads, y_cols) = spread_heads(c.heads, c.n, rng);
    let mut x = activations(c.m, x_cols, rng);
    // What lies between the heads must not matter.
    let parts = gather(&x, x_cols, x_heads);
    x.iter_mut().for_each(|v| *v = f32::NAN);
    for (t, row) in x.chunks_mut(x_cols).enumerate() {
        for h in 0..c.heads {
            let part = (t * c.heads + h) * c.k;
            row[h * x_heads.stride + x_heads.offset..][..c.k].copy_from_slice(&parts[part..part + c.k]);
        }
    }
    let got = on_each(devices, |d| {
        let mut y = poisoned(d, c.m, y_cols);
        head_linear(&matrix(d, &w), &tensor(d, x_cols, &x), x_heads, &mut y, y_heads, c.precision)?;
        Ok(host(&y))
    })?;
    let others = outside(&got, y_cols, y_heads);
    prop_assert!(others.iter().all(|v| v.to_bits() == POISON.to_bits()), "wrote outside the heads");

    let rounded = match c.precision {
        Precision::Fast if is_quantized(c.ty) => reference::round_bf16(&parts),
        _ => parts,
    };
    let w = values(&w);
    let want = reference::head_linear(&w, &rounded, c.heads, c.n, c.k).unwrap();
    let mut magnitude = Vec::new();
    for (i, x) in rounded.chunks(c.k).enumerate() {
        let slab = i % c.heads * c.n * c.k;
        magnitude.extend(magnitudes(&w[slab..slab + c.n * c.k], x, c.k));
    }
    close("y", &gather(&got, y_cols, y_heads), &want, |i| sum_slack(c.k, magnitude[i]))
}

/// Each type with each width it can have, for one token and for several, and with widths up to 256 for many: none is left
/// to chance.
pub fn every_type_and_width_is_computed(devices: &[Device]) {
    for ty in super::blocks::SUPPORTED {
        for k in widths(ty) {
            for m in [1, 4, 40] {
                if m == 40 && k > 256 {
                    continue;
                }
                let c = Case { ty, m, n: 5, k, edges: false, seed: (k + m) as u64 };
                exact_is_the_reference(devices, c.clone()).unwrap_or_else(|e| panic!("exact {c:?}: {e}"));
                fast_is_the_reference_on_rounded_activations(devices, c.clone())
                    .unwrap_or_else(|e| panic!("fast {c:?}: {e}"));
            }
        }
    }
}

/// Whichever kernel multiplies unquantized weights: long sums of positive terms, so that an error that has always the same sign
/// adds up; then terms of which most is cut off (`linear_float`: 7/4 of 2^-20). Every kernel is met.
pub fn float_weights_are_nearly_as_exact_as_f32(devices: &[Device]) {
    let float = |entry: &Entry| entry.family() == "linear_float";
    let mut met = BTreeSet::new();
    for ty in [GgmlType::F32, GgmlType::F16, GgmlType::BF16] {
        let cases = [
            (1, 9, 2048, false),
            (17, 8, 2048, false),
            (16, 72, 1024, false),
            (34, 70, 1024, false),
            (17, 9, 32, true),
        ];
        for (m, n, k, cut) in cases {
            let worst = 1.0 + 2f32.powi(-10) - 2f32.powi(-23);
            let positive = |seed, len| {
                let values = Rng(seed).normals(len).into_iter();
                values.map(move |v| if cut { worst } else { v.abs() + 1e-3 })
            };
            let entries: Vec<f32> = positive(1, n * k).collect();
            let bytes = match ty {
                GgmlType::F32 => entries.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>(),
                GgmlType::F16 => entries.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
                _ => entries.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
            };
            let w = Weight::new(ty, [1, n, k], bytes.into()).unwrap();
            let x: Vec<f32> = positive(2, m * k).collect();
            let want = reference::linear(&values(&w), &x, n, k).unwrap();
            for d in devices {
                let bound = |i: usize| want[i] * 2f64.powi(-20) * if cut { 1.75 } else { 1.0 };
                close("y", &run(d, &w, &x, Precision::Exact).unwrap(), &want, bound).unwrap();
                if d.gpu().is_err() {
                    continue;
                }
                let (w, x) = (matrix(d, &w), tensor(d, k, &x));
                for kernel in linear_kernels(&w, &x).unwrap().into_iter().filter(float) {
                    let mut y = poisoned(d, m, n);
                    linear_by(kernel, &w, &x, &mut y, Precision::Exact).unwrap();
                    close(kernel.name(), &host(&y), &want, bound).unwrap();
                    met.insert(kernel);
                }
            }
        }
    }
    let all = linear_float::INSTANCES.iter().map(|i| i.entry);
    let there = all.filter(|_| devices.iter().any(|d| d.gpu().is_ok()));
    assert_eq!(met, there.collect(), "kernels that were run");
}

/// Parts of rows that begin at multiples of four values, of which most cases of `head_case` have none. An infinity stays in its
/// token, where nothing is finite then.
pub fn float_heads_are_the_reference(devices: &[Device]) {
    let (heads, n, k) = (3, 11, 64);
    let (x_heads, x_cols) = (Heads { n: heads, stride: 68, offset: 4, len: k }, 208);
    let (y_heads, y_cols) = (Heads { n: heads, stride: 13, offset: 1, len: n }, 41);
    for (ty, m) in
        [GgmlType::F32, GgmlType::F16, GgmlType::BF16].into_iter().flat_map(|ty| [(ty, 1), (ty, 18)])
    {
        let w = random_weight(ty, heads, n, k, 1);
        let mut x = activations(m, x_cols, &mut Rng(2));
        let parts = gather(&x, x_cols, x_heads);
        let want = reference::head_linear(&values(&w), &parts, heads, n, k).unwrap();
        let sums: Vec<f64> = parts
            .chunks(k)
            .enumerate()
            .flat_map(|(i, x)| {
                let slab = i % heads * n * k;
                magnitudes(&values(&w)[slab..slab + n * k], x, k)
            })
            .collect();
        for d in devices {
            let run = |x: &[f32]| {
                let mut y = poisoned(d, m, y_cols);
                head_linear(
                    &matrix(d, &w),
                    &tensor(d, x_cols, x),
                    x_heads,
                    &mut y,
                    y_heads,
                    Precision::Exact,
                )
                .unwrap();
                assert!(outside(&host(&y), y_cols, y_heads).iter().all(|v| v.to_bits() == POISON.to_bits()));
                gather(&host(&y), y_cols, y_heads)
            };
            let met = |d: &Device| {
                d.gpu().map_or(0, |gpu| {
                    let float =
                        gpu.launches().into_iter().filter(|(entry, _)| entry.family() == "linear_float");
                    float.map(|(_, n)| n).sum()
                })
            };
            let before = met(d);
            let clean = run(&x);
            assert_eq!(met(d) - before, u64::from(d.gpu().is_ok()), "another kernel was run");
            close("y", &clean, &want, |i| sum_slack(k, sums[i])).unwrap();
            let spoiled = m - 1;
            let kept = std::mem::replace(&mut x[spoiled * x_cols + x_heads.offset], f32::INFINITY);
            let got = run(&x);
            x[spoiled * x_cols + x_heads.offset] = kept;
            for (t, (got, clean)) in got.chunks(heads * n).zip(clean.chunks(heads * n)).enumerate() {
                let (first, others) = got.split_at(n);
                assert_eq!(others, &clean[n..], "token {t}: other heads");
                let ok =
                    if t == spoiled { first.iter().all(|v| !v.is_finite()) } else { first == &clean[..n] };
                assert!(ok, "an infinity in token {spoiled}: token {t}");
            }
        }
    }
}

/// A square matrix of numbers that say where they stand, probed by unit vectors: column `i` comes out, not row `i`.
pub fn tells_rows_from_columns(devices: &[Device]) {
    let k = 32;
    let entries: Vec<f32> = (0..k * k).map(|i| (i / k * 100 + i % k) as f32).collect();
    let bytes: Vec<u8> = entries.iter().flat_map(|v| v.to_le_bytes()).collect();
    let w = Weight::new(GgmlType::F32, [1, k, k], bytes.into()).unwrap();
    for d in devices {
        for i in 0..k {
            let mut x = vec![0.0; k];
            x[i] = 1.0;
            let column: Vec<f32> = (0..k).map(|j| (j * 100 + i) as f32).collect();
            assert_eq!(run(d, &w, &x, Precision::Exact).unwrap(), column, "unit vector {i}");
        }
    }
}

/// A layer on what another has just computed: nothing of it may be read before that one is sure to have ended.
pub fn waits_for_earlier_kernels(devices: &[Device]) {
    let first = random_weight(GgmlType::Q8_0, 1, 96, 64, 1);
    for (d, ty) in
        devices.iter().flat_map(|d| [GgmlType::Q4_0, GgmlType::F32, GgmlType::BF16].map(|ty| (d, ty)))
    {
        let second = random_weight(ty, 1, 9, 96, 2);
        for m in [1, 5, 40] {
            let x = activations(m, 64, &mut Rng(m as u64));
            let (mut between, mut y) = (poisoned(d, m, 96), poisoned(d, m, 9));
            let (w, x) = (matrix(d, &first), tensor(d, 64, &x));
            let second_on_device = matrix(d, &second);
            linear(&w, &x, &mut between, Precision::Exact).unwrap();
            linear(&second_on_device, &between, &mut y, Precision::Exact).unwrap();
            let apart = run(d, &second, &host(&between), Precision::Exact).unwrap();
            equal("y", &host(&y), &apart).unwrap_or_else(|e| panic!("{m} tokens on {}: {e}", d.name()));
        }
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let w = matrix(d, &random_weight(GgmlType::Q8_0, 1, 6, 32, 1));
    let stack = matrix(d, &random_weight(GgmlType::Q8_0, 2, 6, 32, 1));
    let x = tensor(d, 32, &[1.0; 96]);
    let wide = tensor(d, 64, &[1.0; 192]);
    let (mut y, mut short, mut narrow) = (poisoned(d, 3, 6), poisoned(d, 2, 6), poisoned(d, 3, 5));
    let (mut z, mut y2) = (poisoned(d, 3, 12), poisoned(d, 2, 12));
    let exact = Precision::Exact;
    let x_heads = Heads { n: 2, stride: 32, offset: 0, len: 32 };
    let y_heads = Heads { n: 2, stride: 6, offset: 0, len: 6 };
    refused(vec![
        ("x width", linear(&w, &wide, &mut y, exact)),
        ("y rows", linear(&w, &x, &mut short, exact)),
        ("y cols", linear(&w, &x, &mut narrow, exact)),
        ("a stack", linear(&stack, &x, &mut y, exact)),
        ("counts", linear_many(&[&w, &w], &x, &mut [&mut y], exact)),
        ("the second", linear_many(&[&w, &w], &x, &mut [&mut y, &mut narrow], exact)),
        ("head count", head_linear(&w, &wide, x_heads, &mut z, y_heads, exact)),
        ("x head width", head_linear(&stack, &wide, Heads { len: 31, ..x_heads }, &mut z, y_heads, exact)),
        ("x heads beyond", head_linear(&stack, &x, x_heads, &mut z, y_heads, exact)),
        ("y head width", head_linear(&stack, &wide, x_heads, &mut z, Heads { len: 5, ..y_heads }, exact)),
        (
            "y heads beyond",
            head_linear(&stack, &wide, x_heads, &mut z, Heads { stride: 7, ..y_heads }, exact),
        ),
        ("y overlap", head_linear(&stack, &wide, x_heads, &mut z, Heads { stride: 5, ..y_heads }, exact)),
        ("y head rows", head_linear(&stack, &wide, x_heads, &mut y2, y_heads, exact)),
    ]);
    if d.gpu().is_ok() {
        let kernel = linear_kernels(&w, &x).unwrap()[0];
        refused(vec![
            ("by: x width", linear_by(kernel, &w, &wide, &mut y, exact)),
            ("by: y rows", linear_by(kernel, &w, &x, &mut short, exact)),
        ]);
        let other = linear_float::INSTANCES[0].entry;
        assert!(matches!(linear_by(other, &w, &x, &mut y, exact), Err(Error::Unsupported { .. })));
    }
    assert!([y, short, narrow, z, y2].iter().all(untouched), "a refused call wrote something");
}
