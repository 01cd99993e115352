//! All of a layer's attention behind its first projections, operation after operation as the model composes them, over paged caches: `post_a`,
//! queries, absorption, selection, attention, values. Against attention as it is trained, in plain f64 with a key and a value for each head.

use glm5::ops::dsa_indexer::{IndexerScratch, indexer_select};
use glm5::ops::dsa_topk::Selection;
use glm5::ops::linear::{Rotated, head_linear, linear_rotated};
use glm5::ops::mla_attention::{MlaConfig, mla_attention};
use glm5::ops::post_a::{IndexKeys, PostA, post_a};
use glm5::ops::rope::rope_angles;
use glm5::quant::{GgmlType, Weight};
use glm5::tensor::{CacheType, Device, Heads, Matrix, PAGE_ROWS, PagedRows, Precision, RaggedRows, Tensor};
use glm5::{Error, Result};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::Rng;
use super::close::relative;
use super::inputs::{host, matrix, on_each, poisoned, tensor, values};
use super::sequences::any_cache_type;

macro_rules! attention_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { attention, $devices, $cases;
        is_attention_as_trained(case), later_tokens_do_not_matter(case);
        steps_across_top_k_are_one_prompt, forks_share_their_pages, huge_queries_stay_finite }
    };
}
pub(crate) use attention_properties;

/// Heads of attention and of the indexer, the widths of their parts, and how many keys are selected.
const HEADS: usize = 2;
const INDEX_HEADS: usize = 3;
const RANK: usize = 64;
const LATENT: usize = 512;
const PE: usize = 64;
const NOPE: usize = 192;
const VALUE: usize = 256;
const KEY: usize = 128;
const TOP_K: usize = 24;
const BASE: f32 = 1e6;
const EPS: f32 = 1e-5;
const INDEX_EPS: f32 = 1e-6;
const INDEX_SCALE: f32 = 0.051; // about 1 / sqrt(3 * 128)
const SCALE: f32 = 1.0 / 16.0;

/// What the first projections of a token gave.
#[derive(Clone)]
struct Token {
    q_a: Vec<f32>,
    kv_a: Vec<f32>,
    key: Vec<f32>,
    weights: Vec<f32>,
}

/// A layer's weights, and the tokens of some sequences.
#[derive(Clone)]
struct Layer {
    q_norm: Vec<f32>,
    kv_norm: Vec<f32>,
    key_norm: Vec<f32>,
    key_bias: Vec<f32>,
    q_b: Weight,
    index_q_b: Weight,
    k_b: Weight,
    v_b: Weight,
    tokens: Vec<Vec<Token>>,
}

fn tokens(n: usize, rng: &mut Rng) -> Vec<Token> {
    let mut token = || Token {
        q_a: rng.normals(RANK),
        kv_a: rng.normals(LATENT + PE),
        key: rng.normals(KEY).iter().map(|v| v + 0.5).collect(),
        weights: rng.normals(INDEX_HEADS),
    };
    (0..n).map(|_| token()).collect()
}

impl Layer {
    fn random(lens: &[usize], rng: &mut Rng) -> Layer {
        // Spread widely, so that a norm left out or taken twice shows.
        let mut spread = |n: usize| rng.normals(n).iter().map(|v| (0.7 * v).exp()).collect::<Vec<f32>>();
        let (q_norm, kv_norm, key_norm) = (spread(RANK), spread(LATENT), spread(KEY));
        let mut weight = |heads: usize, n: usize, k: usize, size: f32| {
            let values: Vec<f32> = rng.normals(heads * n * k).iter().map(|v| v * size).collect();
            Weight::quantize(GgmlType::Q8_0, [heads, n, k], &values).unwrap()
        };
        let q_b = weight(1, HEADS * (NOPE + PE), RANK, 0.2);
        let index_q_b = weight(1, INDEX_HEADS * KEY, RANK, 0.1);
        let (k_b, v_b) = (weight(HEADS, LATENT, NOPE, 0.03), weight(HEADS, VALUE, LATENT, 0.04));
        let key_bias = rng.normals(KEY);
        let tokens = lens.iter().map(|n| tokens(*n, rng)).collect();
        Layer { q_norm, kv_norm, key_norm, key_bias, q_b, index_q_b, k_b, v_b, tokens }
    }
}

/// A layer on a device, with its caches.
struct OnDevice<'a> {
    layer: &'a Layer,
    device: &'a Device,
    precision: Precision,
    matrices: [Matrix; 4],
    latent: PagedRows,
    keys: PagedRows,
    pages: Vec<Vec<u32>>,
}

/// What came of a row: its sequence and position, its output, and the keys that it attended.
#[derive(Debug, Clone)]
struct Row {
    sequence: usize,
    position: usize,
    out: Vec<f32>,
    attended: Vec<u32>,
}

impl<'a> OnDevice<'a> {
    /// Pages of the sequences lie among each other's; caches hold NaN until they are written.
    fn new(layer: &'a Layer, device: &'a Device, ty: CacheType, precision: Precision) -> Result<Self> {
        let counts: Vec<usize> = layer.tokens.iter().map(|t| t.len().div_ceil(PAGE_ROWS) + 1).collect();
        let all = counts.iter().sum::<usize>();
        let mut free: Vec<u32> = (0..all as u32).collect();
        free.sort_by_key(|page| page.wrapping_mul(0x9e37_79b9));
        let pages = counts.iter().map(|n| free.split_off(free.len() - n)).collect();
        let cache = |width: usize, ty: CacheType| {
            PagedRows::from_values(device, all, width, ty, &vec![f32::NAN; all * PAGE_ROWS * width])
        };
        let Layer { q_b, index_q_b, k_b, v_b, .. } = layer;
        let tiles = precision == Precision::Fast && device.gpu().is_ok();
        let on_device = |w: &Weight| match tiles {
            true => Matrix::for_fast_linear(device, w.clone()).unwrap(),
            false => matrix(device, w),
        };
        Ok(OnDevice {
            layer,
            device,
            precision,
            matrices: [q_b, index_q_b, k_b, v_b].map(on_device),
            latent: cache(LATENT + PE, ty)?,
            keys: cache(KEY, ty.of_keys())?,
            pages,
        })
    }

    /// The next tokens of some sequences, in one batch: `(sequence, first, end)`.
    fn step(&mut self, parts: &[(usize, usize, usize)]) -> Result<Vec<Row>> {
        let (d, layer) = (self.device, self.layer);
        let mut rows = RaggedRows::default();
        for (sequence, first, end) in parts {
            rows.push(*first, end - first, &self.pages[*sequence])?;
        }
        rows.upload(d)?;
        let m = rows.len();
        let all = || parts.iter().flat_map(|(i, first, end)| &layer.tokens[*i][*first..*end]);
        let of = |what: fn(&Token) -> &[f32]| {
            let values = all().flat_map(|token| what(token).to_vec()).collect::<Vec<f32>>();
            tensor(d, values.len() / m, &values)
        };
        let one = |values: &[f32]| tensor(d, values.len(), values);
        let mut angles = poisoned(d, m, PE);
        rope_angles(BASE, &rows, &mut angles)?;
        let mut qr = poisoned(d, m, RANK);
        let input = PostA {
            q_a: &of(|t| &t.q_a),
            q_norm: &one(&layer.q_norm),
            kv_a: &of(|t| &t.kv_a),
            kv_norm: &one(&layer.kv_norm),
            eps: EPS,
            angles: &angles,
            rows: &rows,
        };
        let index = IndexKeys {
            x: &of(|t| &t.key),
            norm: &one(&layer.key_norm),
            bias: &one(&layer.key_bias),
            eps: INDEX_EPS,
            cache: &mut self.keys,
        };
        post_a(&input, Some(&mut qr), None, &mut self.latent, Some(index))?;

        let [q_b, index_q_b, k_b, v_b] = &self.matrices;
        let heads = |n, stride, offset, len| Heads { n, stride, offset, len };
        let (whole, absorbed) = (NOPE + PE, LATENT + PE);
        let mut q = poisoned(d, m, HEADS * whole);
        let mut q_index = poisoned(d, m, INDEX_HEADS * KEY);
        let mut q_abs = poisoned(d, m, HEADS * absorbed);
        let rotated = &mut [
            Rotated {
                matrix: 0,
                heads: heads(HEADS, whole, NOPE, PE),
                angles: &angles,
                to: Some((&mut q_abs, heads(HEADS, absorbed, LATENT, PE))),
            },
            Rotated { matrix: 1, heads: heads(INDEX_HEADS, KEY, 0, PE), angles: &angles, to: None },
        ];
        linear_rotated(&[q_b, index_q_b], &qr, &mut [&mut q, &mut q_index], rotated, self.precision)?;
        let (from, to) = (heads(HEADS, whole, 0, NOPE), heads(HEADS, absorbed, 0, LATENT));
        head_linear(k_b, &q, from, &mut q_abs, to, self.precision)?;

        let mut selection = Selection::new(d, TOP_K)?;
        let sparse = rows.max_visible() > TOP_K;
        if sparse {
            let (w, scratch) = (of(|t| &t.weights), &mut IndexerScratch::new(d)?);
            let (out, by) = (&mut selection, self.precision);
            indexer_select(&q_index, &w, &self.keys, &rows, INDEX_SCALE, scratch, out, by)?;
        }
        let config =
            MlaConfig { n_heads: HEADS, kv_lora_rank: LATENT, qk_rope_head_dim: PE, sm_scale: SCALE };
        let (mut u, mut out) = (poisoned(d, m, HEADS * LATENT), poisoned(d, m, HEADS * VALUE));
        mla_attention(&q_abs, &self.latent, &rows, sparse.then_some(&selection), &config, &mut u)?;
        let (from, to) = (heads(HEADS, LATENT, 0, LATENT), heads(HEADS, VALUE, 0, VALUE));
        head_linear(v_b, &u, from, &mut out, to, self.precision)?;

        let (out, indices, lens) = (host(&out), selection.indices.to_vec()?, selection.lens.to_vec()?);
        let places = parts.iter().flat_map(|(i, first, end)| (*first..*end).map(|p| (*i, p)));
        let row = |(t, (sequence, position)): (usize, (usize, usize))| Row {
            sequence,
            position,
            out: out[t * HEADS * VALUE..][..HEADS * VALUE].to_vec(),
            attended: match sparse {
                true => indices[t * TOP_K..][..lens[t] as usize].to_vec(),
                false => (0..=position as u32).collect(),
            },
        };
        Ok(places.enumerate().map(row).collect())
    }
}

/// Everything in f64, from the definitions.
struct Trained {
    /// Of each sequence and position: the normed query, the rotated key, the indexer's key.
    qr: Vec<Vec<Vec<f64>>>,
    pe: Vec<Vec<Vec<f64>>>,
    keys: Vec<Vec<Vec<f64>>>,
    /// Keys and values of all heads.
    expanded: Vec<Vec<[Vec<f64>; 2]>>,
    q_b: Vec<f64>,
    index_q_b: Vec<f64>,
}

/// Pairs of neighbours of `x`, at a position.
fn turned(x: &[f64], position: usize) -> Vec<f64> {
    let pair = |(i, pair): (usize, &[f64])| {
        let phi = position as f64 * f64::from(BASE).powf(-2.0 * i as f64 / PE as f64);
        [pair[0] * phi.cos() - pair[1] * phi.sin(), pair[0] * phi.sin() + pair[1] * phi.cos()]
    };
    x.chunks(2).enumerate().flat_map(pair).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `w [n, k]` times `x`.
fn product(w: &[f64], x: &[f64]) -> Vec<f64> {
    w.chunks(x.len()).map(|row| dot(row, x)).collect()
}

impl Trained {
    fn new(layer: &Layer) -> Trained {
        let wide = |x: &[f32]| x.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>();
        let rms = |x: &[f64], w: &[f32]| {
            let size = (dot(x, x) / x.len() as f64 + f64::from(EPS)).sqrt();
            x.iter().zip(w).map(|(x, w)| x / size * f64::from(*w)).collect::<Vec<f64>>()
        };
        let key_of = |token: &Token, position: usize| {
            let x = wide(&token.key);
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / x.len() as f64;
            let size = (variance + f64::from(INDEX_EPS)).sqrt();
            let weights = layer.key_norm.iter().zip(&layer.key_bias);
            let y =
                x.iter().zip(weights).map(|(x, (w, b))| (x - mean) / size * f64::from(*w) + f64::from(*b));
            let y: Vec<f64> = y.collect();
            [turned(&y[..PE], position), y[PE..].to_vec()].concat()
        };
        let each = |f: &dyn Fn(&Token, usize) -> Vec<f64>| -> Vec<Vec<Vec<f64>>> {
            let of = |tokens: &Vec<Token>| tokens.iter().enumerate().map(|(p, token)| f(token, p)).collect();
            layer.tokens.iter().map(of).collect()
        };
        let (k_b, v_b) = (wide(&values(&layer.k_b)), wide(&values(&layer.v_b)));
        let expand = |token: &Token| {
            let latent = rms(&wide(&token.kv_a[..LATENT]), &layer.kv_norm);
            // Value i of a head's key: what column i of its k_b has of the latent.
            let key = |of_head: &[f64]| {
                let mut key = vec![0.0; NOPE];
                for (row, latent) in of_head.chunks(NOPE).zip(&latent) {
                    key.iter_mut().zip(row).for_each(|(k, w)| *k += w * latent);
                }
                key
            };
            [k_b.chunks(LATENT * NOPE).flat_map(key).collect(), product(&v_b, &latent)]
        };
        Trained {
            expanded: layer.tokens.iter().map(|tokens| tokens.iter().map(expand).collect()).collect(),
            qr: each(&|token, _| rms(&wide(&token.q_a), &layer.q_norm)),
            pe: each(&|token, position| turned(&wide(&token.kv_a[LATENT..]), position)),
            keys: each(&key_of),
            q_b: wide(&values(&layer.q_b)),
            index_q_b: wide(&values(&layer.index_q_b)),
        }
    }

    /// Scores of all keys that a token sees.
    fn scores(&self, layer: &Layer, sequence: usize, position: usize) -> Vec<f64> {
        let q = product(&self.index_q_b, &self.qr[sequence][position]);
        let weights = &layer.tokens[sequence][position].weights;
        let score = |key: &Vec<f64>| {
            let of_heads = q.chunks(KEY).zip(weights).map(|(q, w)| {
                let q = [turned(&q[..PE], position), q[PE..].to_vec()].concat();
                f64::from(*w) * dot(&q, key).max(0.0)
            });
            of_heads.sum::<f64>() * f64::from(INDEX_SCALE)
        };
        self.keys[sequence][..=position].iter().map(score).collect()
    }

    /// The output of a token that attends `keys`.
    fn attention(&self, sequence: usize, position: usize, keys: &[u32]) -> Vec<f64> {
        let q = product(&self.q_b, &self.qr[sequence][position]);
        let head = |(h, q): (usize, &[f64])| {
            let (nope, pe) = (&q[..NOPE], turned(&q[NOPE..], position));
            let logit = |key: &u32| {
                let expanded = &self.expanded[sequence][*key as usize][0][h * NOPE..][..NOPE];
                (dot(nope, expanded) + dot(&pe, &self.pe[sequence][*key as usize])) * f64::from(SCALE)
            };
            let logits: Vec<f64> = keys.iter().map(logit).collect();
            let most = logits.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
            let weights: Vec<f64> = logits.iter().map(|l| (l - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut out = vec![0.0; VALUE];
            for (key, weight) in keys.iter().zip(&weights) {
                let value = &self.expanded[sequence][*key as usize][1][h * VALUE..][..VALUE];
                out.iter_mut().zip(value).for_each(|(o, v)| *o += weight / sum * v);
            }
            out
        };
        q.chunks(NOPE + PE).enumerate().flat_map(head).collect()
    }

    /// Rows are attention over keys that are ascending, visible and all or the best `TOP_K`, within `slack` of the largest score.
    fn check(&self, layer: &Layer, rows: &[Row], slack: f64, bound: f64) -> TestCaseResult {
        for Row { sequence, position, out, attended } in rows {
            let visible = position + 1;
            prop_assert!(attended.windows(2).all(|pair| pair[0] < pair[1]), "{attended:?}");
            prop_assert_eq!(attended.len(), visible.min(TOP_K), "of {} keys", visible);
            prop_assert!(
                attended.iter().all(|key| (*key as usize) < visible),
                "{:?} at {}",
                attended,
                position
            );
            if visible > TOP_K {
                let scores = self.scores(layer, *sequence, *position);
                let is_in = |key: &usize| attended.contains(&(*key as u32));
                let (within, without): (Vec<usize>, Vec<usize>) = (0..visible).partition(is_in);
                let size = scores.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
                let least = within.iter().fold(f64::INFINITY, |a, key| a.min(scores[*key]));
                let left = without.iter().fold(f64::NEG_INFINITY, |a, key| a.max(scores[*key]));
                prop_assert!(left <= least + slack * size, "{} left, {} taken, of {}", left, least, size);
            }
            let want = self.attention(*sequence, *position, attended);
            relative(&format!("sequence {sequence}, position {position}"), out, &want, bound)?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone)]
pub struct Case {
    lens: Vec<usize>,
    ty: CacheType,
    precision: Precision,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    let len = prop_oneof![prop::sample::select(vec![1usize, TOP_K, TOP_K + 1, 64, 65]), 1usize..70];
    let precision = prop::sample::select(vec![Precision::Exact, Precision::Fast]);
    let lens = prop::collection::vec(len, 1..3);
    let ty = prop_oneof![3 => any_cache_type(), 1 => Just(CacheType::Fp8)];
    (lens, ty, precision, any::<u64>()).prop_map(|(lens, ty, precision, seed)| Case {
        lens,
        ty,
        precision,
        seed,
    })
}

impl Case {
    /// How far scores may be off, of the largest, and outputs, in L2: what rounding of caches, queries and activations costs.
    fn bounds(&self) -> (f64, f64) {
        match (self.precision, self.ty) {
            (Precision::Exact, CacheType::F32) => (1e-5, 5e-5),
            (_, CacheType::Fp8) => (5e-2, 0.15),
            (Precision::Exact, _) => (2e-2, 3e-2),
            (Precision::Fast, _) => (5e-2, 8e-2),
        }
    }

    /// Every sequence to its end, some tokens of some sequences at a time.
    fn run(&self, d: &Device, layer: &Layer) -> Result<Vec<Row>> {
        let mut on_device = OnDevice::new(layer, d, self.ty, self.precision)?;
        let (mut done, mut rows) = (vec![0; self.lens.len()], Vec::new());
        let rng = &mut Rng(!self.seed);
        while done != self.lens {
            let mut parts = Vec::new();
            for (i, (done, len)) in done.iter_mut().zip(&self.lens).enumerate() {
                let n = [0, 1, 1, 7, 40][rng.below(5)].min(len - *done);
                if n > 0 {
                    parts.push((i, *done, *done + n));
                    *done += n;
                }
            }
            if !parts.is_empty() {
                rows.extend(on_device.step(&parts)?);
            }
        }
        Ok(rows)
    }
}

/// However sequences are cut into steps, and whatever else is in a batch (mistakes 1 to 3, 6 to 8, 22, 25, 26, 28).
pub fn is_attention_as_trained(devices: &[Device], c: Case) -> TestCaseResult {
    let layer = Layer::random(&c.lens, &mut Rng(c.seed));
    let trained = Trained::new(&layer);
    let (slack, bound) = c.bounds();
    for d in devices {
        let rows = c.run(d, &layer).map_err(|e: Error| TestCaseError::fail(e.to_string()))?;
        trained.check(&layer, &rows, slack, bound)?;
    }
    Ok(())
}

/// Outputs have the same bits whatever comes behind them (mistake 23).
pub fn later_tokens_do_not_matter(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let n = c.lens[0].max(2);
    let layer = Layer::random(&[n], rng);
    let last = rng.below(n - 1);
    let mut other = layer.clone();
    other.tokens[0].truncate(last + 1);
    other.tokens[0].extend(tokens(n - last - 1, rng));
    let beginning = |layer: &Layer| {
        on_each(devices, |d| {
            let rows = OnDevice::new(layer, d, c.ty, c.precision)?.step(&[(0, 0, n)])?;
            Ok(rows[..=last].iter().flat_map(|row| row.out.clone()).collect::<Vec<f32>>())
        })
    };
    super::close::equal("the beginning", &beginning(&layer)?, &beginning(&other)?)
}

/// A short prompt and then token by token from below `TOP_K` keys to above it, and all of it at once: the same keys and outputs (mistakes 22,
/// 28), which are attention as trained.
pub fn steps_across_top_k_are_one_prompt(devices: &[Device]) {
    let (prompt, n) = (9, TOP_K + 12);
    let layer = Layer::random(&[n], &mut Rng(8));
    for d in devices {
        let new = || OnDevice::new(&layer, d, CacheType::F32, Precision::Exact).unwrap();
        let at_once = new().step(&[(0, 0, n)]).unwrap();
        Trained::new(&layer).check(&layer, &at_once, 1e-5, 5e-5).unwrap();
        let mut rest = new();
        let mut steps = rest.step(&[(0, 0, prompt)]).unwrap();
        (prompt..n).for_each(|p| steps.extend(rest.step(&[(0, p, p + 1)]).unwrap()));
        for (p, (step, whole)) in steps.iter().zip(&at_once).enumerate() {
            assert_eq!(step.attended, whole.attended, "keys of position {p}");
            let want: Vec<f64> = whole.out.iter().map(|v| f64::from(*v)).collect();
            relative("output", &step.out, &want, 1e-5).unwrap();
        }
    }
}

/// A fork has the pages of its parent but for the last, of which it has a copy; both go on, and neither touches the other.
pub fn forks_share_their_pages(devices: &[Device]) {
    let (fork, n) = (PAGE_ROWS + 5, PAGE_ROWS + 12);
    let rng = &mut Rng(9);
    let mut layer = Layer::random(&[n, n], rng);
    layer.tokens[1] = [&layer.tokens[0][..fork], &tokens(n - fork, rng)].concat();
    let trained = Trained::new(&layer);
    for (d, ty) in
        devices.iter().flat_map(|d| [CacheType::F32, CacheType::Bf16, CacheType::Fp8].map(|ty| (d, ty)))
    {
        let mut both = OnDevice::new(&layer, d, ty, Precision::Exact).unwrap();
        both.step(&[(0, 0, fork)]).unwrap();
        both.pages[1][0] = both.pages[0][0];
        for cache in [&mut both.latent, &mut both.keys] {
            cache.copy_page(both.pages[0][1], both.pages[1][1]).unwrap();
        }
        let mut rows = both.step(&[(0, fork, fork + 3), (1, fork, fork + 1)]).unwrap();
        rows.extend(both.step(&[(1, fork + 1, n), (0, fork + 3, n)]).unwrap());
        let (slack, bound) = Case { lens: vec![], ty, precision: Precision::Exact, seed: 0 }.bounds();
        trained.check(&layer, &rows, slack, bound).unwrap();
    }
}

/// Absorbed queries of 1e5 and more: f16 would have infinities (mistake 10). With f32 caches outputs are still attention as trained, of one key
/// as good as alone; whatever the cache, each is within the values.
pub fn huge_queries_stay_finite(devices: &[Device]) {
    let n = 20;
    let mut layer = Layer::random(&[n], &mut Rng(10));
    let large: Vec<f32> = values(&layer.q_b).iter().map(|v| v * 1e4).collect();
    layer.q_b = Weight::quantize(GgmlType::Q8_0, layer.q_b.shape(), &large).unwrap();
    let trained = Trained::new(&layer);
    let largest = (0..n).map(|p| trained.attention(0, p, &[p as u32]));
    let largest = largest.flatten().fold(0.0, |a: f64, b| a.max(b.abs()));
    for d in devices {
        for ty in [CacheType::F32, CacheType::Bf16, CacheType::F16] {
            let rows = OnDevice::new(&layer, d, ty, Precision::Exact).unwrap().step(&[(0, 0, n)]).unwrap();
            if ty == CacheType::F32 {
                trained.check(&layer, &rows, 1e-5, 2e-2).unwrap();
            }
            let all = rows.iter().flat_map(|row| &row.out);
            assert!(all.clone().all(|v| f64::from(v.abs()) <= largest * 1.01), "{ty:?}");
            // A key that has all the weight is seen as such.
            assert!(all.map(|v| f64::from(v.abs())).fold(0.0, f64::max) > largest * 0.5, "{ty:?}");
        }
    }
}
