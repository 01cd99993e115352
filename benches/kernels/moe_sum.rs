//! moe_sum: what 8 experts gave for each token, and the shared one, at GLM-5's width. Goal: the rate of memory.

use criterion::Criterion;
use glm5::ops::moe_sort::{SortOptions, SortedPairs, moe_sort};
use glm5::ops::moe_sum::{gather_sum, reference};
use glm5::tensor::Tensor;

use super::blocks::Rng;
use super::data::repeated;
use super::moe_sort::ids;
use super::report::Work;
use super::{Bench, Row};

const TOP_K: usize = 8;

pub fn benches(bench: &Bench, c: &mut Criterion) {
    let (tokens, hidden): (&[usize], _) = if bench.measured { (&[512, 2048], 6144) } else { (&[64], 128) };
    let d = &bench.device;
    for m in tokens.iter().copied() {
        let name = format!("8 experts and a shared one, {hidden} columns, {m} tokens");
        if !bench.wants("moe_sum", &name) {
            continue;
        }
        let mut sorted = SortedPairs::new(d, 256).unwrap();
        let options = SortOptions { first_expert: 0, strict: true, height: 8, kernel: None };
        moe_sort(&Tensor::from_vec(d, m, TOP_K, ids(m, false)).unwrap(), &options, &mut sorted).unwrap();
        let weights = Rng(1).normals(m * TOP_K);
        let few = Rng(2).normals(997 * 64); // no row is like another
        let (rows, shared) = (repeated(&few, m * TOP_K * hidden), repeated(&few, m * hidden));
        let there = |values: &[f32], cols: usize| {
            Tensor::from_vec(d, values.len() / cols, cols, values.to_vec()).unwrap()
        };
        let bytes = 4 * (m * hidden * (TOP_K + 2) + 2 * m * TOP_K);
        let sets = bench.few_sets(bytes);
        let mut all: Vec<_> = (0..sets)
            .map(|_| (there(&rows, hidden), there(&shared, hidden), there(&shared, hidden)))
            .collect();
        let weights_there = there(&weights, TOP_K);
        bench.report.prepared();
        let (r, s, y) = &mut all[0];
        gather_sum(r, &sorted, &weights_there, Some(s), y).unwrap();
        let places = sorted.to_host().unwrap().places;
        let want = reference::gather_sum(&rows, hidden, &places, &weights, Some(&shared), m).unwrap();
        let got = y.to_vec().unwrap();
        assert!(got.iter().zip(&want).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-4), "{name}: other sums");
        let mut launch = |i: usize| {
            let (r, s, y) = &mut all[i];
            gather_sum(r, &sorted, &weights_there, Some(s), y)
        };
        let work = Work::copying(bytes);
        bench.row(c, "moe_sum", Row { name, work, case: None, sets, launch: &mut launch });
    }
}
