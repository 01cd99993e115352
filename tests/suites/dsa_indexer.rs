//! Indexer scores, and the selection made from them.

use glm5::ops::dsa_indexer::config::{IndexerConfig, IndexerProblem, TILED, candidates};
use glm5::ops::dsa_indexer::{
    IndexerScratch, indexer_scores, indexer_scores_with, indexer_select, reference,
};
use glm5::ops::dsa_topk::{Selection, TopkScratch, top_k};
use glm5::tensor::{CacheType, Device, PagedRows, RaggedRows, Tensor};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestCaseResult};

use super::blocks::Rng;
use super::close::{EPS, close};
use super::inputs::*;
use super::sequences::{Batch, Sequence, any_cache_type, any_sequences};

macro_rules! dsa_indexer_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { dsa_indexer, $devices, $cases;
        scores_are_the_reference(case), select_is_top_k_of_scores(case);
        follows_a_hand_computed_example, keys_that_no_head_likes_tie_at_zero, nan_is_seen,
        keys_of_many_tiles, queries_of_any_size, selects_in_blocks_of_rows, graphs_score_again,
        refuses_what_does_not_fit }
    };
}
pub(crate) use dsa_indexer_properties;

#[derive(Debug, Clone)]
pub struct Case {
    sequences: Vec<Sequence>,
    heads: usize,
    dim: usize,
    ty: CacheType,
    k: usize,
    /// Which of the launches that could.
    config: usize,
    /// Scores that are held at a time.
    block: usize,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    let heads = prop::sample::select(vec![1usize, 2, 4, 7, 32, 33]);
    let dim = prop::sample::select(vec![1usize, 8, 33, 64, 128, 128, 128]);
    let k = prop::sample::select(vec![1usize, 2, 16, 63, 64, 65, 300]);
    let block = prop::sample::select(vec![1usize, 300, 1 << 20]);
    (any_sequences(3), heads, dim, any_cache_type(), k, 0usize..3, block, any::<u64>()).prop_map(
        |(sequences, heads, dim, ty, k, config, block, seed)| Case {
            sequences,
            heads,
            dim,
            ty,
            k,
            config,
            block,
            seed,
        },
    )
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
        sms: gpu.sms as usize,
        smem_per_sm: gpu.smem_per_sm as usize,
    });
    all.get(c.config % all.len()).copied()
}

fn scores(d: &Device, c: &Case, inputs: &Inputs) -> glm5::Result<Tensor> {
    let (q, w, keys, rows) = inputs.on(d, c.heads, c.dim)?;
    let mut scores = poisoned(d, rows.len(), rows.max_visible() + MORE);
    indexer_scores_with(&q, &w, &keys, &rows, inputs.scale, config(d, c, &rows), &mut scores)?;
    Ok(scores)
}

/// What queries lose as sums of two numbers of 16 bits, and sums of matrix instructions: of the sum of all sizes.
fn rounding(d: &Device, c: &Case) -> f64 {
    let tiled = d.gpu().is_ok() && c.heads <= TILED.0 && c.dim == TILED.1;
    match c.ty {
        CacheType::Bf16 if tiled => 2f64.powi(-17),
        CacheType::F16 if tiled => 2f64.powi(-20),
        _ => 0.0,
    }
}

pub fn scores_are_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    are_the_reference(devices, &c, &c.inputs())
}

fn are_the_reference(devices: &[Device], c: &Case, inputs: &Inputs) -> TestCaseResult {
    let got = on_each(devices, |d| Ok(host(&scores(d, c, inputs)?)))?;
    let cols = got.len() / inputs.batch.rows();
    for (keys, rows, positions) in inputs.batch.parts() {
        let q = &inputs.q[rows.start * c.heads * c.dim..rows.end * c.heads * c.dim];
        let w = &inputs.w[rows.start * c.heads..rows.end * c.heads];
        let want =
            reference::indexer_scores(q, w, keys, &positions, c.heads, c.dim, inputs.scale.into()).unwrap();
        let n = keys.len() / c.dim;
        for (t, want) in want.chunks(n).enumerate() {
            let row = &got[(rows.start + t) * cols..][..cols];
            let slack = |s: usize| {
                let mut sum = 0.0;
                for a in 0..c.heads {
                    let q = &q[(t * c.heads + a) * c.dim..][..c.dim];
                    let dot: f64 = (0..c.dim).map(|i| f64::from((q[i] * keys[s * c.dim + i]).abs())).sum();
                    sum += f64::from(w[t * c.heads + a].abs()) * dot;
                }
                let sums = 4.0 * EPS * ((c.dim as f64).sqrt() + (c.heads as f64).sqrt());
                (sums + rounding(&devices[0], c)) * f64::from(inputs.scale) * sum
            };
            close("scores", &row[..n], want, slack)?;
            prop_assert!(row[n..].iter().all(|s| *s == f32::NEG_INFINITY), "keys of no sequence are visible");
        }
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
    indexer_select(&q, &w, &keys, &rows, inputs.scale, &mut scratch, out)?;
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
    let c =
        Case { sequences, heads: w.len(), dim, ty: CacheType::F32, k: 2, config: 0, block: 1000, seed: 0 };
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

/// More keys than all blocks of threads have at a time, and more rows than share them: of one sequence, ending within the next group.
pub fn keys_of_many_tiles(devices: &[Device]) {
    for (ty, config) in [(CacheType::Bf16, 0), (CacheType::F16, 1), (CacheType::Bf16, 2), (CacheType::F32, 0)]
    {
        let sequences = vec![
            Sequence { len: 1500, new: 5 },
            Sequence { len: 700, new: 1 },
            Sequence { len: 33, new: 2 },
            Sequence { len: 900, new: 3 },
        ];
        let c = Case { sequences, heads: 32, dim: 128, ty, k: 100, config, block: 4000, seed: 3 };
        scores_are_the_reference(devices, c.clone()).unwrap();
        select_is_top_k_of_scores(devices, c).unwrap();
    }
}

/// Heads as small and large as f32 is, side by side: the range of 16 bits binds nowhere.
pub fn queries_of_any_size(devices: &[Device]) {
    for ty in [CacheType::Bf16, CacheType::F16, CacheType::F32] {
        let sequences = vec![Sequence { len: 70, new: 2 }];
        let c = Case { sequences, heads: 9, dim: 128, ty, k: 10, config: 0, block: 1000, seed: 4 };
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

/// More rows than are scored at a time, most of them past `k`, in two sequences.
pub fn selects_in_blocks_of_rows(devices: &[Device]) {
    for (dim, ty) in [(16, CacheType::F32), (128, CacheType::Bf16)] {
        let sequences = vec![Sequence { len: 140, new: 140 }, Sequence { len: 90, new: 20 }];
        let c = Case { sequences, heads: 2, dim, ty, k: 20, config: 0, block: 2000, seed: 8 };
        select_is_top_k_of_scores(devices, c).unwrap();
    }
}

/// A graph takes what lies in its memory when it runs: other queries, and rows at other positions.
pub fn graphs_score_again(devices: &[Device]) {
    for d in devices.iter().filter(|d| d.gpu().is_ok()) {
        let case = |len| {
            let sequences = vec![Sequence { len, new: 1 }, Sequence { len: 130, new: 2 }];
            Case {
                sequences,
                heads: 32,
                dim: 128,
                ty: CacheType::Bf16,
                k: 40,
                config: 0,
                block: 1000,
                seed: 6,
            }
        };
        let long = case(200);
        let inputs = long.inputs();
        let (mut q, w, keys, mut rows) = inputs.on(d, 32, 128).unwrap();
        let (mut out, mut scratch) = (Selection::new(d, 40).unwrap(), IndexerScratch::new(d).unwrap());
        indexer_select(&q, &w, &keys, &rows, 1.0, &mut scratch, &mut out).unwrap();
        let call = || indexer_select(&q, &w, &keys, &rows, 1.0, &mut scratch, &mut out);
        let mut graph = d.gpu().unwrap().capture(call).unwrap();
        for step in 0..3u64 {
            let values = Rng(step).normals(3 * 32 * 128);
            q.cuda_mut().unwrap().upload(0, &values).unwrap();
            let pages = inputs.batch.tables();
            rows.clear();
            rows.push(199 - 70 * step as usize, 1, &pages[0]).unwrap();
            rows.push(128, 2, &pages[1]).unwrap();
            rows.upload(d).unwrap();
            graph.launch().unwrap();
            let got = rows_of(&out).unwrap();
            let mut again = Selection::new(d, 40).unwrap();
            let mut other = IndexerScratch::new(d).unwrap();
            indexer_select(&q, &w, &keys, &rows, 1.0, &mut other, &mut again).unwrap();
            assert!(got == rows_of(&again).unwrap(), "step {step}");
        }
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let c = Case {
        sequences: vec![Sequence { len: 5, new: 3 }],
        heads: 2,
        dim: 8,
        ty: CacheType::F32,
        k: 2,
        config: 0,
        block: 1000,
        seed: 1,
    };
    let (q, w, keys, rows) = c.inputs().on(d, 2, 8).unwrap();
    let (narrow, short) = (tensor(d, 15, &[1.0; 45]), tensor(d, 16, &[1.0; 32]));
    let few = tensor(d, 2, &[1.0; 4]);
    let small = PagedRows::new(d, 1, 8, CacheType::F32).unwrap();
    let mut beyond = RaggedRows::default();
    beyond.push(2, 3, &[1]).unwrap();
    let (mut out, mut low, mut thin) = (poisoned(d, 3, 5), poisoned(d, 2, 5), poisoned(d, 3, 4));
    let mut selection = Selection::new(d, 2).unwrap();
    let mut none = Selection::new(d, 0).unwrap();
    let room = &mut IndexerScratch::new(d).unwrap();
    refused(vec![
        ("q cols", indexer_scores(&narrow, &w, &keys, &rows, 1.0, &mut out)),
        ("q rows", indexer_scores(&short, &w, &keys, &rows, 1.0, &mut out)),
        ("w rows", indexer_scores(&q, &few, &keys, &rows, 1.0, &mut out)),
        ("slots", indexer_scores(&q, &w, &small, &beyond, 1.0, &mut out)),
        ("score rows", indexer_scores(&q, &w, &keys, &rows, 1.0, &mut low)),
        ("score cols", indexer_scores(&q, &w, &keys, &rows, 1.0, &mut thin)),
        ("select q", indexer_select(&narrow, &w, &keys, &rows, 1.0, room, &mut selection)),
        ("select w", indexer_select(&q, &few, &keys, &rows, 1.0, room, &mut selection)),
        ("select slots", indexer_select(&q, &w, &small, &beyond, 1.0, room, &mut selection)),
        ("select none", indexer_select(&q, &w, &keys, &rows, 1.0, room, &mut none)),
    ]);
    if d.gpu().is_ok() {
        let mut there_not = RaggedRows::default();
        there_not.push(2, 3, &[1]).unwrap();
        let result = indexer_scores(&q, &w, &keys, &there_not, 1.0, &mut out);
        assert!(matches!(result, Err(glm5::Error::Unsupported { .. })), "{result:?}");
    }
    assert!([out, low, thin].iter().all(untouched), "a refused call wrote something");
    assert_eq!(selection.lens.rows(), 0, "a refused call changed the selection");
}
