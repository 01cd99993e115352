//! Latent attention, dense and over selected keys.

use glm5::kernels::{Entry, mla_float};
use glm5::ops::dsa_topk::Selection;
use glm5::ops::linear::head_linear;
use glm5::ops::mla_attention::{MlaConfig, MlaOptions, mla_attention, mla_attention_with, reference};
use glm5::quant::GgmlType;
use glm5::tensor::{CacheType, Device, Heads, PagedRows, Precision, RaggedRows, Tensor};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::{Rng, random_weight};
use super::close::{EPS, close, equal, relative};
use super::inputs::*;
use super::sequences::{Batch, Sequence, any_cache_type, any_sequences};

macro_rules! mla_attention_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { mla_attention, $devices, $cases;
        dense_is_the_reference(case), selected_is_the_reference(case), selecting_all_is_dense(case),
        parts_merge_by_log_sum_exp(case), absorbed_is_naive(naive_case), huge_logits_pick_one_key(case);
        takes_the_real_sizes, takes_rows_of_fp8, rows_without_keys_give_zeros, refuses_what_does_not_fit }
    };
}
pub(crate) use mla_attention_properties;

#[derive(Debug, Clone)]
pub struct Case {
    sequences: Vec<Sequence>,
    config: MlaConfig,
    ty: CacheType,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    let heads = prop::sample::select(vec![1usize, 2, 3, 5, 16]);
    let rank = prop::sample::select(vec![1usize, 4, 16, 17, 33, 96]);
    let rope = prop::sample::select(vec![0usize, 2, 8, 64]);
    (any_sequences(3), heads, rank, rope, any_cache_type(), any::<u64>()).prop_map(
        |(sequences, n_heads, kv_lora_rank, qk_rope_head_dim, ty, seed)| {
            let sm_scale = 0.7 / ((kv_lora_rank + qk_rope_head_dim) as f32).sqrt();
            Case {
                sequences,
                config: MlaConfig { n_heads, kv_lora_rank, qk_rope_head_dim, sm_scale },
                ty,
                seed,
            }
        },
    )
}

pub(super) fn width(c: &MlaConfig) -> usize {
    c.kv_lora_rank + c.qk_rope_head_dim
}

/// A selection on a device, with room for two positions more than any row has, full of what an earlier step left.
pub(super) fn selection(d: &Device, rows: &[Vec<u32>]) -> glm5::Result<Selection> {
    let k = rows.iter().map(Vec::len).max().unwrap_or(0) + 2;
    let mut indices = vec![u32::MAX / 2; rows.len() * k];
    for (t, row) in rows.iter().enumerate() {
        indices[t * k..][..row.len()].copy_from_slice(row);
    }
    Ok(Selection {
        indices: Tensor::from_vec(d, rows.len(), k, indices)?,
        lens: Tensor::from_vec(d, rows.len(), 1, rows.iter().map(|r| r.len() as u32).collect())?,
    })
}

/// Outputs, and behind them logarithms of sums.
fn run(
    d: &Device,
    batch: &Batch,
    q: &[f32],
    selected: Option<&[Vec<u32>]>,
    config: &MlaConfig,
) -> glm5::Result<(Vec<f32>, Vec<f32>)> {
    run_by(d, batch, q, selected, config, None)
}

/// The same by a kernel of a GPU, if one is named.
fn run_by(
    d: &Device,
    batch: &Batch,
    q: &[f32],
    selected: Option<&[Vec<u32>]>,
    config: &MlaConfig,
    kernel: Option<Entry>,
) -> glm5::Result<(Vec<f32>, Vec<f32>)> {
    let (cache, rows) = batch.on(d)?;
    let selected = selected.map(|s| selection(d, s)).transpose()?;
    let mut out = poisoned(d, batch.rows(), config.n_heads * config.kv_lora_rank);
    let mut lse = poisoned(d, batch.rows(), config.n_heads);
    let q = tensor(d, config.n_heads * width(config), q);
    let options = MlaOptions { lse: Some(&mut lse), scratch: None, kernel };
    mla_attention_with(options, &q, &cache, &rows, selected.as_ref(), config, &mut out)?;
    Ok((host(&out), host(&lse)))
}

/// The reference, sequence by sequence, and how far f32 arithmetic may be off.
#[derive(Debug, Default)]
pub(super) struct Expected {
    pub out: Vec<f64>,
    /// The rounding of the logits makes the weights of the keys uncertain, relatively by twice as much as the worst of them.
    pub off: Vec<f64>,
    pub lse: Vec<f64>,
    pub lse_off: Vec<f64>,
    /// `sum_s |p[s] row[s]|`, and the largest `|row[s]|` that the row sees.
    pub magnitudes: Vec<f64>,
    pub largest: Vec<f64>,
}

impl Expected {
    pub fn new(batch: &Batch, q: &[f32], selected: Option<&[Vec<u32>]>, c: &MlaConfig) -> Self {
        let (width, cols) = (width(c), c.n_heads * width(c));
        let mut all = Expected::default();
        for (keys, rows, positions) in batch.parts() {
            let q = &q[rows.start * cols..rows.end * cols];
            let selected = selected.map(|s| &s[rows.clone()]);
            all.out.extend(reference::absorbed(q, keys, &positions, selected, c).unwrap());
            let lse = reference::log_sum_exp(q, keys, &positions, selected, c).unwrap();
            for (t, q) in q.chunks(cols).enumerate() {
                let visible = positions[t] as usize + 1;
                let seen = &keys[..visible * width];
                // The largest value of each column bounds the weighted sum.
                let mut largest = vec![0.0f64; c.kv_lora_rank];
                for key in seen.chunks(width) {
                    for (a, v) in largest.iter_mut().zip(key) {
                        *a = a.max(f64::from(v.abs()));
                    }
                }
                let attends = |s: usize| selected.is_none_or(|of| of[t].contains(&(s as u32)));
                for (h, q) in q.chunks(width).enumerate() {
                    let mut worst = 0.0f64;
                    let mut magnitudes = vec![0.0f64; c.kv_lora_rank];
                    for (s, key) in seen.chunks(width).enumerate().filter(|(s, _)| attends(*s)) {
                        debug_assert!(s < visible);
                        let products = q.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b));
                        let (dot, sum) = products.fold((0.0, 0.0), |(dot, sum), p| (dot + p, sum + p.abs()));
                        worst = worst.max(sum);
                        let p = (f64::from(c.sm_scale) * dot - lse[t * c.n_heads + h]).exp();
                        magnitudes.iter_mut().zip(key).for_each(|(m, v)| *m += p * f64::from(v.abs()));
                    }
                    let logit = 4.0 * EPS * (width as f64).sqrt() * f64::from(c.sm_scale) * worst;
                    let sum = EPS * (8.0 + 4.0 * (visible as f64).sqrt());
                    all.off.extend(largest.iter().map(|a| a * (2.0 * logit + sum)));
                    all.lse_off.push(logit + sum);
                    all.magnitudes.extend(magnitudes);
                    all.largest.extend(&largest);
                }
            }
            all.lse.extend(lse);
        }
        all
    }

    /// How far output `i` of heads of `rank` values may be off if [`merged`] made it of parts of the keys: each part as all, since it has fewer keys, and
    /// weights of parts by as much as the logarithms of their sums, of the part and of all.
    pub fn merged_off(&self, i: usize, rank: usize) -> f64 {
        self.off[i] + 4.0 * self.lse_off[i / rank] * self.largest[i]
    }

    /// Compares what [`run`] gives.
    fn close(&self, (out, lse): &(Vec<f32>, Vec<f32>)) -> TestCaseResult {
        close("out", out, &self.out, |i| self.off[i])?;
        close("lse", lse, &self.lse, |i| self.lse_off[i])
    }
}

/// Selections of none, few or most positions, with some that lie after the row.
pub(super) fn selections(batch: &Batch, rng: &mut Rng) -> Vec<Vec<u32>> {
    let mut selected = Vec::new();
    for position in batch.positions() {
        let one_in = [1, 2, 7, 1000][rng.below(4)];
        let mut row: Vec<u32> = (0..=position).filter(|_| rng.below(one_in) == 0).collect();
        if rng.below(2) == 0 {
            row.extend([position + 1, position + 2, position + 64, 1_000_000, u32::MAX]);
        }
        selected.push(row);
    }
    selected
}

/// The keys of each row, all that it sees or those of `selected`, as ranks of context parallelism have them: `block` neighbouring positions for each of
/// `ranks` in turn, which leaves short sequences without keys on some; on one more rank no row has any.
pub(super) fn dealt(
    batch: &Batch,
    selected: Option<&[Vec<u32>]>,
    ranks: usize,
    block: usize,
) -> Vec<Vec<Vec<u32>>> {
    let all: Vec<Vec<u32>> = batch.positions().iter().map(|p| (0..=*p).collect()).collect();
    let of_rank = |rank: usize, row: &Vec<u32>| -> Vec<u32> {
        row.iter().copied().filter(|s| rank < ranks && *s as usize / block % ranks == rank).collect()
    };
    (0..=ranks).map(|rank| selected.unwrap_or(&all).iter().map(|row| of_rank(rank, row)).collect()).collect()
}

/// Outputs over parts of the keys, of heads of `rank` values, put together in f64: weighted by `exp(lse_i - lse)`, which is nothing of a part that has
/// no key.
pub(super) fn merged(parts: &[(Vec<f32>, Vec<f32>)], rank: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut out, mut all) = (Vec::new(), Vec::new());
    for i in 0..parts[0].1.len() {
        let lse = |part: &(Vec<f32>, Vec<f32>)| f64::from(part.1[i]);
        let largest = parts.iter().map(lse).fold(f64::NEG_INFINITY, f64::max);
        let base = if largest == f64::NEG_INFINITY { 0.0 } else { largest };
        let weights: Vec<f64> = parts.iter().map(|part| (lse(part) - base).exp()).collect();
        let sum: f64 = weights.iter().sum();
        all.push((base + sum.ln()) as f32);
        for col in i * rank..(i + 1) * rank {
            let weighted: f64 = weights.iter().zip(parts).map(|(w, part)| w * f64::from(part.0[col])).sum();
            out.push(if sum == 0.0 { 0.0 } else { (weighted / sum) as f32 });
        }
    }
    (out, all)
}

pub(super) fn queries(batch: &Batch, c: &MlaConfig, rng: &mut Rng) -> Vec<f32> {
    rng.normals(batch.rows() * c.n_heads * width(c))
}

pub fn dense_is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let batch = Batch::random(&c.sequences, width(&c.config), c.ty, rng);
    let q = queries(&batch, &c.config, rng);
    let got = on_each(devices, |d| run(d, &batch, &q, None, &c.config))?;
    Expected::new(&batch, &q, None, &c.config).close(&got)
}

/// Positions that lie after the row are never attended, as their slots (of other pages, or beyond the table) must not be read.
pub fn selected_is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let batch = Batch::random(&c.sequences, width(&c.config), c.ty, rng);
    let q = queries(&batch, &c.config, rng);
    let selected = selections(&batch, rng);
    let got = on_each(devices, |d| run(d, &batch, &q, Some(&selected), &c.config))?;
    Expected::new(&batch, &q, Some(&selected), &c.config).close(&got)?;
    for (t, (row, position)) in selected.iter().zip(batch.positions()).enumerate() {
        let cols = c.config.n_heads * c.config.kv_lora_rank;
        if row.iter().all(|s| *s > position) {
            prop_assert!(
                got.0[t * cols..(t + 1) * cols].iter().all(|v| *v == 0.0),
                "row {} attends something",
                t
            );
        }
    }
    Ok(())
}

pub fn selecting_all_is_dense(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let batch = Batch::random(&c.sequences, width(&c.config), c.ty, rng);
    let q = queries(&batch, &c.config, rng);
    let all: Vec<Vec<u32>> = batch.positions().iter().map(|p| (0..=*p).collect()).collect();
    let dense = on_each(devices, |d| run(d, &batch, &q, None, &c.config))?;
    let sparse = on_each(devices, |d| run(d, &batch, &q, Some(&all), &c.config))?;
    let exact = |values: &[f32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
    relative("lse", &sparse.1, &exact(&dense.1), 1e-6)?;
    relative("out", &sparse.0, &exact(&dense.0), 1e-6)
}

/// Attention over disjoint parts of the keys, put together by the logarithms of their sums, is attention over all of them.
pub fn parts_merge_by_log_sum_exp(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let batch = Batch::random(&c.sequences, width(&c.config), c.ty, rng);
    let q = queries(&batch, &c.config, rng);
    let selected = (rng.below(2) == 0).then(|| selections(&batch, rng));
    let mut parts = Vec::new();
    for part in dealt(&batch, selected.as_deref(), 1 + rng.below(4), [1, 16, 64][rng.below(3)]) {
        parts.push(on_each(devices, |d| run(d, &batch, &q, Some(&part), &c.config))?);
    }
    let (out, lse) = merged(&parts, c.config.kv_lora_rank);
    let want = Expected::new(&batch, &q, selected.as_deref(), &c.config);
    close("out", &out, &want.out, |i| want.merged_off(i, c.config.kv_lora_rank))?;
    close("lse", &lse, &want.lse, |i| want.lse_off[i])
}

/// Logits of thousands: no overflow, and the key with the largest takes (nearly) all.
pub fn huge_logits_pick_one_key(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let batch = Batch::random(&c.sequences, width(&c.config), c.ty, rng);
    let q: Vec<f32> = queries(&batch, &c.config, rng).iter().map(|v| 1e4 * v).collect();
    let got = on_each(devices, |d| run(d, &batch, &q, None, &c.config))?;
    Expected::new(&batch, &q, None, &c.config).close(&got)
}

#[derive(Debug, Clone)]
pub struct NaiveCase {
    sequences: Vec<Sequence>,
    heads: usize,
    rank: usize,
    rope: usize,
    nope: usize,
    v: usize,
    seed: u64,
}

pub fn naive_case() -> impl Strategy<Value = NaiveCase> {
    let sizes = prop::sample::select(vec![
        (1usize, 8usize, 4usize, 6usize, 10usize),
        (3, 33, 8, 12, 20),
        (2, 512, 64, 192, 256),
        (4, 64, 16, 64, 64),
    ]);
    let sequences = any_sequences(1)
        .prop_map(|s| s.iter().map(|s| Sequence { len: s.len.min(66), new: s.new.min(2) }).collect());
    (sequences, sizes, any::<u64>()).prop_map(|(sequences, (heads, rank, rope, nope, v), seed)| NaiveCase {
        sequences,
        heads,
        rank,
        rope,
        nope,
        v,
        seed,
    })
}

/// Absorbing `k_b`, attending latents and applying `v_b` is attention with expanded keys and values: scale, orientation of
/// both projections, order of the parts of queries and keys.
pub fn absorbed_is_naive(devices: &[Device], c: NaiveCase) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let sm_scale = 1.0 / ((c.nope + c.rope) as f32).sqrt();
    let config = MlaConfig { n_heads: c.heads, kv_lora_rank: c.rank, qk_rope_head_dim: c.rope, sm_scale };
    let batch = Batch::random(&c.sequences, c.rank + c.rope, CacheType::F32, rng);
    let k_b = random_weight(GgmlType::F32, c.heads, c.rank, c.nope, rng.next());
    let v_b = random_weight(GgmlType::F32, c.heads, c.v, c.rank, rng.next());
    let q = rng.normals(batch.rows() * c.heads * (c.nope + c.rope));
    let (from, to) = (c.nope + c.rope, c.rank + c.rope);
    let got = on_each(devices, |d| {
        // [nope | rope] of each head becomes [absorbed | rope].
        let mut absorbed = poisoned(d, batch.rows(), c.heads * to);
        let nope = Heads { n: c.heads, stride: from, offset: 0, len: c.nope };
        let latent = Heads { n: c.heads, stride: to, offset: 0, len: c.rank };
        let q_on = tensor(d, c.heads * from, &q);
        head_linear(&matrix(d, &k_b), &q_on, nope, &mut absorbed, latent, Precision::Exact)?;
        let mut parts = host(&absorbed);
        parts.chunks_mut(to).zip(q.chunks(from)).for_each(|(a, q)| a[c.rank..].copy_from_slice(&q[c.nope..]));
        let absorbed = tensor(d, c.heads * to, &parts);

        let (cache, rows) = batch.on(d)?;
        let mut u = poisoned(d, batch.rows(), c.heads * c.rank);
        mla_attention(&absorbed, &cache, &rows, None, &config, &mut u)?;
        let mut out = poisoned(d, batch.rows(), c.heads * c.v);
        let heads = |len| Heads { n: c.heads, stride: len, offset: 0, len };
        head_linear(&matrix(d, &v_b), &u, heads(c.rank), &mut out, heads(c.v), Precision::Exact)?;
        Ok(host(&out))
    })?;
    let (k_b, v_b) = (values(&k_b), values(&v_b));
    let expansion = reference::Expansion { k_b: &k_b, v_b: &v_b, qk_nope_head_dim: c.nope, v_head_dim: c.v };
    let mut want = Vec::new();
    for (keys, rows, positions) in batch.parts() {
        let q = &q[rows.start * c.heads * from..rows.end * c.heads * from];
        want.extend(reference::naive(q, keys, &positions, None, &config, &expansion).unwrap());
    }
    relative("out", &got, &want, 1e-5)
}

/// 64 heads of 512 + 64, and the scale of the whole head (256), which is not that of the latent.
pub fn takes_the_real_sizes(devices: &[Device]) {
    for ty in [CacheType::F32, CacheType::Bf16, CacheType::F16] {
        if devices[0].gpu().is_ok() && ty != CacheType::F32 {
            continue; // in `mla_decode`: rounded for matrix instructions
        }
        let config = MlaConfig { n_heads: 64, kv_lora_rank: 512, qk_rope_head_dim: 64, sm_scale: 1.0 / 16.0 };
        let sequences = vec![Sequence { len: 66, new: 2 }, Sequence { len: 1, new: 1 }];
        dense_is_the_reference(devices, Case { sequences: sequences.clone(), config, ty, seed: 1 }).unwrap();
        selected_is_the_reference(devices, Case { sequences, config, ty, seed: 2 }).unwrap();
    }
}

/// Of any width that they have, in f32 arithmetic.
pub fn takes_rows_of_fp8(devices: &[Device]) {
    let kernel = mla_float::INSTANCES.iter().find(|i| i.fp8 == 1).map(|i| i.entry);
    for (width, n_heads, sparse) in [(192, 3, false), (320, 2, true), (576, 2, false), (576, 1, true)] {
        let config = MlaConfig { n_heads, kv_lora_rank: width - 64, qk_rope_head_dim: 64, sm_scale: 0.06 };
        let rng = &mut Rng(width as u64);
        let sequences = [Sequence { len: 66, new: 2 }, Sequence { len: 1, new: 1 }];
        let mut batch = Batch::random(&sequences, width, CacheType::Fp8, rng);
        batch.scale_blocks(128, || [1.0, 0.0, 1e-3, 30.0][rng.below(4)]);
        let q = queries(&batch, &config, rng);
        let selected = sparse.then(|| selections(&batch, rng));
        let got = on_each(devices, |d| run_by(d, &batch, &q, selected.as_deref(), &config, kernel)).unwrap();
        Expected::new(&batch, &q, selected.as_deref(), &config).close(&got).unwrap();
    }
}

pub fn rows_without_keys_give_zeros(devices: &[Device]) {
    let config = MlaConfig { n_heads: 3, kv_lora_rank: 20, qk_rope_head_dim: 4, sm_scale: 0.2 };
    let rng = &mut Rng(4);
    let batch = Batch::random(&[Sequence { len: 70, new: 3 }], 24, CacheType::F32, rng);
    let q = queries(&batch, &config, rng);
    // None; only later ones; one.
    let selected = [vec![], vec![69, 70], vec![5]];
    let (got, lse) = on_each(devices, |d| run(d, &batch, &q, Some(&selected), &config)).unwrap();
    assert!(lse[..6].iter().all(|v| *v == f32::NEG_INFINITY) && lse[6..].iter().all(|v| v.is_finite()));
    assert!(got[..120].iter().all(|v| *v == 0.0));
    // A single key has all the weight.
    let key = &batch.keys[0][5 * 24..][..20];
    equal("one key", &got[120..], &[key, key, key].concat()).unwrap();
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let config = MlaConfig { n_heads: 2, kv_lora_rank: 8, qk_rope_head_dim: 4, sm_scale: 0.3 };
    let batch = Batch::random(&[Sequence { len: 3, new: 3 }], 12, CacheType::F32, &mut Rng(1));
    let (cache, rows) = batch.on(d).unwrap();
    let small = PagedRows::new(d, 1, 12, CacheType::F32).unwrap();
    let wide = PagedRows::new(d, 9, 13, CacheType::F32).unwrap();
    let mut beyond = RaggedRows::default();
    beyond.push(0, 3, &[1]).unwrap();
    let (q, narrow, short) =
        (tensor(d, 24, &[1.0; 72]), tensor(d, 23, &[1.0; 69]), tensor(d, 24, &[1.0; 48]));
    let (mut out, mut other, mut tall) = (poisoned(d, 3, 16), poisoned(d, 3, 17), poisoned(d, 4, 16));
    let two = selection(d, &[vec![0], vec![1]]).unwrap();
    let uneven =
        Selection { lens: Tensor::zeros(d, 3, 1).unwrap(), indices: two.indices.try_clone().unwrap() };
    let wrong = MlaConfig { n_heads: 3, ..config };
    let (mut lse, mut wide_lse) = (poisoned(d, 3, 2), poisoned(d, 3, 3));
    let with = |lse, out: &mut Tensor| {
        let options = MlaOptions { lse: Some(lse), ..MlaOptions::default() };
        mla_attention_with(options, &q, &cache, &rows, Some(&two), &config, out)
    };
    refused(vec![
        ("q cols", mla_attention(&narrow, &cache, &rows, None, &config, &mut out)),
        ("q rows", mla_attention(&short, &cache, &rows, None, &config, &mut out)),
        ("out cols", mla_attention(&q, &cache, &rows, None, &config, &mut other)),
        ("out rows", mla_attention(&q, &cache, &rows, None, &config, &mut tall)),
        ("heads", mla_attention(&q, &cache, &rows, None, &wrong, &mut out)),
        ("cache width", mla_attention(&q, &wide, &rows, None, &config, &mut out)),
        ("slots", mla_attention(&q, &small, &beyond, None, &config, &mut out)),
        ("selection rows", mla_attention(&q, &cache, &rows, Some(&two), &config, &mut out)),
        ("lse", with(&mut wide_lse, &mut out)),
        ("selection and lse", with(&mut lse, &mut out)),
        ("selection indices", mla_attention(&q, &cache, &rows, Some(&uneven), &config, &mut out)),
    ]);
    assert!([&lse, &wide_lse].into_iter().all(untouched), "a refused call wrote something");
    // An index behind a larger one could pass for visible: 70 is a slot of another sequence.
    for positions in [vec![70, 0], vec![0, 0]] {
        if d.gpu().is_ok() {
            break; // kernels cannot tell
        }
        let unsorted = selection(d, &[vec![0], positions, vec![2]]).unwrap();
        let result = mla_attention(&q, &cache, &rows, Some(&unsorted), &config, &mut out);
        assert!(matches!(result, Err(glm5::Error::Argument { .. })), "{result:?}");
    }
    assert!([out, other, tall].iter().all(untouched), "a refused call wrote something");
}
