//! Scores and selection by one launch: the positions that two launches select, bit for bit.

use glm5::ops::dsa_indexer::config::{IndexerProblem, SelectConfig};
use glm5::ops::dsa_indexer::{IndexerScratch, Selecting, indexer_select, indexer_select_with};
use glm5::ops::dsa_topk::Selection;
use glm5::tensor::{CacheType, Device, PAGE_ROWS, PagedRows, Precision, RaggedRows, Tensor};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::Rng;
use super::inputs::tensor;
use super::sequences::{Batch, Sequence};

macro_rules! dsa_select_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { dsa_select, $devices, $cases;
        selects_what_two_launches_select(case);
        lists_that_do_not_do, few_rows_are_selected_at_once, graphs_select_again, graphs_may_select_at_once_what_did_not,
        refuses_what_it_was_not_built_for }
    };
}
pub(crate) use dsa_select_properties;

const DIM: usize = 128;

/// What keys are like.
#[derive(Debug, Clone, Copy)]
pub enum Keys {
    Random,
    /// Keys that queries like much in every sixth 32: one of two, three or six blocks of threads has all that are selected.
    Dealt,
    /// The same key everywhere: of equals the first.
    Equal,
    /// No query likes any: all scores are zero.
    Disliked,
}

#[derive(Debug, Clone)]
pub struct Case {
    lens: Vec<usize>,
    heads: usize,
    ty: CacheType,
    precision: Precision,
    k: usize,
    keys: Keys,
    /// Blocks of threads of a row.
    parts: u32,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    use CacheType::*;
    let len = prop_oneof![prop::sample::select(vec![1usize, 31, 32, 33, 64, 65, 300]), 1usize..700];
    let lens = prop::collection::vec(len, 1..=3);
    let heads = prop::sample::select(vec![1usize, 4, 17, 32, 32]);
    let ty = prop::sample::select(vec![Bf16, F16, Int8]);
    let precision = prop::sample::select(vec![Precision::Exact, Precision::Fast]);
    let k = prop::sample::select(vec![1usize, 2, 31, 64, 65, 200]);
    let keys =
        prop::sample::select(vec![Keys::Random, Keys::Random, Keys::Dealt, Keys::Equal, Keys::Disliked]);
    let parts = prop::sample::select(vec![1u32, 2, 2, 3, 4, 7, 128]);
    (lens, heads, ty, precision, k, keys, parts, any::<u64>()).prop_map(
        |(lens, heads, ty, precision, k, keys, parts, seed)| Case {
            lens,
            heads,
            ty,
            precision,
            k,
            keys,
            parts,
            seed,
        },
    )
}

struct Inputs {
    batch: Batch,
    q: Vec<f32>,
    w: Vec<f32>,
}

impl Case {
    fn inputs(&self) -> Inputs {
        let rng = &mut Rng(self.seed);
        let sequences: Vec<_> = self.lens.iter().map(|len| Sequence { len: *len, new: 1 }).collect();
        let mut batch = Batch::random(&sequences, DIM, self.ty, rng);
        let (mut q, w) =
            (rng.normals(sequences.len() * self.heads * DIM), rng.normals(sequences.len() * self.heads));
        for keys in &mut batch.keys {
            for (i, key) in keys.chunks_mut(DIM).enumerate() {
                match self.keys {
                    Keys::Random => {}
                    Keys::Dealt => {
                        key.iter_mut().for_each(|x| *x *= if i / 32 % 6 == 0 { 16.0 } else { 1.0 })
                    }
                    Keys::Equal => key.iter_mut().enumerate().for_each(|(i, x)| *x = (i % 7) as f32 - 3.0),
                    Keys::Disliked => key.fill(-1.0),
                }
            }
        }
        if matches!(self.keys, Keys::Disliked) {
            q.iter_mut().for_each(|q| *q = q.abs());
        }
        Inputs { batch, q, w }
    }
}

type There = (Tensor, Tensor, PagedRows, RaggedRows);

impl Inputs {
    fn on(&self, d: &Device, heads: usize) -> glm5::Result<There> {
        let (keys, rows) = self.batch.on(d)?;
        Ok((tensor(d, heads * DIM, &self.q), tensor(d, heads, &self.w), keys, rows))
    }
}

/// The launch for such rows, by so many blocks of threads each.
fn at_once(d: &Device, c: &Case, rows: &RaggedRows, parts: u32) -> Option<Selecting> {
    let gpu = d.gpu().ok()?.properties();
    let problem = IndexerProblem {
        m: rows.len(),
        sequences: rows.len(),
        visible: rows.max_visible(),
        heads: c.heads,
        dim: DIM,
        ty: c.ty,
        precision: c.precision,
        sms: gpu.sms as usize,
        smem_per_sm: gpu.smem_per_sm as usize,
    };
    SelectConfig::fitting(problem, c.k).map(|config| Selecting::AtOnce(SelectConfig { parts, ..config }))
}

pub(super) fn rows_of(out: &Selection) -> glm5::Result<Vec<Vec<u32>>> {
    let (k, indices, lens) = (out.k(), out.indices.to_vec()?, out.lens.to_vec()?);
    Ok(lens.iter().enumerate().map(|(t, n)| indices[t * k..][..*n as usize].to_vec()).collect())
}

/// In memory that holds what was left by an earlier step.
fn select(
    d: &Device,
    there: &There,
    c: &Case,
    scratch: &mut IndexerScratch,
    how: Option<Selecting>,
) -> glm5::Result<Vec<Vec<u32>>> {
    let mut out = Selection::new(d, c.k)?;
    out.resize(9)?;
    out.indices.fill(u32::MAX)?;
    out.lens.fill(u32::MAX)?;
    let (q, w, keys, rows) = there;
    indexer_select_with(q, w, keys, rows, 0.1, scratch, &mut out, c.precision, how)?;
    rows_of(&out)
}

fn is_the_same(d: &Device, c: &Case, scratch: &mut IndexerScratch) -> glm5::Result<bool> {
    let there = c.inputs().on(d, c.heads)?;
    let Some(how) = at_once(d, c, &there.3, c.parts) else {
        return Ok(c.lens.iter().all(|len| *len <= c.k));
    };
    let want = select(d, &there, c, &mut IndexerScratch::new(d)?, Some(Selecting::Apart))?;
    let got = select(d, &there, c, scratch, Some(how))?;
    Ok(got == want && got.iter().zip(&c.lens).all(|(got, len)| got.len() == c.k.min(*len)))
}

pub fn selects_what_two_launches_select(devices: &[Device], c: Case) -> TestCaseResult {
    for d in devices.iter().filter(|d| d.gpu().is_ok()) {
        let same = is_the_same(d, &c, &mut IndexerScratch::new(d).unwrap());
        prop_assert!(matches!(same, Ok(true)), "{}: {same:?}", d.name());
    }
    Ok(())
}

/// Launches of the family so far.
fn launches(d: &Device) -> u64 {
    let all = d.gpu().unwrap().launches();
    all.iter().filter(|(entry, _)| entry.family().starts_with("dsa_select")).map(|(_, n)| n).sum()
}

/// Rows of more keys than blocks of threads can list, launch after launch in the same memory: what is listed of a block is enough, or of equals the
/// first ones, or does not prove the selection, so that scores go to memory and blocks count together. The emulator makes one of them give up as
/// often as not, and the last one then scores and selects alone.
pub fn lists_that_do_not_do(devices: &[Device]) {
    use Keys::*;
    for d in devices.iter().filter(|d| d.gpu().is_ok()) {
        let mut scratch = IndexerScratch::new(d).unwrap();
        let kinds = [
            (Dealt, 2048),
            (Equal, 2048),
            (Random, 2048),
            (Dealt, 4096),
            (Equal, 4096),
            (Disliked, 1000),
            (Random, 64),
            (Dealt, 400),
        ];
        for (i, (keys, k)) in kinds.into_iter().enumerate() {
            let ty = [CacheType::Bf16, CacheType::Int8, CacheType::F16][i % 3];
            for parts in [2, 3] {
                let (lens, seed) = (vec![12_400 + 37 * i], (3 * i + parts) as u64);
                let c = Case {
                    lens,
                    heads: 2,
                    ty,
                    precision: Precision::Fast,
                    k,
                    keys,
                    parts: parts as u32,
                    seed,
                };
                assert!(is_the_same(d, &c, &mut scratch).unwrap(), "{c:?}");
            }
        }
        if d.name().contains("emulator") {
            continue;
        }
        // On GPUs as many blocks as there can be.
        for (keys, k) in kinds {
            for ty in [CacheType::Bf16, CacheType::Int8] {
                let c = Case {
                    lens: vec![131_072],
                    heads: 32,
                    ty,
                    precision: Precision::Exact,
                    k,
                    keys,
                    parts: 128,
                    seed: 5,
                };
                assert!(is_the_same(d, &c, &mut scratch).unwrap(), "{c:?}");
            }
        }
    }
}

/// Rows of their own and many keys by one launch; few keys, and rows that share keys, by two.
pub fn few_rows_are_selected_at_once(devices: &[Device]) {
    for d in devices.iter().filter(|d| d.gpu().is_ok()) {
        use CacheType::*;
        for (lens, new, ty, at_once) in [
            (vec![8200, 70], 1, Bf16, true),
            (vec![8192], 1, Int8, true),
            (vec![8192], 1, F16, false),
            (vec![80, 70], 1, Bf16, false),
            (vec![8300], 2, Int8, false),
        ] {
            let sequences: Vec<_> = lens.iter().map(|len| Sequence { len: *len, new }).collect();
            let batch = Batch::random(&sequences, DIM, ty, &mut Rng(1));
            let (keys, rows) = batch.on(d).unwrap();
            let rng = &mut Rng(2);
            let (q, w) = (rng.normals(rows.len() * DIM), rng.normals(rows.len()));
            let (q, w) = (tensor(d, DIM, &q), tensor(d, 1, &w));
            let select = |how| {
                let (mut scratch, mut out) =
                    (IndexerScratch::new(d).unwrap(), Selection::new(d, 20).unwrap());
                let exact = Precision::Exact;
                match how {
                    None => indexer_select(&q, &w, &keys, &rows, 0.1, &mut scratch, &mut out, exact).unwrap(),
                    how => indexer_select_with(&q, &w, &keys, &rows, 0.1, &mut scratch, &mut out, exact, how)
                        .unwrap(),
                }
                rows_of(&out).unwrap()
            };
            let before = launches(d);
            let got = select(None);
            assert_eq!(launches(d) - before, u64::from(at_once), "{lens:?} {ty}");
            assert!(got == select(Some(Selecting::Apart)), "{lens:?} {ty}");
        }
    }
}

/// A recorded call is for all keys that pages hold, so it may select at once where the same call, not recorded, did not: with memory that this left.
pub fn graphs_may_select_at_once_what_did_not(devices: &[Device]) {
    for d in devices.iter().filter(|d| d.gpu().is_ok()) {
        let two = [Sequence { len: 80, new: 1 }; 2];
        let batch = Batch::random(&two, DIM, CacheType::Bf16, &mut Rng(1));
        let (keys, mut rows) = batch.on(d).unwrap();
        // Pages ahead, as many as it takes; whose they are does not matter.
        rows.clear();
        for table in batch.tables() {
            let pages: Vec<u32> = table.iter().copied().chain([0; 8200 / PAGE_ROWS]).collect();
            rows.push(79, 1, &pages).unwrap();
        }
        rows.upload(d).unwrap();
        let (q, w) = (tensor(d, DIM, &Rng(2).normals(2 * DIM)), tensor(d, 1, &[1.0, -1.0]));
        let mut scratch = IndexerScratch::with_block(d, 1).unwrap();
        let mut out = Selection::new(d, 20).unwrap();
        let mut select =
            || indexer_select(&q, &w, &keys, &rows, 0.1, &mut scratch, &mut out, Precision::Exact);
        let before = launches(d);
        select().unwrap();
        assert_eq!(launches(d), before, "one launch for 80 keys");
        let mut graph = d.gpu().unwrap().capture(select).unwrap();
        assert_eq!(launches(d), before + 1, "no launch that selects at once was recorded");
        let want = rows_of(&out).unwrap();
        out.indices.fill(0).unwrap();
        graph.launch().unwrap();
        assert_eq!(rows_of(&out).unwrap(), want);
    }
}

/// A graph takes what lies in its memory when it runs: other queries, and rows at other positions, some of which see no more than is selected.
pub fn graphs_select_again(devices: &[Device]) {
    for d in devices.iter().filter(|d| d.gpu().is_ok()) {
        let c = Case {
            lens: vec![300, 200],
            heads: 32,
            ty: CacheType::Bf16,
            precision: Precision::Exact,
            k: 40,
            keys: Keys::Random,
            parts: 2,
            seed: 6,
        };
        let inputs = c.inputs();
        let (mut q, w, keys, mut rows) = inputs.on(d, 32).unwrap();
        let how = at_once(d, &c, &rows, 2);
        let (mut out, mut scratch) = (Selection::new(d, 40).unwrap(), IndexerScratch::new(d).unwrap());
        let exact = Precision::Exact;
        indexer_select_with(&q, &w, &keys, &rows, 0.1, &mut scratch, &mut out, exact, how).unwrap(); // takes the memory
        let call = || indexer_select_with(&q, &w, &keys, &rows, 0.1, &mut scratch, &mut out, exact, how);
        let mut graph = d.gpu().unwrap().capture(call).unwrap();
        for step in 0..3u64 {
            q.cuda_mut().unwrap().upload(0, &Rng(step).normals(2 * 32 * DIM)).unwrap();
            let pages = inputs.batch.tables();
            rows.clear();
            rows.push(299 - 70 * step as usize, 1, &pages[0]).unwrap();
            rows.push(199 - 85 * step as usize, 1, &pages[1]).unwrap();
            rows.upload(d).unwrap();
            graph.launch().unwrap();
            let got = rows_of(&out).unwrap();
            let (mut again, mut other) = (Selection::new(d, 40).unwrap(), IndexerScratch::new(d).unwrap());
            let apart = Some(Selecting::Apart);
            indexer_select_with(&q, &w, &keys, &rows, 0.1, &mut other, &mut again, exact, apart).unwrap();
            assert!(got == rows_of(&again).unwrap(), "step {step}");
        }
    }
}

pub fn refuses_what_it_was_not_built_for(devices: &[Device]) {
    for d in devices.iter().filter(|d| d.gpu().is_ok()) {
        let case = |ty, lens| Case {
            lens,
            heads: 2,
            ty,
            precision: Precision::Exact,
            k: 40,
            keys: Keys::Random,
            parts: 1,
            seed: 6,
        };
        let (c, other) = (case(CacheType::Bf16, vec![300]), case(CacheType::F16, vec![300]));
        let there = c.inputs().on(d, 2).unwrap();
        let mut scratch = IndexerScratch::new(d).unwrap();
        let mut run = |how| select(d, &there, &c, &mut scratch, how).map(drop);
        let of_other = at_once(d, &other, &there.3, 1);
        let result = run(of_other);
        assert!(matches!(result, Err(glm5::Error::Unsupported { .. })), "keys of another type: {result:?}");
        for parts in [0, 129] {
            let result = run(at_once(d, &c, &there.3, parts));
            assert!(matches!(result, Err(glm5::Error::Argument { .. })), "{parts}: {result:?}");
        }
        // More than its blocks hold.
        let long = case(CacheType::Bf16, vec![16_385]);
        let there = long.inputs().on(d, 2).unwrap();
        let how = at_once(d, &long, &there.3, 2).map(|how| match how {
            Selecting::AtOnce(config) => Selecting::AtOnce(SelectConfig { parts: 1, ..config }),
            apart => apart,
        });
        let result = select(d, &there, &long, &mut scratch, how);
        assert!(matches!(result, Err(glm5::Error::Argument { .. })), "{result:?}");
    }
}
