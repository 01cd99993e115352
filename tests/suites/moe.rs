//! Mixture of experts.

use std::ops::Range;

use glm5::ops::ffn::Ffn;
use glm5::ops::ffn::reference::Weights as FfnValues;
use glm5::ops::moe::{MoeOptions, NO_EXPERT, moe, moe_with, reference};
use glm5::ops::router::{RouterConfig, Routing, router};
use glm5::quant::{GgmlType, Weight};
use glm5::tensor::{Device, Precision, Tensor};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::{Rng, random_weight};
use super::close::{EPS, close, equal, ulp};
use super::ffn::Layer;
use super::inputs::*;
use super::router::GLM5;

macro_rules! moe_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { moe, $devices, $cases;
        moe_is_the_reference(case), zero_weights_leave_the_shared_expert(case),
        a_token_does_not_depend_on_the_others(case), padding_adds_nothing(case),
        shards_of_experts_add_up(case), shards_of_the_width_add_up(case);
        takes_many_experts_per_token, takes_any_split_of_tokens, takes_a_shard_of_the_last_ids,
        equal_logits_give_the_mean_of_experts, refuses_what_does_not_fit }
    };
}
pub(crate) use moe_properties;

/// How tokens choose.
#[derive(Debug, Clone, Copy)]
pub enum Choice {
    /// Distinct experts at random: with few tokens, most experts have none.
    Random,
    /// The same experts for all tokens.
    Same,
    /// One expert in all places, so that it counts several times.
    Repeated,
    /// None.
    Nothing,
}

#[derive(Debug, Clone)]
pub struct Case {
    m: usize,
    experts: usize,
    k: usize,
    hidden: usize,
    ff: usize,
    choice: Choice,
    shared: bool,
    precision: Precision,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    let width = || prop::sample::select(vec![32usize, 96, 256, 256]);
    let choice = prop_oneof![
        5 => Just(Choice::Random),
        2 => Just(Choice::Same),
        1 => Just(Choice::Repeated),
        1 => Just(Choice::Nothing),
    ];
    let precision = prop::sample::select(vec![Precision::Exact, Precision::Exact, Precision::Fast]);
    (small_m(), 1usize..12, 1usize..9, width(), width(), choice, any::<bool>(), precision, any::<u64>())
        .prop_map(|(m, experts, k, hidden, ff, choice, shared, precision, seed)| Case {
            m,
            experts,
            k: if matches!(choice, Choice::Nothing) { 0 } else { k.min(experts) },
            hidden,
            ff,
            choice,
            shared,
            // How many rows share a rounding is stated for distinct experts only.
            precision: if matches!(choice, Choice::Repeated) { Precision::Exact } else { precision },
            seed,
        })
}

/// Everything about a case but its size.
struct Inputs {
    experts: Layer,
    shared: Option<Layer>,
    x: Vec<f32>,
    ids: Vec<u32>,
    weights: Vec<f32>,
}

impl Case {
    fn inputs(&self) -> Inputs {
        let rng = &mut Rng(!self.seed);
        let mut ids = Vec::new();
        let mut order: Vec<u32> = (0..self.experts as u32).collect();
        for t in 0..self.m {
            if t == 0 || matches!(self.choice, Choice::Random) {
                for i in (1..order.len()).rev() {
                    order.swap(i, rng.below(i + 1));
                }
            }
            ids.extend(
                (0..self.k)
                    .map(|j| if matches!(self.choice, Choice::Repeated) { order[0] } else { order[j] }),
            );
        }
        self.with_ids(ids)
    }

    /// The same with `[m, k]` ids of the caller's.
    fn with_ids(&self, ids: Vec<u32>) -> Inputs {
        let rng = &mut Rng(self.seed ^ 0x1d5);
        let mut inputs = Inputs {
            experts: Layer::random(self.experts, self.hidden, self.ff, self.seed),
            shared: self.shared.then(|| Layer::random(1, self.hidden, self.ff + 256, !self.seed)),
            x: activations(self.m, self.hidden, rng),
            weights: ids.iter().map(|_| 0.3 * rng.normal()).collect(),
            ids,
        };
        inputs.spoil_unused();
        inputs
    }
}

/// Experts that nobody chooses become NaN (all bits set: NaN values or NaN scales), so that reading one shows.
pub fn spoil_unused(w: &Weight, ids: &[u32]) -> Weight {
    let mut bytes = w.bytes().to_vec();
    for (e, slab) in bytes.chunks_mut(w.rows() * w.row_bytes()).enumerate() {
        if !ids.contains(&(e as u32)) {
            slab.fill(0xff);
        }
    }
    Weight::new(w.ty(), w.shape(), bytes.into()).unwrap()
}

pub fn routing(d: &Device, m: usize, ids: &[u32], weights: &[f32]) -> Routing {
    let k = ids.len() / m;
    let mut routing = Routing::new(d, 1, k).unwrap();
    routing.ids = Tensor::from_vec(d, m, k, ids.to_vec()).unwrap();
    routing.weights = Tensor::from_vec(d, m, k, weights.to_vec()).unwrap();
    routing.logits = poisoned(d, m, 1);
    routing
}

impl Inputs {
    fn spoil_unused(&mut self) {
        for w in [&mut self.experts.gate, &mut self.experts.up, &mut self.experts.down] {
            *w = spoil_unused(w, &self.ids);
        }
    }

    /// The same with other experts, and with the shared one only if asked for.
    fn of(&self, experts: Layer, shared: bool) -> Inputs {
        let shared = self.shared.clone().filter(|_| shared);
        Inputs { experts, shared, x: self.x.clone(), ids: self.ids.clone(), weights: self.weights.clone() }
    }

    fn run(&self, d: &Device, precision: Precision) -> glm5::Result<Vec<f32>> {
        self.run_shard(d, None, precision)
    }

    fn run_shard(
        &self,
        d: &Device,
        first_expert: Option<usize>,
        precision: Precision,
    ) -> glm5::Result<Vec<f32>> {
        let hidden = self.experts.gate.cols();
        let m = self.x.len() / hidden;
        let mut y = poisoned(d, m, hidden);
        let shared = self.shared.as_ref().map(|s| s.on(d));
        let routing = routing(d, m, &self.ids, &self.weights);
        let (experts, x) = (self.experts.on(d), tensor(d, hidden, &self.x));
        match first_expert {
            None => moe(&experts, shared.as_ref(), &x, &routing, &mut y, precision)?,
            Some(_) => {
                let options = MoeOptions { first_expert, ..MoeOptions::default() };
                moe_with(options, &experts, shared.as_ref(), &x, &routing, &mut y, precision)?;
            }
        }
        Ok(host(&y))
    }

    /// What the specification makes of it.
    fn specified(&self, first_expert: Option<usize>) -> Vec<f64> {
        let (experts, shared) = (self.experts.values(), self.shared.as_ref().map(|s| s.values()));
        let (shared, k) = (shared.as_ref().map(|s| s.weights()), self.ids.len() / self.m());
        let (options, experts) = (MoeOptions { first_expert, ..MoeOptions::default() }, experts.weights());
        reference::moe_with(options, &experts, shared.as_ref(), &self.x, &self.ids, &self.weights, k).unwrap()
    }

    fn m(&self) -> usize {
        self.x.len() / self.experts.gate.cols()
    }

    /// The expected output and how far it may be off, expert by expert: each takes its rows in one call.
    fn expected(&self, precision: Precision) -> (Vec<f64>, Vec<f64>) {
        self.expected_shard(0, precision)
    }

    /// The same for a stack that begins with expert `first`.
    fn expected_shard(&self, first: usize, precision: Precision) -> (Vec<f64>, Vec<f64>) {
        let k = self.ids.len() / self.m();
        let hidden = self.experts.gate.cols();
        let (mut y, mut off) = (vec![0.0; self.x.len()], vec![0.0; self.x.len()]);
        let mut add = |rows: &[(usize, f64)], out: (Vec<f64>, Vec<f64>)| {
            for (r, (t, weight)) in rows.iter().enumerate() {
                for i in 0..hidden {
                    let v = weight * out.0[r * hidden + i];
                    y[t * hidden + i] += v;
                    off[t * hidden + i] +=
                        weight.abs() * out.1[r * hidden + i] + 4.0 * EPS * (k as f64 + 1.0) * v.abs();
                }
            }
        };
        let values = self.experts.values();
        for e in 0..self.experts.gate.slabs() {
            let pairs = (0..self.ids.len()).filter(|p| self.ids[*p] as usize == first + e);
            let rows: Vec<(usize, f64)> = pairs.map(|p| (p / k, f64::from(self.weights[p]))).collect();
            if !rows.is_empty() {
                let x: Vec<f32> =
                    rows.iter().flat_map(|(t, _)| &self.x[t * hidden..(t + 1) * hidden]).copied().collect();
                add(&rows, values.expected(e, &x, precision));
            }
        }
        if let Some(shared) = &self.shared {
            let rows: Vec<(usize, f64)> = (0..self.x.len() / hidden).map(|t| (t, 1.0)).collect();
            add(&rows, shared.values().expected(0, &self.x, precision));
        }
        (y, off)
    }
}

pub fn moe_is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let inputs = c.inputs();
    let got = on_each(devices, |d| inputs.run(d, c.precision))?;
    let (want, off) = inputs.expected(c.precision);
    close("y", &got, &want, |i| off[i])?;
    if c.precision == Precision::Exact {
        close("y against the specification", &got, &inputs.specified(None), |i| off[i])?;
    }
    Ok(())
}

/// Neither scaled nor gated: what is left is the shared expert alone, and nothing at all without one.
pub fn zero_weights_leave_the_shared_expert(devices: &[Device], c: Case) -> TestCaseResult {
    let mut inputs = c.inputs();
    inputs.weights.fill(0.0);
    let got = on_each(devices, |d| inputs.run(d, c.precision))?;
    match &inputs.shared {
        None => equal("y", &got.iter().map(|v| v.abs()).collect::<Vec<_>>(), &vec![0.0; got.len()]),
        Some(shared) => {
            let (want, off) = shared.values().expected(0, &inputs.x, c.precision);
            close("y", &got, &want, |i| off[i])
        }
    }
}

/// A token's row full of NaN, as in an unused place of a batch, spoils no other.
pub fn a_token_does_not_depend_on_the_others(devices: &[Device], c: Case) -> TestCaseResult {
    let mut inputs = c.inputs();
    let clean = on_each(devices, |d| inputs.run(d, c.precision))?;
    let t = Rng(c.seed).below(c.m);
    let row = t * c.hidden..(t + 1) * c.hidden;
    inputs.x[row.clone()].fill(f32::NAN);
    let got = on_each(devices, |d| inputs.run(d, c.precision))?;
    if c.k > 0 || c.shared {
        prop_assert!(got[row.clone()].iter().all(|v| v.is_nan()), "NaN was lost");
    }
    equal("rows before", &got[..row.start], &clean[..row.start])?;
    equal("rows after", &got[row.end..], &clean[row.end..])
}

/// Places of no expert, with weights that are NaN, change nothing, and nothing of an expert is read that only they could mean:
/// not of the last nor of any other. A token that has no other places is zero, or its shared expert, even if it is NaN itself.
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
    let got = on_each(devices, |d| inputs.run(d, c.precision))?;
    let (want, off) = inputs.expected(c.precision);
    close("y", &got, &want, |i| off[i])?;
    if c.precision == Precision::Exact {
        close("y against the specification", &got, &inputs.specified(None), |i| off[i])?;
    }

    let row = empty * c.hidden..(empty + 1) * c.hidden;
    if !c.shared {
        inputs.x[row.clone()].fill(f32::NAN);
        let got = on_each(devices, |d| inputs.run(d, c.precision))?;
        equal("a row of no expert", &got[row.clone()], &vec![0.0; c.hidden])?;
        prop_assert!(inputs.specified(None)[row].iter().all(|v| *v == 0.0));
    }
    Ok(())
}

/// `n` ranges that cover `0..of` and begin at multiples of `step`, or fewer if there is not that much of it.
pub fn cuts(n: usize, of: usize, step: usize, rng: &mut Rng) -> Vec<Range<usize>> {
    let mut places: Vec<usize> = (1..of.div_ceil(step)).map(|i| i * step).collect();
    while places.len() >= n {
        places.remove(rng.below(places.len()));
    }
    places.push(of);
    let starts = [0].into_iter().chain(places.clone());
    starts.zip(places).map(|(a, b)| a..b).collect()
}

/// Results of shards, added up in f64, against what is expected of the whole. Each shard may be off by its own bound, which is
/// that of rounding in f32, and the sum by all of them.
fn add_up(
    devices: &[Device],
    c: &Case,
    whole: &Inputs,
    shards: &[(Option<usize>, Inputs)],
) -> TestCaseResult {
    let (mut sum, mut want, mut off) =
        (vec![0.0; whole.x.len()], vec![0.0; whole.x.len()], vec![0.0; whole.x.len()]);
    for (first, shard) in shards {
        let got = on_each(devices, |d| shard.run_shard(d, *first, c.precision))?;
        let (shard_want, shard_off) = shard.expected_shard(first.unwrap_or(0), c.precision);
        close("y of a shard", &got, &shard_want, |i| shard_off[i])?;
        if c.precision == Precision::Exact {
            close("y of a shard, specified", &got, &shard.specified(*first), |i| shard_off[i])?;
        }
        for i in 0..sum.len() {
            sum[i] += f64::from(got[i]);
            want[i] += shard_want[i];
            off[i] += shard_off[i] + 4.0 * ulp(shard_want[i]);
        }
    }
    let sum: Vec<f32> = sum.iter().map(|v| *v as f32).collect();
    let (whole_want, whole_off) = whole.expected(c.precision);
    close("sum of shards", &sum, &whole_want, |i| off[i])?;
    // Exact arithmetic is the same for the whole and its parts, so the bounds are about rounding alone.
    for i in 0..want.len() {
        prop_assert!((want[i] - whole_want[i]).abs() <= 1e-6 * (off[i] + whole_off[i]), "{} {}", want[i], i);
    }
    Ok(())
}

/// Up to four shards, of one expert or more; the shared expert belongs to one of them, and ids of the others are passed over.
pub fn shards_of_experts_add_up(devices: &[Device], c: Case) -> TestCaseResult {
    let mut inputs = c.inputs();
    let rng = &mut Rng(c.seed ^ 0xc0);
    if let Some(p) = inputs.ids.len().checked_sub(1).map(|last| rng.below(last + 1)) {
        (inputs.ids[p], inputs.weights[p]) = (NO_EXPERT, f32::NAN);
    }
    inputs.spoil_unused();
    let parts = cuts(1 + rng.below(4), c.experts, 1, rng);
    let with_shared = rng.below(parts.len());
    let shard = |(i, part): (usize, &Range<usize>)| {
        (Some(part.start), inputs.of(inputs.experts.experts(part.clone()), i == with_shared))
    };
    let shards: Vec<_> = parts.iter().enumerate().map(shard).collect();
    add_up(devices, &c, &inputs, &shards)
}

/// Up to four shards, each a part of every expert's width in whole blocks.
pub fn shards_of_the_width_add_up(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed ^ 0x3d);
    // Wide enough for a cut through blocks of 256.
    let c = Case { ff: if c.ff == 256 { 1024 } else { c.ff }, experts: c.experts.min(6), k: c.k.min(6), ..c };
    let inputs = c.inputs();
    // With 8-bit activations, those between are rounded in blocks of 32: types of blocks are cut between these anyway.
    let parts = cuts(1 + rng.below(4), c.ff, inputs.experts.down.ty().block_elems(), rng);
    let with_shared = rng.below(parts.len());
    let shard = |(i, part): (usize, &Range<usize>)| {
        (None, inputs.of(inputs.experts.part(part.clone()), i == with_shared))
    };
    let shards: Vec<_> = parts.iter().enumerate().map(shard).collect();
    add_up(devices, &c, &inputs, &shards)
}

/// More experts per token than any list of fixed length would hold.
pub fn takes_many_experts_per_token(devices: &[Device]) {
    for (m, k) in [(1, 40), (3, 40), (1, 33), (1, 32)] {
        let c = Case {
            m,
            experts: 48,
            k,
            hidden: 32,
            ff: 32,
            choice: Choice::Random,
            shared: true,
            precision: Precision::Exact,
            seed: k as u64,
        };
        moe_is_the_reference(devices, c).unwrap_or_else(|e| panic!("{m} tokens, {k} experts each: {e}"));
    }
}

/// One token; one expert for all tokens; every expert for exactly one token; the first and the last expert alone.
pub fn takes_any_split_of_tokens(devices: &[Device]) {
    let ids: [(usize, Vec<u32>); 6] = [
        (1, vec![8]),
        (40, vec![3; 40]),
        (9, vec![4, 8, 1, 0, 7, 2, 6, 5, 3]),
        (3, vec![4, 8, 1, 0, 7, 2, 6, 5, 3]),
        (1, vec![4, 8, 1, 0, 7, 2, 6, 5, 3]),
        (5, vec![0, 8, 8, 0, 0]),
    ];
    for (i, (m, ids)) in ids.into_iter().enumerate() {
        for (shared, precision) in [(true, Precision::Exact), (false, Precision::Fast)] {
            let (k, seed) = (ids.len() / m, i as u64);
            let (choice, hidden, ff) = (Choice::Random, 96, 256);
            let c = Case { m, experts: 9, k, hidden, ff, choice, shared, precision, seed };
            let inputs = c.with_ids(ids.clone());
            let got = on_each(devices, |d| inputs.run(d, precision)).unwrap();
            let (want, off) = inputs.expected(precision);
            close("y", &got, &want, |i| off[i]).unwrap_or_else(|e| panic!("{ids:?} of {m} tokens: {e}"));
        }
    }
}

/// Ids end before that of no expert. A shard of the last ones has all others nowhere, and does not take no expert for its last.
pub fn takes_a_shard_of_the_last_ids(devices: &[Device]) {
    let (choice, precision) = (Choice::Random, Precision::Exact);
    let first = NO_EXPERT as usize - 2;
    for (m, shared) in [(1, false), (1, true), (3, false), (3, true)] {
        let c = Case { m, experts: 2, k: 4, hidden: 32, ff: 32, choice, shared, precision, seed: 3 };
        let mut inputs = c.with_ids([0, 1, NO_EXPERT - 3, NO_EXPERT].repeat(m));
        for w in [&mut inputs.experts.gate, &mut inputs.experts.up, &mut inputs.experts.down] {
            *w = spoil_unused(w, &[]);
        }
        inputs.weights.fill(f32::NAN);
        let got = on_each(devices, |d| inputs.run_shard(d, Some(first), precision)).unwrap();
        let (want, off) = inputs.expected_shard(first, precision);
        close("y of no experts", &got, &want, |i| off[i]).unwrap();
        if !shared {
            equal("y of no experts", &got, &vec![0.0; got.len()]).unwrap();
        }

        let mut inputs = c.with_ids([1, NO_EXPERT - 1, NO_EXPERT, NO_EXPERT - 2].repeat(m));
        inputs.experts = Layer::random(2, 32, 32, 3); // both are in use
        let (want, off) = inputs.expected_shard(first, precision);
        let got = on_each(devices, |d| inputs.run_shard(d, Some(first), precision)).unwrap();
        close("y", &got, &want, |i| off[i]).unwrap();
        close("y, specified", &got, &inputs.specified(Some(first)), |i| off[i]).unwrap();
    }
}

/// All logits are -40, so that the sigmoids vanish beside the bias, and so nearly beside the 1e-20 of the sum: the first experts
/// are taken, once each, with equal weights, as the router leaves them on the device.
pub fn equal_logits_give_the_mean_of_experts(devices: &[Device]) {
    let (experts, hidden, k) = (16, 32, 8);
    let config = RouterConfig { n_experts_per_tok: k, ..GLM5 };
    let w = Weight::from_f32([1, experts, hidden], &vec![-40.0 / hidden as f32; experts * hidden]).unwrap();
    for (m, shared) in [(1, true), (5, false)] {
        let (choice, precision) = (Choice::Random, Precision::Exact);
        let c = Case { m, experts, k, hidden, ff: 96, choice, shared, precision, seed: 1 };
        let mut inputs = c.with_ids((0..k as u32).collect::<Vec<_>>().repeat(m));
        inputs.x.fill(1.0);
        for d in devices {
            let mut routing = Routing::new(d, experts, k).unwrap();
            let x = tensor(d, hidden, &inputs.x);
            let bias = tensor(d, experts, &vec![11.2; experts]);
            router(&matrix(d, &w), &bias, &x, &config, &mut routing).unwrap();
            assert_eq!(routing.ids.to_vec().unwrap(), inputs.ids);
            inputs.weights = host(&routing.weights);
            assert!(inputs.weights.iter().all(|v| *v == inputs.weights[0] && (v - 2.5 / 8.0).abs() < 1e-3));
            let (mut y, layer) = (poisoned(d, m, hidden), inputs.shared.as_ref().map(|s| s.on(d)));
            moe(&inputs.experts.on(d), layer.as_ref(), &x, &routing, &mut y, precision).unwrap();
            let (want, off) = inputs.expected(precision);
            close("y", &host(&y), &want, |i| off[i]).unwrap();
        }
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let w = |slabs, rows, cols| matrix(d, &random_weight(GgmlType::F32, slabs, rows, cols, 1));
    let layer = |slabs, hidden, ff| {
        Ffn::new(w(slabs, ff, hidden), w(slabs, ff, hidden), w(slabs, hidden, ff)).unwrap()
    };
    let (experts, shared) = (layer(4, 8, 6), layer(1, 8, 5));
    let (x, wide) = (tensor(d, 8, &[1.0; 16]), tensor(d, 9, &[1.0; 18]));
    let (mut y, mut tall, mut other) = (poisoned(d, 2, 8), poisoned(d, 3, 8), poisoned(d, 2, 9));
    let good = routing(d, 2, &[0, 3, 1, 2], &[1.0; 4]);
    let short = routing(d, 1, &[0, 3], &[1.0; 2]);
    let mut uneven = routing(d, 2, &[0, 3, 1, 2], &[1.0; 4]);
    uneven.weights = short.weights.try_clone().unwrap();
    let exact = Precision::Exact;
    refused(vec![
        ("x", moe(&experts, None, &wide, &good, &mut y, exact)),
        ("y rows", moe(&experts, None, &x, &good, &mut tall, exact)),
        ("y cols", moe(&experts, None, &x, &good, &mut other, exact)),
        ("ids", moe(&experts, None, &x, &short, &mut y, exact)),
        ("weights", moe(&experts, None, &x, &uneven, &mut y, exact)),
        ("shared stack", moe(&experts, Some(&layer(2, 8, 5)), &x, &good, &mut y, exact)),
        ("shared width", moe(&experts, Some(&layer(1, 9, 5)), &x, &good, &mut y, exact)),
    ]);
    // A GPU traps, which ends the device.
    if let Device::Cpu(_) = d {
        let bad = routing(d, 2, &[0, 3, 4, 2], &[1.0; 4]);
        let unknown = moe(&experts, Some(&shared), &x, &bad, &mut y, exact);
        assert!(matches!(unknown, Err(glm5::Error::Argument { .. })), "expert 4 of 4: {unknown:?}");
    }
    // Four experts of which the last would have the id of none, or one beyond all ids.
    for first in [NO_EXPERT as usize - 3, NO_EXPERT as usize, usize::MAX - 4, usize::MAX - 3, usize::MAX] {
        let options = MoeOptions { first_expert: Some(first), ..MoeOptions::default() };
        let refusal = moe_with(options, &experts, Some(&shared), &x, &good, &mut y, exact);
        assert!(matches!(refusal, Err(glm5::Error::Argument { .. })), "experts from {first} on: {refusal:?}");
        let options = MoeOptions { first_expert: Some(first), ..MoeOptions::default() };
        let values = [0.0f32; 4 * 6 * 8];
        let values = FfnValues { gate: &values, up: &values, down: &values, hidden: 8, ff: 6 };
        let refusal = reference::moe_with(options, &values, None, &[1.0f32; 16], &[0; 4], &[1.0; 4], 2);
        assert!(matches!(refusal, Err(glm5::Error::Argument { .. })), "experts from {first} on: {refusal:?}");
    }
    assert!([y, tall, other].iter().all(untouched), "a refused call wrote something");
}
