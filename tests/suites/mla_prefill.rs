//! Latent attention of prompts: on GPUs with keys and values that were expanded for each head, on the CPU absorbed.
//!
//! Kernels round latent rows, weights, scaled queries, expanded keys and values, and the weights of keys before they meet values, all to bf16. So
//! results are compared with the reference that rounds there, too, value by value; with the ideal, 1 % in L2; and with the absorbed form. A row's
//! result depends on its query and the keys it sees alone: every cut of a prompt, whatever else is in the batch, and every number of keys that
//! are expanded at a time give the same bits.
//!
//! Of the classic mistakes these are looked for: a wrong scale, or one of the absorbed width; parts of a key exchanged, `k_b` not turned
//! (`is_the_reference`, `takes_the_types_of_caches_and_weights`); keys of the future, through zero weights too (`later_keys_do_not_matter`);
//! prefill unlike decoding (`any_cut_gives_the_same`, `equals_the_absorbed_form`); logits that overflow (`huge_queries_pick_one_key`).

use std::sync::LazyLock;

use glm5::Result;
use glm5::ops::linear::head_linear;
use glm5::ops::mla_attention::reference::Expansion;
use glm5::ops::mla_attention::{MlaConfig, mla_attention};
use glm5::ops::mla_prefill::reference::{Attended, Expanded, attend, expand};
use glm5::ops::mla_prefill::{PrefillOptions, PrefillScratch, mla_prefill, mla_prefill_with};
use glm5::quant::{GgmlType, Weight};
use glm5::tensor::{CacheType, Device, Heads, Matrix, PAGE_ROWS, PagedRows, Precision, RaggedRows, Tensor};
use half::bf16;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestCaseResult};

use super::blocks::{Rng, random_weight};
use super::close::{EPS, close, equal, relative};
use super::inputs::*;
use super::sequences::{Batch, Sequence};

mod calls;
pub use calls::*;

macro_rules! mla_prefill_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { mla_prefill, $devices, $cases;
        is_the_reference(case), any_cut_gives_the_same(case), sequences_do_not_touch(case), later_keys_do_not_matter(case),
        huge_queries_pick_one_key(case);
        takes_sizes_around_tiles, keys_are_expanded_in_blocks_of_any_size, takes_the_types_of_caches_and_weights,
        equals_the_absorbed_form, takes_more_sequences_than_a_launch, what_is_not_finite_is_seen, broken_weights_are_seen, a_graph_reads_anew, a_graph_keeps_to_its_positions,
        refuses_what_does_not_fit }
    };
}
pub(crate) use mla_prefill_properties;

const RANK: usize = 512;
const ROPE: usize = 64;
const NOPE: usize = 192;
pub(super) const HEAD: usize = NOPE + ROPE;
const V: usize = 256;

#[derive(Debug, Clone)]
pub struct Case {
    sequences: Vec<Sequence>,
    heads: usize,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    let len = prop::sample::select(vec![1usize, 15, 16, 17, 31, 33, 63, 64, 65, 96, 129, 140]);
    let new = prop::sample::select(vec![1usize, 2, 15, 16, 17, 33, 64, 65, 130]);
    let sequence = (len, new).prop_map(|(len, new)| Sequence { len, new: new.min(len) });
    let heads = prop::sample::select(vec![1usize, 1, 2, 3]);
    (prop::collection::vec(sequence, 1..=2), heads, any::<u64>()).prop_map(|(sequences, heads, seed)| Case {
        sequences,
        heads,
        seed,
    })
}

/// Weights of eight heads; a case takes the first of them. Products have a variance near one.
static WEIGHTS: LazyLock<[Vec<f32>; 2]> = LazyLock::new(|| {
    let mut rng = Rng(7);
    [NOPE, V].map(|cols| rng.normals(8 * RANK * cols).iter().map(|w| 0.04 * w).collect())
});

/// The scale is that of the whole head (256).
fn config(n_heads: usize) -> MlaConfig {
    MlaConfig { n_heads, kv_lora_rank: RANK, qk_rope_head_dim: ROPE, sm_scale: 1.0 / 16.0 }
}

/// What the reference needs.
fn expansion(heads: usize) -> Expansion<'static> {
    let [k_b, v_b] = &*WEIGHTS;
    Expansion {
        k_b: &k_b[..heads * RANK * NOPE],
        v_b: &v_b[..heads * V * RANK],
        qk_nope_head_dim: NOPE,
        v_head_dim: V,
    }
}

fn f32_weight(shape: [usize; 3], values: &[f32]) -> Weight {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Weight::new(GgmlType::F32, shape, bytes.into()).unwrap()
}

pub(super) fn weights(heads: usize) -> [Weight; 2] {
    let Expansion { k_b, v_b, .. } = expansion(heads);
    [f32_weight([heads, RANK, NOPE], k_b), f32_weight([heads, V, RANK], v_b)]
}

impl Case {
    fn inputs(&self) -> (Batch, Vec<f32>) {
        let rng = &mut Rng(self.seed);
        let batch = Batch::random(&self.sequences, RANK + ROPE, CacheType::Bf16, rng);
        let q = rng.normals(batch.rows() * self.heads * HEAD);
        (batch, q)
    }
}

type Outputs = (Vec<f32>, Vec<f32>);

/// One call, that expands `keys` keys at a time on a GPU if that is said.
pub(super) fn call(
    d: &Device,
    (cache, rows): &(PagedRows, RaggedRows),
    q: &[f32],
    [k_b, v_b]: &[Weight; 2],
    keys: Option<usize>,
) -> Result<Outputs> {
    let heads = k_b.slabs();
    let mut scratch =
        keys.filter(|_| d.gpu().is_ok()).map(|n| PrefillScratch::new(d, heads, rows.len(), n)).transpose()?;
    let (mut out, mut lse) = (poisoned(d, rows.len(), heads * V), poisoned(d, rows.len(), heads));
    let options = PrefillOptions { lse: Some(&mut lse), scratch: scratch.as_mut() };
    let (k_b, v_b) = (matrix(d, k_b), matrix(d, v_b));
    mla_prefill_with(
        options,
        &tensor(d, heads * HEAD, q),
        cache,
        rows,
        &k_b,
        &v_b,
        &config(heads),
        &mut out,
    )?;
    Ok((host(&out), host(&lse)))
}

/// The results of each device for the case.
fn run(
    devices: &[Device],
    c: &Case,
    batch: &Batch,
    q: &[f32],
) -> std::result::Result<Outputs, TestCaseError> {
    on_each(devices, |d| call(d, &batch.on(d)?, q, &weights(c.heads), None))
}

fn to_bf16(x: f64) -> f64 {
    // Not twice: what f32 arithmetic computes is rounded once more, as in kernels.
    f64::from(bf16::from_f32(x as f32).to_f32())
}

/// Attention of all sequences by the reference; queries get the scale of natural logarithms.
fn expected(
    batch: &Batch,
    q: &[f32],
    config: &MlaConfig,
    expansion: &Expansion,
    round: impl Fn(f64) -> f64 + Copy,
) -> (Attended, Vec<f64>) {
    let (mut all, mut off) = (Attended::default(), Vec::new());
    let heads = config.n_heads;
    for (keys, rows, positions) in batch.parts() {
        let expanded = expand(keys, config, expansion, round).unwrap();
        // Kernels have logits in base 2, of queries that were scaled in f32.
        let scale = config.sm_scale * std::f32::consts::LOG2_E;
        let scaled = |q: &f32| round(f64::from(q * scale)) * std::f64::consts::LN_2;
        let q: Vec<f64> = q[rows.start * heads * HEAD..rows.end * heads * HEAD].iter().map(scaled).collect();
        let part = attend(&q, &expanded, &positions, heads).unwrap();
        off.extend(logit_off(&q, &expanded, &positions, heads));
        all.out.extend(part.out);
        all.lse.extend(part.lse);
        all.magnitudes.extend(part.magnitudes);
    }
    (all, off)
}

/// How far the logits of each row and head may be off: a sum in f32 of another order, and of each key the value that matters most rounded to the
/// other neighbour, since sums before the rounding differ in their last places.
fn logit_off(q: &[f64], expanded: &Expanded, positions: &[u32], heads: usize) -> Vec<f64> {
    let mut off = Vec::new();
    for (at, q) in q.chunks(HEAD).enumerate() {
        let (t, h) = (at / heads, at % heads);
        let of_key = |s: usize| {
            let key = &expanded.keys[(s * heads + h) * HEAD..][..HEAD];
            let products = q.iter().zip(key).map(|(q, k)| (q * k).abs());
            let (sum, most) = products.fold((0.0, 0.0f64), |(sum, most), p| (sum + p, most.max(p)));
            16.0 * EPS * sum + most / 128.0
        };
        off.push((0..=positions[t] as usize).map(of_key).fold(0.0, f64::max));
    }
    off
}

/// Value by value the reference that rounds where kernels do, and in L2 the ideal. In f32, on the CPU, the ideal alone.
fn near_reference(
    devices: &[Device],
    batch: &Batch,
    q: &[f32],
    heads: usize,
    got: &Outputs,
) -> TestCaseResult {
    let (config, expansion) = (config(heads), expansion(heads));
    let (ideal, _) = expected(batch, q, &config, &expansion, |x| x);
    if devices[0].gpu().is_err() {
        relative("lse", &got.1, &ideal.lse, 1e-5)?;
        return relative("out", &got.0, &ideal.out, 1e-5);
    }
    let (want, off) = expected(batch, q, &config, &expansion, to_bf16);
    // Weights and values, each by half a unit of bf16, and weights by what their logits are off.
    close("out", &got.0, &want.out, |i| (2f64.powi(-8) + 2.0 * off[i / V]) * want.magnitudes[i])?;
    close("lse", &got.1, &want.lse, |i| off[i] + 8.0 * EPS)?;
    relative("out, of the ideal,", &got.0, &ideal.out, 1e-2)
}

pub fn is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let (batch, q) = c.inputs();
    let got = run(devices, &c, &batch, &q)?;
    near_reference(devices, &batch, &q, c.heads, &got)
}

/// On a GPU the same bits, as sums are taken by position; on the CPU up to rounding.
fn same(devices: &[Device], what: &str, got: &[f32], want: &[f32]) -> TestCaseResult {
    if devices[0].gpu().is_ok() {
        return equal(what, got, want);
    }
    relative(what, got, &want.iter().map(|v| f64::from(*v)).collect::<Vec<_>>(), 1e-6)
}

/// All rows of a batch at once, or in two parts, each with all earlier keys in the cache.
pub fn any_cut_gives_the_same(devices: &[Device], c: Case) -> TestCaseResult {
    let (batch, q) = c.inputs();
    let all = run(devices, &c, &batch, &q)?;
    let cut = Rng(c.seed ^ 3).below(batch.rows() + 1);
    let parts = on_each(devices, |d| {
        let (mut cache, _) = batch.on(d)?;
        let (mut out, mut lse) = (Vec::new(), Vec::new());
        for part in [0..cut, cut..batch.rows()] {
            let mut rows = RaggedRows::default();
            for ((_, own, positions), table) in batch.parts().zip(batch.tables()) {
                let (from, to) = (own.start.max(part.start), own.end.min(part.end));
                if from < to {
                    rows.push(positions[from - own.start] as usize, to - from, table)?;
                }
            }
            rows.upload(d)?;
            let there = (cache, rows);
            let got = call(
                d,
                &there,
                &q[part.start * c.heads * HEAD..part.end * c.heads * HEAD],
                &weights(c.heads),
                None,
            )?;
            cache = there.0;
            out.extend(got.0);
            lse.extend(got.1);
        }
        Ok((out, lse))
    })?;
    same(devices, "out", &parts.0, &all.0)?;
    same(devices, "lse", &parts.1, &all.1)
}

/// Other queries and keys of all sequences but the first leave its results as they are, bit for bit.
pub fn sequences_do_not_touch(devices: &[Device], c: Case) -> TestCaseResult {
    let (batch, q) = c.inputs();
    let rows = batch.sequences[0].new;
    let other = batch.with_other_keys(|sequence, _| sequence > 0, &mut Rng(c.seed ^ 1));
    let mut other_q = q.clone();
    other_q[rows * c.heads * HEAD..].iter_mut().for_each(|v| *v = 3.0 * *v - 1.0);
    let (before, after) = (run(devices, &c, &batch, &q)?, run(devices, &c, &other, &other_q)?);
    equal("out", &after.0[..rows * c.heads * V], &before.0[..rows * c.heads * V])?;
    equal("lse", &after.1[..rows * c.heads], &before.1[..rows * c.heads])
}

/// NaN and infinity in the keys behind a row leave its results as they are, bit for bit; and rows that see such a key know it.
pub fn later_keys_do_not_matter(devices: &[Device], c: Case) -> TestCaseResult {
    let (batch, q) = c.inputs();
    let mut other = batch.clone();
    let rng = &mut Rng(c.seed ^ 1);
    let mut firsts = Vec::new();
    for (keys, sequence) in other.keys.iter_mut().zip(&batch.sequences) {
        // From one of the rows of the batch on.
        let first = sequence.len - sequence.new + rng.below(sequence.new);
        for (i, key) in keys[first * (RANK + ROPE)..].chunks_mut(RANK + ROPE).enumerate() {
            let value = if i == 0 { f32::NAN } else { [f32::NAN, f32::INFINITY][rng.below(2)] };
            key[rng.below(RANK)] = value;
            key[RANK + rng.below(ROPE)] = value;
        }
        firsts.push(first);
    }
    let (before, after) = (run(devices, &c, &batch, &q)?, run(devices, &c, &other, &q)?);
    for ((_, rows, positions), first) in batch.parts().zip(firsts) {
        for (t, position) in rows.zip(positions) {
            let (cols, heads) = (t * c.heads * V..(t + 1) * c.heads * V, t * c.heads..(t + 1) * c.heads);
            if (position as usize) < first {
                equal("out", &after.0[cols.clone()], &before.0[cols])?;
                equal("lse", &after.1[heads.clone()], &before.1[heads])?;
            } else {
                prop_assert!(after.0[cols].iter().all(|v| v.is_nan()), "row {} does not see NaN", t);
                prop_assert!(after.1[heads].iter().all(|v| v.is_nan()), "the lse of row {}", t);
            }
        }
    }
    Ok(())
}

/// Logits of 1e5 and more: the key along which a query lies has all the weight.
pub fn huge_queries_pick_one_key(devices: &[Device], c: Case) -> TestCaseResult {
    let (batch, mut q) = c.inputs();
    let (config, expansion) = (config(c.heads), expansion(c.heads));
    let rng = &mut Rng(c.seed ^ 2);
    let (mut want, mut heads) = (Vec::new(), q.chunks_mut(HEAD));
    for (rows, _, positions) in batch.parts() {
        let Expanded { keys, values } = expand(rows, &config, &expansion, |x| x).unwrap();
        for position in positions {
            for (h, q) in heads.by_ref().take(c.heads).enumerate() {
                let at = rng.below(position as usize + 1) * c.heads + h;
                q.iter_mut().zip(&keys[at * HEAD..]).for_each(|(q, k)| *q = (1e5 * k) as f32);
                want.extend_from_slice(&values[at * V..][..V]);
            }
        }
    }
    let got = run(devices, &c, &batch, &q)?;
    prop_assert!(got.1.iter().all(|v| *v > 1e5 && v.is_finite()), "{:?}", got.1);
    relative("out", &got.0, &want, if devices[0].gpu().is_ok() { 1e-2 } else { 1e-5 })
}

/// Rows and keys around tiles, and heads.
pub fn takes_sizes_around_tiles(devices: &[Device]) {
    let of = |len: usize, new: usize| Sequence { len, new };
    let cases = [
        (1, vec![of(1, 1), of(300, 1), of(33, 2)]),
        (3, vec![of(15, 15), of(16, 16)]),
        (1, vec![of(17, 17), of(64, 63), of(65, 64)]),
        (1, vec![of(128, 128), of(129, 129)]),
        (1, vec![of(257, 130)]),
        (8, vec![of(65, 65)]),
    ];
    for (seed, (heads, sequences)) in cases.into_iter().enumerate() {
        is_the_reference(devices, Case { sequences, heads, seed: seed as u64 }).unwrap();
    }
}

/// Rows wait for further keys between launches; neither that nor what earlier calls left in the scratch is seen in results.
pub fn keys_are_expanded_in_blocks_of_any_size(devices: &[Device]) {
    let of = |len: usize, new: usize| Sequence { len, new };
    let c = Case { sequences: vec![of(70, 3), of(290, 20), of(40, 1)], heads: 1, seed: 3 };
    let (batch, q) = c.inputs();
    let all = run(devices, &c, &batch, &q).unwrap();
    near_reference(devices, &batch, &q, c.heads, &all).unwrap();
    for keys in [1, 256] {
        let got = on_each(devices, |d| call(d, &batch.on(d)?, &q, &weights(c.heads), Some(keys))).unwrap();
        equal("out", &got.0, &all.0).unwrap();
        equal("lse", &got.1, &all.1).unwrap();
    }
    let small = Case { sequences: vec![of(3, 2)], heads: 1, seed: 5 };
    let (few, few_q) = small.inputs();
    let alone = run(devices, &small, &few, &few_q).unwrap();
    for d in devices.iter().filter(|d| d.gpu().is_ok()) {
        let mut scratch = PrefillScratch::new(d, 1, batch.rows(), 128).unwrap();
        for (c, batch, q, want) in
            [(&c, &batch, &q, &all), (&small, &few, &few_q, &alone), (&c, &batch, &q, &all)]
        {
            let [k_b, v_b] = weights(c.heads).map(|w| matrix(d, &w));
            let mut out = poisoned(d, batch.rows(), c.heads * V);
            let options = PrefillOptions { lse: None, scratch: Some(&mut scratch) };
            let ((cache, rows), q) = (batch.on(d).unwrap(), tensor(d, c.heads * HEAD, q));
            mla_prefill_with(options, &q, &cache, &rows, &k_b, &v_b, &config(c.heads), &mut out).unwrap();
            equal("out", &host(&out), &want.0).unwrap();
        }
    }
}

/// Every type of cache, whose rows are taken as bf16, with weights of several types.
pub fn takes_the_types_of_caches_and_weights(devices: &[Device]) {
    use CacheType::{Bf16, F16, F32, Fp8};
    let heads = 2;
    for (i, (ty, k_ty, v_ty)) in [
        (Fp8, GgmlType::Q8_0, GgmlType::Q4_K),
        (F32, GgmlType::Q4_0, GgmlType::Q6_K),
        (F16, GgmlType::F16, GgmlType::Q8_0),
        (Bf16, GgmlType::BF16, GgmlType::F32),
    ]
    .into_iter()
    .enumerate()
    {
        let rng = &mut Rng(i as u64 + 1);
        let sequences = [Sequence { len: 70, new: 5 }];
        let mut batch = Batch::random(&sequences, RANK + ROPE, F32, rng);
        let q = rng.normals(batch.rows() * heads * HEAD);
        let w = [(heads, RANK, NOPE, k_ty), (heads, V, RANK, v_ty)]
            .map(|(slabs, rows, cols, ty)| random_weight(ty, slabs, rows, cols, rng.next()));
        let table = [1u32, 0];
        let values: Vec<f32> = (0..2 * PAGE_ROWS)
            .flat_map(|slot| {
                let position = (1 - slot / PAGE_ROWS) * PAGE_ROWS + slot % PAGE_ROWS;
                let key = batch.keys[0].get(position * (RANK + ROPE)..(position + 1) * (RANK + ROPE));
                key.map_or(vec![0.0; RANK + ROPE], <[f32]>::to_vec)
            })
            .collect();
        let got = on_each(devices, |d| {
            let cache = PagedRows::from_values(d, 2, RANK + ROPE, ty, &values)?;
            let mut rows = RaggedRows::default();
            rows.push(65, 5, &table)?;
            rows.upload(d)?;
            call(d, &(cache, rows), &q, &w, None)
        })
        .unwrap();
        // What the cache holds.
        let cache =
            PagedRows::from_values(&Device::cpu(Some(1)).unwrap(), 2, RANK + ROPE, ty, &values).unwrap();
        for (position, key) in batch.keys[0].chunks_mut(RANK + ROPE).enumerate() {
            let slot = table[position / PAGE_ROWS] as usize * PAGE_ROWS + position % PAGE_ROWS;
            key.copy_from_slice(&cache.row(slot as u32).unwrap());
        }
        let (k_b, v_b) = (super::inputs::values(&w[0]), super::inputs::values(&w[1]));
        let expansion = Expansion { k_b: &k_b, v_b: &v_b, qk_nope_head_dim: NOPE, v_head_dim: V };
        let config = config(heads);
        let (ideal, _) = expected(&batch, &q, &config, &expansion, |x| x);
        if devices[0].gpu().is_err() {
            relative("out", &got.0, &ideal.out, 1e-5).unwrap();
            continue;
        }
        let (want, off) = expected(&batch, &q, &config, &expansion, to_bf16);
        close("out", &got.0, &want.out, |i| (2f64.powi(-8) + 2.0 * off[i / V]) * want.magnitudes[i]).unwrap();
        close("lse", &got.1, &want.lse, |i| off[i] + 8.0 * EPS).unwrap();
    }
}

/// Absorbing, attending latents and applying `v_b` on the same device gives the same, as far as both are good.
pub fn equals_the_absorbed_form(devices: &[Device]) {
    let c = Case {
        sequences: vec![Sequence { len: 130, new: 4 }, Sequence { len: 20, new: 20 }],
        heads: 3,
        seed: 11,
    };
    let (batch, q) = c.inputs();
    let expanded = run(devices, &c, &batch, &q).unwrap().0;
    let n = c.heads;
    let absorbed = on_each(devices, |d| {
        let m = batch.rows();
        let [k_b, v_b] = weights(n).map(|w| matrix(d, &w));
        let mut latents = poisoned(d, m, n * (RANK + ROPE));
        let from = Heads { n, stride: HEAD, offset: 0, len: NOPE };
        let to = Heads { n, stride: RANK + ROPE, offset: 0, len: RANK };
        head_linear(&k_b, &tensor(d, n * HEAD, &q), from, &mut latents, to, Precision::Exact)?;
        let mut parts = host(&latents);
        parts
            .chunks_mut(RANK + ROPE)
            .zip(q.chunks(HEAD))
            .for_each(|(a, q)| a[RANK..].copy_from_slice(&q[NOPE..]));
        let (cache, rows) = batch.on(d)?;
        let (mut sums, mut out) = (poisoned(d, m, n * RANK), poisoned(d, m, n * V));
        mla_attention(&tensor(d, n * (RANK + ROPE), &parts), &cache, &rows, None, &config(n), &mut sums)?;
        let heads = |len| Heads { n, stride: len, offset: 0, len };
        head_linear(&v_b, &sums, heads(RANK), &mut out, heads(V), Precision::Exact)?;
        Ok(host(&out))
    })
    .unwrap();
    let absorbed: Vec<f64> = absorbed.iter().map(|v| f64::from(*v)).collect();
    let bound = if devices[0].gpu().is_ok() { 1.5e-2 } else { 1e-6 };
    relative("out", &expanded, &absorbed, bound).unwrap();
}

/// More sequences than the params of a launch hold, one row each.
pub fn takes_more_sequences_than_a_launch(devices: &[Device]) {
    let sequences = (0..67).map(|i| Sequence { len: 1 + i % 3, new: 1 }).collect();
    let c = Case { sequences, heads: 1, seed: 21 };
    is_the_reference(devices, c).unwrap();
}

/// A key of which one value of the latent part, or of the rotated part, is not finite makes NaN of the rows that see it, and of no others.
pub fn what_is_not_finite_is_seen(devices: &[Device]) {
    let c = Case { sequences: vec![Sequence { len: 40, new: 10 }], heads: 1, seed: 31 };
    let (batch, q) = c.inputs();
    for col in [0, RANK - 1, RANK, RANK + ROPE - 1] {
        let mut other = batch.clone();
        other.keys[0][35 * (RANK + ROPE) + col] = f32::NAN;
        let got = run(devices, &c, &other, &q).unwrap();
        for (t, row) in got.0.chunks(V).enumerate() {
            assert!(row.iter().all(|v| v.is_nan() == (t >= 5)), "value {col}, row {t}");
        }
    }
}
