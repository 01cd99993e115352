//! swiglu: the activation between gate and up, where they were launches of their own. Goal: the rate of memory.

use criterion::Criterion;
use glm5::ops::ffn::{reference, swiglu};
use glm5::tensor::Tensor;

use super::blocks::Rng;
use super::data::repeated;
use super::report::Work;
use super::{Bench, Row};

pub fn benches(bench: &Bench, c: &mut Criterion) {
    let (rows, n): (&[usize], _) = if bench.measured { (&[8, 512, 4096], 2048) } else { (&[3], 100) };
    for m in rows.iter().copied() {
        let name = format!("{n} columns, {m} rows");
        if !bench.wants("swiglu", &name) {
            continue;
        }
        let (gate, up) = (Rng(1).normals(997), Rng(2).normals(991));
        let all = |few: &[f32]| repeated(few, m * n);
        let there = |few: &[f32]| Tensor::from_vec(&bench.device, m, n, all(few)).unwrap();
        let bytes = 3 * 4 * m * n;
        let sets = bench.few_sets(bytes);
        let mut tensors: Vec<_> = (0..sets).map(|_| (there(&gate), there(&up), there(&up))).collect();
        bench.report.prepared();
        let (g, u, y) = &mut tensors[0];
        swiglu(g, u, y).unwrap();
        let want = reference::swiglu(&all(&gate), &all(&up)).unwrap();
        let got = y.to_vec().unwrap();
        assert!(got.iter().zip(&want).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-5), "{name}: other values");
        let mut launch = |i: usize| {
            let (g, u, y) = &mut tensors[i];
            swiglu(g, u, y)
        };
        let work = Work::copying(bytes);
        bench.row(c, "swiglu", Row { name, work, case: None, sets, launch: &mut launch });
    }
}
