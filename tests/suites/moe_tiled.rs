//! Mixture of experts in tiles on a GPU, activations rounded to int8: the layout that `Precision::Fast` takes.

use std::iter;

use glm5::Error;
use glm5::ops::ffn::{Ffn, ffn, reference::swiglu};
use glm5::ops::linear::reference::{INT8_BLOCK, linear};
use glm5::ops::linear::{LinearInput, Rounded};
use glm5::ops::moe::config::FEW_ROWS;
use glm5::ops::moe::{MoeOptions, MoeScratch, NO_EXPERT, moe_from, moe_with, takes};
use glm5::ops::norm::rms_norm_into;
use glm5::ops::router::{RouterConfig, Routing, router};
use glm5::quant::tiles::TYPES;
use glm5::quant::{GgmlType, Weight};
use glm5::tensor::{ActivationFormat, Device, Matrix, Precision, Tensor};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestCaseResult};

use super::blocks::{Rng, random_blocks, random_weight};
use super::close::{EPS, POISON, close, equal, magnitudes, ulp};
use super::ffn::{Layer, rounded};
use super::inputs::*;
use super::linear_tiled::{format_on, round, slack};
use super::moe::{cuts, routing, spoil_unused};
use super::router::GLM5;

mod edges;
mod scratch;
pub use edges::*;
pub use scratch::*;

macro_rules! moe_tiled_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { moe_tiled, $devices, $cases;
        few_tokens_are_the_reference(few), many_tokens_are_the_reference(many), padding_adds_nothing(small),
        a_token_does_not_depend_on_the_others(small), shards_of_experts_add_up(small),
        shards_of_the_width_add_up(small);
        takes_a_shard_of_the_last_ids, an_expert_named_twice_counts_twice, experts_take_any_number_of_rows,
        gate_and_up_may_be_of_two_types, the_shared_expert_may_be_in_blocks, takes_what_the_router_chose, experts_of_one_row_each, activations_may_be_of_any_size, memory_is_used_again, calls_are_recorded, rounded_before_or_by_the_call_is_the_same,
        a_replay_does_not_depend_on_calls_between, calls_of_an_earlier_size_are_recorded,
        refuses_what_does_not_fit, more_places_than_fit_in_20_bits,
        a_stack_of_full_size }
    };
}
pub(crate) use moe_tiled_properties;

#[derive(Debug, Clone)]
pub struct Case {
    m: usize,
    experts: usize,
    k: usize,
    hidden: usize,
    ff: [usize; 2],
    /// Of gate and up, and of down; the same of the shared expert.
    types: [GgmlType; 4],
    /// Of up, of the experts and of the shared one, if it is another.
    up: Option<[GgmlType; 2]>,
    shared: bool,
    same: bool,
    seed: u64,
}

fn width(ty: GgmlType, small: bool, rng: &mut Rng) -> usize {
    let all: &[usize] = match (ty.block_elems(), small) {
        (256, true) => &[256, 512],
        (256, false) => &[256, 1536],
        (_, true) => &[32, 96, 256, 320],
        (_, false) => &[32, 256, 800],
    };
    all[rng.below(all.len())]
}

fn cases(m: impl Strategy<Value = usize>) -> impl Strategy<Value = Case> {
    let ty = || prop::sample::select(TYPES.to_vec());
    let types = ([ty(), ty(), ty(), ty()], prop::option::weighted(0.3, [ty(), ty()]));
    (m, 1usize..12, 0usize..9, types, any::<bool>(), any::<u8>(), any::<u64>()).prop_map(
        |(m, experts, k, (types, up), shared, same, seed)| {
            let rng = &mut Rng(seed);
            // Wide enough for blocks of all that has it as its columns.
            let wider = |a: GgmlType, b: GgmlType| if a.block_elems() > b.block_elems() { a } else { b };
            let widest = up.iter().flatten().fold(wider(types[0], types[2]), |a, b| wider(a, *b));
            let hidden = width(widest, false, rng);
            let ff = [width(types[1], true, rng), width(types[3], true, rng)];
            Case { m, experts, k: k.min(experts), hidden, ff, types, up, shared, same: same % 4 == 0, seed }
        },
    )
}

pub fn few() -> impl Strategy<Value = Case> {
    cases(1usize..=8)
}

/// Few tokens and many, of small layers.
pub fn small() -> impl Strategy<Value = Case> {
    cases(prop::sample::select(vec![1usize, 3, 8, 9, 20])).prop_map(|c| {
        let experts = c.experts.min(6);
        Case { experts, k: c.k.min(experts), hidden: c.hidden.min(256), ..c }
    })
}

pub fn many() -> impl Strategy<Value = Case> {
    // The reference of many more pairs would take longer than the kernels.
    let less = |c: Case| Case {
        k: c.k.min(300 / c.m),
        hidden: c.hidden.min(if c.m > 33 { 512 } else { 1536 }),
        ..c
    };
    cases(prop::sample::select(vec![9usize, 17, 33, 70, 130])).prop_map(less)
}

#[derive(Clone)]
struct Inputs {
    experts: Layer,
    shared: Option<Layer>,
    x: Vec<f32>,
    ids: Vec<u32>,
    weights: Vec<f32>,
    k: usize,
}

/// `types` of gate, up and down.
fn layer(slabs: usize, hidden: usize, ff: usize, types: [GgmlType; 3], rng: &mut Rng) -> Layer {
    let mut random = |ty, rows, cols| random_weight(ty, slabs, rows, cols, rng.next());
    Layer {
        gate: random(types[0], ff, hidden),
        up: random(types[1], ff, hidden),
        down: random(types[2], hidden, ff),
    }
}

fn in_tiles(d: &Device, w: &Layer) -> Ffn {
    let [gate, up, down] =
        [&w.gate, &w.up, &w.down].map(|w: &Weight| Matrix::for_fast_linear(d, w.clone()).unwrap());
    Ffn::new(gate, up, down).unwrap()
}

impl Case {
    fn inputs(&self) -> Inputs {
        let rng = &mut Rng(!self.seed);
        let [a, b, c, d] = self.types;
        let [up, shared_up] = self.up.unwrap_or([a, c]);
        let mut order: Vec<u32> = (0..self.experts as u32).collect();
        let mut ids = Vec::new();
        for t in 0..self.m {
            if t == 0 || !self.same {
                for i in (1..order.len()).rev() {
                    order.swap(i, rng.below(i + 1));
                }
            }
            ids.extend(&order[..self.k]);
        }
        Inputs {
            experts: layer(self.experts, self.hidden, self.ff[0], [a, up, b], rng),
            shared: self.shared.then(|| layer(1, self.hidden, self.ff[1], [c, shared_up, d], rng)),
            x: activations(self.m, self.hidden, rng),
            weights: ids.iter().map(|_| 0.3 * rng.normal()).collect(),
            ids,
            k: self.k,
        }
    }

    /// The same with `[m, k]` ids of the caller's; experts that none of them names are NaN.
    fn with_ids(&self, ids: Vec<u32>) -> Inputs {
        let rng = &mut Rng(self.seed ^ 0x1d5);
        let weights = ids.iter().map(|_| 0.3 * rng.normal()).collect();
        let mut inputs = Inputs { weights, k: ids.len() / self.m, ids, ..self.inputs() };
        inputs.spoil_unused();
        inputs
    }
}

impl Inputs {
    fn m(&self) -> usize {
        self.x.len() / self.hidden()
    }

    fn hidden(&self) -> usize {
        self.experts.gate.cols()
    }

    /// Experts that no id names become NaN, so that reading one shows.
    fn spoil_unused(&mut self) {
        for w in [&mut self.experts.gate, &mut self.experts.up, &mut self.experts.down] {
            *w = spoil_unused(w, &self.ids);
        }
    }

    /// The same with other experts, and with the shared one only if asked for.
    fn of(&self, experts: Layer, shared: bool) -> Inputs {
        Inputs { experts, shared: self.shared.clone().filter(|_| shared), ..self.clone() }
    }

    /// One of the tokens alone.
    fn token(&self, t: usize) -> Inputs {
        let (row, slots) = (t * self.hidden()..(t + 1) * self.hidden(), t * self.k..(t + 1) * self.k);
        let (ids, weights) = (self.ids[slots.clone()].to_vec(), self.weights[slots].to_vec());
        Inputs { x: self.x[row].to_vec(), ids, weights, ..self.clone() }
    }

    fn layers(&self, d: &Device) -> (Ffn, Option<Ffn>) {
        (in_tiles(d, &self.experts), self.shared.as_ref().map(|s| in_tiles(d, s)))
    }

    fn routing(&self, d: &Device) -> Routing {
        routing(d, self.m(), &self.ids, &self.weights)
    }

    fn run(&self, d: &Device) -> glm5::Result<Vec<f32>> {
        self.run_with(d, MoeOptions::default())
    }

    fn run_with(&self, d: &Device, options: MoeOptions<'_>) -> glm5::Result<Vec<f32>> {
        let mut y = poisoned(d, self.m(), self.hidden());
        let (experts, shared) = self.layers(d);
        let x = tensor(d, self.hidden(), &self.x);
        moe_with(options, &experts, shared.as_ref(), &x, &self.routing(d), &mut y, Precision::Fast)?;
        Ok(host(&y))
    }

    /// Of more tokens the shared expert is a layer of its own, which rounds as others do.
    fn format(&self, d: &Device) -> ActivationFormat {
        if self.m() <= FEW_ROWS { ActivationFormat::Int8 } else { format_on(d, self.m(), None) }
    }

    /// The same bits from all devices, within the bounds.
    fn is_the_reference(&self, devices: &[Device]) -> Result<Vec<f32>, TestCaseError> {
        let got = on_each(devices, |d| self.run(d))?;
        let (want, off) = self.expected(self.format(&devices[0]));
        close("y", &got, &want, |i| off[i])?;
        Ok(got)
    }

    /// The expected output and how far it may be off, if the shared expert's activations are rounded to `format`.
    fn expected(&self, format: ActivationFormat) -> (Vec<f64>, Vec<f64>) {
        self.expected_shard(0, format)
    }

    /// The same of a stack that begins with expert `first`.
    fn expected_shard(&self, first: usize, format: ActivationFormat) -> (Vec<f64>, Vec<f64>) {
        let hidden = self.hidden();
        let (mut y, mut off) = (vec![0.0; self.x.len()], vec![0.0; self.x.len()]);
        let mut add = |rows: &[(usize, f64)], out: (Vec<f64>, Vec<f64>)| {
            for (r, (t, weight)) in rows.iter().enumerate() {
                for i in 0..hidden {
                    let v = weight * out.0[r * hidden + i];
                    y[t * hidden + i] += v;
                    off[t * hidden + i] +=
                        weight.abs() * out.1[r * hidden + i] + 4.0 * EPS * (self.k as f64 + 1.0) * v.abs();
                }
            }
        };
        for e in 0..self.experts.gate.slabs() {
            let pairs = (0..self.ids.len()).filter(|p| self.ids[*p] as usize == first + e);
            let rows: Vec<(usize, f64)> = pairs.map(|p| (p / self.k, f64::from(self.weights[p]))).collect();
            if !rows.is_empty() {
                let x: Vec<f32> =
                    rows.iter().flat_map(|(t, _)| &self.x[t * hidden..(t + 1) * hidden]).copied().collect();
                add(&rows, expected(&self.experts, e, &x, ActivationFormat::Int8));
            }
        }
        if let Some(shared) = &self.shared {
            let rows: Vec<(usize, f64)> = (0..self.m()).map(|t| (t, 1.0)).collect();
            add(&rows, expected(shared, 0, &self.x, format));
        }
        (y, off)
    }
}

/// Expert `e` of a stack.
fn slab(w: &Weight, e: usize) -> Weight {
    let bytes = w.rows() * w.row_bytes();
    let of_expert = w.bytes()[e * bytes..(e + 1) * bytes].to_vec();
    Weight::new(w.ty(), [1, w.rows(), w.cols()], of_expert.into()).unwrap()
}

/// What expert `e` should make of the rows `x`, and how far the arithmetic may be off.
fn expected(w: &Layer, e: usize, x: &[f32], format: ActivationFormat) -> (Vec<f64>, Vec<f64>) {
    let [gate, up, down] = [&w.gate, &w.up, &w.down].map(|w| slab(w, e));
    let (hidden, ff) = (gate.cols(), gate.rows());
    let product = |w: &Weight, x: &[f32]| {
        let y = linear(&values(w), x, w.rows(), w.cols()).unwrap();
        let off: Vec<f64> = slack(w, x, format).iter().zip(&y).map(|(off, y)| off + 4.0 * ulp(*y)).collect();
        (y, off)
    };
    let x = round(x, hidden, format);
    let ((gate, gate_off), (up, up_off)) = (product(&gate, &x), product(&up, &x));
    let h = swiglu(&gate, &up).unwrap();
    // silu is steeper than 1.1 nowhere, and good to a few units itself.
    let mut h_off: Vec<f64> = (0..h.len())
        .map(|i| {
            let silu = gate[i].abs() + 1.1 * gate_off[i];
            1.1 * gate_off[i] * up[i].abs() + silu * up_off[i] + 8.0 * EPS * h[i].abs() + 1e-37
        })
        .collect();
    let mut h: Vec<f64> = h;
    match format {
        ActivationFormat::Int8 => (h, h_off) = rounded(&h, &h_off, ff, INT8_BLOCK),
        // Half a unit of the last place is left open, which no other value of the row changes.
        ActivationFormat::F16 => {
            for (h, off) in h.chunks(ff).zip(h_off.chunks_mut(ff)) {
                let largest = h.iter().fold(0.0f64, |a, h| a.max(h.abs()));
                let of_f16 = |h: f64| 2f64.powi(-11) * h.abs() + 2f64.powi(-24) * largest;
                off.iter_mut().zip(h).for_each(|(off, h)| *off += of_f16(*h));
            }
        }
    }
    let single: Vec<f32> = h.iter().map(|h| *h as f32).collect();
    let (y, mut off) = product(&down, &single);
    let offs = magnitudes(&values(&down), &h_off, ff);
    off.iter_mut().zip(offs).for_each(|(off, of_h)| *off += of_h);
    (y, off)
}

pub fn few_tokens_are_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    c.inputs().is_the_reference(devices).map(drop)
}

pub fn many_tokens_are_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    c.inputs().is_the_reference(devices).map(drop)
}

/// Places of no expert, with weights that are NaN, change nothing, whatever experts hold that nobody chose. A token that has no other
/// places is zero even if it is NaN itself, or its shared expert.
pub fn padding_adds_nothing(devices: &[Device], c: Case) -> TestCaseResult {
    let mut inputs = c.inputs();
    let rng = &mut Rng(c.seed ^ 0xadd);
    let empty = rng.below(c.m);
    for p in 0..inputs.ids.len() {
        if p / c.k == empty || rng.below(3) == 0 {
            (inputs.ids[p], inputs.weights[p]) = (NO_EXPERT, f32::NAN);
        }
    }
    inputs.spoil_unused();
    let clean = inputs.is_the_reference(devices)?;
    if !c.shared {
        let row = empty * c.hidden..(empty + 1) * c.hidden;
        inputs.x[row.clone()].fill(f32::NAN);
        let got = on_each(devices, |d| inputs.run(d))?;
        equal("a row of no expert", &got[row], &vec![0.0; c.hidden])?;
        equal("y", &got, &clean)?;
    }
    Ok(())
}

/// A token's row full of NaN spoils no other: these keep their bits, as which experts have how many rows stays. Alone a token may have
/// other bits than in company, since other blocks of threads add up its sums, but stays within the bounds.
pub fn a_token_does_not_depend_on_the_others(devices: &[Device], c: Case) -> TestCaseResult {
    let mut inputs = c.inputs();
    let clean = on_each(devices, |d| inputs.run(d))?;
    let t = Rng(c.seed).below(c.m);
    let row = t * c.hidden..(t + 1) * c.hidden;
    inputs.token(t).is_the_reference(devices)?;
    inputs.x[row.clone()].fill(f32::NAN);
    let got = on_each(devices, |d| inputs.run(d))?;
    if c.k > 0 || c.shared {
        prop_assert!(got[row.clone()].iter().all(|v| v.is_nan()), "NaN was lost");
    }
    equal("rows before", &got[..row.start], &clean[..row.start])?;
    equal("rows after", &got[row.end..], &clean[row.end..])
}

/// Results of shards, added up in f64, against what is expected of the whole. Each may be off by its own bound, and the sum by all.
fn add_up(devices: &[Device], whole: &Inputs, shards: &[(Option<usize>, Inputs)]) -> TestCaseResult {
    let format = whole.format(&devices[0]);
    let (mut sum, mut off) = (vec![0.0; whole.x.len()], vec![0.0; whole.x.len()]);
    for (first_expert, shard) in shards {
        let options = || MoeOptions { first_expert: *first_expert, ..MoeOptions::default() };
        let got = on_each(devices, |d| shard.run_with(d, options()))?;
        let (want, shard_off) = shard.expected_shard(first_expert.unwrap_or(0), format);
        close("y of a shard", &got, &want, |i| shard_off[i])?;
        for i in 0..sum.len() {
            sum[i] += f64::from(got[i]);
            off[i] += shard_off[i] + 4.0 * ulp(want[i]);
        }
    }
    let sum: Vec<f32> = sum.iter().map(|v| *v as f32).collect();
    close("sum of shards", &sum, &whole.expected(format).0, |i| off[i])
}

/// Up to four shards, of one expert or more; the shared expert belongs to one of them, and ids of the others are passed over.
pub fn shards_of_experts_add_up(devices: &[Device], c: Case) -> TestCaseResult {
    let mut inputs = c.inputs();
    let rng = &mut Rng(c.seed ^ 0xc0);
    if let Some(last) = inputs.ids.len().checked_sub(1) {
        let p = rng.below(last + 1);
        (inputs.ids[p], inputs.weights[p]) = (NO_EXPERT, f32::NAN);
    }
    inputs.spoil_unused();
    let parts = cuts(1 + rng.below(4), c.experts, 1, rng);
    let with_shared = rng.below(parts.len());
    let shards = parts
        .into_iter()
        .enumerate()
        .map(|(i, part)| (Some(part.start), inputs.of(inputs.experts.experts(part), i == with_shared)));
    add_up(devices, &inputs, &shards.collect::<Vec<_>>())
}

/// Up to four shards, each a part of every expert's width in whole blocks of down.
pub fn shards_of_the_width_add_up(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed ^ 0x3d);
    let block = c.types[1].block_elems();
    let c = Case { ff: [if block == 256 { 512 } else { c.ff[0].max(96) }, c.ff[1]], ..c };
    let inputs = c.inputs();
    let parts = cuts(2 + rng.below(3), c.ff[0], block, rng);
    let with_shared = rng.below(parts.len());
    let shards = parts
        .into_iter()
        .enumerate()
        .map(|(i, part)| (None, inputs.of(inputs.experts.part(part), i == with_shared)));
    add_up(devices, &inputs, &shards.collect::<Vec<_>>())
}

/// A case of the tests that are not random: widths that end within tiles where the types allow it.
fn plain(m: usize, experts: usize, types: [GgmlType; 2], shared: bool) -> Case {
    let ff = if types[1].block_elems() == 256 { 256 } else { 96 };
    let hidden = if types[0].block_elems() == 256 { 256 } else { 96 };
    let types = [types[0], types[1], GgmlType::Q8_0, GgmlType::Q5_0];
    let seed = (m + 1000 * experts) as u64;
    Case { m, experts, k: 1, hidden, ff: [ff, 32], types, up: None, shared, same: false, seed }
}

const SMALL: [GgmlType; 2] = [GgmlType::Q8_0, GgmlType::Q5_0];
