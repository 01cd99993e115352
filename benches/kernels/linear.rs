//! linear: any weight type in f32 arithmetic, the reference of the device. Bytes of the weights over the copy roof where few
//! tokens meet them; of many tokens the name says how many operations there are. Goals: 40 % of the roof at one token,
//! 40 % of the FMA rate (66 Tflop/s on an H200) at 512.

use criterion::Criterion;
use glm5::ops::linear::{linear, reference};
use glm5::quant::{GgmlType, Weight, dequantize};
use glm5::tensor::{Matrix, Precision, Tensor};

use crate::blocks::{Rng, random_blocks};
use crate::{Bench, Row};

/// Rows of the weight that differ, over and over: a prime, so that rows mixed up by a power of two show.
const DISTINCT: usize = 61;

pub fn benches(bench: &Bench, c: &mut Criterion) {
    for (ty, n, k) in
        [(GgmlType::Q4_K, 2048, 6144), (GgmlType::Q4_K, 6144, 16384), (GgmlType::F32, 256, 6144)]
    {
        for m in [1, 8, 512] {
            case(bench, c, ty, m, n, k);
        }
    }
}

fn case(bench: &Bench, c: &mut Criterion, ty: GgmlType, m: usize, n: usize, k: usize) {
    let (m, n, k) = if bench.measured { (m, n, k) } else { (m.min(40), n.min(70), 512) };
    let gflop = 2.0 * (m * n * k) as f64 / 1e9;
    let name = format!("{ty} exact [{m}, {k}] to {n}, {gflop:.3} Gflop");
    let few = random_blocks(ty, DISTINCT.min(n) * k / ty.block_elems(), false, 1);
    let bytes: Vec<u8> =
        few.iter().copied().cycle().take(n * k / ty.block_elems() * ty.block_bytes()).collect();
    let moved = bytes.len() + 4 * m * (k + n);
    let sets = bench.sets(moved);
    let weight = Weight::new(ty, [1, n, k], bytes.into()).unwrap();
    let ws: Vec<Matrix> = (0..sets).map(|_| Matrix::new(&bench.device, weight.clone()).unwrap()).collect();
    let xs = Rng(2).normals(m * k);
    let x = Tensor::from_vec(&bench.device, m, k, xs.clone()).unwrap();
    let mut ys: Vec<Tensor> = (0..sets).map(|_| Tensor::zeros(&bench.device, m, n).unwrap()).collect();

    linear(&ws[0], &x, &mut ys[0], Precision::Exact).unwrap();
    compare(&name, &ys[0].to_vec().unwrap(), ty, &few, &xs, n, k);

    let mut launch = |i: usize| linear(&ws[i], &x, &mut ys[i], Precision::Exact);
    bench.row(c, "linear", Row { name, bytes: moved, sets, launch: &mut launch });
}

/// Against the reference: the first and the last token, all outputs.
fn compare(name: &str, got: &[f32], ty: GgmlType, few: &[u8], x: &[f32], n: usize, k: usize) {
    let mut w = vec![0.0; few.len() / ty.block_bytes() * ty.block_elems()];
    dequantize(ty, few, &mut w).unwrap();
    let distinct = w.len() / k;
    let m = x.len() / k;
    for t in [0, m - 1] {
        let x = &x[t * k..][..k];
        let want = reference::linear(&w, x, distinct, k).unwrap();
        for (j, got) in got[t * n..][..n].iter().enumerate() {
            let want = want[j % distinct];
            let products = w[j % distinct * k..][..k].iter().zip(x).map(|(w, x)| f64::from(w * x).abs());
            let slack =
                4.0 * f64::from(f32::EPSILON) * ((k as f64).sqrt() * products.sum::<f64>() + want.abs());
            assert!((f64::from(*got) - want).abs() <= slack, "{name}: [{t}, {j}]: {got}, not {want}");
        }
    }
}
