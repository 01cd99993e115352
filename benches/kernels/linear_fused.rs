//! linear_fused: what one launch has besides single matrices: several on one input, gate and up with SwiGLU, and one matrix for
//! each head.

use criterion::Criterion;
use glm5::Result;
use glm5::ops::linear::{head_linear_tiled, linear_tiled, quantize, quantize_heads, reference, swiglu_tiled};
use glm5::quant::{GgmlType, Weight, dequantize};
use glm5::tensor::{ActivationFormat, Heads, Matrix, QuantizedTiles, Tensor};

use super::blocks::{Rng, random_blocks};
use super::data::{DISTINCT, repeated, tiled};
use super::report::{Memory, Work};
use super::{Bench, Row};

const GROUP: &str = "linear_fused";

const TOKENS: [usize; 6] = [1, 4, 8, 64, 512, 2048];

/// What of a launch is one.
#[derive(Clone, Copy, PartialEq)]
enum Fused {
    /// Outputs of each matrix.
    Several(&'static [usize]),
    /// Outputs of gate and of up.
    SwiGlu(usize),
    /// Heads, and outputs of each.
    Heads(usize, usize),
}

const CASES: [(&str, GgmlType, usize, Fused); 8] = [
    ("q_a, kv_a and indexer k", GgmlType::Q4_K, 6144, Fused::Several(&[2048, 576, 128])),
    ("q_a, kv_a and indexer k", GgmlType::Q8_0, 6144, Fused::Several(&[2048, 576, 128])),
    ("dense gate and up", GgmlType::Q4_K, 6144, Fused::SwiGlu(12_288)),
    ("dense gate and up / 8", GgmlType::Q4_K, 6144, Fused::SwiGlu(1536)),
    ("k_b", GgmlType::Q5_0, 192, Fused::Heads(64, 512)),
    ("k_b / 8", GgmlType::Q5_0, 192, Fused::Heads(8, 512)),
    ("v_b", GgmlType::Q4_K, 512, Fused::Heads(64, 256)),
    ("v_b / 8", GgmlType::Q4_K, 512, Fused::Heads(8, 256)),
];

pub fn benches(bench: &Bench, c: &mut Criterion) {
    for (what, ty, k, fused) in CASES {
        for m in TOKENS {
            case(bench, c, what, ty, k, fused, m);
        }
    }
}

fn case(bench: &Bench, c: &mut Criterion, what: &str, ty: GgmlType, k: usize, fused: Fused, m: usize) {
    let name = format!("{what}: {ty}, {m} tokens");
    if !bench.wants(GROUP, &name) {
        return;
    }
    let (k, m) = if bench.measured { (k, m) } else { (k.min(512), m.min(20)) };
    let few = |n: usize| if bench.measured { n } else { n.min(40) };
    let (slabs, ns): (usize, Vec<usize>) = match fused {
        Fused::Several(ns) => (1, ns.iter().map(|n| few(*n)).collect()),
        Fused::SwiGlu(n) => (1, vec![few(n); 2]),
        Fused::Heads(heads, n) => (heads, vec![few(n)]),
    };
    let blocks = random_blocks(ty, DISTINCT * k / ty.block_elems(), false, 1);
    let row = blocks.len() / DISTINCT;
    let weights: Vec<Weight> = ns
        .iter()
        .map(|n| Weight::new(ty, [slabs, *n, k], repeated(&blocks, slabs * n * row).into()).unwrap())
        .collect();
    let bytes = weights.iter().map(|w| w.bytes().len()).sum();
    let tiles = |w: &Weight| Matrix::for_fast_linear(&bench.device, w.clone()).unwrap();
    let sets: Vec<Vec<Matrix>> =
        (0..bench.sets(bytes)).map(|_| weights.iter().map(tiles).collect()).collect();
    drop(weights);

    let values = Rng(2).normals(DISTINCT.min(m) * slabs * k);
    let x = tiled(&bench.device, &values, m, slabs * k);
    let heads = |n: usize| Heads { n: slabs, stride: n, offset: 0, len: n };
    let mut q = match fused {
        Fused::Heads(..) => QuantizedTiles::for_heads(&bench.device, m, slabs, k).unwrap(),
        _ => QuantizedTiles::new(&bench.device, m, k).unwrap(),
    };
    match fused {
        Fused::Heads(..) => quantize_heads(&x, heads(k), &mut q).unwrap(),
        _ => quantize(&x, &mut q).unwrap(),
    }
    let outputs = if matches!(fused, Fused::SwiGlu(_)) { &ns[..1] } else { &ns[..] };
    let mut ys: Vec<Tensor> =
        outputs.iter().map(|n| Tensor::zeros(&bench.device, m, slabs * n).unwrap()).collect();
    let mut launch = |i: usize| run(fused, &sets[i], &mut q, &mut ys, heads(ns[0]));
    launch(0).unwrap();
    let format = q.format();
    for (y, n) in ys.iter().zip(outputs) {
        compare(&name, y, fused, ty, &blocks, &values, [slabs, *n, k], format);
    }
    let mut launch = |i: usize| run(fused, &sets[i], &mut q, &mut ys, heads(ns[0]));
    let operations = Some(2 * (m * slabs * k * ns.iter().sum::<usize>()) as u64);
    let work = Work { bytes, operations, memory: Some(Memory::Read) };
    bench.row(c, GROUP, Row { name, work, case: None, sets: sets.len(), launch: &mut launch });
}

/// All outputs of the first token, against the reference.
#[allow(clippy::too_many_arguments)] // what a case is made of
fn compare(
    name: &str,
    y: &Tensor,
    fused: Fused,
    ty: GgmlType,
    blocks: &[u8],
    x: &[f32],
    [slabs, n, k]: [usize; 3],
    format: ActivationFormat,
) {
    let mut w = vec![0.0; DISTINCT * k];
    dequantize(ty, blocks, &mut w).unwrap();
    let got = y.cuda().unwrap().to_vec(0..slabs * n).unwrap();
    let mut want = Vec::new();
    for slab in 0..slabs {
        let x = &x[slab * k..][..k];
        let x = match format {
            ActivationFormat::Int8 => reference::round_int8(x, k, reference::INT8_BLOCK).unwrap(),
            ActivationFormat::F16 => reference::round_f16(x, k).unwrap(),
        };
        let of_rows = reference::linear(&w, &x, DISTINCT, k).unwrap();
        want.extend((0..n).map(|j| of_rows[(slab * n + j) % DISTINCT]));
    }
    if matches!(fused, Fused::SwiGlu(_)) {
        want = glm5::ops::ffn::reference::swiglu(&want, &want).unwrap();
    }
    let length = |of: &dyn Fn(usize) -> f64| (0..want.len()).map(|j| of(j).powi(2)).sum::<f64>().sqrt();
    let off = length(&|j| f64::from(got[j]) - want[j]) / length(&|j| want[j]);
    assert!(off <= 5e-4, "{name}: off by {off:e}");
}

fn run(fused: Fused, ws: &[Matrix], q: &mut QuantizedTiles, ys: &mut [Tensor], y_heads: Heads) -> Result<()> {
    match fused {
        Fused::Several(_) => {
            let ws: Vec<&Matrix> = ws.iter().collect();
            linear_tiled(&ws, q, &mut ys.iter_mut().collect::<Vec<_>>())
        }
        Fused::SwiGlu(_) => swiglu_tiled(&ws[0], &ws[1], q, &mut ys[0]),
        Fused::Heads(..) => head_linear_tiled(&ws[0], q, &mut ys[0], y_heads),
    }
}
