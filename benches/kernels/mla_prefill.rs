//! mla_prefill: attention of a chunk of a prompt with keys and values that are expanded for each head, at GLM-5's widths, behind cached keys. Beside
//! it stands what the absorbed form takes for the same rows (`mla_attention`), without absorbing `k_b` and applying `v_b`. Goals: faster than that
//! by half behind 32k keys; the attention alone 0.55 of the f16 rate.
//!
//! Operations are those of the expanded form, 2 x (256 + 256) for a row, a key and a head, and 2 x 512 x (192 + 256) for a key and a head. Bytes are
//! those of the keys, once, of queries and outputs. What is compared: some rows and heads, within what rounding costs.

use criterion::Criterion;
use glm5::ops::mla_attention::{MlaConfig, MlaOptions, MlaScratch, mla_attention_with};
use glm5::ops::mla_prefill::{PrefillOptions, PrefillScratch, mla_prefill_with};
use glm5::quant::{GgmlType, Weight};
use glm5::tensor::{CacheType, Device, Matrix, PAGE_ROWS, PagedRows, RaggedRows, Tensor};

use super::blocks::Rng;
use super::data::repeated;
use super::report::{Memory, Work};
use super::{Bench, Row};

const RANK: usize = 512;
const NOPE: usize = 192;
const ROPE: usize = 64;
const HEAD: usize = 256;
const WIDTH: usize = RANK + ROPE;
const SM_SCALE: f32 = 1.0 / 16.0;

/// Latent rows that differ; the others repeat them. A prime.
const ROWS: usize = 61;

/// Keys that are expanded at a time.
const KEYS: [usize; 2] = [4096, 16_384];

/// `m` rows of one sequence behind `depth` keys.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Case {
    heads: usize,
    m: usize,
    depth: usize,
}

impl Case {
    fn keys(self) -> usize {
        self.depth + self.m
    }

    fn pairs(self) -> usize {
        (0..self.m).map(|t| self.depth + t + 1).sum()
    }

    /// `of_pair` and `of_key` multiplications for each head.
    fn work(self, of_pair: usize, of_key: usize, row: usize) -> Work {
        let bytes = self.keys() * WIDTH * 2 + self.m * self.heads * row * 4;
        let operations = 2 * self.heads * (self.pairs() * of_pair + self.keys() * of_key);
        Work { bytes, operations: Some(operations as u64), memory: Some(Memory::Copy) }
    }
}

/// What the cases of a number of heads share.
struct Inputs {
    config: MlaConfig,
    /// `[ROWS, WIDTH]`
    latents: Vec<f32>,
    k_b: Vec<f32>,
    v_b: Vec<f32>,
}

impl Inputs {
    fn new(heads: usize) -> Self {
        let config =
            MlaConfig { n_heads: heads, kv_lora_rank: RANK, qk_rope_head_dim: ROPE, sm_scale: SM_SCALE };
        let bf16 = |values: Vec<f32>| values.iter().map(|v| half::bf16::from_f32(*v).to_f32()).collect();
        let few: Vec<f32> = Rng(4).normals(RANK * 61).iter().map(|w| 0.04 * w).collect();
        Inputs {
            config,
            latents: bf16(Rng(3).normals(ROWS * WIDTH)),
            k_b: repeated(&few, heads * RANK * NOPE),
            v_b: repeated(&few, heads * HEAD * RANK),
        }
    }

    fn matrix(&self, d: &Device, shape: [usize; 3], values: &[f32]) -> Matrix {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Matrix::new(d, Weight::new(GgmlType::F32, shape, bytes.into()).unwrap()).unwrap()
    }

    /// Row `t` of a case and a head, in f64, by the absorbed form: keys repeat after [`ROWS`].
    fn want(&self, case: Case, q: &[f32], t: usize, h: usize) -> Vec<f64> {
        let dot = |a: &[f64], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * f64::from(*b)).sum::<f64>();
        let of_row: Vec<f64> = (0..RANK)
            .map(|r| {
                let w = &self.k_b[(h * RANK + r) * NOPE..][..NOPE];
                w.iter().zip(q).map(|(w, q)| f64::from(*w) * f64::from(*q)).sum()
            })
            .chain(q[NOPE..].iter().map(|q| f64::from(*q)))
            .collect();
        let visible = case.depth + t + 1;
        let rows = self.latents.chunks(WIDTH);
        let logits: Vec<f64> = rows.clone().map(|row| f64::from(SM_SCALE) * dot(&of_row, row)).collect();
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (mut sums, mut all) = (vec![0.0; RANK], 0.0);
        for (i, row) in rows.enumerate() {
            let times = (visible + ROWS - 1 - i) / ROWS;
            let p = times as f64 * (logits[i] - max).exp();
            all += p;
            sums.iter_mut().zip(row).for_each(|(sum, c)| *sum += p * f64::from(*c));
        }
        (0..HEAD).map(|j| dot(&sums, &self.v_b[(h * HEAD + j) * RANK..][..RANK]) / all).collect()
    }
}

/// A cache of one sequence, in pages of any order, from few values.
fn cache(d: &Device, pages: &[u32], latents: &[f32]) -> PagedRows {
    let cpu = Device::cpu(Some(1)).unwrap();
    let mut cache = PagedRows::new(&cpu, pages.len(), WIDTH, CacheType::Bf16).unwrap();
    let n = pages.len() * PAGE_ROWS;
    let mut rows = RaggedRows::default();
    rows.push(0, n, pages).unwrap();
    cache.write(&rows, &Tensor::from_vec(&cpu, n, WIDTH, repeated(latents, n * WIDTH)).unwrap()).unwrap();
    cache.to_device(d).unwrap()
}

fn compare(name: &str, case: Case, inputs: &Inputs, q: &[f32], out: &Tensor) {
    for t in [0, case.m / 2, case.m - 1] {
        for h in [0, case.heads / 2, case.heads - 1] {
            let at = t * case.heads + h;
            let want = inputs.want(case, &q[at * HEAD..][..HEAD], t, h);
            let got = out.cuda().unwrap().to_vec(at * HEAD..(at + 1) * HEAD).unwrap();
            let off: f64 = got.iter().zip(&want).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
            let of: f64 = want.iter().map(|v| v * v).sum();
            assert!(off <= 4e-4 * of, "{name}: row {t}, head {h}: off by {off:e} of {of:e}, squared");
        }
    }
}

pub fn benches(bench: &Bench, c: &mut Criterion) {
    let d = &bench.device;
    let cases: Vec<Case> = match bench.measured {
        true => [64, 8]
            .into_iter()
            .flat_map(|heads| {
                let behind = [0, 2048, 32_768, 131_072].map(|depth| Case { heads, m: 2048, depth });
                behind.into_iter().chain([256, 512].map(|m| Case { heads, m, depth: 32_768 }))
            })
            .collect(),
        false => vec![Case { heads: 2, m: 20, depth: 130 }],
    };
    for case in cases {
        let Case { heads, m, depth } = case;
        let rows = format!("{heads} heads, {m} rows behind {depth} keys");
        let expanded = KEYS.into_iter().enumerate().filter(|(i, keys)| *i == 0 || case.keys() >= *keys);
        let expanded: Vec<_> =
            expanded.map(|(_, keys)| (format!("{rows}, {keys} keys at a time"), keys)).collect();
        let absorbed = format!("{rows}, absorbed");
        let wants = |name: &str| bench.wants("mla_prefill", name);
        if !expanded.iter().any(|(name, _)| wants(name)) && !wants(&absorbed) {
            continue;
        }
        let inputs = Inputs::new(heads);
        let pages: Vec<u32> = (0..case.keys().div_ceil(PAGE_ROWS) as u32).rev().collect();
        let cache = cache(d, &pages, &inputs.latents);
        let mut ragged = RaggedRows::default();
        ragged.push(depth, m, &pages).unwrap();
        ragged.upload(d).unwrap();
        let values = repeated(&Rng(2).normals(HEAD * 61), m * heads * HEAD);
        let q = Tensor::from_vec(d, m, heads * HEAD, values.clone()).unwrap();
        let mut out = Tensor::zeros(d, m, heads * HEAD).unwrap();
        let k_b = inputs.matrix(d, [heads, RANK, NOPE], &inputs.k_b);
        let v_b = inputs.matrix(d, [heads, HEAD, RANK], &inputs.v_b);
        bench.report.prepared();
        for (name, keys) in expanded.into_iter().filter(|(name, _)| wants(name)) {
            let mut scratch = PrefillScratch::new(d, heads, m, keys).unwrap();
            let mut launch = |out: &mut Tensor| {
                let options = PrefillOptions { lse: None, scratch: Some(&mut scratch) };
                mla_prefill_with(options, &q, &cache, &ragged, &k_b, &v_b, &inputs.config, out)
            };
            launch(&mut out).unwrap();
            compare(&name, case, &inputs, &values, &out);
            // Expanded keys are more than any cache holds, where it matters.
            let work = case.work(HEAD + HEAD, RANK * (NOPE + HEAD), 2 * HEAD);
            let mut launch = |_| launch(&mut out);
            bench.row(c, "mla_prefill", Row { name, work, case: None, sets: 1, launch: &mut launch });
        }
        if wants(&absorbed) {
            let mut scratch = MlaScratch::new(d).unwrap();
            let q = Tensor::from_vec(d, m, heads * WIDTH, repeated(&values, m * heads * WIDTH)).unwrap();
            let mut out = Tensor::zeros(d, m, heads * RANK).unwrap();
            let work = case.work(WIDTH + RANK, 0, WIDTH + RANK);
            let mut launch = |_| {
                let options = MlaOptions { scratch: Some(&mut scratch), ..MlaOptions::default() };
                mla_attention_with(options, &q, &cache, &ragged, None, &inputs.config, &mut out)
            };
            bench.row(
                c,
                "mla_prefill",
                Row { name: absorbed, work, case: None, sets: 1, launch: &mut launch },
            );
        }
    }
}
