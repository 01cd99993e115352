//! Exact top-k: integer results, compared exactly.

use glm5::ops::dsa_topk::config::{MAX_PARTS, TopkConfig, TopkProblem, candidates};
use glm5::ops::dsa_topk::{Selection, TopkScratch, reference, top_k, top_k_with};
use glm5::tensor::{Device, Tensor};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::Rng;
use super::inputs::{on_each, refused, tensor};

macro_rules! dsa_topk_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { dsa_topk, $devices, $cases;
        top_k_is_the_reference(case);
        follows_hand_made_examples, rows_around_k_and_pieces, takes_wide_rows, takes_a_million,
        memory_is_used_again, blocks_meet_again, many_blocks_list_4096, samples_may_mislead, graphs_select_again,
        refuses_what_does_not_fit }
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
    /// Around a million, where neighbouring values are a sixteenth apart.
    Large,
    /// The large ones in every second, third or sixth 32 scores: one block of several has all of them.
    Dealt,
    /// Equals: in every third 32, and from 9000 on everywhere.
    Late,
    /// The large ones in every fourth four scores, which are those that a sample of 16 k takes.
    Sampled,
    /// Everywhere else.
    NotSampled,
}

const SPREADS: [Spread; 14] = {
    use Spread::*;
    [
        Normal, Three, Equal, Clustered, Masked, Special, Zeros, Rising, Falling, Large, Dealt, Late,
        Sampled, NotSampled,
    ]
};

#[derive(Debug, Clone)]
pub struct Case {
    width: usize,
    visible: Vec<u32>,
    k: usize,
    spread: Spread,
    /// Which of the launches that could.
    config: usize,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    let spread = prop::sample::select(&SPREADS[..]);
    let k = prop_oneof![prop::sample::select(vec![1usize, 2, 63, 64, 65, 512]), 1usize..600];
    let input = (1usize..1300, k, 1usize..5, spread, 0usize..10, any::<u64>());
    input.prop_flat_map(|(width, k, m, spread, config, seed)| {
        // Around k, none, all, some.
        let at = move |v: usize| v.min(width) as u32;
        let visible = prop_oneof![
            prop::sample::select(vec![at(k - 1), at(k), at(k + 1), 0, 1, width as u32]),
            0..=width as u32
        ];
        prop::collection::vec(visible, m).prop_map(move |visible| Case {
            width,
            visible,
            k,
            spread,
            config,
            seed,
        })
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
        Spread::Large => 1e6 + rng.below(1000) as f32 / 16.0,
        // Near enough that upper bits of all are the same.
        Spread::Dealt => 100.0 + rng.normal() + if (i / 32).is_multiple_of(6) { 2.5 } else { 0.0 },
        Spread::Late => f32::from(u8::from((i / 32).is_multiple_of(3) || i >= 9000)),
        Spread::Sampled => rng.normal() + if (i / 4).is_multiple_of(4) { 20.0 } else { 0.0 },
        Spread::NotSampled => rng.normal() + if (i / 4).is_multiple_of(4) { 0.0 } else { 20.0 },
    };
    (0..n).map(score).collect()
}

/// The launch of that number of those that a GPU could choose among.
fn config(d: &Device, m: usize, width: usize, number: usize) -> Option<TopkConfig> {
    let all = candidates(TopkProblem::new(m, width, d.gpu().ok()?.properties()));
    all.get(number % all.len()).copied()
}

fn counts(d: &Device, visible: &[u32]) -> Tensor<u32> {
    Tensor::from_vec(d, visible.len(), 1, visible.to_vec()).unwrap()
}

/// Room that still holds what an earlier, larger step left.
fn dirty(d: &Device, rows: usize, k: usize) -> Selection {
    let rows = rows + 3;
    let indices = Tensor::from_vec(d, rows, k, vec![u32::MAX; rows * k]).unwrap();
    Selection { indices, lens: Tensor::from_vec(d, rows, 1, vec![k as u32; rows]).unwrap() }
}

fn rows(out: &Selection) -> glm5::Result<Vec<Vec<u32>>> {
    let (k, indices, lens) = (out.k(), out.indices.to_vec()?, out.lens.to_vec()?);
    Ok(lens.iter().enumerate().map(|(t, n)| indices[t * k..][..*n as usize].to_vec()).collect())
}

fn run(
    d: &Device,
    scores: &[f32],
    width: usize,
    visible: &[u32],
    k: usize,
    number: usize,
) -> glm5::Result<Vec<Vec<u32>>> {
    let mut out = dirty(d, visible.len(), k);
    let config = config(d, visible.len(), width, number);
    let mut scratch = TopkScratch::new(d)?;
    top_k_with(&tensor(d, width, scores), &counts(d, visible), config, &mut scratch, &mut out)?;
    rows(&out)
}

pub fn top_k_is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let scores: Vec<f32> = c.visible.iter().flat_map(|_| scores(c.width, c.spread, rng)).collect();
    let got = on_each(devices, |d| run(d, &scores, c.width, &c.visible, c.k, c.config))?;
    // Not by prop_assert_eq, which would print all of long rows.
    let want = reference::top_k(&scores, c.width, &c.visible, c.k).unwrap();
    for (t, (got, want)) in got.iter().zip(&want).enumerate() {
        let other = got.iter().zip(want).position(|(a, b)| a != b);
        let differ = got.len() != want.len() || other.is_some();
        prop_assert!(
            !differ,
            "row {}: {} of {} positions, other from {:?} on",
            t,
            got.len(),
            want.len(),
            other
        );
    }
    prop_assert_eq!(got.len(), want.len());
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
        for (number, (scores, k, want)) in examples.iter().enumerate() {
            let got = run(d, scores, scores.len(), &[scores.len() as u32], *k, number).unwrap();
            assert_eq!(got, [want.to_vec()], "{k} of {scores:?}");
        }
        // What is not visible does not count, however large.
        assert_eq!(run(d, &[1.0, 2.0, 9.0, 9.0], 4, &[2], 1, 0).unwrap(), [[1]]);
        assert_eq!(run(d, &[9.0, 9.0], 2, &[0], 1, 0).unwrap(), [[0u32; 0]]);
    }
}

/// Visible around the model's 2048 that are selected, in every way that could; k of 1 and of 4096.
pub fn rows_around_k_and_pieces(devices: &[Device]) {
    for (k, visible) in
        [(2048usize, vec![1, 2047, 2048, 2049, 4099]), (1, vec![4099]), (4096, vec![4095, 4097])]
    {
        for number in [0, 1, 4, 8] {
            let seed = k as u64 + number as u64;
            let spread = SPREADS[(number + k % 7) % SPREADS.len()];
            let c = Case { width: 4099, visible: visible.clone(), k, spread, config: number, seed };
            top_k_is_the_reference(devices, c).unwrap();
        }
    }
}

/// Rows of 65,535 and 65,536, by one block of threads each and by several that share a row. With scores for which more is undecided than
/// is kept or listed.
pub fn takes_wide_rows(devices: &[Device]) {
    let emulated = devices[0].name().contains("emulator");
    let spreads = if emulated { vec![Spread::Normal, Spread::Three] } else { SPREADS.to_vec() };
    for (i, spread) in spreads.into_iter().enumerate() {
        let numbers = if emulated { vec![4 * i] } else { vec![0, 1, 4, 5, 8] };
        for config in numbers {
            let c = Case {
                width: 65_536,
                visible: vec![65_535, 40_000],
                k: 2048,
                spread,
                config,
                seed: i as u64,
            };
            top_k_is_the_reference(devices, c).unwrap();
            let c = Case { width: 65_536, visible: vec![65_536], k: 2048, spread, config, seed: i as u64 };
            top_k_is_the_reference(devices, c).unwrap();
        }
    }
}

/// As many scores as a context can have, in one row; on GPUs also in several.
pub fn takes_a_million(devices: &[Device]) {
    for (spread, rows) in [(Spread::Normal, 1), (Spread::Zeros, 1), (Spread::Clustered, 3)] {
        if devices[0].name().contains("emulator") {
            println!("a million scores are left to CPU and GPU: the emulator takes too long for them");
            return;
        }
        let visible = vec![1 << 20; rows];
        let c = Case { width: 1 << 20, visible, k: 2048, spread, config: 0, seed: 5 };
        top_k_is_the_reference(devices, c).unwrap();
    }
}

/// One scratch for rows of any number and length, shared by 1 to 128 blocks of threads: nothing of an earlier call is left.
pub fn memory_is_used_again(devices: &[Device]) {
    for d in devices {
        let mut scratch = TopkScratch::new(d).unwrap();
        let shapes = [(1, 700), (3, 300), (1, 64), (2, 900)];
        for step in 0..12usize {
            let (m, width) = shapes[step % shapes.len()];
            let rng = &mut Rng(step as u64);
            let spread = SPREADS[step % SPREADS.len()];
            let scores: Vec<f32> = (0..m).flat_map(|_| scores(width, spread, rng)).collect();
            let visible = vec![width as u32 - 3; m];
            let mut out = dirty(d, m, 40);
            let there = (tensor(d, width, &scores), counts(d, &visible));
            let config = config(d, m, width, step + 1);
            top_k_with(&there.0, &there.1, config, &mut scratch, &mut out).unwrap();
            let want = reference::top_k(&scores, width, &visible, 40).unwrap();
            assert!(rows(&out).unwrap() == want, "step {step}");
        }
    }
}

/// Two or three blocks of threads share one row, launch after launch in the same memory: whether they meet or one gives up, which the emulator
/// makes happen as often as not, it is left as it was. Rows of which all is listed; of which a part is, of equals the first ones; and of which
/// it does not say what is selected, so that blocks go on to count together.
pub fn blocks_meet_again(devices: &[Device]) {
    let listed_in_part = [
        (Spread::Dealt, 2048),
        (Spread::Equal, 1000),
        (Spread::Normal, 2048),
        (Spread::Clustered, 1500),
        (Spread::Three, 2048),
        (Spread::Dealt, 400),
        (Spread::Masked, 3000),
        (Spread::Falling, 4096),
        (Spread::Equal, 5000),
        // Of three blocks the first has more equals than it can list, and the others have theirs later.
        (Spread::Normal, 4096),
        (Spread::Late, 4096),
        (Spread::Large, 2048),
        (Spread::Late, 4096),
        (Spread::Rising, 2048),
        (Spread::Late, 4096),
    ];
    for d in devices.iter().filter(|d| d.gpu().is_ok()) {
        let mut scratch = TopkScratch::new(d).unwrap();
        for step in 0..75usize {
            let (width, (spread, k)) = match step % 5 {
                3 => (12_000 + step, listed_in_part[step / 5]),
                4 => (5000, (SPREADS[step / 5 % SPREADS.len()], 60)),
                i => (700, (SPREADS[(step / 5 * 3 + i) % SPREADS.len()], 60)),
            };
            let scores = scores(width, spread, &mut Rng(step as u64));
            let config = sharing(d, width, 2 + step as u32 % 2);
            let mut out = dirty(d, 1, k);
            let there = (tensor(d, width, &scores), counts(d, &[width as u32]));
            top_k_with(&there.0, &there.1, Some(config), &mut scratch, &mut out).unwrap();
            let want = reference::top_k(&scores, width, &[width as u32], k).unwrap();
            assert!(rows(&out).unwrap() == want, "step {step}, {spread:?}");
        }
    }
}

/// The 4096 best of a row that 128 blocks of threads share, more than which cannot: lists have room for 64 of each, twice its share. Of scores of
/// which lists have all that it takes, of equals, of which each block has more than it can list, and of scores of which every second block has nearly
/// all that are selected. The emulator runs four blocks at a time at most, so that one of these gives up and the last one selects alone; lists
/// for 4096 of two and three that meet are in [`blocks_meet_again`].
pub fn many_blocks_list_4096(devices: &[Device]) {
    for d in devices {
        let emulated = d.name().contains("emulator");
        let widths = if emulated { vec![20_000] } else { vec![20_000, 204_800, 1 << 20] };
        let mut scratch = TopkScratch::new(d).unwrap();
        let spreads = [Spread::Normal, Spread::Equal, Spread::Dealt];
        for (width, spread) in widths.into_iter().flat_map(|n| spreads.map(|spread| (n, spread))) {
            let scores = scores(width, spread, &mut Rng(width as u64));
            let config = d.gpu().ok().map(|_| sharing(d, width, MAX_PARTS as u32));
            let mut out = dirty(d, 1, 4096);
            let there = (tensor(d, width, &scores), counts(d, &[width as u32]));
            top_k_with(&there.0, &there.1, config, &mut scratch, &mut out).unwrap();
            let want = reference::top_k(&scores, width, &[width as u32], 4096).unwrap();
            assert!(rows(&out).unwrap() == want, "{width} scores, {spread:?}");
        }
    }
}

/// The launch for rows that so many blocks of threads share.
fn sharing(d: &Device, width: usize, parts: u32) -> TopkConfig {
    let all = candidates(TopkProblem::new(1, width, d.gpu().unwrap().properties()));
    TopkConfig { parts, ..all.into_iter().find(|config| config.parts == 2).unwrap() }
}

/// Rows that one block of threads each selects from, by what a sample says of them: of scores that are spread evenly, that are mostly equal,
/// and of which the sample takes the large ones, or the small ones, alone. Rows begin anywhere.
pub fn samples_may_mislead(devices: &[Device]) {
    use Spread::*;
    for d in devices.iter().filter(|d| d.gpu().is_ok()) {
        let mut scratch = TopkScratch::new(d).unwrap();
        for (i, spread) in [Normal, Sampled, NotSampled, Equal, Three, Special, Clustered, Masked, Zeros]
            .into_iter()
            .enumerate()
        {
            for k in [2048, 1, 7000] {
                if k != 2048 && i > 2 {
                    continue;
                }
                let (m, width) = (2, 16_384 + 3 * (i % 2));
                let rng = &mut Rng(i as u64);
                let scores: Vec<f32> = (0..m).flat_map(|_| scores(width, spread, rng)).collect();
                let visible = [width as u32, 16_000 + i as u32];
                let all = candidates(TopkProblem::new(m, width, d.gpu().unwrap().properties()));
                let config = all.into_iter().find(|config| config.entry.name().contains("_h0_")).unwrap();
                let mut out = dirty(d, m, k);
                let there = (tensor(d, width, &scores), counts(d, &visible));
                top_k_with(&there.0, &there.1, Some(config), &mut scratch, &mut out).unwrap();
                let want = reference::top_k(&scores, width, &visible, k).unwrap();
                assert!(rows(&out).unwrap() == want, "{k} of {spread:?}");
            }
        }
    }
}

/// A graph takes the scores and counts that are there when it runs, and leaves its memory so that it can run again.
pub fn graphs_select_again(devices: &[Device]) {
    let (width, k, m) = (900, 70, 2);
    for d in devices.iter().filter(|d| d.gpu().is_ok()) {
        for number in [0, 1, 3] {
            let (mut scores_there, mut visible) = (Tensor::zeros(d, m, width).unwrap(), counts(d, &[0, 0]));
            let mut scratch = TopkScratch::new(d).unwrap();
            let mut out = dirty(d, m, k);
            let config = config(d, m, width, number);
            top_k_with(&scores_there, &visible, config, &mut scratch, &mut out).unwrap(); // takes the memory
            let capture = || top_k_with(&scores_there, &visible, config, &mut scratch, &mut out);
            let mut graph = d.gpu().unwrap().capture(capture).unwrap();
            for step in 0..3 {
                let rng = &mut Rng(step);
                let spread = [Spread::Normal, Spread::Three, Spread::Clustered][step as usize];
                let values: Vec<f32> = (0..m).flat_map(|_| scores(width, spread, rng)).collect();
                let seen = [width as u32 - step as u32, 100];
                scores_there.cuda_mut().unwrap().upload(0, &values).unwrap();
                visible.cuda_mut().unwrap().upload(0, &seen).unwrap();
                graph.launch().unwrap();
                assert!(rows(&out).unwrap() == reference::top_k(&values, width, &seen, k).unwrap());
            }
        }
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let scores = tensor(d, 4, &[1.0; 12]);
    let (mut out, mut scratch) = (Selection::new(d, 2).unwrap(), TopkScratch::new(d).unwrap());
    let mut none = Selection::new(d, 0).unwrap();
    refused(vec![
        ("counts", top_k(&scores, &counts(d, &[1, 2]), &mut scratch, &mut out)),
        ("no room", top_k(&scores, &counts(d, &[1, 2, 3]), &mut scratch, &mut none)),
    ]);
    let beyond = top_k(&scores, &counts(d, &[1, 5, 2]), &mut scratch, &mut out);
    match d.gpu() {
        Err(_) => refused(vec![("too many", beyond)]),
        // There it cannot be known before the launch; what is not there is not seen.
        Ok(_) => {
            beyond.unwrap();
            assert_eq!(rows(&out).unwrap(), [vec![0], vec![0, 1], vec![0, 1]]);
            for parts in [0, 129] {
                let config = TopkConfig { parts, ..config(d, 3, 4, 0).unwrap() };
                let result =
                    top_k_with(&scores, &counts(d, &[1, 2, 3]), Some(config), &mut scratch, &mut out);
                assert!(matches!(result, Err(glm5::Error::Argument { .. })), "{result:?}");
            }
            return;
        }
    }
    assert_eq!(out.lens.rows(), 0, "a refused call changed the selection");
    assert!(matches!(out.row(0), Err(glm5::Error::Shape { .. })));
}
