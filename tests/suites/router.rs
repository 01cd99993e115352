//! Router: scores, selection of distinct experts, weights.

use std::collections::BTreeSet;

use glm5::ops::linear::reference::linear;
use glm5::ops::router::{Gating, RouterConfig, Routing, reference, router};
use glm5::quant::{GgmlType, Weight};
use glm5::tensor::Device;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::{Rng, random_weight};
use super::close::{EPS, close, magnitudes, sum_slack, ulp};
use super::inputs::*;

macro_rules! router_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { router, $devices, $cases;
        router_is_the_reference(case), equal_scores_go_to_lower_indices(case),
        groups_are_those_of_the_reference(group_case);
        bias_of_real_checkpoints_is_kept_in_f32, sets_are_those_of_the_reference, tiny_scores_beside_a_bias_give_distinct_experts,
        follows_a_hand_computed_example, stays_distinct_with_nan, a_score_that_is_nan_comes_last,
        groups_follow_a_hand_computed_example, a_group_with_nan_comes_last, refuses_groups_that_do_not_fit,
        a_routing_is_used_again, rows_of_any_length_are_added_up, refuses_what_does_not_fit }
    };
}
pub(crate) use router_properties;

#[derive(Debug, Clone)]
pub struct Case {
    m: usize,
    n_experts: usize,
    hidden: usize,
    ty: GgmlType,
    /// Centre and spread of the bias.
    bias: (f32, f32),
    config: RouterConfig,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    let n_experts = prop::sample::select(vec![1usize, 2, 7, 8, 16, 100, 256, 512]);
    let bias = prop::sample::select(vec![(0.0f32, 0.0f32), (0.0, 0.3), (6.94, 0.12), (11.2, 0.1)]);
    let gating = prop::sample::select(vec![Gating::Sigmoid, Gating::Sigmoid, Gating::Softmax]);
    let factor = prop::sample::select(vec![1.0f32, 2.5]);
    let width = prop_oneof![4 => Just((GgmlType::F32, 192usize)), 2 => type_and_width(512)];
    (any_m(), n_experts, 1usize..=16, width, bias, (gating, any::<bool>(), factor), any::<u64>()).prop_map(
        |(m, n_experts, k, (ty, hidden), bias, (gating, norm_topk_prob, factor), seed)| {
            let n_experts_per_tok = k.min(n_experts);
            let config = RouterConfig {
                n_experts_per_tok,
                gating,
                norm_topk_prob,
                routed_scaling_factor: factor,
                n_groups: 1,
                n_groups_used: 1,
            };
            Case { m, n_experts, hidden, ty, bias, config, seed }
        },
    )
}

/// Experts in groups of any size, of which any number is used; half of the cases take all experts that they can.
pub fn group_case() -> impl Strategy<Value = Case> {
    let groups = prop::sample::select(vec![
        (4usize, 2usize),
        (8, 1),
        (3, 5),
        (8, 32),
        (4, 64),
        (16, 2),
        (1, 9),
        (40, 3),
    ]);
    (any_m(), groups, any::<prop::sample::Index>(), any::<prop::sample::Index>(), case()).prop_map(
        |(m, (n_groups, size), used, k, case)| {
            let n_groups_used = 1 + used.index(n_groups);
            let most = n_groups_used * size;
            let n_experts_per_tok = (1 + k.index(2 * most)).min(most).min(32);
            let config = RouterConfig { n_groups, n_groups_used, n_experts_per_tok, ..case.config };
            Case { m, n_experts: n_groups * size, hidden: 32, ty: GgmlType::F32, config, ..case }
        },
    )
}

/// What a device answers: ids, then weights and logits.
type Answer = (Vec<u32>, (Vec<f32>, Vec<f32>));

fn run(d: &Device, w: &Weight, bias: &[f32], x: &[f32], config: &RouterConfig) -> glm5::Result<Answer> {
    let mut out = Routing::new(d, bias.len(), config.n_experts_per_tok).unwrap();
    // Left over from a larger step.
    let rows = x.len() / w.cols() + 3;
    out.ids.resize(rows).unwrap();
    out.ids.fill(u32::MAX)?;
    out.weights.resize(rows).unwrap();
    out.weights.fill(super::close::POISON)?;
    out.logits.resize(rows).unwrap();
    out.logits.fill(super::close::POISON)?;
    router(&matrix(d, w), &tensor(d, bias.len(), bias), &tensor(d, w.cols(), x), config, &mut out)?;
    Ok((out.ids.to_vec()?, (host(&out.weights), host(&out.logits))))
}

/// The chosen experts must be those that the reference chooses from the same logits, save that biased scores which f32
/// cannot tell apart (4 units in the last place, for the rounding of two scores and two sums; below the smallest
/// normal f32, nothing) may change places.
fn check_choice(
    ids: &[u32],
    weights: &[f32],
    logits: &[f32],
    bias: &[f32],
    config: &RouterConfig,
) -> TestCaseResult {
    let (k, n) = (config.n_experts_per_tok, bias.len());
    let want = reference::route(logits, bias, config).unwrap();
    prop_assert_eq!(ids.len(), want.ids.len());
    for (t, ids) in ids.chunks(k).enumerate() {
        prop_assert!(ids.iter().all(|e| (*e as usize) < n), "row {}: ids {:?} of {}", t, ids, n);
        let distinct: BTreeSet<u32> = ids.iter().copied().collect();
        prop_assert_eq!(distinct.len(), k, "row {}: ids {:?} repeat", t, ids);
        let scores = &want.biased[t * n..(t + 1) * n];
        for (j, (got, want)) in ids.iter().zip(&want.ids[t * k..]).enumerate() {
            let (got, want) = (f64::from(scores[*got as usize]), f64::from(scores[*want as usize]));
            prop_assert!(
                (got - want).abs() <= 4.0 * ulp(want) + 2.0 * f64::from(f32::MIN_POSITIVE),
                "row {}, place {}: {} before {}",
                t,
                j,
                got,
                want
            );
        }
        // Weights belong to the ids that were chosen, whichever of two equals it was.
        let logits: Vec<f64> = logits[t * n..(t + 1) * n].iter().map(|z| f64::from(*z)).collect();
        let scores = reference::scores(&logits, config.gating);
        let chosen: Vec<f64> = ids.iter().map(|e| scores[*e as usize]).collect();
        let sum: f64 = if config.norm_topk_prob { chosen.iter().sum::<f64>() + 1e-20 } else { 1.0 };
        let want: Vec<f64> =
            chosen.iter().map(|s| s / sum * f64::from(config.routed_scaling_factor)).collect();
        // Softmax sums all experts. Scores near the smallest f32 may be cut to zero, which 1e-20 makes 1e-18.
        // An exponential is as good as the absolute rounding of its argument, which for softmax is the distance to the largest.
        let largest = logits.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
        let distance = |e: u32| match config.gating {
            Gating::Softmax => largest - logits[e as usize],
            Gating::Sigmoid => 0.0,
        };
        let relative = |j: usize| EPS * (8.0 + (n as f64).sqrt() + distance(ids[j]));
        close("weights", &weights[t * k..(t + 1) * k], &want, |j| relative(j) * want[j] + 1e-17)?;
    }
    Ok(())
}

pub fn router_is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(!c.seed);
    let w = random_weight(c.ty, 1, c.n_experts, c.hidden, c.seed);
    let bias: Vec<f32> = rng.normals(c.n_experts).iter().map(|z| c.bias.0 + c.bias.1 * z).collect();
    let x = activations(c.m, c.hidden, rng);
    let (ids, (weights, logits)) = on_each(devices, |d| run(d, &w, &bias, &x, &c.config))?;
    let w = values(&w);
    let want = linear(&w, &x, c.n_experts, c.hidden).unwrap();
    let magnitudes = magnitudes(&w, &x, c.hidden);
    close("logits", &logits, &want, |i| sum_slack(c.hidden, magnitudes[i]))?;
    check_choice(&ids, &weights, &logits, &bias, &c.config)
}

/// Experts with the same weights and bias have the same score; the first of them are chosen, in order. Small integers,
/// so that the sums are exact in any order.
pub fn equal_scores_go_to_lower_indices(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let mut integers = |n: usize| -> Vec<f32> { (0..n).map(|_| rng.below(7) as f32 - 3.0).collect() };
    let (row, x) = (integers(c.hidden), integers(c.m * c.hidden));
    let bytes: Vec<u8> = row.iter().flat_map(|v| v.to_le_bytes()).collect();
    let w = Weight::new(GgmlType::F32, [1, c.n_experts, c.hidden], bytes.repeat(c.n_experts).into()).unwrap();
    let bias = vec![c.bias.0; c.n_experts];
    let (ids, _) = on_each(devices, |d| run(d, &w, &bias, &x, &c.config))?;
    let k = c.config.n_experts_per_tok as u32;
    prop_assert_eq!(ids, (0..c.m).flat_map(|_| 0..k).collect::<Vec<_>>());
    Ok(())
}

/// As the metadata of GLM-5 has it.
pub const GLM5: RouterConfig = RouterConfig {
    n_experts_per_tok: 8,
    gating: Gating::Sigmoid,
    norm_topk_prob: true,
    routed_scaling_factor: 2.5,
    n_groups: 1,
    n_groups_used: 1,
};

/// Of each group the sum of its two largest biased scores, or the one of a group of one.
fn group_sums(biased: &[f32], size: usize) -> Vec<f64> {
    let sum = |group: &[f32]| {
        let mut group: Vec<f64> = group.iter().map(|b| f64::from(*b)).collect();
        group.sort_by(|a, b| b.total_cmp(a));
        group.iter().take(2).sum()
    };
    biased.chunks(size).map(sum).collect()
}

/// As the reference has it, from the same logits, in all but rows in which the last group that is used and the first that is not are
/// as close as rounding: both sums, of two scores each, may be off by the 4 units of [`check_choice`].
pub fn groups_are_those_of_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(!c.seed);
    let w = random_weight(c.ty, 1, c.n_experts, c.hidden, c.seed);
    let bias: Vec<f32> = rng.normals(c.n_experts).iter().map(|z| c.bias.0 + c.bias.1 * z).collect();
    let x = activations(c.m, c.hidden, rng);
    let (k, n, groups, used) =
        (c.config.n_experts_per_tok, c.n_experts, c.config.n_groups, c.config.n_groups_used);
    let (ids, (weights, logits)) = on_each(devices, |d| run(d, &w, &bias, &x, &c.config))?;
    let want = reference::route(&logits, &bias, &c.config).unwrap();
    let size = n / groups;
    let mut same = Vec::new();
    for t in 0..c.m {
        let of =
            |ids: &[u32]| ids[t * k..(t + 1) * k].iter().map(|e| *e as usize / size).collect::<BTreeSet<_>>();
        prop_assert!(of(&ids).len() <= used, "row {}: experts of {:?}, {} groups", t, of(&ids), used);
        let mut sums = group_sums(&want.biased[t * n..(t + 1) * n], size);
        sums.sort_by(|a, b| b.total_cmp(a));
        let close = used < groups && sums[used - 1] - sums[used] <= 8.0 * ulp(sums[used - 1]);
        if !close || of(&ids) == of(&want.ids) {
            same.push(t);
        }
    }
    let rows =
        |v: &[f32], n: usize| same.iter().flat_map(|t| &v[t * n..(t + 1) * n]).copied().collect::<Vec<f32>>();
    let ids: Vec<u32> = same.iter().flat_map(|t| &ids[t * k..(t + 1) * k]).copied().collect();
    check_choice(&ids, &rows(&weights, k), &rows(&logits, n), &bias, &c.config)
}

/// Biases as checkpoints have them, large with a tiny spread: expert sets as in f64 for (nearly) every token. Bias or
/// logits in 16 bits change almost all of them.
pub fn bias_of_real_checkpoints_is_kept_in_f32(devices: &[Device]) {
    let (n, hidden, m) = (256, 64, 500);
    for (centre, spread) in [(6.94, 0.12), (11.2, 0.1)] {
        let rng = &mut Rng(centre as u64);
        let w = random_weight(GgmlType::F32, 1, n, hidden, 5);
        let bias: Vec<f32> = (0..n).map(|_| centre + spread * (2.0 * rng.unit() as f32 - 1.0)).collect();
        let x = rng.normals(m * hidden);
        let (ids, (weights, logits)) = on_each(devices, |d| run(d, &w, &bias, &x, &GLM5)).unwrap();
        check_choice(&ids, &weights, &logits, &bias, &GLM5).unwrap();
        for row in weights.chunks(8) {
            let sum: f64 = row.iter().map(|w| f64::from(*w)).sum();
            assert!((sum - 2.5).abs() < 1e-5, "weights sum to {sum}");
        }

        let ideal = linear(&values(&w), &x, n, hidden).unwrap();
        let mut differing = 0;
        for (ids, logits) in ids.chunks(8).zip(ideal.chunks(n)) {
            let scores = reference::scores(logits, Gating::Sigmoid);
            let biased = |e: u32| scores[e as usize] + f64::from(bias[e as usize]);
            let mut order: Vec<u32> = (0..n as u32).collect();
            order.sort_by(|a, b| biased(*b).total_cmp(&biased(*a)));
            let ids: BTreeSet<u32> = ids.iter().copied().collect();
            differing += usize::from(ids != order[..8].iter().copied().collect());
        }
        assert!(differing * 100 <= m, "{differing} of {m} tokens go to other experts than in f64");
    }
}

/// Sets of experts for biases as checkpoints have them: exactly those of the reference from the same f32 logits, which can mean this
/// much. Reference and device add the same bias to sigmoids that differ by a few units in their last place, 1.5e-7 at most: a third
/// of a unit of a biased score from 4 to 8, and less of larger ones. So each biased score is the reference's or a neighbour of it, and
/// two that differ by more than two units keep their order. Only if the scores on both sides of the cut, the last that is chosen and
/// the first that is not, are no further apart may a token have another set; such tokens are counted, other set or not: 0 to 4 of 4096
/// on the CPU, and one of 512 at most. All others must have the reference's set.
///
/// That the test can see anything: biased scores in 16 bits would give most tokens other sets.
///
/// All tokens at once, and 16 at a time, for which a GPU has another kernel. An emulated GPU runs lane by lane and would take minutes:
/// 512 at once there, and 32 otherwise.
pub fn sets_are_those_of_the_reference(devices: &[Device]) {
    let (n, hidden, k) = (256, 64, 8);
    let emulated = devices.iter().any(|d| d.name().contains("emulator"));
    let steps = if emulated { [(512, 512), (32, 16)] } else { [(4096, 4096), (4096, 16)] };
    let set = |ids: &[u32]| ids.iter().copied().collect::<BTreeSet<u32>>();
    for (centre, spread) in [(6.94f32, 0.12f32), (11.2, 0.1)] {
        let rng = &mut Rng(centre as u64 + 1);
        // Logits of the order of one, so that no sigmoid vanishes in the bias or reaches 1.
        let values: Vec<f32> = rng.normals(n * hidden).iter().map(|v| v / (hidden as f32).sqrt()).collect();
        let w = Weight::from_f32([1, n, hidden], &values).unwrap();
        let bias: Vec<f32> = (0..n).map(|_| centre + spread * (2.0 * rng.unit() as f32 - 1.0)).collect();
        for (m, at_once) in steps {
            let (mut close, mut coarse) = (0, 0);
            for x in rng.normals(m * hidden).chunks(at_once * hidden) {
                let (ids, (_, logits)) = on_each(devices, |d| run(d, &w, &bias, x, &GLM5)).unwrap();
                let want = reference::route(&logits, &bias, &GLM5).unwrap();
                for ((got, wanted), biased) in
                    ids.chunks(k).zip(want.ids.chunks(k)).zip(want.biased.chunks(n))
                {
                    let mut sorted: Vec<f64> = biased.iter().map(|b| f64::from(*b)).collect();
                    sorted.sort_by(|a, b| b.total_cmp(a));
                    let is_close = sorted[k - 1] - sorted[k] <= 2.0 * ulp(sorted[k - 1]);
                    close += usize::from(is_close);
                    let cut = &sorted[k - 1..=k];
                    assert!(set(got) == set(wanted) || is_close, "{got:?}, not {wanted:?}, cut {cut:?}");

                    let rounded = |e: u32| half::bf16::from_f32(biased[e as usize]);
                    let mut order: Vec<u32> = (0..n as u32).collect();
                    order.sort_by(|a, b| rounded(*b).total_cmp(&rounded(*a)));
                    coarse += usize::from(set(&order[..k]) != set(wanted));
                }
            }
            assert!(close * 512 <= m, "{close} of {m} tokens have a cut within rounding");
            assert!(coarse * 2 >= m, "biased scores in 16 bits change {coarse} sets of {m}");
        }
    }
}

/// Logits of -40: the sigmoids vanish beside the bias, so all biased scores are equal. The weights are equal too, from
/// scores of 4e-18, and 2.5 in all but for the 1e-20 beside their sum.
pub fn tiny_scores_beside_a_bias_give_distinct_experts(devices: &[Device]) {
    let w = random_weight(GgmlType::F32, 1, 64, 32, 3);
    let constant: Vec<u8> = (0..64 * 32).flat_map(|_| (-40.0f32 / 32.0).to_le_bytes()).collect();
    let w = Weight::new(GgmlType::F32, w.shape(), constant.into()).unwrap();
    for d in devices {
        let (ids, (weights, logits)) = run(d, &w, &[11.2; 64], &[1.0; 64], &GLM5).unwrap();
        assert!(logits.iter().all(|z| *z == -40.0));
        assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(weights.iter().all(|w| (w - 2.5 / 8.0).abs() < 1e-3), "weights {weights:?}");
    }
}

/// The bias decides who is chosen and has no part in the weights.
pub fn follows_a_hand_computed_example(devices: &[Device]) {
    let identity: Vec<u8> =
        (0..16).flat_map(|i| (if i % 5 == 0 { 1.0f32 } else { 0.0 }).to_le_bytes()).collect();
    let w = Weight::new(GgmlType::F32, [1, 4, 4], identity.into()).unwrap();
    let x = [0.0, 3f32.ln(), -(3f32.ln()), 0.0]; // Scores 1/2, 3/4, 1/4, 1/2.
    let bias = [0.0, -1.0, 0.5, 0.125];
    let config = RouterConfig { n_experts_per_tok: 2, ..GLM5 };
    for d in devices {
        let (ids, (weights, _)) = run(d, &w, &bias, &x, &config).unwrap();
        assert_eq!(ids, [2, 3]); // Biased 3/4, 5/8; the best score is left out.
        close("weights", &weights, &[2.5 / 3.0, 5.0 / 3.0], |_| 4.0 * EPS).unwrap();

        let plain = RouterConfig { norm_topk_prob: false, ..config };
        let (_, (weights, _)) = run(d, &w, &bias, &x, &plain).unwrap();
        close("weights", &weights, &[0.625, 1.25], |_| 4.0 * EPS).unwrap();

        // e^0, 3, 1/3, 1 of 16/3.
        let softmax = RouterConfig { gating: Gating::Softmax, ..plain };
        let (ids, (weights, _)) = run(d, &w, &[0.0; 4], &x, &softmax).unwrap();
        assert_eq!(ids, [1, 0]);
        close("weights", &weights, &[2.5 * 9.0 / 16.0, 2.5 * 3.0 / 16.0], |_| 4.0 * EPS).unwrap();
    }
}

/// Eight experts in four groups of two, two of which are used. The second group has the largest sum; the first and the third have
/// the same, so that the first is used; the largest score of all is that of the last expert, which cannot be chosen.
pub fn groups_follow_a_hand_computed_example(devices: &[Device]) {
    let identity: Vec<f32> = (0..64).map(|i| if i % 9 == 0 { 1.0 } else { 0.0 }).collect();
    let w = Weight::from_f32([1, 8, 8], &identity).unwrap();
    let l = 3f32.ln();
    let x = [l, -l, 0.0, 0.0, l, -l, l, 0.0]; // Scores 3/4, 1/4, 1/2, 1/2, 3/4, 1/4, 3/4, 1/2.
    let bias = [0.0, 0.0, 0.0, 0.125, 0.0, 0.0, -1.0, 0.375];
    // Biased 3/4, 1/4 | 1/2, 5/8 | 3/4, 1/4 | -1/4, 7/8: sums 1, 9/8, 1, 5/8.
    let config = RouterConfig { n_experts_per_tok: 3, n_groups: 4, n_groups_used: 2, ..GLM5 };
    let all = vec![7, 0, 4];
    for (n_groups, n_groups_used, k, want) in [
        (4, 2, 3, vec![0, 3, 2]),
        (4, 2, 4, vec![0, 3, 2, 1]),
        (4, 1, 2, vec![3, 2]),
        (4, 3, 3, vec![0, 4, 3]),
        (2, 1, 3, vec![7, 4, 5]), // halves: 3/4 + 5/8, and 3/4 + 7/8
        (4, 4, 3, all.clone()),
        (8, 3, 3, all.clone()),
        (8, 2, 2, vec![7, 0]),
        (1, 1, 3, all.clone()),
        (1, 0, 3, all.clone()),
        (0, 0, 3, all.clone()),
        (0, 1, 3, all.clone()),
    ] {
        let config = RouterConfig { n_experts_per_tok: k, n_groups, n_groups_used, ..config };
        let what = format!("{n_groups_used} of {n_groups} groups");
        assert_eq!(reference::route(&x, &bias, &config).unwrap().ids, want, "reference, {what}");
        for d in devices {
            let (ids, (weights, _)) = run(d, &w, &bias, &x, &config).unwrap();
            assert_eq!(ids, want, "{what}");
            let scores: Vec<f64> =
                ids.iter().map(|e| [0.75, 0.25, 0.5, 0.5, 0.75, 0.25, 0.75, 0.5][*e as usize]).collect();
            let sum: f64 = scores.iter().sum();
            close("weights", &weights, &scores.iter().map(|s| 2.5 * s / sum).collect::<Vec<_>>(), |_| {
                4.0 * EPS
            })
            .unwrap();
        }
    }
}

/// Four groups of four. One with an expert that is NaN counts as -inf, as does one with no two experts above it, and they come last
/// in their order; experts that are NaN are chosen from groups that are used, if there are no others.
pub fn a_group_with_nan_comes_last(devices: &[Device]) {
    let (n, hidden) = (16, 32);
    let mut values = Rng(4).normals(n * hidden);
    values[4 * hidden..7 * hidden].fill(f32::NAN); // three of the second group
    values[14 * hidden..].fill(f32::NAN); // two of the last, which has two others
    let w = Weight::from_f32([1, n, hidden], &values).unwrap();
    let mut bias = vec![0.5; n];
    bias[..3].fill(f32::NEG_INFINITY); // three of the first
    let x = Rng(5).normals(3 * hidden);
    for d in devices {
        for (used, k) in [(1, 4), (2, 8), (3, 12), (3, 9), (2, 3)] {
            let config = RouterConfig { n_experts_per_tok: k, n_groups: 4, n_groups_used: used, ..GLM5 };
            let (ids, (_, logits)) = run(d, &w, &bias, &x, &config).unwrap();
            assert_eq!(ids, reference::route(&logits, &bias, &config).unwrap().ids, "{}", d.name());
            let groups: BTreeSet<u32> = ids.iter().map(|e| e / 4).collect();
            assert!(used < 3 || groups == BTreeSet::from([0, 2, 3]), "{}: {groups:?}", d.name());
            assert!(used == 3 || groups.iter().all(|g| *g >= 2), "{}: {groups:?}", d.name());
            for ids in ids.chunks(k) {
                assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), k, "{}: {ids:?}", d.name());
            }
        }
        // Nothing but NaN: still distinct, and of the first groups.
        let config = RouterConfig { n_groups: 4, n_groups_used: 2, ..GLM5 };
        let (ids, _) = run(d, &w, &bias, &[f32::NAN; 32], &config).unwrap();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}

pub fn refuses_groups_that_do_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let w = matrix(d, &random_weight(GgmlType::F32, 1, 16, 8, 1));
    let (x, bias) = (tensor(d, 8, &[1.0; 24]), tensor(d, 16, &[0.0; 16]));
    let (groups, used, per_token) = ("groups of experts", "groups of experts used", "experts per token");
    for (n_groups, n_groups_used, k, what) in [
        (3, 1, 2, groups),
        (17, 1, 1, groups),
        (32, 2, 2, groups),
        (4, 5, 8, used),
        (4, 0, 8, used),
        (1, 2, 8, used),
        (0, 2, 8, used),
        (4, 1, 5, per_token),
        (4, 1, 0, per_token),
        (8, 3, 7, per_token),
        (4, 4, 17, per_token),
    ] {
        let config = RouterConfig { n_experts_per_tok: k, n_groups, n_groups_used, ..GLM5 };
        let mut out = Routing::new(d, 16, k).unwrap();
        for refusal in [
            router(&w, &bias, &x, &config, &mut out),
            reference::route(&[0.0f32; 16], &[0.0; 16], &config).map(drop),
        ] {
            let refused = matches!(&refusal, Err(e @ glm5::Error::Argument { .. }) if e.to_string().starts_with(&format!("{what}:")));
            assert!(refused, "{k} experts of {n_groups_used} of {n_groups} groups: {refusal:?}");
        }
        assert_eq!(out.ids.rows() + out.weights.rows() + out.logits.rows(), 0, "the output has changed");
    }
}

/// Broken activations must not make an expert count twice or an id leave the stack.
pub fn stays_distinct_with_nan(devices: &[Device]) {
    let w = random_weight(GgmlType::F32, 1, 16, 32, 9);
    for d in devices {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![1.0; 32];
            x[7] = bad;
            let (ids, _) = run(d, &w, &[0.1; 16], &x, &GLM5).unwrap();
            let distinct: BTreeSet<u32> = ids.iter().copied().filter(|e| *e < 16).collect();
            assert_eq!(distinct.len(), 8, "{bad}: {ids:?}");
        }
    }
}

/// One broken expert is chosen when there is no other, in its turn among those of -inf.
pub fn a_score_that_is_nan_comes_last(devices: &[Device]) {
    let (n, hidden) = (16, 32);
    let mut values = Rng(4).normals(n * hidden);
    values[3 * hidden..4 * hidden].fill(f32::NAN);
    let w = Weight::from_f32([1, n, hidden], &values).unwrap();
    let mut bias = vec![0.5; n];
    bias[2] = f32::NEG_INFINITY;
    bias[9] = f32::NEG_INFINITY;
    for (d, k) in devices.iter().flat_map(|d| [8, 13, 14, 16].map(|k| (d, k))) {
        let config = RouterConfig { n_experts_per_tok: k, ..GLM5 };
        let (ids, _) = run(d, &w, &bias, &Rng(k as u64).normals(2 * hidden), &config).unwrap();
        for ids in ids.chunks(k) {
            let last: Vec<u32> = ids.iter().copied().skip(n - 3).collect();
            assert_eq!(last, [2, 3, 9][..k.saturating_sub(n - 3)], "{}: {ids:?}", d.name());
            assert!(ids.iter().take(n - 3).all(|e| ![2, 3, 9].contains(e)), "{}: {ids:?}", d.name());
        }
    }
}

/// Logits of rows for which warps have several rounds, and none; as wide as GLM-5's.
pub fn rows_of_any_length_are_added_up(devices: &[Device]) {
    let (n, config) = (7, RouterConfig { n_experts_per_tok: 2, ..GLM5 });
    for (hidden, m) in [4, 100, 1540, 3076, 6144].into_iter().flat_map(|hidden| [1, 5].map(|m| (hidden, m))) {
        let w = random_weight(GgmlType::F32, 1, n, hidden, hidden as u64);
        let x = Rng(m as u64).normals(m * hidden);
        let all = values(&w);
        let (want, sums) = (linear(&all, &x, n, hidden).unwrap(), magnitudes(&all, &x, hidden));
        for d in devices {
            let (ids, (weights, logits)) = run(d, &w, &[0.5; 7], &x, &config).unwrap();
            close("logits", &logits, &want, |i| sum_slack(hidden, sums[i])).unwrap();
            check_choice(&ids, &weights, &logits, &[0.5; 7], &config).unwrap();
        }
    }
}

/// Step after step into one result: nothing of an earlier one is left, whatever its number of tokens.
pub fn a_routing_is_used_again(devices: &[Device]) {
    let (n, hidden) = (40, 64);
    let (w, bias) = (random_weight(GgmlType::F32, 1, n, hidden, 2), vec![0.5; n]);
    for d in devices {
        let (w_there, bias_there) = (matrix(d, &w), tensor(d, n, &bias));
        let mut out = Routing::new(d, n, GLM5.n_experts_per_tok).unwrap();
        for (step, m) in [3usize, 3, 16, 1, 40, 9, 16].into_iter().enumerate() {
            let x = Rng(step as u64).normals(m * hidden);
            router(&w_there, &bias_there, &tensor(d, hidden, &x), &GLM5, &mut out).unwrap();
            let (ids, weights) = (out.ids.to_vec().unwrap(), host(&out.weights));
            check_choice(&ids, &weights, &host(&out.logits), &bias, &GLM5).unwrap();
            let alone = run(d, &w, &bias, &x, &GLM5).unwrap();
            assert_eq!((ids, weights), (alone.0, alone.1.0), "step {step}");
        }
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let w = matrix(d, &random_weight(GgmlType::F32, 1, 16, 8, 1));
    let stack = matrix(d, &random_weight(GgmlType::F32, 2, 16, 8, 1));
    let (x, wide) = (tensor(d, 8, &[1.0; 24]), tensor(d, 9, &[1.0; 27]));
    let bias = tensor(d, 16, &[0.0; 16]);
    let mut out = Routing::new(d, 16, 8).unwrap();
    refused(vec![
        ("x", router(&w, &bias, &wide, &GLM5, &mut out)),
        ("a stack", router(&stack, &bias, &x, &GLM5, &mut out)),
        ("bias", router(&w, &tensor(d, 15, &[0.0; 15]), &x, &GLM5, &mut out)),
        ("room for 4", router(&w, &bias, &x, &GLM5, &mut Routing::new(d, 16, 4).unwrap())),
        ("room of 15", router(&w, &bias, &x, &GLM5, &mut Routing::new(d, 15, 8).unwrap())),
    ]);
    for k in [0, 17] {
        let config = RouterConfig { n_experts_per_tok: k, ..GLM5 };
        let refusal = router(&w, &bias, &x, &config, &mut out);
        assert!(matches!(refusal, Err(glm5::Error::Argument { .. })), "{k} of 16 experts: {refusal:?}");
    }
    assert_eq!(
        out.ids.rows() + out.weights.rows() + out.logits.rows(),
        0,
        "a refused call changed the output"
    );
}
