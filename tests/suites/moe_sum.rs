//! Sums of what experts gave: the reference, for any slots and widths, and nothing of what has no place.

use glm5::ops::moe_sort::{NONE, SortOptions, SortedPairs, moe_sort};
use glm5::ops::moe_sum::{gather_sum, reference};
use glm5::tensor::{Device, Tensor};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::Rng;
use super::close::{EPS, close};
use super::inputs::*;

macro_rules! moe_sum_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { moe_sum, $devices, $cases;
        sum_is_the_reference(case); refuses_what_does_not_fit }
    };
}
pub(crate) use moe_sum_properties;

#[derive(Debug, Clone)]
pub struct Case {
    m: usize,
    top_k: usize,
    hidden: usize,
    shared: bool,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    let hidden = prop::sample::select(vec![1usize, 3, 4, 32, 255, 256, 257, 1024, 1028, 2052]);
    (0usize..20, 0usize..=17, hidden, any::<bool>(), any::<u64>())
        .prop_map(|(m, top_k, hidden, shared, seed)| Case { m, top_k, hidden, shared, seed })
}

fn sorted(d: &Device, ids: Vec<u32>, m: usize, top_k: usize) -> SortedPairs {
    let mut out = SortedPairs::new(d, 7).unwrap();
    let options = SortOptions { first_expert: 0, strict: false, height: 8, kernel: None };
    moe_sort(&Tensor::from_vec(d, m, top_k, ids).unwrap(), &options, &mut out).unwrap();
    out
}

/// A fifth of the pairs is left out: their weights are NaN, and so are the rows behind the last place.
pub fn sum_is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let ids: Vec<u32> =
        (0..c.m * c.top_k).map(|_| if rng.below(5) == 0 { NONE } else { rng.below(7) as u32 }).collect();
    let kept = ids.iter().filter(|id| **id != NONE).count();
    let weight = |id: &u32| if *id == NONE { f32::NAN } else { rng.normal() };
    let weights: Vec<f32> = ids.iter().map(weight).collect();
    let mut rows = Rng(!c.seed).normals(ids.len() * c.hidden);
    rows[kept * c.hidden..].fill(f32::NAN);
    let shared = c.shared.then(|| Rng(c.seed ^ 1).normals(c.m * c.hidden));
    let rows_of = |d: &Device| Tensor::from_vec(d, ids.len(), c.hidden, rows.clone()).unwrap();
    let got = on_each(devices, |d| {
        let mut y = poisoned(d, c.m, c.hidden);
        let shared = shared.as_ref().map(|s| tensor(d, c.hidden, s));
        let weights = Tensor::from_vec(d, c.m, c.top_k, weights.clone()).unwrap();
        gather_sum(&rows_of(d), &sorted(d, ids.clone(), c.m, c.top_k), &weights, shared.as_ref(), &mut y)?;
        Ok(host(&y))
    })?;
    let places = sorted(&devices[0], ids.clone(), c.m, c.top_k).to_host().unwrap().places;
    let all = [rows.clone(), vec![0.0; c.hidden]].concat(); // at least one row
    let want = |rows: &[f32], weights: &[f32], shared: Option<&[f32]>| {
        reference::gather_sum(rows, c.hidden, &places, weights, shared, c.m).unwrap()
    };
    let size = |v: &[f32]| v.iter().map(|v| v.abs()).collect::<Vec<f32>>();
    let sizes = want(&size(&all), &size(&weights), shared.as_deref().map(size).as_deref());
    close("y", &got, &want(&all, &weights, shared.as_deref()), |i| EPS * (c.top_k + 2) as f64 * sizes[i])
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let (two, one) = (sorted(d, vec![0, 1, 2, 3], 2, 2), sorted(d, vec![0, 1], 1, 2));
    let (rows, weights) = (tensor(d, 8, &[1.0; 32]), tensor(d, 2, &[1.0; 4]));
    let mut y = poisoned(d, 2, 8);
    refused(vec![
        ("sorted", gather_sum(&rows, &one, &weights, None, &mut y)),
        ("weights", gather_sum(&rows, &two, &tensor(d, 1, &[1.0; 2]), None, &mut y)),
        ("rows", gather_sum(&tensor(d, 8, &[1.0; 24]), &two, &weights, None, &mut y)),
        ("width", gather_sum(&tensor(d, 9, &[1.0; 36]), &two, &weights, None, &mut y)),
        ("shared", gather_sum(&rows, &two, &weights, Some(&tensor(d, 8, &[1.0; 8])), &mut y)),
    ]);
    assert!(untouched(&y), "a refused call wrote something");
}
