//! Indexer scores, and the selection made from them.

use glm5::ops::dsa_indexer::config::{IndexerConfig, IndexerProblem, TILED, candidates};
use glm5::ops::dsa_indexer::{
    IndexerScratch, indexer_scores, indexer_scores_with, indexer_select, reference,
};
use glm5::ops::dsa_topk::{Selection, TopkScratch, top_k};
use glm5::tensor::{CacheType, Device, PagedRows, Precision, RaggedRows, Tensor};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestCaseResult};

use super::blocks::Rng;
use super::close::{EPS, close};
use super::inputs::*;
use super::sequences::{Batch, Sequence, any_sequences};

mod calls;
pub use calls::*;

macro_rules! dsa_indexer_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { dsa_indexer, $devices, $cases;
        scores_are_the_reference(case), select_is_top_k_of_scores(case);
        follows_a_hand_computed_example, keys_that_no_head_likes_tie_at_zero, nan_is_seen,
        broken_keys_and_queries_are_seen, keys_of_many_tiles, queries_of_any_size, a_prompt_is_its_tokens,
        rounding_hardly_changes_what_is_selected, selects_in_blocks_of_rows, graphs_score_again, graphs_follow_rows_that_move_on,
        refuses_other_launches, refuses_what_does_not_fit }
    };
}
pub(crate) use dsa_indexer_properties;

#[derive(Debug, Clone)]
pub struct Case {
    sequences: Vec<Sequence>,
    heads: usize,
    dim: usize,
    ty: CacheType,
    precision: Precision,
    k: usize,
    /// Which of the launches that could.
    config: usize,
    /// Scores that are held at a time.
    block: usize,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    use CacheType::*;
    let heads = prop::sample::select(vec![1usize, 2, 4, 7, 16, 23, 32, 32, 33]);
    let dim = prop::sample::select(vec![1usize, 8, 33, 64, 128, 128, 128]);
    let ty = prop::sample::select(vec![F32, Bf16, F16, Int8, Int8]);
    let precision = prop::sample::select(vec![Precision::Exact, Precision::Fast]);
    let k = prop::sample::select(vec![1usize, 2, 16, 63, 64, 65, 300]);
    let block = prop::sample::select(vec![1usize, 300, 1 << 20]);
    (any_sequences(3), heads, dim, ty, precision, k, 0usize..4, block, any::<u64>()).prop_map(
        |(sequences, heads, dim, ty, precision, k, config, block, seed)| {
            // Keys of int8 have 128 values, and no kernel for more heads.
            let (heads, dim) = if ty == Int8 { (heads.min(32), 128) } else { (heads, dim) };
            Case { sequences, heads, dim, ty, precision, k, config, block, seed }
        },
    )
}

/// 32 heads of 128, one of the first launches.
fn full_size(sequences: Vec<Sequence>, ty: CacheType, precision: Precision, k: usize) -> Case {
    Case { sequences, heads: 32, dim: 128, ty, precision, k, config: 0, block: 4000, seed: 3 }
}

struct Inputs {
    batch: Batch,
    q: Vec<f32>,
    w: Vec<f32>,
    scale: f32,
}

impl Case {
    fn inputs(&self) -> Inputs {
        let rng = &mut Rng(self.seed);
        let batch = Batch::random(&self.sequences, self.dim, self.ty, rng);
        let rows = batch.rows();
        let mut w = rng.normals(rows * self.heads);
        if rng.below(3) == 0 {
            w.iter_mut().for_each(|w| *w = -w.abs()); // All scores below zero, or zero.
        }
        let scale = 1.0 / ((self.heads * self.dim) as f32).sqrt();
        Inputs { batch, q: rng.normals(rows * self.heads * self.dim), w, scale }
    }
}

impl Inputs {
    fn on(
        &self,
        d: &Device,
        heads: usize,
        dim: usize,
    ) -> glm5::Result<(Tensor, Tensor, PagedRows, RaggedRows)> {
        let (keys, rows) = self.batch.on(d)?;
        Ok((tensor(d, heads * dim, &self.q), tensor(d, heads, &self.w), keys, rows))
    }
}

/// Some columns more than any row sees: they are as invisible as later keys.
const MORE: usize = 3;

/// The launch of that number of those that a GPU could choose among.
fn config(d: &Device, c: &Case, rows: &RaggedRows) -> Option<IndexerConfig> {
    let gpu = d.gpu().ok()?.properties();
    let all = candidates(IndexerProblem {
        m: rows.len(),
        sequences: c.sequences.len(),
        visible: rows.max_visible(),
        heads: c.heads,
        dim: c.dim,
        ty: c.ty,
        precision: c.precision,
        sms: gpu.sms as usize,
        smem_per_sm: gpu.smem_per_sm as usize,
    });
    all.get(c.config % all.len()).copied()
}

fn scores(d: &Device, c: &Case, inputs: &Inputs) -> glm5::Result<Tensor> {
    let (q, w, keys, rows) = inputs.on(d, c.heads, c.dim)?;
    let mut scores = poisoned(d, rows.len(), rows.max_visible() + MORE);
    let launch = config(d, c, &rows);
    indexer_scores_with(&q, &w, &keys, &rows, inputs.scale, launch, &mut scores, c.precision)?;
    Ok(scores)
}

/// Whether scores come from matrix instructions.
fn tiled(d: &Device, c: &Case) -> bool {
    d.gpu().is_ok() && c.heads <= TILED.0 && c.dim == TILED.1 && c.ty != CacheType::F32
}

/// What queries lose as sums of two numbers of 16 bits, and sums of matrix instructions: of the sum of all sizes.
fn rounding(d: &Device, c: &Case) -> f64 {
    match (c.ty, c.precision) {
        _ if !tiled(d, c) || c.ty == CacheType::Int8 => 0.0,
        (CacheType::Bf16, Precision::Exact) => 2f64.powi(-17),
        _ => 2f64.powi(-20),
    }
}

/// Whether a launch for any shape, which rounds no queries, is taken in place of one by matrix instructions.
fn rounds(d: &Device, c: &Case, rows: &RaggedRows) -> bool {
    let any = config(d, c, rows).is_some_and(|config| config.entry.name().contains("any"));
    c.precision == Precision::Fast && !any
}

/// By the definition, fed what the device's arithmetic rounds queries to; and what bounds the rounding of sums.
fn reference_of(
    c: &Case,
    rounds: bool,
    q: &[f32],
    w: &[f32],
    keys: &[f32],
    positions: &[u32],
    scale: f32,
) -> Vec<f64> {
    if c.ty == CacheType::Int8 {
        return reference::indexer_scores_int8(q, w, keys, positions, c.heads, scale.into()).unwrap();
    }
    let rounded = if rounds { reference::rounded_query(q, c.dim, c.ty) } else { q.to_vec() };
    reference::indexer_scores(&rounded, w, keys, positions, c.heads, c.dim, scale.into()).unwrap()
}

pub fn scores_are_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    are_the_reference(devices, &c, &c.inputs())
}

fn are_the_reference(devices: &[Device], c: &Case, inputs: &Inputs) -> TestCaseResult {
    let got = on_each(devices, |d| Ok(host(&scores(d, c, inputs)?)))?;
    let d = &devices[0];
    let rounds = rounds(d, c, &inputs.batch.layout(d).unwrap());
    let cols = got.len() / inputs.batch.rows();
    for (keys, rows, positions) in inputs.batch.parts() {
        let q = &inputs.q[rows.start * c.heads * c.dim..rows.end * c.heads * c.dim];
        let w = &inputs.w[rows.start * c.heads..rows.end * c.heads];
        let want = reference_of(c, rounds, q, w, keys, &positions, inputs.scale);
        // Products of quants are exact, so that heads alone are summed: all of one sign, with their sizes.
        let sizes: Vec<f32> = w.iter().map(|w| w.abs()).collect();
        let of_heads = (c.ty == CacheType::Int8)
            .then(|| reference_of(c, rounds, q, &sizes, keys, &positions, inputs.scale));
        let n = keys.len() / c.dim;
        for (t, want) in want.chunks(n).enumerate() {
            let row = &got[(rows.start + t) * cols..][..cols];
            let slack = |s: usize| {
                if let Some(of_heads) = &of_heads {
                    return 4.0 * EPS * (c.heads as f64).sqrt() * of_heads[t * n + s];
                }
                let mut sum = 0.0;
                for a in 0..c.heads {
                    let q = &q[(t * c.heads + a) * c.dim..][..c.dim];
                    let dot: f64 = (0..c.dim).map(|i| f64::from((q[i] * keys[s * c.dim + i]).abs())).sum();
                    sum += f64::from(w[t * c.heads + a].abs()) * dot;
                }
                let sums = 4.0 * EPS * ((c.dim as f64).sqrt() + (c.heads as f64).sqrt());
                (sums + rounding(d, c)) * f64::from(inputs.scale) * sum
            };
            close("scores", &row[..n], want, slack)?;
            if c.ty == CacheType::Int8 {
                near_the_ideal(
                    c,
                    inputs.scale,
                    &q[t * c.heads * c.dim..],
                    &w[t * c.heads..],
                    keys,
                    &row[..n],
                )?;
            }
            prop_assert!(row[n..].iter().all(|s| *s == f32::NEG_INFINITY), "keys of no sequence are visible");
        }
    }
    Ok(())
}

/// Scores of a row in int8 are off from those of what was given, unrounded, by at most what half a step of each rotated value makes of
/// lengths: `|q| |dk| + |dq| |k| + |dq| |dk|` of a dot product.
fn near_the_ideal(c: &Case, scale: f32, q: &[f32], w: &[f32], keys: &[f32], got: &[f32]) -> TestCaseResult {
    let lengths = |x: &[f32]| {
        let length = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        let step = f64::from(reference::rotated_int8(x.as_array().unwrap()).1);
        (length, step * (128f64.sqrt() / 2.0 + 1e-3) + 1e-36)
    };
    let heads = &q[..c.heads * c.dim];
    let all_finite = heads.iter().chain(keys).all(|v| v.is_finite());
    let of_heads: Vec<_> = heads.chunks(128).map(lengths).collect();
    for (key, got) in keys.chunks(128).zip(got).filter(|(_, got)| all_finite && got.is_finite()) {
        let (k, dk) = lengths(key);
        let (mut want, mut bound) = (0.0, 0.0);
        for ((head, (q, dq)), w) in heads.chunks(128).zip(&of_heads).zip(w) {
            let dot: f64 = head.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            want += f64::from(*w) * dot.max(0.0);
            bound += f64::from(w.abs()) * (q * dk + dq * k + dq * dk + 1e-6 * q * k);
        }
        let off = (f64::from(*got) - want * f64::from(scale)).abs();
        prop_assert!(off <= bound * f64::from(scale) + 1e-36, "off by {} of {}", off, want);
    }
    Ok(())
}

fn rows_of(out: &Selection) -> glm5::Result<Vec<Vec<u32>>> {
    let (k, indices, lens) = (out.k(), out.indices.to_vec()?, out.lens.to_vec()?);
    Ok(lens.iter().enumerate().map(|(t, n)| indices[t * k..][..*n as usize].to_vec()).collect())
}

fn select(d: &Device, c: &Case, inputs: &Inputs, out: &mut Selection) -> glm5::Result<Vec<Vec<u32>>> {
    let (q, w, keys, rows) = inputs.on(d, c.heads, c.dim)?;
    let mut scratch = IndexerScratch::with_block(d, c.block)?;
    indexer_select(&q, &w, &keys, &rows, inputs.scale, &mut scratch, out, c.precision)?;
    assert_eq!(out.lens.rows(), rows.len());
    rows_of(out)
}

/// Exactly, for the device's own scores; all visible positions where there are no more than `k`.
pub fn select_is_top_k_of_scores(devices: &[Device], c: Case) -> TestCaseResult {
    let inputs = c.inputs();
    let visible: Vec<u32> = inputs.batch.positions().iter().map(|p| p + 1).collect();
    let got = on_each(devices, |d| {
        let mut out = Selection::new(d, c.k).unwrap();
        out.resize(70).unwrap(); // Left over from a larger step.
        out.indices.fill(u32::MAX)?;
        out.lens.fill(u32::MAX)?;
        select(d, &c, &inputs, &mut out)
    })?;
    let d = &devices[0];
    let fail = |e: glm5::Error| TestCaseError::fail(e.to_string());
    let mut want = Selection::new(d, c.k).unwrap();
    let counts = Tensor::from_vec(d, visible.len(), 1, visible.clone()).map_err(fail)?;
    let mut scratch = TopkScratch::new(d).map_err(fail)?;
    // By the kernel that the selection takes: that for the width and type.
    let of_scores = Case { config: 0, ..c.clone() };
    top_k(&scores(d, &of_scores, &inputs).map_err(fail)?, &counts, &mut scratch, &mut want).map_err(fail)?;
    let want = rows_of(&want).map_err(fail)?;
    for (t, got) in got.iter().enumerate() {
        prop_assert_eq!(got, &want[t], "row {}", t);
        if visible[t] as usize <= c.k {
            prop_assert_eq!(got, &(0..visible[t]).collect::<Vec<_>>(), "row {}", t);
        }
    }
    Ok(())
}

fn single(keys: &[f32], dim: usize, q: &[f32], w: &[f32]) -> (Case, Inputs) {
    let sequences = vec![Sequence { len: keys.len() / dim, new: 1 }];
    let mut batch = Batch::random(&sequences, dim, CacheType::F32, &mut Rng(1));
    batch.keys[0] = keys.to_vec();
    let (ty, precision) = (CacheType::F32, Precision::Exact);
    let c = Case { sequences, heads: w.len(), dim, ty, precision, k: 2, config: 0, block: 1000, seed: 0 };
    (c, Inputs { batch, q: q.to_vec(), w: w.to_vec(), scale: 0.5 })
}

/// The negative weight counts as such, and a negative product not at all.
pub fn follows_a_hand_computed_example(devices: &[Device]) {
    let keys = [1.0, 0.0, 0.0, 1.0, -1.0, -1.0, 2.0, 3.0];
    // Products with head 0: 1, 2, -3, 8; with head 1: 1, -1, 0, -1.
    let (c, inputs) = single(&keys, 2, &[1.0, 2.0, 1.0, -1.0], &[3.0, -4.0]);
    for d in devices {
        let got = host(&scores(d, &c, &inputs).unwrap());
        assert_eq!(got[..4], [0.5 * (3.0 - 4.0), 0.5 * 6.0, 0.0, 0.5 * 24.0]);
        assert_eq!(select(d, &c, &inputs, &mut Selection::new(d, 2).unwrap()).unwrap(), [[1, 3]]);
    }
}

/// Keys for which every product is negative score 0, exactly, whatever the sign of the weights; the first are chosen.
pub fn keys_that_no_head_likes_tie_at_zero(devices: &[Device]) {
    let keys: Vec<f32> = (0..100 * 16).map(|i| -1.0 - (i % 7) as f32).collect();
    let (c, inputs) = single(&keys, 16, &[0.3; 64], &[1.0, -1.0, 0.5, -2.0]);
    for d in devices {
        let got = host(&scores(d, &c, &inputs).unwrap());
        assert!(got[..100].iter().all(|s| *s == 0.0), "{:?}", &got[..100]);
        let selected = select(d, &c, &inputs, &mut Selection::new(d, 5).unwrap()).unwrap();
        assert_eq!(selected, [[0, 1, 2, 3, 4]]);
    }
}

/// A broken key is selected, not hidden by the relu.
pub fn nan_is_seen(devices: &[Device]) {
    let mut keys = vec![1.0; 40 * 8];
    keys[30 * 8 + 5] = f32::NAN;
    let (c, inputs) = single(&keys, 8, &[0.1; 16], &[1.0, -1.0]);
    for d in devices {
        let got = host(&scores(d, &c, &inputs).unwrap());
        assert!(got[30].is_nan() && got[29].is_finite() && got[31].is_finite());
        assert_eq!(select(d, &c, &inputs, &mut Selection::new(d, 1).unwrap()).unwrap(), [[30]]);
    }
}

/// The same for keys of all types, by matrix instructions: a NaN of either sign is one; in int8 for all of a key or a row that has such a value. What
/// is infinite stays so or becomes NaN, as a part of the query may be zero.
pub fn broken_keys_and_queries_are_seen(devices: &[Device]) {
    let types = [CacheType::Bf16, CacheType::F16, CacheType::Int8];
    for (ty, precision) in types.into_iter().flat_map(|ty| [(ty, Precision::Exact), (ty, Precision::Fast)]) {
        for heads in [32, 9] {
            let sequences = vec![Sequence { len: 70, new: 3 }];
            let c = Case { heads, ..full_size(sequences, ty, precision, 1) };
            let mut inputs = c.inputs();
            let mut spoil = |key: usize, bad| inputs.batch.keys[0][key * 128 + 17 + key] = bad;
            spoil(3, f32::NAN);
            spoil(65, -f32::NAN);
            are_the_reference(devices, &c, &inputs).unwrap();
            let mut spoil = |key: usize, bad| inputs.batch.keys[0][key * 128 + 17 + key] = bad;
            spoil(40, f32::INFINITY);
            spoil(66, f32::NEG_INFINITY);
            let got = host(&scores(&devices[0], &c, &inputs).unwrap());
            let broken: Vec<usize> = (0..67).filter(|s| !got[*s].is_finite()).collect();
            assert_eq!(broken, [3, 40, 65, 66], "{ty} {precision} {heads}");
            if precision == Precision::Fast && ty != CacheType::Int8 {
                // No part of a query is zero, and no infinity meets another: heads that are not there must not make NaN.
                inputs.w.iter_mut().for_each(|w| *w = w.abs());
                are_the_reference(devices, &c, &inputs).unwrap();
            }
            let mut inputs = c.inputs();
            inputs.q[(heads + 1) * 128 + 5] = f32::NAN; // of the second row
            let got = host(&scores(&devices[0], &c, &inputs).unwrap());
            for (t, row) in got.chunks(got.len() / 3).enumerate() {
                let all = row[..68 + t].iter().all(|s| s.is_nan() == (t == 1));
                assert!(all, "{ty} {precision} {heads}: row {t}");
            }
        }
    }
}

/// More keys than all blocks of threads have at a time, and more rows than share them: of one sequence, ending within the next group; in a group
/// rows of two sequences, whose positions rise.
pub fn keys_of_many_tiles(devices: &[Device]) {
    use CacheType::*;
    use Precision::*;
    let cases = [
        (Bf16, Exact, 0),
        (F16, Exact, 1),
        (Bf16, Fast, 0),
        (F16, Fast, 1),
        (Bf16, Exact, 2),
        (F32, Exact, 0),
        (Int8, Exact, 0),
        (Int8, Fast, 1),
    ];
    for (ty, precision, config) in cases {
        let sequences = vec![
            Sequence { len: 1100, new: 4 },
            Sequence { len: 600, new: 1 },
            Sequence { len: 33, new: 2 },
            Sequence { len: 400, new: 11 },
        ];
        let c = Case { config, ..full_size(sequences, ty, precision, 100) };
        scores_are_the_reference(devices, c.clone()).unwrap();
        select_is_top_k_of_scores(devices, c).unwrap();
    }
}

/// Heads as small and large as f32 is, side by side: the range of 16 bits binds nowhere.
pub fn queries_of_any_size(devices: &[Device]) {
    use CacheType::*;
    use Precision::*;
    for (ty, precision) in
        [(Bf16, Exact), (F16, Exact), (F32, Exact), (Bf16, Fast), (F16, Fast), (Int8, Exact)]
    {
        let sequences = vec![Sequence { len: 70, new: 2 }];
        let c = Case { heads: 9, seed: 4, ..full_size(sequences, ty, precision, 10) };
        let mut inputs = c.inputs();
        for (i, q) in inputs.q.iter_mut().enumerate() {
            *q *= [1e-30, 1.0, 1e9, 0.0, 1e-4, 3e4, 1e30, 1e-12, 1e5][i / 128 % 9];
        }
        are_the_reference(devices, &c, &inputs).unwrap();
        // Each by itself: the largest hide the others.
        let w = inputs.w.clone();
        for head in 0..9 {
            let alone = w.iter().enumerate().map(|(i, w)| if i % 9 == head { *w } else { 0.0 });
            inputs.w = alone.collect();
            are_the_reference(devices, &c, &inputs).unwrap();
        }
    }
}

/// Rows of a prompt have the bits that each has by itself, by whichever launch: so a prompt and its tokens one by one select the same keys.
pub fn a_prompt_is_its_tokens(devices: &[Device]) {
    use CacheType::*;
    use Precision::*;
    for (ty, precision) in
        [(F32, Exact), (Bf16, Exact), (Bf16, Fast), (F16, Exact), (F16, Fast), (Int8, Exact), (Int8, Fast)]
    {
        let c = full_size(vec![Sequence { len: 150, new: 19 }], ty, precision, 1);
        let inputs = c.inputs();
        for d in devices {
            let (q, w, keys, rows) = inputs.on(d, c.heads, c.dim).unwrap();
            let launches = if d.gpu().is_ok() { 3 } else { 1 };
            let of_prompt = |config| host(&scores(d, &Case { config, ..c.clone() }, &inputs).unwrap());
            let prompts: Vec<_> = (0..launches).map(of_prompt).collect();
            if ty != F32 {
                assert!(prompts.iter().all(|p| *p == prompts[0]), "{ty} {precision}: launches differ");
            }
            let n = prompts[0].len() / rows.len();
            for t in 0..rows.len() {
                let visible = rows.positions()[t] as usize + 1;
                let mut one = RaggedRows::default();
                one.push(visible - 1, 1, &inputs.batch.tables()[0]).unwrap();
                one.upload(d).unwrap();
                let part = |x: &Tensor, n: usize| tensor(d, n, &host(x)[t * n..(t + 1) * n]);
                let (q, w) = (part(&q, c.heads * c.dim), part(&w, c.heads));
                let mut alone = poisoned(d, 1, visible);
                indexer_scores(&q, &w, &keys, &one, inputs.scale, &mut alone, precision).unwrap();
                assert!(host(&alone) == prompts[0][t * n..][..visible], "{ty} {precision}: row {t}");
            }
        }
    }
}

/// What a cache and queries lose moves few keys over the cut: of 2048 of 20,000, against f64 on what was given. The keys are of some hundred
/// topics and have channels five times as large as others, and most weights are positive, so that scores are spread as those of trained
/// indexers are: few keys far above the others. And random ones, all alike, which is the hardest. On CPUs; GPUs differ from them by the rounding of
/// sums.
pub fn rounding_hardly_changes_what_is_selected(devices: &[Device]) {
    const N: usize = 20_000;
    for d in devices.iter().filter(|d| d.gpu().is_err()).take(1) {
        for spread in [true, false] {
            let mut c = full_size(vec![Sequence { len: N, new: 1 }], CacheType::F32, Precision::Exact, 2048);
            let mut inputs = c.inputs();
            if spread {
                let (rng, topics) = (&mut Rng(12), Rng(11).normals(200 * 128));
                let topic = |i: usize| &topics[i * 128..][..128];
                for key in inputs.batch.keys[0].chunks_mut(128) {
                    let of = topic(rng.below(200));
                    key.iter_mut().zip(of).for_each(|(k, of)| *k = 0.8 * of + 0.6 * *k);
                    key.iter_mut().skip(5).step_by(41).for_each(|k| *k *= 5.0);
                }
                for q in inputs.q.chunks_mut(128) {
                    let of = topic(rng.below(6));
                    q.iter_mut().zip(of).for_each(|(q, of)| *q += of);
                    q.iter_mut().skip(5).step_by(41).for_each(|q| *q *= 0.5);
                }
                inputs.w.iter_mut().skip(3).for_each(|w| *w = w.abs());
            }
            let mut selected = |ty, precision| {
                (c.ty, c.precision) = (ty, precision);
                let batch = inputs.batch.as_type(ty);
                let inputs = Inputs { batch, q: inputs.q.clone(), w: inputs.w.clone(), scale: inputs.scale };
                select(d, &c, &inputs, &mut Selection::new(d, 2048).unwrap()).unwrap().remove(0)
            };
            let ideal = selected(CacheType::F32, Precision::Exact);
            for (ty, precision, least) in [
                (CacheType::Bf16, Precision::Exact, 0.995),
                (CacheType::Bf16, Precision::Fast, 0.995),
                (CacheType::F16, Precision::Fast, 0.999),
                (CacheType::Int8, Precision::Exact, 0.99),
            ] {
                let got = selected(ty, precision);
                let same = ideal.iter().filter(|i| got.binary_search(i).is_ok()).count();
                let share = same as f64 / ideal.len() as f64;
                println!("{ty} {precision}, spread {spread}: {share:.4}");
                assert!(share >= least, "{ty} {precision}, spread {spread}: {share}");
            }
        }
    }
}
