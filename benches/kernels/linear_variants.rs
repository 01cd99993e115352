//! linear_variants: every kernel that could multiply a shape, on int8 activations and on f16; first the one that is chosen for each.
//! For those who change the choice: only with `linear_variants` in the filter.

use criterion::Criterion;
use glm5::kernels::Entry;
use glm5::ops::linear::{
    TiledOptions, linear_by, linear_kernels, linear_tiled_with, quantize, reference, swiglu_tiled_with,
    tiled_kernels,
};
use glm5::quant::{GgmlType, Weight, dequantize, tiles};
use glm5::tensor::{ActivationFormat, Matrix, Precision, QuantizedTiles, Tensor};

use super::blocks::{Rng, random_blocks};
use super::data::{DISTINCT, repeated};
use super::report::{Memory, Work};
use super::{Bench, Row};

const GROUP: &str = "linear_variants";

/// Inputs and outputs: parts of eight, and whole layers.
const SHAPES: [(usize, usize); 7] =
    [(6144, 2048), (2048, 2048), (1536, 6144), (2048, 16384), (6144, 6144), (16384, 6144), (6144, 24576)];

/// Of gate and up.
const SWIGLU: [(usize, usize); 3] = [(6144, 256), (6144, 1536), (6144, 12288)];

const TOKENS: [usize; 6] = [1, 4, 8, 16, 32, 64];

/// Of unquantized matrices: the indexer's weights, the router, `q_a`.
const UNQUANTIZED: [(GgmlType, usize, usize); 5] = [
    (GgmlType::F32, 6144, 32),
    (GgmlType::F32, 6144, 256),
    (GgmlType::F32, 6144, 2048),
    (GgmlType::F16, 6144, 2048),
    (GgmlType::BF16, 6144, 2048),
];

const TOKENS_OF_UNQUANTIZED: [usize; 6] = [1, 16, 64, 256, 512, 2048];

/// One launch.
struct Case<'a> {
    ty: GgmlType,
    m: usize,
    /// Outputs of each matrix.
    ns: &'a [usize],
    k: usize,
    /// The two are gate and up.
    glu: bool,
}

pub fn benches(bench: &Bench, c: &mut Criterion) {
    if !bench.filter.contains(GROUP) {
        return;
    }
    for (ty, k, n) in UNQUANTIZED {
        let tokens = if bench.measured { &TOKENS_OF_UNQUANTIZED[..] } else { &[1, 40] };
        tokens.iter().for_each(|m| unquantized(bench, c, ty, [*m, n, k]));
    }
    // All shapes are cut to the same one unless they are measured.
    let (shapes, swiglu) =
        if bench.measured { (&SHAPES[..], &SWIGLU[..]) } else { (&SHAPES[..1], &SWIGLU[..1]) };
    let tokens = if bench.measured { &TOKENS[..] } else { &[1, 16] };
    for ty in tiles::TYPES {
        for &m in tokens {
            for &(k, n) in shapes {
                Case { ty, m, ns: &[n], k, glu: false }.variants(bench, c);
            }
            for &(k, n) in swiglu {
                Case { ty, m, ns: &[n, n], k, glu: true }.variants(bench, c);
            }
            // q_a, kv_a and the keys of the indexer.
            Case { ty, m, ns: &[2048, 576, 128], k: 6144, glu: false }.variants(bench, c);
        }
    }
}

impl Case<'_> {
    fn name(&self, kernel: Entry) -> String {
        let Case { ty, m, ns, k, glu } = self;
        let outputs = match glu {
            true => format!("{} of swiglu", ns[0]),
            false => ns.iter().map(usize::to_string).collect::<Vec<_>>().join(" + "),
        };
        format!("{kernel} {ty} {k} to {outputs}, {m} tokens")
    }

    fn variants(self, bench: &Bench, c: &mut Criterion) {
        let mut all = Entry::ALL.iter().filter(|entry| entry.family().starts_with("linear_"));
        if !all.any(|entry| bench.wants(GROUP, &self.name(*entry))) {
            return;
        }
        let Case { ty, m, glu, .. } = self;
        let (ns, k): (Vec<usize>, _) = match bench.measured {
            true => (self.ns.to_vec(), self.k),
            false => (self.ns.iter().map(|n| *n.min(&70)).collect(), 512),
        };
        let few = random_blocks(ty, DISTINCT * k / ty.block_elems(), false, 1);
        let weights = ns.iter().map(|n| {
            let bytes = repeated(&few, n * (few.len() / DISTINCT));
            Weight::new(ty, [1, *n, k], bytes.into()).unwrap()
        });
        let weights: Vec<Weight> = weights.collect();
        let bytes = weights.iter().map(|w| w.bytes().len()).sum();
        let sets = bench.sets(bytes);
        let tiled = |w: &Weight| Matrix::for_fast_linear(&bench.device, w.clone()).unwrap();
        let sets_of_ws: Vec<Vec<Matrix>> = (0..sets).map(|_| weights.iter().map(tiled).collect()).collect();
        let y = |n: &usize| Tensor::zeros(&bench.device, m, *n).unwrap();
        let outputs = if glu { &ns[..1] } else { &ns[..] };
        let mut sets_of_ys: Vec<Vec<Tensor>> = (0..sets).map(|_| outputs.iter().map(y).collect()).collect();
        let xs: Vec<f32> = Rng(2).normals(m * k).iter().map(|x| x / 16.0).collect();
        for format in [ActivationFormat::Int8, ActivationFormat::F16] {
            // In a format that was asked for, few tokens have scratch, too, and kernels for many can multiply them.
            let mut q = QuantizedTiles::with_format(&bench.device, m, k, format).unwrap();
            quantize(&Tensor::from_vec(&bench.device, m, k, xs.clone()).unwrap(), &mut q).unwrap();
            let want = expected(ty, &few, &xs, k, glu, format);

            for kernel in tiled_kernels(&sets_of_ws[0].iter().collect::<Vec<_>>(), &q, glu).unwrap() {
                let name = self.name(kernel);
                if !bench.wants(GROUP, &name) {
                    continue;
                }
                let mut launch = |ws: &[Matrix], ys: &mut [Tensor]| match (ws, ys) {
                    ([gate, up], [y]) if glu => swiglu_tiled_with(by(kernel), gate, up, &mut q, y),
                    (ws, ys) => {
                        let mut ys: Vec<&mut Tensor> = ys.iter_mut().collect();
                        linear_tiled_with(by(kernel), &ws.iter().collect::<Vec<_>>(), &mut q, &mut ys)
                    }
                };
                launch(&sets_of_ws[0], &mut sets_of_ys[0]).unwrap();
                sets_of_ys[0].iter().for_each(|y| compare(&name, &y.to_vec().unwrap(), &want, m));
                let mut launch = |i: usize| launch(&sets_of_ws[i], &mut sets_of_ys[i]);
                let operations = Some(2 * (m * k * ns.iter().sum::<usize>()) as u64);
                let work = Work { bytes, operations, memory: Some(Memory::Read) };
                bench.row(c, GROUP, Row { name, work, case: None, sets, launch: &mut launch });
            }
        }
    }
}

/// A matrix as it lies in a file.
fn unquantized(bench: &Bench, c: &mut Criterion, ty: GgmlType, [m, n, k]: [usize; 3]) {
    let name = |kernel: Entry| format!("{kernel} {ty} {k} to {n}, {m} tokens");
    let mut all = Entry::ALL.iter().filter(|entry| entry.family().starts_with("linear_"));
    if !all.any(|entry| bench.wants(GROUP, &name(*entry))) {
        return;
    }
    let [m, n, k] = if bench.measured { [m, n, k] } else { [m.min(40), n.min(70), 512] };
    let few = random_blocks(ty, DISTINCT * k, false, 1);
    let bytes = repeated(&few, n * (few.len() / DISTINCT));
    let moved = bytes.len() + 4 * m * (k + n);
    let weight = Weight::new(ty, [1, n, k], bytes.into()).unwrap();
    let ws: Vec<Matrix> =
        (0..bench.sets(moved)).map(|_| Matrix::new(&bench.device, weight.clone()).unwrap()).collect();
    let xs = Rng(2).normals(m * k);
    let x = Tensor::from_vec(&bench.device, m, k, xs.clone()).unwrap();
    let mut y = Tensor::zeros(&bench.device, m, n).unwrap();
    let mut w = vec![0.0; DISTINCT * k];
    dequantize(ty, &few, &mut w).unwrap();
    let want = reference::linear(&w, &xs, DISTINCT, k).unwrap();
    for kernel in linear_kernels(&ws[0], &x).unwrap() {
        if !bench.wants(GROUP, &name(kernel)) {
            continue;
        }
        linear_by(kernel, &ws[0], &x, &mut y, Precision::Exact).unwrap();
        compare(&name(kernel), &y.to_vec().unwrap(), &want, m);
        let mut launch = |i: usize| linear_by(kernel, &ws[i], &x, &mut y, Precision::Exact);
        let operations = Some(2 * (m * k * n) as u64);
        let work = Work { bytes: moved, operations, memory: Some(Memory::Read) };
        bench.row(
            c,
            GROUP,
            Row { name: name(kernel), work, case: None, sets: ws.len(), launch: &mut launch },
        );
    }
}

/// Of the rows that differ, for every token.
fn expected(ty: GgmlType, few: &[u8], xs: &[f32], k: usize, glu: bool, format: ActivationFormat) -> Vec<f64> {
    let mut w = vec![0.0; DISTINCT * k];
    dequantize(ty, few, &mut w).unwrap();
    let x = match format {
        ActivationFormat::Int8 => reference::round_int8(xs, k, reference::INT8_BLOCK).unwrap(),
        ActivationFormat::F16 => reference::round_f16(xs, k).unwrap(),
    };
    let y = reference::linear(&w, &x, DISTINCT, k).unwrap();
    if glu { glm5::ops::ffn::reference::swiglu(&y, &y).unwrap() } else { y }
}

fn by<'a>(kernel: Entry) -> TiledOptions<'a> {
    TiledOptions { kernel: Some(kernel), ..TiledOptions::default() }
}

fn compare(name: &str, got: &[f32], want: &[f64], m: usize) {
    let n = got.len() / m;
    for (t, got) in got.chunks(n).enumerate() {
        let want = |j: usize| want[t * DISTINCT + j % DISTINCT];
        let length = |v: &dyn Fn(usize) -> f64| (0..n).map(|j| v(j).powi(2)).sum::<f64>().sqrt();
        let (off, of) = (length(&|j| f64::from(got[j]) - want(j)), length(&want));
        // What f16 does to weights of Q6_K, and SwiGLU has a product of two.
        assert!(off <= 1e-3 * of, "{name}: token {t} is off by {:e}", off / of);
    }
}
