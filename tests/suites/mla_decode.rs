//! Latent attention by matrix instructions: heads of 512 + 64 over caches of bf16, f16 and fp8. On GPUs only.
//!
//! Queries are rounded to the type of the cache, weights of keys before they meet values; the rest is f32. So results are compared with
//! the reference on rounded queries: tight, plus `u sum|p v|` for weights of unit roundoff `u` (2^-8 of bf16, 2^-11 of f16). The ideal, on
//! queries as they are, is met within 1 % (bf16) and 2 per mille (f16) in L2. Rows of fp8 are bf16 of another spelling: the same bounds
//! against what they come back as, and the same bits as from a cache of bf16 with that in it (`fp8_is_bf16`).
//!
//! Of the classic mistakes these are looked for: a wrong scale, or one that is applied twice, parts of a row exchanged
//! (`is_the_reference`); queries outside the range of f16 (`huge_queries_pick_one_key`); selected positions that are not visible
//! (`is_the_reference`, `later_keys_do_not_matter`); decoding unlike prefill, by position, mask or place in the cache (`any_cut_gives_the_same`).

use glm5::kernels::{Entry, mla_decode, mla_few};
use glm5::ops::dsa_topk::Selection;
use glm5::ops::mla_attention::{MlaConfig, MlaOptions, MlaScratch, mla_attention_with};
use glm5::quant::GgmlType;
use glm5::tensor::{CacheType, Device, PagedRows, RaggedRows, Tensor};
use glm5::{Error, Result};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestCaseResult};

use super::blocks::Rng;
use super::close::{POISON, close, equal, relative};
use super::inputs::*;
use super::mla_attention::{Expected, queries, selection, selections};
use super::sequences::{Batch, Sequence, any_sequences};

macro_rules! mla_decode_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { mla_decode, $devices, $cases;
        is_the_reference(case), is_near_the_ideal(case), selecting_all_is_dense(case), any_cut_gives_the_same(case),
        sequences_do_not_touch(case), later_keys_do_not_matter(case), huge_queries_pick_one_key(case), fp8_is_bf16(case);
        takes_any_number_of_heads_and_keys, takes_many_rows, rows_without_keys_give_zeros,
        a_key_that_is_not_finite_shows, a_graph_follows_lengths, what_is_left_in_scratch_does_not_matter, refuses_what_does_not_fit }
    };
}
pub(crate) use mla_decode_properties;

pub(super) const RANK: usize = 512;
pub(super) const WIDTH: usize = 576;

#[derive(Debug, Clone)]
pub struct Case {
    pub sequences: Vec<Sequence>,
    pub heads: usize,
    pub ty: CacheType,
    /// Whether few keys are selected.
    pub sparse: bool,
    pub seed: u64,
}

impl Case {
    pub fn config(&self) -> MlaConfig {
        config(self.heads)
    }

    /// Keys, queries and the selection.
    pub fn inputs(&self) -> (Batch, Vec<f32>, Option<Vec<Vec<u32>>>) {
        let rng = &mut Rng(self.seed);
        let batch = Batch::random(&self.sequences, WIDTH, self.ty, rng);
        let q = queries(&batch, &self.config(), rng);
        let selected = self.sparse.then(|| selections(&batch, rng));
        (batch, q, selected)
    }
}

pub fn case() -> impl Strategy<Value = Case> {
    let heads = prop::sample::select(vec![1usize, 3, 8, 16, 17, 20, 33]);
    let ty = prop::sample::select(vec![CacheType::Bf16, CacheType::F16, CacheType::Fp8]);
    (any_sequences(3), heads, ty, any::<bool>(), any::<u64>())
        .prop_map(|(sequences, heads, ty, sparse, seed)| Case { sequences, heads, ty, sparse, seed })
}

/// The scale is that of the whole head (256), not that of the row.
pub(super) fn config(n_heads: usize) -> MlaConfig {
    MlaConfig { n_heads, kv_lora_rank: RANK, qk_rope_head_dim: WIDTH - RANK, sm_scale: 1.0 / 16.0 }
}

/// The kernels for a type of cache.
pub(super) fn kernels(ty: CacheType) -> impl Iterator<Item = Entry> {
    let named = match ty {
        CacheType::F16 => (GgmlType::F16, 0),
        ty => (GgmlType::BF16, u32::from(ty == CacheType::Fp8)),
    };
    let few = mla_few::INSTANCES.iter().map(|i| ((i.ty, i.fp8), i.entry));
    let many = mla_decode::INSTANCES.iter().map(|i| ((i.ty, i.fp8), i.entry));
    few.chain(many).filter(move |(of, _)| *of == named).map(|(_, entry)| entry)
}

/// Queries as kernels round them; those over caches of f32 do not.
pub(super) fn rounded(q: &[f32], ty: CacheType) -> Vec<f32> {
    let head = |q: &[f32]| -> Vec<f32> {
        if ty == CacheType::F32 {
            return q.to_vec();
        }
        if ty != CacheType::F16 {
            return q.iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
        }
        let largest = q.iter().fold(0.0f32, |a, v| a.max(v.abs()));
        let scale = 2f64.powi(14 - f64::from(largest).log2().floor() as i32);
        let round = |v: &f32| (f64::from(f16::from_f64(f64::from(*v) * scale).to_f32()) / scale) as f32;
        q.iter().map(round).collect()
    };
    q.chunks(WIDTH).flat_map(head).collect()
}

/// Weights of keys are rounded with this error, relatively, and those of f16 by this much at least.
pub(super) fn roundoff(ty: CacheType) -> (f64, f64) {
    match ty {
        CacheType::F32 => (0.0, 0.0),
        CacheType::F16 => (2f64.powi(-11), 2f64.powi(-25)),
        _ => (2f64.powi(-8), 0.0),
    }
}

pub(super) type Outputs = (Vec<f32>, Vec<f32>);

/// One call, by `kernel` if that is named.
pub(super) fn call(
    d: &Device,
    (cache, rows): &(PagedRows, RaggedRows),
    q: &[f32],
    selected: Option<&[Vec<u32>]>,
    config: &MlaConfig,
    kernel: Option<Entry>,
) -> Result<Outputs> {
    let selected = selected.map(|s| selection(d, s)).transpose()?;
    let (mut out, mut lse) =
        (poisoned(d, rows.len(), config.n_heads * RANK), poisoned(d, rows.len(), config.n_heads));
    let options = MlaOptions { lse: Some(&mut lse), scratch: None, kernel };
    let q = tensor(d, config.n_heads * WIDTH, q);
    mla_attention_with(options, &q, cache, rows, selected.as_ref(), config, &mut out)?;
    Ok((host(&out), host(&lse)))
}

/// The results of every kernel.
pub(super) fn by_each(
    devices: &[Device],
    c: &Case,
    batch: &Batch,
    q: &[f32],
    selected: Option<&[Vec<u32>]>,
) -> std::result::Result<Vec<Outputs>, TestCaseError> {
    let each = kernels(c.ty)
        .map(|kernel| on_each(devices, |d| call(d, &batch.on(d)?, q, selected, &c.config(), Some(kernel))));
    each.collect()
}

/// Results must be those of the reference on rounded queries.
pub(super) fn near_reference(
    c: &Case,
    batch: &Batch,
    q: &[f32],
    selected: Option<&[Vec<u32>]>,
    got: &Outputs,
) -> TestCaseResult {
    let want = Expected::new(batch, &rounded(q, c.ty), selected, &c.config());
    let (relative, absolute) = roundoff(c.ty);
    close("out", &got.0, &want.out, |i| {
        want.off[i] + relative * want.magnitudes[i] + absolute * 200.0 * want.largest[i]
    })?;
    close("lse", &got.1, &want.lse, |i| want.lse_off[i])
}

/// Also with logits so large that maxima, and with them the base of the weights, grow from tile to tile.
pub fn is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let (batch, mut q, selected) = c.inputs();
    q.iter_mut().for_each(|v| *v *= [1.0, 8.0][c.seed as usize % 2]);
    for got in by_each(devices, &c, &batch, &q, selected.as_deref())? {
        near_reference(&c, &batch, &q, selected.as_deref(), &got)?;
    }
    Ok(())
}

pub fn is_near_the_ideal(devices: &[Device], c: Case) -> TestCaseResult {
    let (batch, q, selected) = c.inputs();
    let got = on_each(devices, |d| call(d, &batch.on(d)?, &q, selected.as_deref(), &c.config(), None))?;
    let want = Expected::new(&batch, &q, selected.as_deref(), &c.config());
    relative("out", &got.0, &want.out, if c.ty == CacheType::F16 { 2e-3 } else { 1e-2 })
}

/// Bit for bit: the same keys in the same tiles.
pub fn selecting_all_is_dense(devices: &[Device], c: Case) -> TestCaseResult {
    let (batch, q, _) = c.inputs();
    let all: Vec<Vec<u32>> = batch.positions().iter().map(|p| (0..=*p).collect()).collect();
    let dense = by_each(devices, &c, &batch, &q, None)?;
    let sparse = by_each(devices, &c, &batch, &q, Some(&all))?;
    for (sparse, dense) in sparse.iter().zip(&dense) {
        equal("out", &sparse.0, &dense.0)?;
        equal("lse", &sparse.1, &dense.1)?;
    }
    Ok(())
}

/// All rows of a batch at once, or each by itself.
pub fn any_cut_gives_the_same(devices: &[Device], c: Case) -> TestCaseResult {
    let (batch, q, selected) = c.inputs();
    let config = c.config();
    let single = on_each(devices, |d| {
        let (mut cache, rows) = batch.on(d)?;
        let (mut out, mut lse) = (Vec::new(), Vec::new());
        for t in 0..rows.len() {
            let mut row = RaggedRows::default();
            row.push(rows.positions()[t] as usize, 1, batch.table_of(t))?;
            row.upload(d)?;
            let q = &q[t * c.heads * WIDTH..][..c.heads * WIDTH];
            let there = (cache, row);
            let got = call(d, &there, q, selected.as_ref().map(|s| &s[t..t + 1]), &config, None)?;
            cache = there.0;
            out.extend(got.0);
            lse.extend(got.1);
        }
        Ok((out, lse))
    })?;
    near_reference(&c, &batch, &q, selected.as_deref(), &single)?;
    let all = on_each(devices, |d| call(d, &batch.on(d)?, &q, selected.as_deref(), &config, None))?;
    near_reference(&c, &batch, &q, selected.as_deref(), &all)
}

/// Other queries and keys of all sequences but the first leave its results as they are, bit for bit.
pub fn sequences_do_not_touch(devices: &[Device], c: Case) -> TestCaseResult {
    let (batch, q, selected) = c.inputs();
    let rows = batch.sequences[0].new;
    let other = batch.with_other_keys(|sequence, _| sequence > 0, &mut Rng(c.seed ^ 1));
    let mut other_q = q.clone();
    other_q[rows * c.heads * WIDTH..].iter_mut().for_each(|v| *v = 3.0 * *v - 1.0);
    let before = by_each(devices, &c, &batch, &q, selected.as_deref())?;
    let after = by_each(devices, &c, &other, &other_q, selected.as_deref())?;
    for (before, after) in before.iter().zip(&after) {
        equal("out", &after.0[..rows * c.heads * RANK], &before.0[..rows * c.heads * RANK])?;
        equal("lse", &after.1[..rows * c.heads], &before.1[..rows * c.heads])?;
    }
    Ok(())
}

/// Keys behind a row's own leave its results as they are, though they may be selected.
pub fn later_keys_do_not_matter(devices: &[Device], c: Case) -> TestCaseResult {
    let (batch, q, selected) = c.inputs();
    let last = |sequence: usize| batch.sequences[sequence].len - 1;
    let other = batch.with_other_keys(|sequence, position| position == last(sequence), &mut Rng(c.seed ^ 1));
    let before = by_each(devices, &c, &batch, &q, selected.as_deref())?;
    let after = by_each(devices, &c, &other, &q, selected.as_deref())?;
    for (before, after) in before.iter().zip(&after) {
        let mut t = 0;
        for sequence in &batch.sequences {
            let earlier = sequence.new - 1;
            let heads = t * c.heads..(t + earlier) * c.heads;
            let cols = heads.start * RANK..heads.end * RANK;
            equal("out", &after.0[cols.clone()], &before.0[cols])?;
            equal("lse", &after.1[heads.clone()], &before.1[heads])?;
            t += sequence.new;
        }
    }
    Ok(())
}

/// Absorbed queries of 1e5 and more, far outside the range of f16, along one key of each row and head: that has all the weight.
pub fn huge_queries_pick_one_key(devices: &[Device], c: Case) -> TestCaseResult {
    let (batch, mut q, _) = c.inputs();
    let mut want = Vec::new();
    let mut heads = q.chunks_mut(WIDTH);
    let rng = &mut Rng(c.seed ^ 2);
    for (keys, _, positions) in batch.parts() {
        for position in positions {
            for q in heads.by_ref().take(c.heads) {
                let key = &keys[rng.below(position as usize + 1) * WIDTH..][..WIDTH];
                q.iter_mut().zip(key).for_each(|(q, k)| *q = 1e5 * k);
                want.extend(key[..RANK].iter().map(|v| v + 0.0)); // a sum of -0 and 0 is 0
            }
        }
    }
    for got in by_each(devices, &c, &batch, &q, None)? {
        equal("out", &got.0, &want)?;
        prop_assert!(got.1.iter().all(|v| *v > 1e6 && v.is_finite()), "{:?}", got.1);
    }
    Ok(())
}

/// Bit for bit: rows of fp8 have exact values in bf16. With blocks of large and of small values, and of zeros.
pub fn fp8_is_bf16(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let c = Case { ty: CacheType::Fp8, ..c };
    let mut batch = Batch::random(&c.sequences, WIDTH, c.ty, rng);
    let q = queries(&batch, &c.config(), rng);
    batch.scale_blocks(128, || [1.0, 1.0, 0.0, 1e-3, 30.0][rng.below(5)]);
    let selected = c.sparse.then(|| selections(&batch, rng));
    let plain = batch.as_type(CacheType::Bf16);
    let bf16 = Case { ty: CacheType::Bf16, ..c.clone() };
    let got = by_each(devices, &c, &batch, &q, selected.as_deref())?;
    let want = by_each(devices, &bf16, &plain, &q, selected.as_deref())?;
    for (got, want) in got.iter().zip(&want) {
        equal("out", &got.0, &want.0)?;
        equal("lse", &got.1, &want.1)?;
    }
    Ok(())
}

pub fn takes_any_number_of_heads_and_keys(devices: &[Device]) {
    let heads = [1, 3, 8, 16, 20, 32, 64];
    let lens = [1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257, 513];
    for (i, heads) in heads.into_iter().enumerate() {
        let ty = [CacheType::Bf16, CacheType::F16, CacheType::Fp8][i % 3];
        let few = lens.iter().skip(i % 4).step_by(4);
        let sequences = few.map(|len| Sequence { len: *len, new: 1 }).collect();
        let c = Case { sequences, heads, ty, sparse: i == 3, seed: i as u64 };
        is_the_reference(devices, c).unwrap();
    }
}

/// More rows than a block of threads has threads, none, one and many keys among them.
pub fn takes_many_rows(devices: &[Device]) {
    let sequences =
        [(140, 130), (1, 1), (100, 40), (90, 90), (300, 1)].map(|(len, new)| Sequence { len, new });
    let c = Case { sequences: sequences.to_vec(), heads: 1, ty: CacheType::Bf16, sparse: false, seed: 5 };
    let (batch, q, _) = c.inputs();
    let selected = selections(&batch, &mut Rng(6));
    for selected in [None, Some(&selected[..])] {
        let got = on_each(devices, |d| call(d, &batch.on(d)?, &q, selected, &c.config(), None)).unwrap();
        near_reference(&c, &batch, &q, selected, &got).unwrap();
    }
}

pub fn rows_without_keys_give_zeros(devices: &[Device]) {
    let (heads, sequences) = (3, vec![Sequence { len: 70, new: 3 }]);
    let c = Case { sequences, heads, ty: CacheType::Bf16, sparse: false, seed: 4 };
    let (batch, q, _) = c.inputs();
    // None; only later ones; one.
    let selected = [vec![], vec![69, 70], vec![5]];
    for (out, lse) in by_each(devices, &c, &batch, &q, Some(&selected)).unwrap() {
        assert!(out[..2 * heads * RANK].iter().all(|v| *v == 0.0));
        assert!(lse[..2 * heads].iter().all(|v| *v == f32::NEG_INFINITY));
        assert!(lse[2 * heads..].iter().all(|v| v.is_finite()));
        let key = &batch.keys[0][5 * WIDTH..][..RANK];
        equal("one key", &out[2 * heads * RANK..], &[key, key, key].concat()).unwrap();
    }
    // No room for any.
    for d in devices {
        let (cache, rows) = batch.on(d).unwrap();
        let none = Selection {
            indices: Tensor::zeros(d, 3, 0).unwrap(),
            lens: Tensor::from_vec(d, 3, 1, vec![7; 3]).unwrap(),
        };
        let mut out = poisoned(d, 3, heads * RANK);
        let q = tensor(d, heads * WIDTH, &q);
        mla_attention_with(MlaOptions::default(), &q, &cache, &rows, Some(&none), &config(heads), &mut out)
            .unwrap();
        assert!(host(&out).iter().all(|v| *v == 0.0));
    }
}

/// In all outputs of the rows that attend it, and in no other.
pub fn a_key_that_is_not_finite_shows(devices: &[Device]) {
    for ty in [CacheType::Bf16, CacheType::F16, CacheType::Fp8] {
        let sequences = vec![Sequence { len: 70, new: 2 }];
        let c = Case { sequences, heads: 17, ty, sparse: true, seed: 3 };
        let (mut batch, q, _) = c.inputs();
        batch.keys[0][40 * WIDTH + 200] = f32::NAN;
        let selected = [vec![3, 40, 41], vec![3, 39, 41]];
        for (out, lse) in by_each(devices, &c, &batch, &q, Some(&selected)).unwrap() {
            let (first, second) = out.split_at(c.heads * RANK);
            assert!(first.iter().all(|v| v.is_nan()) && lse[..c.heads].iter().all(|v| v.is_nan()), "{ty}");
            assert!(second.iter().chain(&lse[c.heads..]).all(|v| v.is_finite()), "{ty}");
        }
    }
}

/// A recorded call reads positions, tables, selections and queries anew; with as many rows, and no longer than it was made for.
pub fn a_graph_follows_lengths(devices: &[Device]) {
    let (heads, k) = (20, 128);
    for (d, sparse) in devices.iter().flat_map(|d| [(d, false), (d, true)]) {
        let gpu = d.gpu().unwrap();
        let sequences = vec![Sequence { len: 300, new: 1 }; 3];
        let c = Case { sequences, heads, ty: CacheType::Bf16, sparse: false, seed: 8 };
        let (all, ..) = c.inputs();
        let (cache, mut rows) = all.on(d).unwrap();
        let mut scratch = MlaScratch::new(d).unwrap();
        let (mut q, mut out) = (poisoned(d, 3, heads * WIDTH), poisoned(d, 3, heads * RANK));
        let mut lse = poisoned(d, 3, heads);
        let mut selected = selection(d, &vec![vec![0; k - 2]; 3]).unwrap();
        let mut graph = None;
        for (step, lens) in [[300, 40, 200], [1, 300, 65], [64, 64, 299]].into_iter().enumerate() {
            let batch = all.beginnings(&lens);
            let values = queries(&batch, &c.config(), &mut Rng(step as u64));
            let positions: Vec<Vec<u32>> =
                lens.iter().map(|len| (0..*len as u32).step_by(3 + step).collect()).collect();
            batch.lay_out(d, &mut rows).unwrap();
            q.cuda_mut().unwrap().upload(0, &values).unwrap();
            for (t, row) in positions.iter().enumerate() {
                selected.indices.cuda_mut().unwrap().upload(t * k, row).unwrap();
                selected.lens.cuda_mut().unwrap().upload(t, &[row.len() as u32]).unwrap();
            }
            out.fill(POISON).unwrap();
            lse.fill(POISON).unwrap();
            if graph.is_none() {
                let recorded = gpu.capture(|| {
                    let options =
                        MlaOptions { lse: Some(&mut lse), scratch: Some(&mut scratch), kernel: None };
                    let selected = sparse.then_some(&selected);
                    mla_attention_with(options, &q, &cache, &rows, selected, &c.config(), &mut out)
                });
                graph = Some(recorded.unwrap());
            }
            graph.as_mut().unwrap().launch().unwrap();
            let got = (host(&out), host(&lse));
            near_reference(&c, &batch, &values, sparse.then_some(&positions[..]), &got).unwrap();
        }
    }
}

/// Calls of other shapes before, one without scratch, one that is recorded.
pub fn what_is_left_in_scratch_does_not_matter(devices: &[Device]) {
    for d in devices {
        let mut scratch = MlaScratch::new(d).unwrap();
        let mut results = Vec::new();
        for (len, heads) in [(200, 20), (3, 64), (500, 1), (200, 20)] {
            let sequences = vec![Sequence { len, new: 2 }];
            let c = Case { sequences, heads, ty: CacheType::F16, sparse: false, seed: 9 };
            let (batch, q, _) = c.inputs();
            let (cache, rows) = batch.on(d).unwrap();
            let (q, mut out) = (tensor(d, heads * WIDTH, &q), poisoned(d, 2, heads * RANK));
            let options = MlaOptions { scratch: Some(&mut scratch), ..MlaOptions::default() };
            mla_attention_with(options, &q, &cache, &rows, None, &c.config(), &mut out).unwrap();
            results.push(host(&out));
            let refused = d.gpu().unwrap().capture(|| {
                mla_attention_with(MlaOptions::default(), &q, &cache, &rows, None, &c.config(), &mut out)
            });
            assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
        }
        equal("again", &results[3], &results[0]).unwrap();
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let sequences = vec![Sequence { len: 3, new: 3 }];
    let c = Case { sequences, heads: 2, ty: CacheType::Bf16, sparse: false, seed: 1 };
    let (batch, q, _) = c.inputs();
    let (cache, rows) = batch.on(d).unwrap();
    let (q, mut out) = (tensor(d, 2 * WIDTH, &q), poisoned(d, 3, 2 * RANK));
    let mut elsewhere = RaggedRows::default();
    elsewhere.push(0, 3, batch.table_of(0)).unwrap();
    let wide = MlaConfig { kv_lora_rank: RANK + 1, ..config(2) };
    let wide_cache = PagedRows::new(d, 1, WIDTH + 1, CacheType::Bf16).unwrap();
    let (wide_q, mut wide_out) = (poisoned(d, 3, 2 * WIDTH + 2), poisoned(d, 3, 2 * RANK + 2));
    let mut first = RaggedRows::default();
    first.push(0, 3, &[0]).unwrap();
    first.upload(d).unwrap();
    let with = |kernel| MlaOptions { kernel, ..MlaOptions::default() };
    let other = kernels(CacheType::F16).next();
    for (what, result) in [
        ("not uploaded", mla_attention_with(with(None), &q, &cache, &elsewhere, None, &config(2), &mut out)),
        (
            "a kernel of another type",
            mla_attention_with(with(other), &q, &cache, &rows, None, &config(2), &mut out),
        ),
        (
            "too wide",
            mla_attention_with(with(None), &wide_q, &wide_cache, &first, None, &wide, &mut wide_out),
        ),
    ] {
        assert!(matches!(result, Err(Error::Unsupported { .. })), "{what}: {result:?}");
    }
    assert!(untouched(&out) && untouched(&wide_out), "a refused call wrote something");
}
