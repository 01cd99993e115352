//! linear_int8: layers of GLM-5 on int8 activations, at full width and as a part of eight. Bytes of the weights over the read
//! roof where few tokens meet them, operations over that of the matrix units where many do.

use criterion::Criterion;
use glm5::ops::linear::{linear_tiled, quantize, reference};
use glm5::quant::{GgmlType, Weight, dequantize};
use glm5::tensor::{Matrix, QuantizedTiles, Tensor};

use crate::blocks::{Rng, random_blocks};
use crate::{Bench, Row};

/// Rows of the weight that differ, over and over: a prime, so that rows mixed up by a power of two show.
const DISTINCT: usize = 61;

pub fn benches(bench: &Bench, c: &mut Criterion) {
    let shapes = [(6144, 2048), (2048, 16384), (16384, 6144), (6144, 24576), (12288, 6144), (2048, 2048)];
    for ty in [GgmlType::Q4_K, GgmlType::Q5_K, GgmlType::Q6_K, GgmlType::Q8_0] {
        for (k, n) in shapes {
            for m in [1, 2, 4, 8, 16, 32, 64, 512, 2048] {
                case(bench, c, ty, m, n, k);
            }
        }
    }
    for m in [1, 8] {
        case(bench, c, GgmlType::Q6_K, m, 154_880, 6144);
    }
}

fn case(bench: &Bench, c: &mut Criterion, ty: GgmlType, m: usize, n: usize, k: usize) {
    let name = format!("{ty} {k} to {n}, {m} tokens");
    if !bench.wants("linear_int8", &name) {
        return;
    }
    let (n, k) = if bench.measured { (n, k) } else { (n.min(70), 512) };
    let few = random_blocks(ty, DISTINCT.min(n) * k / ty.block_elems(), false, 1);
    let bytes: Vec<u8> =
        few.iter().copied().cycle().take(n * k / ty.block_elems() * ty.block_bytes()).collect();
    let moved = bytes.len();
    let sets = bench.sets(moved);
    let weight = Weight::new(ty, [1, n, k], bytes.into()).unwrap();
    let tiled = || Matrix::for_fast_linear(&bench.device, weight.clone()).unwrap();
    let ws: Vec<Matrix> = (0..sets).map(|_| tiled()).collect();
    let xs = Rng(2).normals(m * k);
    let x = Tensor::from_vec(&bench.device, m, k, xs.clone()).unwrap();
    let mut q = QuantizedTiles::new(&bench.device, m, k).unwrap();
    quantize(&x, &mut q).unwrap();
    let mut ys: Vec<Tensor> = (0..sets).map(|_| Tensor::zeros(&bench.device, m, n).unwrap()).collect();

    linear_tiled(&[&ws[0]], &mut q, &mut [&mut ys[0]]).unwrap();
    let rounded = reference::round_int8(&xs, k, reference::INT8_BLOCK).unwrap();
    compare(&name, &ys[0].to_vec().unwrap(), ty, &few, &rounded, n, k);

    let mut launch = |i: usize| linear_tiled(&[&ws[i]], &mut q, &mut [&mut ys[i]]);
    bench.row(c, "linear_int8", Row { name, bytes: moved, sets, launch: &mut launch });
}

/// Against the reference: the first and the last token, all outputs.
fn compare(name: &str, got: &[f32], ty: GgmlType, few: &[u8], x: &[f32], n: usize, k: usize) {
    let mut w = vec![0.0; few.len() / ty.block_bytes() * ty.block_elems()];
    dequantize(ty, few, &mut w).unwrap();
    let distinct = w.len() / k;
    let m = x.len() / k;
    for t in [0, m - 1] {
        let want = reference::linear(&w, &x[t * k..][..k], distinct, k).unwrap();
        let length = |v: &dyn Fn(usize) -> f64| (0..n).map(|j| v(j).powi(2)).sum::<f64>().sqrt();
        let off = length(&|j| f64::from(got[t * n + j]) - want[j % distinct]);
        let of = length(&|j| want[j % distinct]);
        // The sums of blocks that minimums multiply are good to 2^-17.
        assert!(off <= 1e-5 * of, "{name}: token {t} is off by {:e}", off / of);
    }
}
