//! Exact top-k: integer results, compared exactly.

use glm5::ops::dsa_topk::{Selection, reference, top_k};
use glm5::tensor::{Device, Tensor};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::Rng;
use super::inputs::{on_each, refused, tensor};

macro_rules! dsa_topk_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { dsa_topk, $devices, $cases;
        top_k_is_the_reference(case);
        follows_hand_made_examples, takes_wide_rows, refuses_what_does_not_fit }
    };
}
pub(crate) use dsa_topk_properties;

/// How scores are spread.
#[derive(Debug, Clone, Copy)]
pub enum Spread {
    /// All different.
    Normal,
    /// Three values, so that the cut goes through ties.
    Three,
    Equal,
    /// Neighbouring f32 values, around one or around zero.
    Clustered,
    /// `-inf` in most places, as masked rows have it.
    Masked,
    /// NaN, infinities, both zeros and a few others.
    Special,
    /// Both zeros, which are equal.
    Zeros,
    Rising,
    Falling,
}

#[derive(Debug, Clone)]
pub struct Case {
    width: usize,
    visible: Vec<u32>,
    k: usize,
    spread: Spread,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    use Spread::*;
    let spread =
        prop::sample::select(vec![Normal, Three, Equal, Clustered, Masked, Special, Zeros, Rising, Falling]);
    let k = prop_oneof![prop::sample::select(vec![1usize, 2, 63, 64, 65, 512]), 1usize..600];
    (1usize..1300, k, 1usize..5, spread, any::<u64>()).prop_flat_map(|(width, k, m, spread, seed)| {
        // Around k, none, all, some.
        let at = move |v: usize| v.min(width) as u32;
        let visible = prop_oneof![
            prop::sample::select(vec![at(k - 1), at(k), at(k + 1), 0, 1, width as u32]),
            0..=width as u32
        ];
        prop::collection::vec(visible, m).prop_map(move |visible| Case { width, visible, k, spread, seed })
    })
}

fn scores(n: usize, spread: Spread, rng: &mut Rng) -> Vec<f32> {
    let special = [
        f32::NAN,
        -f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::MIN_POSITIVE,
        1e-45,
    ];
    let base = [1.0f32, -1.0, 1e-40][rng.below(3)];
    let score = |i: usize| match spread {
        Spread::Normal => rng.normal(),
        Spread::Three => [0.25, -1.5, 3.0][rng.below(3)],
        Spread::Equal => base,
        Spread::Clustered => f32::from_bits(base.to_bits() + rng.below(40) as u32),
        Spread::Masked if rng.below(4) > 0 => f32::NEG_INFINITY,
        Spread::Masked => rng.normal(),
        Spread::Special => special[rng.below(special.len())],
        Spread::Zeros => [0.0, -0.0][rng.below(2)],
        Spread::Rising => i as f32 - 500.0,
        Spread::Falling => 500.0 - i as f32,
    };
    (0..n).map(score).collect()
}

/// Runs into a selection that still holds what an earlier, larger step left.
fn run(d: &Device, scores: &[f32], width: usize, visible: &[u32], k: usize) -> glm5::Result<Vec<Vec<u32>>> {
    let rows = visible.len() + 3;
    let mut out = Selection {
        indices: Tensor::from_vec(d, rows, k, vec![u32::MAX; rows * k])?,
        lens: Tensor::from_vec(d, rows, 1, vec![k as u32; rows])?,
    };
    top_k(&tensor(d, width, scores), visible, &mut out)?;
    (0..out.lens.rows()).map(|t| Ok(out.row(t)?.to_vec())).collect()
}

pub fn top_k_is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let scores: Vec<f32> = c.visible.iter().flat_map(|_| scores(c.width, c.spread, rng)).collect();
    let got = on_each(devices, |d| run(d, &scores, c.width, &c.visible, c.k))?;
    prop_assert_eq!(got, reference::top_k(&scores, c.width, &c.visible, c.k).unwrap());
    Ok(())
}

pub fn follows_hand_made_examples(devices: &[Device]) {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let examples: &[(&[f32], usize, &[u32])] = &[
        (&[3.0, 1.0, 2.0, 5.0], 2, &[0, 3]),
        (&[1.0, 1.0, 1.0, 1.0], 2, &[0, 1]),
        (&[0.0, 7.0, 0.0, 0.0], 3, &[0, 1, 2]),
        (&[-0.0, 0.0, -0.0, 0.0], 2, &[0, 1]),
        (&[0.0, -0.0, 1.0], 2, &[0, 2]),
        (&[-0.0, 0.0, 1.0], 2, &[0, 2]),
        (&[inf, 2.0, nan, 1.0], 1, &[2]),
        (&[1.0, -nan, inf, nan], 3, &[1, 2, 3]),
        (&[-inf, -3.0, -inf, -2.0], 3, &[0, 1, 3]),
        (&[-1.0, -2.0, -0.5], 1, &[2]),
        (&[4.0, 2.0], 5, &[0, 1]),
    ];
    for d in devices {
        for (scores, k, want) in examples {
            let got = run(d, scores, scores.len(), &[scores.len() as u32], *k).unwrap();
            assert_eq!(got, [want.to_vec()], "{k} of {scores:?}");
        }
        // What is not visible does not count, however large.
        assert_eq!(run(d, &[1.0, 2.0, 9.0, 9.0], 4, &[2], 1).unwrap(), [[1]]);
        assert_eq!(run(d, &[9.0, 9.0], 2, &[0], 1).unwrap(), [[0u32; 0]]);
    }
}

/// 65536 keys, the model's 2048 of them.
pub fn takes_wide_rows(devices: &[Device]) {
    for (spread, seed) in
        [(Spread::Normal, 1), (Spread::Three, 2), (Spread::Clustered, 3), (Spread::Masked, 4)]
    {
        let visible = vec![65536, 40000];
        let c = Case { width: 65536, visible, k: 2048, spread, seed };
        top_k_is_the_reference(devices, c).unwrap();
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let scores = tensor(d, 4, &[1.0; 12]);
    let mut out = Selection::new(d, 2).unwrap();
    refused(vec![
        ("counts", top_k(&scores, &[1, 2], &mut out)),
        ("too many", top_k(&scores, &[1, 5, 2], &mut out)),
        ("no room", top_k(&scores, &[1, 2, 3], &mut Selection::new(d, 0).unwrap())),
    ]);
    assert_eq!(out.lens.rows(), 0, "a refused call changed the selection");
    assert!(matches!(out.row(0), Err(glm5::Error::Shape { .. })));
}
