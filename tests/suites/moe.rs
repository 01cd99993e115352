//! Mixture of experts.

use glm5::ops::ffn::Ffn;
use glm5::ops::moe::{moe, reference};
use glm5::ops::router::Routing;
use glm5::quant::{GgmlType, Weight};
use glm5::tensor::{Device, Precision, Tensor};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::{Rng, random_weight};
use super::close::{EPS, close, equal};
use super::ffn::Layer;
use super::inputs::*;

macro_rules! moe_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { moe, $devices, $cases;
        moe_is_the_reference(case), zero_weights_leave_the_shared_expert(case),
        a_token_does_not_depend_on_the_others(case);
        takes_many_experts_per_token, refuses_what_does_not_fit }
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
        let mut experts = Layer::random(self.experts, self.hidden, self.ff, self.seed);
        for w in [&mut experts.gate, &mut experts.up, &mut experts.down] {
            *w = spoil_unused(w, &ids);
        }
        Inputs {
            experts,
            shared: self.shared.then(|| Layer::random(1, self.hidden, self.ff + 256, !self.seed)),
            x: activations(self.m, self.hidden, rng),
            weights: ids.iter().map(|_| 0.3 * rng.normal()).collect(),
            ids,
        }
    }
}

/// Experts that nobody chooses become NaN (all bits set: NaN values or NaN scales), so that reading one shows.
fn spoil_unused(w: &Weight, ids: &[u32]) -> Weight {
    let mut bytes = w.bytes().to_vec();
    for (e, slab) in bytes.chunks_mut(w.rows() * w.row_bytes()).enumerate() {
        if !ids.contains(&(e as u32)) {
            slab.fill(0xff);
        }
    }
    Weight::new(w.ty(), w.shape(), bytes.into()).unwrap()
}

fn routing(d: &Device, m: usize, ids: &[u32], weights: &[f32]) -> Routing {
    let k = ids.len() / m;
    let mut routing = Routing::new(d, 1, k).unwrap();
    routing.ids = Tensor::from_vec(d, m, k, ids.to_vec()).unwrap();
    routing.weights = Tensor::from_vec(d, m, k, weights.to_vec()).unwrap();
    routing.logits = poisoned(d, m, 1);
    routing
}

impl Inputs {
    fn run(&self, d: &Device, precision: Precision) -> glm5::Result<Vec<f32>> {
        let hidden = self.experts.gate.cols();
        let m = self.x.len() / hidden;
        let mut y = poisoned(d, m, hidden);
        let shared = self.shared.as_ref().map(|s| s.on(d));
        let routing = routing(d, m, &self.ids, &self.weights);
        moe(&self.experts.on(d), shared.as_ref(), &tensor(d, hidden, &self.x), &routing, &mut y, precision)?;
        Ok(host(&y))
    }

    /// The expected output and how far it may be off, expert by expert: each takes its rows in one call.
    fn expected(&self, k: usize, precision: Precision) -> (Vec<f64>, Vec<f64>) {
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
            let pairs = (0..self.ids.len()).filter(|p| self.ids[*p] as usize == e);
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
    let (want, off) = inputs.expected(c.k, c.precision);
    close("y", &got, &want, |i| off[i])?;
    if c.precision == Precision::Exact {
        let (experts, shared) = (inputs.experts.values(), inputs.shared.as_ref().map(|s| s.values()));
        let shared = shared.as_ref().map(|s| s.weights());
        let want =
            reference::moe(&experts.weights(), shared.as_ref(), &inputs.x, &inputs.ids, &inputs.weights, c.k);
        close("y against the specification", &got, &want.unwrap(), |i| off[i])?;
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
    assert!([y, tall, other].iter().all(untouched), "a refused call wrote something");
}
