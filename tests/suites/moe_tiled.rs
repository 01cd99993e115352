//! Mixture of experts in tiles on a GPU, activations rounded to int8: the layout that `Precision::Fast` takes.

use std::iter;

use glm5::Error;
use glm5::ops::ffn::{Ffn, reference::swiglu};
use glm5::ops::linear::reference::{INT8_BLOCK, linear};
use glm5::ops::moe::config::FEW_ROWS;
use glm5::ops::moe::{MoeOptions, MoeScratch, NO_EXPERT, moe_with};
use glm5::ops::router::Routing;
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

macro_rules! moe_tiled_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { moe_tiled, $devices, $cases;
        few_tokens_are_the_reference(few), many_tokens_are_the_reference(many), padding_adds_nothing(small),
        a_token_does_not_depend_on_the_others(small), shards_of_experts_add_up(small),
        shards_of_the_width_add_up(small);
        takes_a_shard_of_the_last_ids, an_expert_named_twice_counts_twice, experts_take_any_number_of_rows,
        experts_of_one_row_each, activations_may_be_of_any_size, memory_is_used_again, calls_are_recorded,
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
    let types = [ty(), ty(), ty(), ty()];
    (m, 1usize..12, 0usize..9, types, any::<bool>(), any::<u8>(), any::<u64>()).prop_map(
        |(m, experts, k, types, shared, same, seed)| {
            let rng = &mut Rng(seed);
            // Wide enough for blocks of all that has it as its columns.
            let wider = |a: GgmlType, b: GgmlType| if a.block_elems() > b.block_elems() { a } else { b };
            let hidden = width(wider(types[0], types[2]), false, rng);
            let ff = [width(types[1], true, rng), width(types[3], true, rng)];
            Case { m, experts, k: k.min(experts), hidden, ff, types, shared, same: same % 4 == 0, seed }
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

fn layer(slabs: usize, hidden: usize, ff: usize, types: [GgmlType; 2], rng: &mut Rng) -> Layer {
    let mut random = |ty, rows, cols| random_weight(ty, slabs, rows, cols, rng.next());
    Layer {
        gate: random(types[0], ff, hidden),
        up: random(types[0], ff, hidden),
        down: random(types[1], hidden, ff),
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
            experts: layer(self.experts, self.hidden, self.ff[0], [a, b], rng),
            shared: self.shared.then(|| layer(1, self.hidden, self.ff[1], [c, d], rng)),
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
    Case { m, experts, k: 1, hidden, ff: [ff, 32], types, shared, same: false, seed }
}

const SMALL: [GgmlType; 2] = [GgmlType::Q8_0, GgmlType::Q5_0];

/// Ids end before that of no expert. A shard of the last ones has all others nowhere, and does not take no expert for its last.
pub fn takes_a_shard_of_the_last_ids(devices: &[Device]) {
    let first = NO_EXPERT as usize - 2;
    for (m, shared) in [(1, false), (2, true), (9, false), (9, true)] {
        let c = plain(m, 2, SMALL, shared);
        let options = || MoeOptions { first_expert: Some(first), ..MoeOptions::default() };
        let run = |inputs: &Inputs, what: &str| {
            let got = on_each(devices, |d| inputs.run_with(d, options()));
            let got = got.unwrap_or_else(|e| panic!("{what} of {m} tokens: {e}"));
            let (want, off) = inputs.expected_shard(first, inputs.format(&devices[0]));
            close(what, &got, &want, |i| off[i]).unwrap();
            got
        };
        // Both experts are NaN, as no id is that of one.
        let mut none = c.with_ids([0, 1, NO_EXPERT - 3, NO_EXPERT].repeat(m));
        for w in [&mut none.experts.gate, &mut none.experts.up, &mut none.experts.down] {
            *w = spoil_unused(w, &[]);
        }
        none.weights.fill(f32::NAN);
        let got = run(&none, "ids of others");
        if !shared {
            equal("y of no experts", &got, &vec![0.0; got.len()]).unwrap();
        }
        let both = Inputs {
            ids: [1, NO_EXPERT - 1, NO_EXPERT, NO_EXPERT - 2].repeat(m),
            weights: [f32::NAN, 0.5, f32::NAN, -0.25].repeat(m),
            k: 4,
            ..c.inputs()
        };
        run(&both, "ids of both");
    }
}

/// Up to 128 pairs of 8 tokens and more of them, which other kernels take.
pub fn an_expert_named_twice_counts_twice(devices: &[Device]) {
    let ids = |m: usize, k: usize, experts: usize| {
        let mut rng = Rng((m * k) as u64);
        (0..m * k).map(|_| rng.below(experts) as u32).collect::<Vec<_>>()
    };
    let all: [(usize, Vec<u32>); 9] = [
        (1, vec![2, 2]),
        (1, vec![3; 16]),
        (3, vec![0, 1, 0, 1, 1, 1, 3, 0, 3]),
        (8, vec![1; 128]),
        (8, ids(8, 16, 5)),
        (8, vec![1; 136]),
        (8, ids(8, 17, 5)),
        (1, ids(1, 140, 5)),
        (20, [1, 1, 2].repeat(20)),
    ];
    for (i, (m, ids)) in all.into_iter().enumerate() {
        let types = [TYPES[i % TYPES.len()], TYPES[(i + 2) % TYPES.len()]];
        let inputs = plain(m, 5, types, i % 2 == 0).with_ids(ids);
        let checked = inputs.is_the_reference(devices);
        checked.unwrap_or_else(|e| panic!("{:?} of {m} tokens: {e}", inputs.ids));
    }
}

/// Full tiles and such that are not, of one expert; another one has few rows besides, and one none.
pub fn experts_take_any_number_of_rows(devices: &[Device]) {
    for (i, rows) in [8usize, 9, 16, 31, 32, 33, 48, 49, 64, 65, 130].into_iter().enumerate() {
        let types = [TYPES[i % TYPES.len()], TYPES[(i + 3) % TYPES.len()]];
        let others = 3 + i % 6;
        let ids = iter::repeat_n(1, rows).chain(iter::repeat_n(2, others)).collect();
        let inputs = plain(rows + others, 3, types, i % 4 == 0).with_ids(ids);
        inputs.is_the_reference(devices).unwrap_or_else(|e| panic!("{rows} rows, {types:?}: {e}"));
    }
}

/// As many experts as there may be; each has one row, or few of them have.
pub fn experts_of_one_row_each(devices: &[Device]) {
    for (m, k) in [(8, 16), (8, 2), (64, 8), (512, 1)] {
        let c = Case { hidden: 32, ff: [32, 32], ..plain(m, 512, SMALL, false) };
        // 5 and 512 have no common divisor: all are distinct.
        let inputs = c.with_ids((0..m * k).map(|p| ((5 * p + 511) % 512) as u32).collect());
        inputs.is_the_reference(devices).unwrap_or_else(|e| panic!("{m} tokens, {k} experts each: {e}"));
    }
}

/// Where products underflow or overflow, zeros, and NaN; others are beside them.
pub fn activations_may_be_of_any_size(devices: &[Device]) {
    let scales = [1.0, 1e-30, 1e30, 0.0, f32::NAN, 1e-12, 1e12, 1.0];
    for (i, m) in [(0, 8), (1, 8), (2, 24)] {
        let types = [TYPES[i], TYPES[i + 2]];
        let c = plain(m, 4, types, i != 1);
        let mut inputs = c.with_ids((0..2 * m).map(|p| (p % 3) as u32).collect());
        inputs.x = Rng(3).normals(m * c.hidden);
        for (t, x) in inputs.x.chunks_mut(c.hidden).enumerate() {
            x.iter_mut().for_each(|x| *x *= scales[t % 8]);
        }
        let got = inputs.is_the_reference(devices).unwrap();
        for (t, y) in got.chunks(c.hidden).enumerate() {
            let scale = scales[t % 8];
            let lost = y.iter().any(|y| y.is_finite()) != (scale < 1e30);
            assert!(!lost && (scale != 0.0 || y.iter().all(|y| *y == 0.0)), "token {t}, {scale:e}: {y:?}");
        }
    }
}

/// Sizes of a call, and whether its input is NaN.
type Step = (usize, [usize; 2], usize, bool);

/// Tokens; width of experts and of the shared one, if there is one; experts. Each narrower width has a wider one of NaN before.
const STEPS: [Step; 12] = [
    (1, [96, 0], 4, false),
    (130, [320, 96], 4, true),
    (5, [96, 32], 4, false),
    (9, [320, 320], 6, true),
    (9, [32, 96], 6, false),
    (1, [96, 0], 6, true),
    (64, [320, 0], 3, false),
    (1, [32, 320], 3, true),
    (1, [320, 96], 3, false),
    (130, [256, 256], 4, true),
    (130, [96, 96], 4, false),
    (5, [32, 32], 4, false),
];

fn of_step((m, ff, experts, nan): Step) -> Inputs {
    // Widths that change with each other.
    let hidden = if ff[0] == 320 { 96 } else { 320 };
    let c = Case { hidden, ff: [ff[0], ff[1].max(32)], ..plain(m, experts, SMALL, ff[1] > 0) };
    let mut rng = Rng((m + ff[0]) as u64);
    let mut inputs = c.with_ids((0..2 * m).map(|_| rng.below(experts) as u32).collect());
    if nan {
        inputs.x.fill(f32::NAN);
    }
    inputs
}

/// Step after step of other sizes with one scratch: the same bits as with a new one. NaN of one would be seen in the next if it were
/// behind the end of a row.
pub fn memory_is_used_again(devices: &[Device]) {
    for d in devices {
        let mut scratch = MoeScratch::new(d).unwrap();
        for step in STEPS {
            let inputs = of_step(step);
            let options = MoeOptions { scratch: Some(&mut scratch), ..MoeOptions::default() };
            let got = inputs.run_with(d, options).unwrap();
            equal("y", &got, &inputs.run(d).unwrap()).unwrap_or_else(|e| panic!("{step:?}: {e}"));
            assert_eq!(got.iter().any(|y| y.is_nan()), step.3, "{step:?}");
        }
    }
}

/// A call whose inputs and output stay where they are.
struct Call {
    experts: Ffn,
    shared: Option<Ffn>,
    x: Tensor,
    routing: Routing,
    y: Tensor,
}

impl Call {
    fn new(d: &Device, inputs: &Inputs) -> Call {
        let (experts, shared) = inputs.layers(d);
        let (x, y) = (tensor(d, inputs.hidden(), &inputs.x), poisoned(d, inputs.m(), inputs.hidden()));
        Call { experts, shared, x, routing: inputs.routing(d), y }
    }

    fn issue(&mut self, scratch: Option<&mut MoeScratch>) -> glm5::Result<()> {
        let options = MoeOptions { scratch, ..MoeOptions::default() };
        let Call { experts, shared, x, routing, y } = self;
        moe_with(options, experts, shared.as_ref(), x, routing, y, Precision::Fast)
    }

    /// Puts other inputs in place, and poison in the output's.
    fn put(&mut self, inputs: &Inputs) {
        self.x.cuda_mut().unwrap().upload(0, &inputs.x).unwrap();
        self.routing.ids.cuda_mut().unwrap().upload(0, &inputs.ids).unwrap();
        self.routing.weights.cuda_mut().unwrap().upload(0, &inputs.weights).unwrap();
        self.y.cuda_mut().unwrap().upload(0, &vec![POISON; inputs.x.len()]).unwrap();
    }
}

/// With room, which a call that is not recorded makes; replays take the inputs of then, of which other experts have rows.
pub fn calls_are_recorded(devices: &[Device]) {
    for (m, shared) in [(3, true), (8, false), (20, true), (40, false)] {
        let c = plain(m, 6, SMALL, shared);
        let first = Inputs { ids: [1, 4].repeat(m), weights: [0.5, -1.5].repeat(m), k: 2, ..c.inputs() };
        let mut rng = Rng(m as u64);
        let mut second = Inputs {
            x: rng.normals(m * c.hidden),
            ids: (0..2 * m).map(|_| rng.below(6) as u32).collect(),
            weights: rng.normals(2 * m),
            ..first.clone()
        };
        (second.ids[1], second.weights[1]) = (NO_EXPERT, f32::NAN);
        for d in devices {
            let wants = [&first, &second].map(|inputs| inputs.run(d).unwrap());
            let gpu = d.gpu().unwrap();
            let (mut call, mut scratch) = (Call::new(d, &first), MoeScratch::new(d).unwrap());
            for scratch in [None, Some(&mut scratch)] {
                let refused = gpu.capture(|| call.issue(scratch));
                assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
            }
            assert!(untouched(&call.y), "a capture that was refused ran");
            call.issue(Some(&mut scratch)).unwrap();
            equal("y", &host(&call.y), &wants[0]).unwrap();
            let mut graph = gpu.capture(|| call.issue(Some(&mut scratch))).unwrap();
            for i in [1, 0, 1, 1] {
                call.put([&first, &second][i]);
                graph.launch().unwrap();
                equal("a replay", &host(&call.y), &wants[i])
                    .unwrap_or_else(|e| panic!("{m} tokens, inputs {i}: {e}"));
            }
        }
    }
}

/// What calls of other widths leave in the scratch is not in the results of a graph that was recorded before them, nor what those of
/// the same graph leave to each other.
pub fn a_replay_does_not_depend_on_calls_between(devices: &[Device]) {
    for m in [4, 20] {
        let of_width = |ff: usize| {
            // Of many tokens the shared expert has memory of its own, with nothing behind the end of rows.
            let shared = if m <= FEW_ROWS { ff } else { 96 };
            Case { ff: [ff, shared], ..plain(m, 4, SMALL, true) }.with_ids([0, 3].repeat(m))
        };
        let (narrow, mut wide) = (of_width(96), of_width(320));
        wide.x.fill(f32::NAN);
        for d in devices {
            let (want, gpu) = (narrow.run(d).unwrap(), d.gpu().unwrap());
            let mut scratch = MoeScratch::new(d).unwrap();
            let (mut call, mut other) = (Call::new(d, &narrow), Call::new(d, &wide));
            // Room for both; the narrow one comes last, so that nothing is left to clear when it is recorded.
            other.issue(Some(&mut scratch)).unwrap();
            call.issue(Some(&mut scratch)).unwrap();
            equal("y", &host(&call.y), &want).unwrap();
            let mut alone = gpu.capture(|| call.issue(Some(&mut scratch))).unwrap();
            let both = || call.issue(Some(&mut scratch)).and_then(|()| other.issue(Some(&mut scratch)));
            let mut both = gpu.capture(both).unwrap();
            both.launch().unwrap();
            for (what, graph) in [("alone", &mut alone), ("both", &mut both)] {
                call.put(&narrow);
                graph.launch().unwrap();
                equal(what, &host(&call.y), &want).unwrap_or_else(|e| panic!("{m} tokens: {e}"));
            }
        }
    }
}

/// Any call but the first of its size, also if others came between.
pub fn calls_of_an_earlier_size_are_recorded(devices: &[Device]) {
    for d in devices {
        let (gpu, mut scratch) = (d.gpu().unwrap(), MoeScratch::new(d).unwrap());
        let sizes = [(4, [32, 96]), (4, [96, 32]), (20, [32, 96]), (20, [96, 32])];
        let mut calls =
            sizes.map(|(m, ff)| Call::new(d, &Case { ff, ..plain(m, 4, SMALL, true) }.with_ids(vec![1; m])));
        for call in &mut calls {
            call.issue(Some(&mut scratch)).unwrap();
        }
        for (call, size) in calls.iter_mut().zip(sizes) {
            let graph = gpu.capture(|| call.issue(Some(&mut scratch)));
            assert!(graph.is_ok(), "{size:?}: {graph:?}");
        }
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    use GgmlType::{Q4_K, Q5_0, Q6_K, Q8_0};
    let d = &devices[0];
    let (hidden, ff) = (256, 256);
    let tiles =
        |ty, slabs, rows, cols| Matrix::for_fast_linear(d, random_weight(ty, slabs, rows, cols, 1)).unwrap();
    let blocks = |ty, slabs, rows, cols| matrix(d, &random_weight(ty, slabs, rows, cols, 1));
    let stack = |slabs, hidden, ff| {
        let down = tiles(Q8_0, slabs, hidden, ff);
        Ffn::new(tiles(Q4_K, slabs, ff, hidden), tiles(Q4_K, slabs, ff, hidden), down).unwrap()
    };
    let (experts, one) = (stack(4, hidden, ff), stack(1, hidden, 96));
    for m in [2, 10] {
        let ids = [0, 3].repeat(m);
        let (x, wide) = (tensor(d, hidden, &vec![1.0; m * hidden]), tensor(d, 512, &vec![1.0; m * 512]));
        let good = routing(d, m, &ids, &vec![1.0; 2 * m]);
        let short = routing(d, 1, &ids[..2], &[1.0; 2]);
        let mut uneven = routing(d, m, &ids, &vec![1.0; 2 * m]);
        uneven.weights = short.weights.try_clone().unwrap();
        let [mut y, mut tall, mut other] =
            [(m, hidden), (m + 1, hidden), (m, 512)].map(|(rows, cols)| poisoned(d, rows, cols));
        let call =
            |experts: &Ffn, shared: Option<&Ffn>, x: &Tensor, r: &Routing, y: &mut Tensor, precision| {
                moe_with(MoeOptions::default(), experts, shared, x, r, y, precision)
            };
        let fast = Precision::Fast;
        refused(vec![
            ("x", call(&experts, None, &wide, &good, &mut y, fast)),
            ("y rows", call(&experts, None, &x, &good, &mut tall, fast)),
            ("y cols", call(&experts, None, &x, &good, &mut other, fast)),
            ("ids", call(&experts, None, &x, &short, &mut y, fast)),
            ("weights", call(&experts, None, &x, &uneven, &mut y, fast)),
            ("shared stack", call(&experts, Some(&stack(2, hidden, 96)), &x, &good, &mut y, fast)),
            ("shared width", call(&experts, Some(&stack(1, 512, 96)), &x, &good, &mut y, fast)),
        ]);

        let unequal = |slabs| {
            let down = tiles(Q8_0, slabs, hidden, ff);
            Ffn::new(tiles(Q4_K, slabs, ff, hidden), tiles(Q6_K, slabs, ff, hidden), down).unwrap()
        };
        // One of the three in blocks, though its type has tiles, or because it has none.
        let mixed = |slabs: usize, which: usize, ty: GgmlType| {
            let shape = |i: usize| if i == 2 { (hidden, ff) } else { (ff, hidden) };
            let [gate, up, down] = [0, 1, 2].map(|i| match i == which {
                true => blocks(ty, slabs, shape(i).0, shape(i).1),
                false => tiles(Q4_K, slabs, shape(i).0, shape(i).1),
            });
            Ffn::new(gate, up, down).unwrap()
        };
        let narrow = |ty, slabs, rows, cols| tiles(ty, slabs, rows, cols);
        let many =
            Ffn::new(narrow(Q5_0, 513, 32, 256), narrow(Q5_0, 513, 32, 256), narrow(Q5_0, 513, 256, 32));
        let mut unsupported = vec![
            ("exact".to_string(), call(&experts, None, &x, &good, &mut y, Precision::Exact)),
            ("exact, shared".into(), call(&experts, Some(&one), &x, &good, &mut y, Precision::Exact)),
            ("gate and up".into(), call(&unequal(4), None, &x, &good, &mut y, fast)),
            ("shared gate and up".into(), call(&experts, Some(&unequal(1)), &x, &good, &mut y, fast)),
            ("513 experts".into(), call(&many.unwrap(), None, &x, &good, &mut y, fast)),
        ];
        for which in 0..3 {
            for ty in [Q4_K, GgmlType::Q3_K] {
                let result = call(&mixed(4, which, ty), None, &x, &good, &mut y, fast);
                unsupported.push((format!("{ty} in blocks, {which}"), result));
                let result = call(&experts, Some(&mixed(1, which, ty)), &x, &good, &mut y, fast);
                unsupported.push((format!("{ty} in blocks, {which} of the shared"), result));
            }
        }
        for (what, result) in unsupported {
            assert!(matches!(result, Err(Error::Unsupported { .. })), "{what}, {m} tokens: {result:?}");
        }
        // The last of four would have the id of none, or one beyond all ids.
        for first in [NO_EXPERT as usize - 3, NO_EXPERT as usize, usize::MAX] {
            let options = MoeOptions { first_expert: Some(first), ..MoeOptions::default() };
            let result = moe_with(options, &experts, Some(&one), &x, &good, &mut y, fast);
            assert!(matches!(result, Err(Error::Argument { .. })), "experts from {first} on: {result:?}");
        }
        assert!([&y, &tall, &other].into_iter().all(untouched), "a refused call wrote something");
        // And what they were to refuse is not how the good ones differ.
        call(&experts, Some(&one), &x, &good, &mut y, fast).unwrap();
        assert!(host(&y).iter().all(|y| y.is_finite()));
    }
    let elsewhere = MoeScratch::new(&Device::cpu(Some(1)).unwrap());
    assert!(matches!(elsewhere, Err(Error::Unsupported { .. })), "{elsewhere:?}");
}

/// Whether a device is one for large tests; if not it says why.
fn is_large(d: &Device) -> bool {
    if d.name().contains("emulator") {
        println!("left to GPUs: the emulator takes too long");
        return false;
    }
    let total = d.gpu().unwrap().memory().unwrap().total;
    if total < 16 << 30 {
        println!("left to GPUs with 16 GiB: this one has {} MiB", total >> 20);
    }
    total >= 16 << 30
}

/// An expert of few rows behind more than 2^20 places of another: they are right, or all of it is refused.
pub fn more_places_than_fit_in_20_bits(devices: &[Device]) {
    let (m, k) = ((1 << 17) + 40, 8);
    for d in devices.iter().filter(|d| is_large(d)) {
        let c = Case { hidden: 32, ff: [32, 32], ..plain(m, 2, SMALL, false) };
        let mut ids = vec![0; m * k];
        *ids.last_mut().unwrap() = 1;
        let inputs = c.with_ids(ids);
        let got = match inputs.run(d) {
            Ok(got) => got,
            Err(Error::Capacity { .. } | Error::Unsupported { .. }) => continue,
            Err(e) => panic!("{e}"),
        };
        // Those of the first places, of which the last expert's could take one, and the last.
        for t in (0..600).chain([m - 2, m - 1]) {
            let (want, off) = inputs.token(t).expected(ActivationFormat::Int8);
            close("y", &got[t * 32..(t + 1) * 32], &want, |i| off[i])
                .unwrap_or_else(|e| panic!("token {t}: {e}"));
        }
    }
}

/// A stack of random blocks, repeated so that no two experts have the same bytes, and those experts of it that are asked for.
fn full_size(d: &Device, rows: usize, cols: usize, seed: u64, which: &[usize]) -> (Matrix, Weight) {
    let (ty, slabs) = (GgmlType::Q6_K, 256);
    // A prime number of blocks: experts begin at other ones of it.
    let pattern = random_blocks(ty, 4099, false, seed);
    let slab = rows * cols / ty.block_elems() * ty.block_bytes();
    let mut bytes = Vec::with_capacity(slabs * slab);
    while bytes.len() < slabs * slab {
        bytes.extend_from_slice(&pattern[..pattern.len().min(slabs * slab - bytes.len())]);
    }
    let some: Vec<u8> = which.iter().flat_map(|e| &bytes[e * slab..(e + 1) * slab]).copied().collect();
    let all = Weight::new(ty, [slabs, rows, cols], bytes.into()).unwrap();
    let some = Weight::new(ty, [which.len(), rows, cols], some.into()).unwrap();
    (Matrix::for_fast_linear(d, all).unwrap(), some)
}

/// Stacks of 2.6 GB, which offsets of 31 and of 32 bits do not reach through; tokens go to experts on either side of where these end.
pub fn a_stack_of_full_size(devices: &[Device]) {
    let (hidden, ff, kinds) = (6144, 2048, 3);
    let experts: [usize; 6] = [0, 127, 128, 170, 203, 255];
    for d in devices.iter().filter(|d| is_large(d)) {
        let (gate, gate_of) = full_size(d, ff, hidden, 1, &experts);
        let (up, up_of) = full_size(d, ff, hidden, 2, &experts);
        let (down, down_of) = full_size(d, hidden, ff, 3, &experts);
        let all = Ffn::new(gate, up, down).unwrap();
        let some = Layer { gate: gate_of, up: up_of, down: down_of };
        // Tokens are of a few kinds, for which each expert is computed once.
        let x = Rng(5).normals(kinds * hidden);
        let of_experts = [0, 1, 2, 3, 4, 5].map(|e| expected(&some, e, &x, ActivationFormat::Int8));
        // Few tokens; many, of which experts on the one side have few and then those on the other.
        for (m, rare) in [(2, None), (24, Some(0..3)), (24, Some(3..6))] {
            let mut rng = Rng(m as u64);
            let there = |t: usize, e: usize| t < 5 || rare.as_ref().is_none_or(|rare| !rare.contains(&e));
            let slots: Vec<Option<usize>> = (0..m)
                .flat_map(|t| (0..6).map(move |e| (t, e)))
                .map(|(t, e)| there(t, e).then_some(e))
                .collect();
            let ids: Vec<u32> = slots.iter().map(|e| e.map_or(NO_EXPERT, |e| experts[e] as u32)).collect();
            let weights: Vec<f32> = slots.iter().map(|_| 0.3 * rng.normal()).collect();
            let rows: Vec<f32> = (0..m).flat_map(|t| &x[t % kinds * hidden..][..hidden]).copied().collect();
            let mut y = poisoned(d, m, hidden);
            let (of, at) = (routing(d, m, &ids, &weights), tensor(d, hidden, &rows));
            moe_with(MoeOptions::default(), &all, None, &at, &of, &mut y, Precision::Fast).unwrap();
            for (t, y) in host(&y).chunks(hidden).enumerate() {
                let (mut want, mut off) = (vec![0.0; hidden], vec![0.0; hidden]);
                for (e, weight) in slots[t * 6..][..6].iter().zip(&weights[t * 6..]) {
                    let Some(e) = e else { continue };
                    let (rows, offs) = (&of_experts[*e].0, &of_experts[*e].1);
                    for i in 0..hidden {
                        let (at, weight) = (t % kinds * hidden + i, f64::from(*weight));
                        want[i] += weight * rows[at];
                        off[i] += weight.abs() * offs[at] + 28.0 * EPS * (weight * rows[at]).abs();
                    }
                }
                close("y", y, &want, |i| off[i]).unwrap_or_else(|e| panic!("token {t} of {m}: {e}"));
            }
        }
    }
}
