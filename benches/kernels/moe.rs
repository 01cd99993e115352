//! moe: the experts of a layer, with and without router and shared expert, at full width and as the part that one of eight GPUs has.
//! Tokens choose at random, or by a Zipf distribution by which one expert has a quarter of them. Bytes are those of the experts that
//! tokens chose, and of what else is there.

use std::collections::BTreeSet;

use criterion::Criterion;
use glm5::Result;
use glm5::ops::ffn::{Ffn, reference::swiglu};
use glm5::ops::linear::reference::{INT8_BLOCK, linear, round_f16, round_int8};
use glm5::ops::moe::{MoeOptions, MoeScratch, moe_with};
use glm5::ops::router::{Gating, RouterConfig, Routing, router};
use glm5::quant::{GgmlType, Weight, dequantize};
use glm5::tensor::{ActivationFormat, Matrix, Precision, QuantizedTiles, Tensor};

use super::blocks::{Rng, random_blocks};
use super::data::{DISTINCT, repeated, tiled};
use super::report::{Memory, Work};
use super::{Bench, Row};

const GROUP: &str = "moe";

/// Of a layer.
const EXPERTS: usize = 256;
const CHOSEN: usize = 8;

/// Exponent of the Zipf distribution by which the first expert is among the eight of a quarter of the tokens.
const ZIPF: f64 = 0.55;

/// Decoding and prompts.
const TOKENS: &[usize] = &[1, 2, 4, 8, 16, 32, 64, 128, 512, 2048, 8192];

/// Where it matters who is chosen.
const SKEWED: &[usize] = &[16, 64, 512, 2048, 8192];

/// What is measured.
#[derive(Clone, Copy)]
struct Case {
    what: &'static str,
    ff: usize,
    /// Of gate and up, and of down; the same of the shared expert.
    types: [GgmlType; 4],
    zipf: bool,
    /// With router and shared expert.
    block: bool,
    tokens: &'static [usize],
}

const TYPES: [GgmlType; 4] = [GgmlType::Q4_K, GgmlType::Q5_K, GgmlType::Q8_0, GgmlType::Q8_0];

const BLOCK: &str = "router, experts, shared expert";

/// Other types, for few tokens and for many.
const OTHER: &[usize] = &[1, 8, 64, 512];
const Q6: [GgmlType; 4] = [GgmlType::Q6_K, GgmlType::Q6_K, GgmlType::Q8_0, GgmlType::Q8_0];
const Q8: [GgmlType; 4] = [GgmlType::Q8_0; 4];

const CASES: [Case; 8] = [
    Case { what: "experts", ff: 2048, types: TYPES, zipf: false, block: false, tokens: TOKENS },
    Case { what: "experts", ff: 2048, types: TYPES, zipf: true, block: false, tokens: SKEWED },
    Case { what: "experts", ff: 2048, types: Q6, zipf: false, block: false, tokens: OTHER },
    Case { what: "experts", ff: 2048, types: Q8, zipf: false, block: false, tokens: OTHER },
    Case { what: BLOCK, ff: 2048, types: TYPES, zipf: false, block: true, tokens: TOKENS },
    Case { what: "experts / 8", ff: 256, types: TYPES, zipf: false, block: false, tokens: TOKENS },
    Case { what: "experts / 8", ff: 256, types: TYPES, zipf: true, block: false, tokens: SKEWED },
    Case { what: BLOCK, ff: 256, types: TYPES, zipf: false, block: true, tokens: TOKENS },
];

const CONFIG: RouterConfig = RouterConfig {
    n_experts_per_tok: CHOSEN,
    gating: Gating::Sigmoid,
    norm_topk_prob: true,
    routed_scaling_factor: 2.5,
    n_groups: 1,
    n_groups_used: 1,
};

pub fn benches(bench: &Bench, c: &mut Criterion) {
    for case in CASES {
        case.rows(bench, c);
    }
}

/// A stack of matrices whose rows are `DISTINCT` ones over and over, and these in f32.
fn stack(bench: &Bench, ty: GgmlType, [slabs, n, k]: [usize; 3]) -> (Matrix, Vec<f32>, usize) {
    let blocks = random_blocks(ty, DISTINCT * k / ty.block_elems(), false, n as u64);
    let row = blocks.len() / DISTINCT;
    let weight = Weight::new(ty, [slabs, n, k], repeated(&blocks, slabs * n * row).into()).unwrap();
    let mut values = vec![0.0; DISTINCT * k];
    dequantize(ty, &blocks, &mut values).unwrap();
    (Matrix::for_fast_linear(&bench.device, weight).unwrap(), values, n * row)
}

/// Experts or the shared one, their values, and the bytes of one.
struct Layer {
    ffn: Ffn,
    gate: Vec<f32>,
    down: Vec<f32>,
    bytes: usize,
}

impl Layer {
    fn new(bench: &Bench, slabs: usize, [hidden, ff]: [usize; 2], [first, second]: [GgmlType; 2]) -> Self {
        let (gate, gate_values, gate_bytes) = stack(bench, first, [slabs, ff, hidden]);
        let (up, _, up_bytes) = stack(bench, first, [slabs, ff, hidden]);
        let (down, down_values, down_bytes) = stack(bench, second, [slabs, hidden, ff]);
        let bytes = gate_bytes + up_bytes + down_bytes;
        Layer { ffn: Ffn::new(gate, up, down).unwrap(), gate: gate_values, down: down_values, bytes }
    }

    /// What expert `e` makes of a row, rounded to `format` as is what is between the halves. Gate and up are the same.
    fn expected(&self, e: usize, x: &[f32], format: ActivationFormat) -> Vec<f64> {
        let [ff, hidden] = [self.ffn.ff(), self.ffn.hidden()];
        let round = |x: &[f32]| match format {
            ActivationFormat::Int8 => round_int8(x, x.len(), INT8_BLOCK).unwrap(),
            ActivationFormat::F16 => round_f16(x, x.len()).unwrap(),
        };
        let of_rows = linear(&self.gate, &round(x), DISTINCT, hidden).unwrap();
        let gate: Vec<f64> = (0..ff).map(|j| of_rows[(e * ff + j) % DISTINCT]).collect();
        let h: Vec<f32> = swiglu(&gate, &gate).unwrap().iter().map(|v| *v as f32).collect();
        let of_rows = linear(&self.down, &round(&h), DISTINCT, ff).unwrap();
        (0..hidden).map(|i| of_rows[(e * hidden + i) % DISTINCT]).collect()
    }
}

impl Case {
    fn name(&self, m: usize) -> String {
        let Case { what, ff, types: [a, b, c, d], zipf, block, .. } = self;
        let shared = if *block { format!("; {c}, {d}") } else { String::new() };
        let zipf = if *zipf { ", Zipf" } else { "" };
        let part = if *block && *ff < 2048 { " / 8" } else { "" };
        format!("{what}{part}: {a}, {b}{shared}, {m} tokens{zipf}")
    }

    /// Eight distinct experts for each token.
    fn choose(&self, m: usize, n: usize, rng: &mut Rng) -> Vec<u32> {
        let weights: Vec<f64> =
            (0..n).map(|e| if self.zipf { ((e + 1) as f64).powf(-ZIPF) } else { 1.0 }).collect();
        let all: f64 = weights.iter().sum();
        let mut ids: Vec<u32> = Vec::new();
        for t in 0..m {
            while ids.len() < (t + 1) * CHOSEN.min(n) {
                let mut at = rng.unit() * all;
                let id = weights.iter().position(|w| {
                    at -= w;
                    at < 0.0
                });
                let id = id.unwrap_or(n - 1) as u32;
                if !ids[t * CHOSEN.min(n)..].contains(&id) {
                    ids.push(id);
                }
            }
        }
        ids
    }

    fn rows(self, bench: &Bench, c: &mut Criterion) {
        let tokens = if bench.measured { self.tokens } else { &[1, 5, 40] };
        let wanted: Vec<usize> =
            tokens.iter().copied().filter(|m| bench.wants(GROUP, &self.name(*m))).collect();
        if wanted.is_empty() {
            return;
        }
        let (n, hidden, ff) = if bench.measured { (EXPERTS, 6144, self.ff) } else { (16, 256, 256) };
        let [a, b, s, t] = self.types;
        let experts = Layer::new(bench, n, [hidden, ff], [a, b]);
        // Experts of a few routings are more than caches hold; the others take turns by themselves.
        let sets = bench.sets(experts.bytes * CHOSEN).max(4);
        let shared: Vec<Layer> = match self.block {
            true => (0..sets).map(|_| Layer::new(bench, 1, [hidden, ff], [s, t])).collect(),
            false => Vec::new(),
        };
        let of_router = Rng(3).normals(n * hidden);
        let routers: Vec<Matrix> = (0..if self.block { sets } else { 0 })
            .map(|_| {
                Matrix::new(&bench.device, Weight::from_f32([1, n, hidden], &of_router).unwrap()).unwrap()
            })
            .collect();
        let bias = Tensor::from_vec(&bench.device, 1, n, vec![0.0; n]).unwrap();
        let values = Rng(2).normals(DISTINCT * hidden);
        bench.report.prepared();
        for m in wanted {
            let x = tiled(&bench.device, &values[..DISTINCT.min(m) * hidden], m, hidden);
            let rng = &mut Rng(m as u64);
            let mut bytes = 0;
            let k = CHOSEN.min(n);
            let config = RouterConfig { n_experts_per_tok: k, ..CONFIG };
            let mut chosen = Vec::new(); // by the first
            let routings: Vec<Routing> = (0..sets)
                .map(|_| {
                    let ids = self.choose(m, n, rng);
                    let distinct: BTreeSet<u32> = ids.iter().copied().collect();
                    bytes += distinct.len() * experts.bytes;
                    let mut routing = Routing::new(&bench.device, n, k).unwrap();
                    routing.ids = Tensor::from_vec(&bench.device, m, k, ids.clone()).unwrap();
                    let weights = (0..m * k).map(|i| weight(i % k)).collect();
                    routing.weights = Tensor::from_vec(&bench.device, m, k, weights).unwrap();
                    if chosen.is_empty() {
                        chosen = ids;
                    }
                    routing
                })
                .collect();
            bytes /= sets;
            if let Some(shared) = shared.first() {
                bytes += shared.bytes + 4 * of_router.len();
            }
            let mut ys: Vec<Tensor> = (0..bench.few_sets(4 * m * hidden))
                .map(|_| Tensor::zeros(&bench.device, m, hidden).unwrap())
                .collect();
            let name = self.name(m);
            let mut step = Step {
                experts: &experts,
                shared: &shared,
                routers: &routers,
                bias: &bias,
                config: &config,
                x: &x,
                routings: &routings,
                ys: &mut ys,
                found: Routing::new(&bench.device, n, k).unwrap(),
                scratch: MoeScratch::new(&bench.device).unwrap(),
            };
            step.launch(0).unwrap();
            for t in [0, m - 1] {
                step.compare(&name, t, &values[t % DISTINCT * hidden..][..hidden], &chosen[t * k..][..k]);
            }
            let operations = Some(6 * (m * k * hidden * ff) as u64);
            let work = Work { bytes, operations, memory: Some(Memory::Read) };
            let mut launch = |i: usize| step.launch(i);
            bench.row(c, GROUP, Row { name, work, case: None, sets, launch: &mut launch });
        }
    }
}

/// A launch and what it takes; of what there are several of they take turns.
struct Step<'a> {
    experts: &'a Layer,
    shared: &'a [Layer],
    routers: &'a [Matrix],
    bias: &'a Tensor,
    config: &'a RouterConfig,
    x: &'a Tensor,
    routings: &'a [Routing],
    ys: &'a mut [Tensor],
    /// What the routers find is not used: all tokens' experts would be those of the few that differ.
    found: Routing,
    scratch: MoeScratch,
}

/// Of slot `j` of a token.
fn weight(j: usize) -> f32 {
    0.1 + 0.05 * j as f32
}

impl Step<'_> {
    fn launch(&mut self, i: usize) -> Result<()> {
        if let Some(w) = self.routers.get(i) {
            router(w, self.bias, self.x, self.config, &mut self.found)?;
        }
        let options = MoeOptions { scratch: Some(&mut self.scratch), ..MoeOptions::default() };
        let shared = self.shared.get(i).map(|w| &w.ffn);
        let turns = self.ys.len();
        let y = &mut self.ys[i % turns];
        moe_with(options, &self.experts.ffn, shared, self.x, &self.routings[i], y, Precision::Fast)
    }

    /// The output for token `t`, which is `x` and goes to `chosen`, with the reference.
    fn compare(&self, name: &str, t: usize, x: &[f32], chosen: &[u32]) {
        let hidden = x.len();
        let mut want = vec![0.0; hidden];
        let mut add = |weight: f32, out: Vec<f64>| {
            want.iter_mut().zip(out).for_each(|(want, out)| *want += f64::from(weight) * out);
        };
        for (j, e) in chosen.iter().enumerate() {
            add(weight(j), self.experts.expected(*e as usize, x, ActivationFormat::Int8));
        }
        if let Some(shared) = self.shared.first() {
            // Of more than eight tokens it is a layer of its own.
            let m = self.x.rows();
            let format = QuantizedTiles::new(self.x.device(), m, hidden).unwrap().format();
            add(1.0, shared.expected(0, x, if m <= 8 { ActivationFormat::Int8 } else { format }));
        }
        let got = self.ys[0].cuda().unwrap().to_vec(t * hidden..(t + 1) * hidden).unwrap();
        let length = |of: &dyn Fn(usize) -> f64| (0..hidden).map(|i| of(i).powi(2)).sum::<f64>().sqrt();
        let off = length(&|i| f64::from(got[i]) - want[i]) / length(&|i| want[i]);
        // A value near the middle of two steps of int8 may go to the other one.
        assert!(off <= 1e-3, "{name}: token {t} is off by {off:e}");
    }
}
