//! moe_blocks: routed experts in blocks, 8 of 32 at GLM-5's sizes, all of its launches: sort, gate, up, SwiGLU, down, sum. Bytes are those of the
//! experts that are chosen, operations those of all pairs. It takes memory of each call, so it is timed without a graph.

use criterion::Criterion;
use glm5::ops::ffn::{Ffn, reference};
use glm5::ops::moe::moe;
use glm5::ops::router::Routing;
use glm5::quant::{GgmlType, Weight, dequantize};
use glm5::tensor::{Matrix, Precision, Tensor};

use super::Bench;
use super::blocks::{Rng, random_blocks};
use super::data::repeated;

const TOP_K: usize = 8;

pub fn benches(bench: &Bench, _: &mut Criterion) {
    let (tokens, sizes): (&[usize], _) =
        if bench.measured { (&[1, 8, 64, 512], [32, 6144, 2048]) } else { (&[1, 3], [8, 256, 256]) };
    let [experts, hidden, ff] = sizes;
    for ty in [GgmlType::Q4_K, GgmlType::Q6_K] {
        let name = |m: usize| format!("moe_blocks/{ty} 8 of {experts} experts, {hidden} by {ff}, {m} tokens");
        if !tokens.iter().any(|m| bench.wants("", &name(*m))) {
            continue;
        }
        // Experts are alike; rows are not.
        let slab = |rows: usize, cols: usize, seed: u64| {
            let few = random_blocks(ty, 61 * cols / ty.block_elems(), false, seed);
            repeated(&few, rows * row_bytes(ty, cols))
        };
        let slabs = [slab(ff, hidden, 1), slab(ff, hidden, 2), slab(hidden, ff, 3)];
        let matrix = |bytes: &[u8], rows: usize, cols: usize| {
            let weight = Weight::new(ty, [experts, rows, cols], bytes.repeat(experts).into()).unwrap();
            Matrix::new(&bench.device, weight).unwrap()
        };
        let [gate, up, down] = &slabs;
        let layer =
            Ffn::new(matrix(gate, ff, hidden), matrix(up, ff, hidden), matrix(down, hidden, ff)).unwrap();
        let values = slabs.each_ref().map(|bytes| {
            let mut out = vec![0.0; ff * hidden];
            dequantize(ty, bytes, &mut out).unwrap();
            out
        });
        let [gate, up, down] = &values;
        let one = reference::Weights { gate, up, down, hidden, ff };
        for m in tokens.iter().copied() {
            let name = name(m);
            let mut rng = Rng(m as u64);
            let x = rng.normals(m * hidden);
            let first = rng.below(experts);
            let ids: Vec<u32> =
                (0..m * TOP_K).map(|p| ((first + p / TOP_K * 5 + p % TOP_K) % experts) as u32).collect();
            let chosen = (0..experts as u32).filter(|e| ids.contains(e)).count();
            let weights: Vec<f32> = (0..m * TOP_K).map(|_| rng.unit() as f32).collect();
            let mut routing = Routing::new(&bench.device, experts, TOP_K).unwrap();
            routing.ids = Tensor::from_vec(&bench.device, m, TOP_K, ids).unwrap();
            routing.weights = Tensor::from_vec(&bench.device, m, TOP_K, weights.clone()).unwrap();
            let there = Tensor::from_vec(&bench.device, m, hidden, x.clone()).unwrap();
            let mut y = Tensor::zeros(&bench.device, m, hidden).unwrap();
            let mut launch = || moe(&layer, None, &there, &routing, &mut y, Precision::Exact);
            launch().unwrap();
            let mut seconds = Vec::new();
            for _ in 0..if bench.measured { 20 } else { 1 } {
                seconds.push(bench.gpu().time(&mut launch).unwrap().as_secs_f64());
            }
            seconds.sort_by(f64::total_cmp);
            let want = reference::ffn(&one, &x[(m - 1) * hidden..]).unwrap();
            let sum: f64 = weights[(m - 1) * TOP_K..].iter().map(|w| f64::from(*w)).sum();
            let got = y.to_vec().unwrap();
            let largest = want.iter().fold(0f64, |a, v| a.max(v.abs()));
            for (got, want) in got[(m - 1) * hidden..].iter().zip(&want) {
                let off = (f64::from(*got) - sum * want).abs();
                assert!(off <= 1e-4 * sum * largest, "{name}: {got}, not {}", sum * want);
            }
            let bytes: usize = slabs.iter().map(|slab| chosen * slab.len()).sum();
            let (median, operations) = (seconds[seconds.len() / 2], 6 * m * TOP_K * hidden * ff);
            println!(
                "{name}: {:.1} us, {:.0} GB/s, {:.2} Tflop/s",
                1e6 * median,
                1e-9 * bytes as f64 / median,
                1e-12 * operations as f64 / median
            );
        }
    }
}

fn row_bytes(ty: GgmlType, cols: usize) -> usize {
    ty.row_bytes(cols as u64).unwrap() as usize
}
