//! router: experts of tokens at GLM-5's sizes. Goals: 4 us for one token, 8 for 32. Bytes of the weights over what one launch can
//! read of that size, or the f32 products over the f16 rate of the matrix units.

use criterion::Criterion;
use glm5::ops::linear::reference::linear;
use glm5::ops::router::{Gating, RouterConfig, Routing, reference, router};
use glm5::quant::Weight;
use glm5::tensor::Matrix;

use super::blocks::Rng;
use super::data::{DISTINCT, repeated, tiled};
use super::report::{Memory, Work};
use super::shapes::ALL;
use super::{Bench, Row};

const CONFIG: RouterConfig = RouterConfig {
    n_experts_per_tok: 8,
    gating: Gating::Sigmoid,
    norm_topk_prob: true,
    routed_scaling_factor: 2.5,
    n_groups: 1,
    n_groups_used: 1,
};

pub fn benches(bench: &Bench, c: &mut Criterion) {
    let name = |m: usize| format!("8 of 256 experts, 6144 inputs, {m} tokens");
    // Once for each way that a number of tokens can go unless they are measured.
    let tokens = if bench.measured { ALL } else { &[1, 40] };
    let wanted: Vec<usize> = tokens.iter().copied().filter(|m| bench.wants("router", &name(*m))).collect();
    if wanted.is_empty() {
        return;
    }
    let (n, k) = if bench.measured { (256, 6144) } else { (256, 128) };
    let few: Vec<f32> = Rng(1).normals(DISTINCT * k).iter().map(|v| v / (k as f32).sqrt()).collect();
    let weight = Weight::from_f32([1, n, k], &repeated(&few, n * k)).unwrap();
    let bytes = weight.bytes().len();
    let sets: Vec<Matrix> =
        (0..bench.sets(bytes)).map(|_| Matrix::new(&bench.device, weight.clone()).unwrap()).collect();
    // So far apart that no two of the distinct rows' experts could change places by rounding.
    let biases: Vec<f32> = (0..n).map(|e| 6.94 + e as f32 * 0.01).collect();
    let bias = tiled(&bench.device, &biases, 1, n);
    let values = Rng(2).normals(DISTINCT * k);
    bench.report.prepared();
    for m in wanted {
        let x = tiled(&bench.device, &values[..DISTINCT.min(m) * k], m, k);
        let mut out = Routing::new(&bench.device, n, CONFIG.n_experts_per_tok).unwrap();
        router(&sets[0], &bias, &x, &CONFIG, &mut out).unwrap();
        let logits = out.logits.to_vec().unwrap();
        for t in [0, m - 1] {
            let want = linear(&few, &values[t % DISTINCT * k..][..k], DISTINCT, k).unwrap();
            let off = |j: usize| (f64::from(logits[t * n + j]) - want[j % DISTINCT]).abs();
            assert!((0..n).all(|j| off(j) < 1e-5), "{}: logits of token {t}", name(m));
        }
        let want = reference::route(&logits, &biases, &CONFIG).unwrap();
        assert!(out.ids.to_vec().unwrap() == want.ids, "{}: other experts", name(m));
        let weights = out.weights.to_vec().unwrap();
        assert!(weights.iter().zip(&want.weights).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-5));

        let mut launch = |i: usize| router(&sets[i], &bias, &x, &CONFIG, &mut out);
        let operations = Some(2 * (m * n * k) as u64);
        let work = Work { bytes, operations, memory: Some(Memory::Read) };
        bench.row(
            c,
            "router",
            Row { name: name(m), work, case: None, sets: sets.len(), launch: &mut launch },
        );
    }
}
