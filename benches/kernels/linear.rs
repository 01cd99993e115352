//! linear: any weight type in f32 arithmetic, the reference of the device. Bytes of the weights over the copy roof where few
//! tokens meet them; for many tokens the name says how many operations there are. Goals: 40 % of the roof for one token,
//! 40 % of the FMA rate (66 Tflop/s on an H200) for 512.

use criterion::Criterion;
use glm5::ops::linear::{linear, reference};
use glm5::quant::{GgmlType, Weight, dequantize};
use glm5::tensor::{Matrix, Precision, Tensor};

use super::blocks::{Rng, random_blocks};
use super::close::{close, magnitudes, sum_slack};
use super::data::{DISTINCT, repeated, tiled};
use super::report::Work;
use super::{Bench, Row};

pub fn benches(bench: &Bench, c: &mut Criterion) {
    for (ty, k, n) in
        [(GgmlType::Q4_K, 6144, 2048), (GgmlType::Q4_K, 16384, 6144), (GgmlType::F32, 6144, 256)]
    {
        for m in [1, 8, 512] {
            case(bench, c, ty, m, k, n);
        }
    }
}

fn case(bench: &Bench, c: &mut Criterion, ty: GgmlType, m: usize, k: usize, n: usize) {
    let (m, k, n) = if bench.measured { (m, k, n) } else { (m.min(40), 512, n.min(70)) };
    let name = format!("{ty} {k} to {n}, {m} tokens, exact, {:.2} Gflop", 2e-9 * (m * n * k) as f64);
    if !bench.wants("linear", &name) {
        return;
    }
    let few = random_blocks(ty, DISTINCT.min(n) * k / ty.block_elems(), false, 1);
    let bytes = repeated(&few, n * k / ty.block_elems() * ty.block_bytes());
    let moved = bytes.len() + 4 * m * (k + n);
    let sets = bench.sets(moved);
    let weight = Weight::new(ty, [1, n, k], bytes.into()).unwrap();
    let ws: Vec<Matrix> = (0..sets).map(|_| Matrix::new(&bench.device, weight.clone()).unwrap()).collect();
    let tokens = Rng(2).normals(DISTINCT.min(m) * k);
    let x = tiled(&bench.device, &tokens, m, k);
    let mut ys: Vec<Tensor> = (0..sets).map(|_| Tensor::zeros(&bench.device, m, n).unwrap()).collect();

    linear(&ws[0], &x, &mut ys[0], Precision::Exact).unwrap();
    compare(&name, &ys[0].to_vec().unwrap(), ty, &few, &tokens, k, n);

    let mut launch = |i: usize| linear(&ws[i], &x, &mut ys[i], Precision::Exact);
    bench.row(c, "linear", Row { name, work: Work::copying(moved), case: None, sets, launch: &mut launch });
}

/// All outputs of the first and the last token against the reference.
fn compare(name: &str, got: &[f32], ty: GgmlType, few: &[u8], tokens: &[f32], k: usize, n: usize) {
    let mut w = vec![0.0; few.len() / ty.block_bytes() * ty.block_elems()];
    dequantize(ty, few, &mut w).unwrap();
    let (rows, m) = (w.len() / k, got.len() / n);
    for t in [0, m - 1] {
        let x = &tokens[t % (tokens.len() / k) * k..][..k];
        let want = repeated(&reference::linear(&w, x, rows, k).unwrap(), n);
        let sums = repeated(&magnitudes(&w, x, k), n);
        close(name, &got[t * n..][..n], &want, |j| sum_slack(k, sums[j])).unwrap();
    }
}
