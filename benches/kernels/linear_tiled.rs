//! linear_tiled: every linear layer of GLM-5 on rounded activations. Bytes of the weights over what one launch can read of that size
//! where few tokens meet them, operations over the rate of the matrix units where many do.

use criterion::Criterion;
use glm5::Result;
use glm5::ops::linear::{linear_tiled, quantize, reference};
use glm5::quant::{GgmlType, Weight, dequantize, tiles};
use glm5::tensor::{ActivationFormat, Matrix, QuantizedTiles, Tensor};

use super::baselines::Case;
use super::blocks::{Rng, random_blocks};
use super::data::{DISTINCT, repeated, tiled};
use super::report::{Memory, Work};
use super::shapes::{SHAPES, Shape};
use super::{Bench, Row};

const GROUP: &str = "linear_tiled";

/// Tokens whose outputs are compared.
const COMPARED: usize = 4;

pub fn benches(bench: &Bench, c: &mut Criterion) {
    if !bench.measured {
        // Once for each way that a number of tokens can go.
        for ty in tiles::TYPES {
            of_matrix(bench, c, &Shape { k: 512, n: 70, tokens: &[1, 8, 12, 40, 72], ..SHAPES[0] }, ty);
        }
        return;
    }
    for shape in &SHAPES {
        shape.types().for_each(|ty| of_matrix(bench, c, shape, ty));
    }
}

/// The only call: `y = W x`.
fn multiply(w: &Matrix, x: &mut QuantizedTiles, y: &mut Tensor) -> Result<()> {
    linear_tiled(&[w], x, &mut [y])
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
    let moved = bytes.len();
    let weight = Weight::new(ty, [1, n, k], bytes.into()).unwrap();
    let copies = 0..bench.sets(moved);
    let ws: Vec<Matrix> =
        copies.map(|_| Matrix::for_fast_linear(&bench.device, weight.clone()).unwrap()).collect();
    drop(weight);
    let reference = Reference::new(ty, &few, k);
    bench.report.prepared();

    for m in wanted {
        let name = name(m);
        let x = tiled(&bench.device, &reference.tokens[..DISTINCT.min(m) * k], m, k);
        let mut q = QuantizedTiles::new(&bench.device, m, k).unwrap();
        quantize(&x, &mut q).unwrap();
        let outputs = 0..bench.few_sets(4 * m * n);
        let mut ys: Vec<Tensor> = outputs.map(|_| Tensor::zeros(&bench.device, m, n).unwrap()).collect();

        multiply(&ws[0], &mut q, &mut ys[0]).unwrap();
        reference.compare(&name, &ys[0], q.format());

        let outputs = ys.len();
        let mut launch = |i: usize| multiply(&ws[i], &mut q, &mut ys[i % outputs]);
        let work =
            Work { bytes: moved, operations: Some(2 * (m * n * k) as u64), memory: Some(Memory::Read) };
        let case = Some(Case { op: "MUL_MAT", ty: ty.name(), k, n, m });
        bench.row(c, GROUP, Row { name, work, case, sets: ws.len(), launch: &mut launch });
    }
}

/// Rows of the weight and tokens that differ, in the arithmetic of the reference.
struct Reference {
    w: Vec<f32>,
    /// `[DISTINCT, k]`.
    tokens: Vec<f32>,
    /// The tokens as int8 and as f16 activations.
    rounded: [Vec<f32>; 2],
    k: usize,
    ty: GgmlType,
}

impl Reference {
    fn new(ty: GgmlType, few: &[u8], k: usize) -> Self {
        let mut w = vec![0.0; few.len() / ty.block_bytes() * ty.block_elems()];
        dequantize(ty, few, &mut w).unwrap();
        let tokens = Rng(2).normals(DISTINCT * k);
        let int8 = reference::round_int8(&tokens, k, reference::INT8_BLOCK).unwrap();
        let rounded = [int8, reference::round_f16(&tokens, k).unwrap()];
        Reference { w, tokens, rounded, k, ty }
    }

    /// All outputs of some tokens, the first and the last included.
    fn compare(&self, name: &str, y: &Tensor, format: ActivationFormat) {
        let ([m, n], k) = (y.shape(), self.k);
        let compared = COMPARED.min(m);
        // Int8: the sums of blocks that minimums multiply are good to 2^-17. F16: matrix units cut sums off, and weights of Q6_K
        // are rounded to 11 bits.
        let exact = self.ty != GgmlType::Q6_K;
        let (rounded, allowed) = match format {
            ActivationFormat::Int8 => (&self.rounded[0], 1e-5),
            ActivationFormat::F16 => (&self.rounded[1], if exact { 5e-5 } else { 5e-4 }),
        };
        for i in 0..compared {
            let t = (m - 1) * i / (compared - 1).max(1);
            let got = y.cuda().unwrap().to_vec(t * n..(t + 1) * n).unwrap();
            let x = &rounded[t % DISTINCT * k..][..k];
            let want = reference::linear(&self.w, x, self.w.len() / k, k).unwrap();
            let want: Vec<f64> = repeated(&want, n);
            let length = |of: &dyn Fn(usize) -> f64| (0..n).map(|j| of(j).powi(2)).sum::<f64>().sqrt();
            let off = length(&|j| f64::from(got[j]) - want[j]);
            assert!(off <= allowed * length(&|j| want[j]), "{name}: token {t} is off by {off:e}");
        }
    }
}
