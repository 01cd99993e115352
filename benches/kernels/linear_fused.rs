//! linear_fused: what one launch has besides single matrices: several on one input, gate and up with SwiGLU, each also with rows of
//! F32, and one matrix for each head. Roofs as of linear_tiled.

use criterion::Criterion;
use glm5::Result;
use glm5::ops::linear::{
    Rotated, TiledOptions, Unrounded, head_linear_tiled, linear_tiled_with, quantize, quantize_heads,
    reference, swiglu_tiled_with,
};
use glm5::quant::{GgmlType, Weight, dequantize};
use glm5::tensor::{ActivationFormat, Heads, Matrix, QuantizedTiles, Tensor};

use super::blocks::{Rng, random_blocks};
use super::data::{DISTINCT, repeated, tiled};
use super::report::{Memory, Work};
use super::shapes::ALL;
use super::{Bench, Row};

const GROUP: &str = "linear_fused";

/// What of a launch is one.
#[derive(Clone, Copy, PartialEq)]
enum Fused {
    /// Outputs of each matrix.
    Several(&'static [usize]),
    /// The same of queries, 64 of 256 of which are rotated, and of those of the indexer, 64 of 128.
    Queries(&'static [usize; 2]),
    /// Outputs of gate and of up.
    SwiGlu(usize),
    /// Heads, and outputs of each.
    Heads(usize, usize),
}

/// A launch, of `k` inputs for each matrix.
#[derive(Clone, Copy)]
pub struct Case {
    what: &'static str,
    ty: GgmlType,
    k: usize,
    fused: Fused,
    /// Rows of a matrix of F32 on the same input, or none.
    float: usize,
    /// With rows of F32 those for which these are in the launch; by themselves the group `linear` has them for all.
    pub tokens: &'static [usize],
}

/// Fewer numbers of tokens.
const SOME: &[usize] = &[1, 8, 32, 512, 2048];

pub const CASES: [Case; 18] = [
    case("q_a, kv_a and indexer k", GgmlType::Q4_K, 6144, Fused::Several(&[2048, 576, 128])),
    case("q_a, kv_a and indexer k", GgmlType::Q8_0, 6144, Fused::Several(&[2048, 576, 128])),
    case("q_a, kv_a, indexer k, weights", GgmlType::Q4_K, 6144, Fused::Several(&[2048, 576, 128])).with(32),
    case("dense gate and up", GgmlType::Q4_K, 6144, Fused::SwiGlu(12_288)),
    case("dense gate and up", GgmlType::Q8_0, 6144, Fused::SwiGlu(12_288)),
    case("dense gate and up / 8", GgmlType::Q4_K, 6144, Fused::SwiGlu(1536)),
    case("dense gate and up / 8", GgmlType::Q8_0, 6144, Fused::SwiGlu(1536)),
    case("shared gate and up", GgmlType::Q4_K, 6144, Fused::SwiGlu(2048)),
    case("shared gate and up / 8", GgmlType::Q4_K, 6144, Fused::SwiGlu(256)),
    case("shared gate and up, router", GgmlType::Q4_K, 6144, Fused::SwiGlu(2048)).with(256),
    case("shared gate and up / 8, router", GgmlType::Q4_K, 6144, Fused::SwiGlu(256)).with(256),
    case("q_b and the indexer's", GgmlType::Q4_K, 2048, Fused::Several(&[16_384, 4096])).of(&[1, 8, 2048]),
    case("q_b and the indexer's, rotated", GgmlType::Q4_K, 2048, Fused::Queries(&[16_384, 4096]))
        .of(&[1, 8, 2048]),
    case("q_b / 8 and the indexer's, rotated", GgmlType::Q4_K, 2048, Fused::Queries(&[2048, 4096]))
        .of(&[1, 8, 2048]),
    case("k_b", GgmlType::Q5_0, 192, Fused::Heads(64, 512)),
    case("k_b / 8", GgmlType::Q5_0, 192, Fused::Heads(8, 512)).of(SOME),
    case("v_b", GgmlType::Q4_K, 512, Fused::Heads(64, 256)),
    case("v_b / 8", GgmlType::Q4_K, 512, Fused::Heads(8, 256)).of(SOME),
];

const fn case(what: &'static str, ty: GgmlType, k: usize, fused: Fused) -> Case {
    Case { what, ty, k, fused, float: 0, tokens: ALL }
}

pub fn benches(bench: &Bench, c: &mut Criterion) {
    for case in CASES {
        case.rows(bench, c);
    }
}

impl Case {
    const fn with(self, float: usize) -> Self {
        Case { float, tokens: &[1, 8, 16], ..self }
    }

    const fn of(self, tokens: &'static [usize]) -> Self {
        Case { tokens, ..self }
    }

    /// All rows of this case, whose matrices are made once.
    fn rows(self, bench: &Bench, c: &mut Criterion) {
        let Case { what, ty, k, fused, float, .. } = self;
        // Once for each way that a number of tokens can go unless they are measured.
        let tokens = if bench.measured { self.tokens } else { &[1, 12, 20, 72] };
        let name = |m: usize| format!("{what}: {ty}, {m} tokens");
        let wanted: Vec<usize> = tokens.iter().copied().filter(|m| bench.wants(GROUP, &name(*m))).collect();
        if wanted.is_empty() {
            return;
        }
        let k = if bench.measured { k } else { k.min(512) };
        let few = |n: usize| if bench.measured { n } else { n.min(40) };
        let (slabs, ns): (usize, Vec<usize>) = match fused {
            Fused::Several(ns) => (1, ns.iter().map(|n| few(*n)).collect()),
            Fused::Queries(ns) => (1, ns.iter().map(|n| few(*n)).collect()),
            Fused::SwiGlu(n) => (1, vec![few(n); 2]),
            Fused::Heads(heads, n) => (heads, vec![few(n)]),
        };
        let blocks = random_blocks(ty, DISTINCT * k / ty.block_elems(), false, 1);
        let row = blocks.len() / DISTINCT;
        let mut weights: Vec<Weight> = ns
            .iter()
            .map(|n| Weight::new(ty, [slabs, *n, k], repeated(&blocks, slabs * n * row).into()).unwrap())
            .collect();
        let mut w = vec![0.0; DISTINCT * k];
        dequantize(ty, &blocks, &mut w).unwrap();
        let float = few(float);
        if float > 0 {
            // Behind the others, and with the same values.
            let values: Vec<f32> = w.iter().copied().cycle().take(float * k).collect();
            weights.push(Weight::from_f32([1, float, k], &values).unwrap());
        }
        let bytes = weights.iter().map(|w| w.bytes().len()).sum();
        let matrices = |w: &Weight| Matrix::for_fast_linear(&bench.device, w.clone()).unwrap();
        let sets: Vec<Vec<Matrix>> =
            (0..bench.sets(bytes)).map(|_| weights.iter().map(matrices).collect()).collect();
        drop(weights);
        let values = Rng(2).normals(DISTINCT * slabs * k);
        let mut outputs = if matches!(fused, Fused::SwiGlu(_)) { ns[..1].to_vec() } else { ns.clone() };
        outputs.extend((float > 0).then_some(float));
        bench.report.prepared();

        for m in wanted {
            let name = name(m);
            let x = tiled(&bench.device, &values[..DISTINCT.min(m) * slabs * k], m, slabs * k);
            let mut q = match fused {
                Fused::Heads(..) => QuantizedTiles::for_heads(&bench.device, m, slabs, k).unwrap(),
                _ => QuantizedTiles::new(&bench.device, m, k).unwrap(),
            };
            match fused {
                Fused::Heads(..) => quantize_heads(&x, parts(slabs, k), &mut q).unwrap(),
                _ => quantize(&x, &mut q).unwrap(),
            }
            let y = |n: &usize| Tensor::zeros(&bench.device, m, slabs * n).unwrap();
            let written = 4 * m * slabs * outputs.iter().sum::<usize>();
            let mut ys: Vec<Vec<Tensor>> =
                (0..bench.few_sets(written)).map(|_| outputs.iter().map(y).collect()).collect();

            let beside = (float > 0).then_some(&x);
            // By no turn, so that outputs are the products.
            let width = few(64);
            let turns: Vec<f32> = [1.0, 0.0].repeat(m * width / 2);
            let angles =
                fused.is_rotated().then(|| Tensor::from_vec(&bench.device, m, width, turns).unwrap());
            let angles = angles.as_ref();
            fused.run(&sets[0], beside, &mut q, &mut ys[0], angles).unwrap();
            let of_float = outputs.len() - usize::from(float > 0);
            for (i, y) in ys[0].iter().enumerate() {
                let format = if i < of_float { Some(q.format()) } else { None };
                self.compare(&name, y, &w, &values, slabs, format);
            }

            let turns = ys.len();
            let mut launch = |i: usize| fused.run(&sets[i], beside, &mut q, &mut ys[i % turns], angles);
            let operations = Some(2 * (m * k * (slabs * ns.iter().sum::<usize>() + float)) as u64);
            let work = Work { bytes, operations, memory: Some(Memory::Read) };
            bench.row(c, GROUP, Row { name, work, case: None, sets: sets.len(), launch: &mut launch });
        }
    }

    /// All outputs of the first and the last token against the reference. `w` has the rows that differ, `values` such tokens, which
    /// rows of F32 have as they are.
    fn compare(
        self,
        name: &str,
        y: &Tensor,
        w: &[f32],
        values: &[f32],
        slabs: usize,
        format: Option<ActivationFormat>,
    ) {
        let ([m, cols], k) = (y.shape(), w.len() / DISTINCT);
        let (n, glu) = (cols / slabs, matches!(self.fused, Fused::SwiGlu(_)) && format.is_some());
        // Matrix units cut sums off, and SwiGLU multiplies two such sums.
        let allowed = match format {
            None => 1e-5,
            Some(_) if glu => 2e-4,
            Some(_) => 5e-5,
        };
        for t in [0, m - 1] {
            let got = y.cuda().unwrap().to_vec(t * cols..(t + 1) * cols).unwrap();
            let mut want = Vec::new();
            for slab in 0..slabs {
                let x = &values[(t % DISTINCT * slabs + slab) * k..][..k];
                let x = match format {
                    Some(ActivationFormat::Int8) => {
                        reference::round_int8(x, k, reference::INT8_BLOCK).unwrap()
                    }
                    Some(ActivationFormat::F16) => reference::round_f16(x, k).unwrap(),
                    None => x.to_vec(),
                };
                let of_rows = reference::linear(w, &x, DISTINCT, k).unwrap();
                want.extend((0..n).map(|j| of_rows[(slab * n + j) % DISTINCT]));
            }
            if glu {
                want = glm5::ops::ffn::reference::swiglu(&want, &want).unwrap();
            }
            let length = |of: &dyn Fn(usize) -> f64| (0..cols).map(|j| of(j).powi(2)).sum::<f64>().sqrt();
            let off = length(&|j| f64::from(got[j]) - want[j]) / length(&|j| want[j]);
            assert!(off <= allowed, "{name}: token {t} is off by {off:e}");
        }
    }
}

/// All columns, `len` for each head.
fn parts(heads: usize, len: usize) -> Heads {
    Heads { n: heads, stride: len, offset: 0, len }
}

impl Fused {
    fn is_rotated(self) -> bool {
        matches!(self, Fused::Queries(_))
    }

    /// With `beside` the last matrix is of F32, and that its input; queries are rotated by `angles`.
    fn run(
        self,
        ws: &[Matrix],
        beside: Option<&Tensor>,
        q: &mut QuantizedTiles,
        ys: &mut [Tensor],
        angles: Option<&Tensor>,
    ) -> Result<()> {
        let (tiles, float) = ws.split_at(ws.len() - usize::from(beside.is_some()));
        let (ys, float_ys) = ys.split_at_mut(ys.len() - float.len());
        let (float, mut float_ys) =
            (float.iter().collect::<Vec<_>>(), float_ys.iter_mut().collect::<Vec<_>>());
        let unrounded = beside.map(|x| Unrounded { x, ws: &float, ys: &mut float_ys });
        let rotated = |angles| {
            let of = |(matrix, w): (usize, &Matrix)| {
                let (n, of_head) = (w.rows(), [256, 128][matrix].min(w.rows()));
                let (stride, len) = (of_head, 64.min(of_head));
                let heads = Heads { n: n / stride, stride, offset: [stride - len, 0][matrix], len };
                Rotated { matrix, heads, angles, to: None }
            };
            tiles.iter().enumerate().map(of).collect()
        };
        let rotated = angles.map_or_else(Vec::new, rotated);
        let options = TiledOptions { unrounded, rotated, ..TiledOptions::default() };
        match self {
            Fused::Several(_) | Fused::Queries(_) => {
                let ws: Vec<&Matrix> = tiles.iter().collect();
                linear_tiled_with(options, &ws, q, &mut ys.iter_mut().collect::<Vec<_>>())
            }
            Fused::SwiGlu(_) => swiglu_tiled_with(options, &ws[0], &ws[1], q, &mut ys[0]),
            Fused::Heads(..) => {
                let [slabs, n, _] = ws[0].shape();
                head_linear_tiled(&ws[0], q, &mut ys[0], parts(slabs, n))
            }
        }
    }
}
