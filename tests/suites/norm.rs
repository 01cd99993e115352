//! RMSNorm, residual add + RMSNorm, LayerNorm.

use glm5::ops::norm::{add_rms_norm, layer_norm, reference, rms_norm, rms_norm_cols};
use glm5::tensor::{Device, Heads};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::Rng;
use super::close::{EPS, close, equal};
use super::inputs::{activations, any_m, gather, host, on_each, outside, poisoned, refused, scales, tensor};

macro_rules! norm_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { norm, $devices, $cases;
        rms_norm_is_the_reference(case), add_rms_norm_is_the_reference(case),
        rms_norm_cols_leaves_other_columns(case), layer_norm_is_the_reference(case), scale_cancels(case);
        layer_norm_has_biased_variance_and_a_bias, refuses_what_does_not_fit }
    };
}
pub(crate) use norm_properties;

#[derive(Debug, Clone)]
pub struct Case {
    m: usize,
    n: usize,
    eps: f32,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    let n = prop_oneof![prop::sample::select(vec![1usize, 2, 15, 16, 17, 128, 512, 2048, 6144]), 1usize..300];
    let eps = prop::sample::select(vec![1e-5f32, 1e-6]);
    (any_m(), n, eps, any::<u64>()).prop_map(|(m, n, eps, seed)| Case { m, n, eps, seed })
}

/// The sum of squares has only positive terms, so its relative error is that of a sum; the root halves it.
fn slack(n: usize, y: f64) -> f64 {
    2.0 * EPS * (n as f64).sqrt() * y.abs()
}

pub fn rms_norm_is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let (mut x, w) = (activations(c.m, c.n, rng), scales(c.n, rng));
    if c.m > 1 {
        x[0] = f32::NAN; // Spoils its own row and no other.
    }
    let got = on_each(devices, |d| {
        let mut y = poisoned(d, c.m, c.n);
        rms_norm(&tensor(d, c.n, &x), &tensor(d, c.n, &w), c.eps, &mut y)?;
        Ok(host(&y))
    })?;
    let want = reference::rms_norm(&x, &w, c.eps.into()).unwrap();
    close("y", &got, &want, |i| slack(c.n, want[i]))
}

pub fn add_rms_norm_is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let (x, w) = (activations(c.m, c.n, rng), scales(c.n, rng));
    let mut r = activations(c.m, c.n, rng);
    r[0] = -x[0]; // Cancels.
    let (sum, y) = on_each(devices, |d| {
        let (mut sum, mut y) = (tensor(d, c.n, &x), poisoned(d, c.m, c.n));
        add_rms_norm(&mut sum, &tensor(d, c.n, &r), &tensor(d, c.n, &w), c.eps, &mut y)?;
        Ok((host(&sum), host(&y)))
    })?;
    let exact: Vec<f32> = x.iter().zip(&r).map(|(x, r)| x + r).collect();
    equal("x + r", &sum, &exact)?;
    let (_, want) = reference::add_rms_norm(&x, &r, &w, c.eps.into()).unwrap();
    close("y", &y, &want, |i| slack(c.n, want[i]))
}

pub fn rms_norm_cols_leaves_other_columns(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let (before, after) = (rng.below(20), rng.below(70));
    let (cols, part) = (before + c.n + after, before..before + c.n);
    let (x, w) = (activations(c.m, cols, rng), scales(c.n, rng));
    let got = on_each(devices, |d| {
        let mut x = tensor(d, cols, &x);
        rms_norm_cols(&mut x, part.clone(), &tensor(d, c.n, &w), c.eps)?;
        Ok(host(&x))
    })?;
    let heads = Heads { n: 1, stride: cols, offset: before, len: c.n };
    equal("other columns", &outside(&got, cols, heads), &outside(&x, cols, heads))?;
    let want = reference::rms_norm_cols(&x, cols, part, &w, c.eps.into()).unwrap();
    close("x", &got, &want, |i| slack(c.n, want[i]))?;
    // The same by another way: the columns alone.
    let alone = reference::rms_norm(&gather(&x, cols, heads), &w, c.eps.into()).unwrap();
    close("columns", &gather(&got, cols, heads), &alone, |i| slack(c.n, alone[i]))
}

/// With means of up to ten thousand times the spread, where `mean(x^2) - mean(x)^2` has no digits left.
pub fn layer_norm_is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let (w, b) = (scales(c.n, rng), rng.normals(c.n));
    let mut x = Vec::new();
    for _ in 0..c.m {
        let mean = [0.0, 1.0, -300.0, 1e4][rng.below(4)];
        x.extend(rng.normals(c.n).iter().map(|z| mean + z));
    }
    let got = on_each(devices, |d| {
        let mut x = tensor(d, c.n, &x);
        layer_norm(&mut x, &tensor(d, c.n, &w), &tensor(d, c.n, &b), c.eps)?;
        Ok(host(&x))
    })?;
    let want = reference::layer_norm(&x, &w, &b, c.eps.into()).unwrap();
    // The mean is good to a few units in its last place, which the division by the spread enlarges.
    let mean_off: Vec<f64> = x
        .chunks(c.n)
        .map(|row| {
            let mean = row.iter().map(|v| f64::from(*v)).sum::<f64>() / c.n as f64;
            let var = row.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / c.n as f64;
            4.0 * EPS * mean.abs() / (var + f64::from(c.eps)).sqrt()
        })
        .collect();
    close("x", &got, &want, |i| {
        let (weight, bias) = (f64::from(w[i % c.n]), f64::from(b[i % c.n]));
        slack(c.n, want[i] - bias) + weight.abs() * mean_off[i / c.n] + 4.0 * EPS * bias.abs()
    })
}

/// With an epsilon of no account, a row and its double have the same norm.
pub fn scale_cancels(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let (x, w) = (rng.normals(c.n), scales(c.n, rng));
    let rows = [x.clone(), x.iter().map(|v| 2.0 * v).collect()].concat();
    let got = on_each(devices, |d| {
        let mut y = poisoned(d, 2, c.n);
        rms_norm(&tensor(d, c.n, &rows), &tensor(d, c.n, &w), 1e-30, &mut y)?;
        Ok(host(&y))
    })?;
    equal("double", &got[c.n..], &got[..c.n])
}

/// By hand: mean 5, biased variance 5, so the unbiased one (20 / 3) or a dropped bias would show.
pub fn layer_norm_has_biased_variance_and_a_bias(devices: &[Device]) {
    for d in devices {
        let mut x = tensor(d, 4, &[2.0, 4.0, 6.0, 8.0]);
        layer_norm(&mut x, &tensor(d, 4, &[1.0, 1.0, 1.0, 2.0]), &tensor(d, 4, &[0.0, 0.5, 0.0, -1.0]), 0.0)
            .unwrap();
        let root = 5f64.sqrt();
        let want = [-3.0 / root, -1.0 / root + 0.5, 1.0 / root, 6.0 / root - 1.0];
        close("x", &host(&x), &want, |_| EPS).unwrap();
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let rows = |m: usize, n: usize| tensor(d, n, &vec![1.0; m * n]);
    let row = |n: usize| rows(1, n);
    let (mut x, mut y) = (rows(3, 8), rows(3, 8));
    let (mut short, mut narrow) = (rows(2, 8), rows(3, 7));
    refused(vec![
        ("rms_norm w", rms_norm(&x, &row(7), 1e-5, &mut y)),
        ("rms_norm w rows", rms_norm(&x, &rows(3, 8), 1e-5, &mut y)),
        ("rms_norm y rows", rms_norm(&x, &row(8), 1e-5, &mut short)),
        ("rms_norm y cols", rms_norm(&x, &row(8), 1e-5, &mut narrow)),
        ("cols w", rms_norm_cols(&mut x, 2..5, &row(8), 1e-5)),
        ("cols beyond", rms_norm_cols(&mut x, 2..9, &row(7), 1e-5)),
        ("cols empty", rms_norm_cols(&mut x, 2..2, &row(1), 1e-5)),
        ("add r rows", add_rms_norm(&mut x, &rows(2, 8), &row(8), 1e-5, &mut y)),
        ("add r cols", add_rms_norm(&mut x, &rows(3, 7), &row(8), 1e-5, &mut y)),
        ("add w", add_rms_norm(&mut x, &rows(3, 8), &row(9), 1e-5, &mut y)),
        ("add y", add_rms_norm(&mut x, &rows(3, 8), &row(8), 1e-5, &mut short)),
        ("layer_norm w", layer_norm(&mut x, &row(7), &row(8), 1e-5)),
        ("layer_norm b", layer_norm(&mut x, &row(8), &row(7), 1e-5)),
    ]);
    for t in [x, y, short, narrow] {
        assert!(host(&t).iter().all(|v| *v == 1.0), "a refused call wrote something");
    }
}
