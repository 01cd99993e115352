//! linear: weights as they lie in files, in f32 arithmetic: the layers that files have as F32, F16 or BF16, and of other types what
//! the device has as a reference. Bytes of weights, activations and outputs, nearly all of them read, over what one launch can read of
//! that size where few tokens meet them; operations over the f16 rate of the matrix units where many do. Blocks of quants use FMA units,
//! which have a ninth of that rate (66 Tflop/s on an H200), so the share tells what matrix units would bring; unquantized weights have
//! products of tf32, 3 of F32 and 2 of the others, at half of it. Goals: 40 % of the read roof for one token of Q4_K, 40 % of the FMA
//! rate for 512.

use criterion::Criterion;
use glm5::ops::linear::{linear, reference};
use glm5::quant::{GgmlType, Weight, dequantize};
use glm5::tensor::{Matrix, Precision, Tensor};

use super::baselines::Case;
use super::blocks::{Rng, random_blocks};
use super::close::{close, magnitudes, sum_slack};
use super::data::{DISTINCT, repeated, tiled};
use super::report::{Memory, Work};
use super::shapes::{ALL, Shape, shape};
use super::{Bench, Row};

const GROUP: &str = "linear";

const F32: &[GgmlType] = &[GgmlType::F32];
const HALVES: &[GgmlType] = &[GgmlType::F16, GgmlType::BF16];
const Q4_K: &[GgmlType] = &[GgmlType::Q4_K];

/// Few tokens, some, many: who wants Q4_K fast has it in tiles.
const SOME: &[usize] = &[1, 8, 512];

/// All types of a shape are run. The router and the indexer's weights are on every GPU, so they have no parts.
pub const SHAPES: [Shape; 5] = [
    shape("router", 6144, 256, F32, ALL),
    shape("indexer weights", 6144, 32, F32, ALL),
    shape("q_a; shared gate, up", 6144, 2048, HALVES, ALL),
    shape("q_a; shared gate, up", 6144, 2048, Q4_K, SOME),
    shape("wo", 16_384, 6144, Q4_K, SOME),
];

pub fn benches(bench: &Bench, c: &mut Criterion) {
    for shape in &SHAPES {
        for &ty in shape.types {
            if bench.measured {
                of_matrix(bench, c, shape, ty);
            } else {
                // Once for each way that a number of tokens can go.
                of_matrix(bench, c, &Shape { k: 512, n: shape.n.min(70), tokens: &[1, 8, 40], ..*shape }, ty);
            }
        }
    }
}

/// All rows of one matrix, whose copies are made once.
fn of_matrix(bench: &Bench, c: &mut Criterion, shape: &Shape, ty: GgmlType) {
    let Shape { what, k, n, tokens, .. } = *shape;
    let name = |m: usize| format!("{what}: {ty} {k} to {n}, {m} tokens");
    let wanted: Vec<usize> = tokens.iter().copied().filter(|m| bench.wants(GROUP, &name(*m))).collect();
    if wanted.is_empty() {
        return;
    }
    let few = random_blocks(ty, DISTINCT.min(n) * k / ty.block_elems(), false, 1);
    let bytes = repeated(&few, n * k / ty.block_elems() * ty.block_bytes());
    let of_weights = bytes.len();
    let weight = Weight::new(ty, [1, n, k], bytes.into()).unwrap();
    let copies = 0..bench.sets(of_weights);
    let ws: Vec<Matrix> = copies.map(|_| Matrix::new(&bench.device, weight.clone()).unwrap()).collect();
    drop(weight);
    let mut w = vec![0.0; few.len() / ty.block_bytes() * ty.block_elems()];
    dequantize(ty, &few, &mut w).unwrap();
    let values = Rng(2).normals(DISTINCT * k);
    bench.report.prepared();

    for m in wanted {
        let name = name(m);
        let input = || tiled(&bench.device, &values[..DISTINCT.min(m) * k], m, k);
        let xs: Vec<Tensor> = (0..bench.few_sets(4 * m * k)).map(|_| input()).collect();
        let output = || Tensor::zeros(&bench.device, m, n).unwrap();
        let mut ys: Vec<Tensor> = (0..bench.few_sets(4 * m * n)).map(|_| output()).collect();

        linear(&ws[0], &xs[0], &mut ys[0], Precision::Exact).unwrap();
        compare(&name, &ys[0], &w, &values, k);

        let outputs = ys.len();
        let mut launch = |i: usize| linear(&ws[i], &xs[i % xs.len()], &mut ys[i % outputs], Precision::Exact);
        let bytes = of_weights + 4 * m * (k + n);
        let work = Work { bytes, operations: Some(2 * (m * n * k) as u64), memory: Some(Memory::Read) };
        let case = Some(Case { op: "MUL_MAT", ty: ty.name(), k, n, m });
        bench.row(c, GROUP, Row { name, work, case, sets: ws.len(), launch: &mut launch });
    }
}

/// All outputs of the first and the last token against the reference. `w` has the rows that differ, `values` such tokens.
fn compare(name: &str, y: &Tensor, w: &[f32], values: &[f32], k: usize) {
    let [m, n] = y.shape();
    for t in [0, m - 1] {
        let got = y.cuda().unwrap().to_vec(t * n..(t + 1) * n).unwrap();
        let x = &values[t % DISTINCT * k..][..k];
        let want = repeated(&reference::linear(w, x, w.len() / k, k).unwrap(), n);
        let sums = repeated(&magnitudes(w, x, k), n);
        close(name, &got, &want, |j| sum_slack(k, sums[j])).unwrap();
    }
}
