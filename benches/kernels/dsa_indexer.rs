//! dsa_indexer: scores of 32 heads of 128 for all keys of a context, and with the selection of 2048 of them. Each row of a batch is a sequence
//! of its own, or the rows are the end of one (a prompt). Goals with keys of bf16 (int8): scores and selection, one row of 128k and 200k, 20 and 24 us
//! (14 and 18); 16 of 128k 160 us (95); scores of 2048 rows of a prompt 0.45 of the f16 rate (0.40 of the int8 rate). Operations are those of the
//! formula; fast: queries are rounded to the type of the keys.

use criterion::Criterion;
use glm5::Result;
use glm5::ops::dsa_indexer::config::{IndexerConfig, IndexerProblem, SelectConfig, candidates};
use glm5::ops::dsa_indexer::{
    IndexerScratch, Selecting, indexer_scores_with, indexer_select_with, reference,
};
use glm5::ops::dsa_topk::Selection;
use glm5::ops::dsa_topk::reference::top_k;
use glm5::tensor::{CacheType, Device, PAGE_ROWS, PagedRows, Precision, RaggedRows, Tensor};

use super::baselines::Case;
use super::blocks::Rng;
use super::data::repeated;
use super::report::{Memory, Work};
use super::{Bench, Row};

const HEADS: usize = 32;
const DIM: usize = 128;
const K: usize = 2048;
const SCALE: f32 = 1.0 / 64.0;

/// Rows of a batch over contexts of `keys` keys.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Shape {
    m: usize,
    keys: usize,
    /// Whether all rows are of one sequence.
    prompt: bool,
    ty: CacheType,
    precision: Precision,
}

impl Shape {
    fn sequences(self) -> usize {
        if self.prompt { 1 } else { self.m }
    }

    /// Keys that row `t` sees.
    fn visible(self, t: usize) -> usize {
        if self.prompt { self.keys - (self.m - 1 - t) } else { self.keys }
    }

    fn work(self, bytes_more: usize) -> Work {
        let bytes = self.sequences() * self.keys * self.ty.row_bytes(DIM).unwrap() + bytes_more;
        let pairs: usize = (0..self.m).map(|t| self.visible(t)).sum();
        Work { bytes, operations: Some((2 * pairs * HEADS * DIM) as u64), memory: Some(Memory::Read) }
    }
}

pub fn benches(bench: &Bench, c: &mut Criterion) {
    use CacheType::*;
    use Precision::*;
    let (contexts, batches): (&[usize], &[usize]) = match bench.measured {
        true => (&[2048, 4096, 32_768, 131_072, 204_800], &[1, 2, 4, 8, 16]),
        false => (&[2200], &[1, 2]),
    };
    for ty in [Bf16, Int8] {
        for keys in contexts.iter().copied() {
            for m in batches.iter().copied() {
                shape(bench, c, Shape { m, keys, prompt: false, ty, precision: Exact });
            }
        }
    }
    // Tokens to verify, and prompts behind nothing, 32k and 128k.
    let (keys, verified, prompts): (usize, &[usize], &[(usize, usize)]) = match bench.measured {
        true => (131_072, &[2, 4, 8], &[(512, 32_768), (2048, 2048), (2048, 32_768), (2048, 131_072)]),
        false => (2100, &[], &[(11, 2100)]),
    };
    for (ty, precision) in [(Bf16, Exact), (Bf16, Fast), (Int8, Exact)] {
        for (m, keys) in verified.iter().map(|m| (*m, keys)).chain(prompts.iter().copied()) {
            shape(bench, c, Shape { m, keys, prompt: true, ty, precision });
        }
    }
    for (m, ty, precision) in
        [(1, F16, Exact), (1, F32, Exact), (1, Bf16, Fast), (16, F16, Exact), (16, Bf16, Fast)]
    {
        shape(bench, c, Shape { m: if bench.measured { m } else { 1 }, keys, prompt: false, ty, precision });
    }
}

/// Keys of a sequence in pages of any order, repeated from few.
fn cache(d: &Device, pages: &[u32], few: &[f32], ty: CacheType) -> PagedRows {
    let cpu = Device::cpu(Some(1)).unwrap();
    let mut cache = PagedRows::new(&cpu, pages.len(), DIM, ty).unwrap();
    let n = pages.len() * PAGE_ROWS;
    let mut rows = RaggedRows::default();
    rows.push(0, n, pages).unwrap();
    let values = Tensor::from_vec(&cpu, n, DIM, repeated(few, n * DIM)).unwrap();
    cache.write(&rows, &values).unwrap();
    cache.to_device(d).unwrap()
}

fn shape(bench: &Bench, c: &mut Criterion, shape: Shape) {
    let Shape { m, keys, prompt, ty, precision } = shape;
    let d = &bench.device;
    let kind = if prompt { "rows of a prompt" } else { "rows" };
    let fast = if precision == Precision::Fast { ", fast" } else { "" };
    let name = format!("{keys} keys of {ty}, {m} {kind}{fast}");
    let problem = IndexerProblem {
        m,
        sequences: shape.sequences(),
        visible: keys,
        heads: HEADS,
        dim: DIM,
        ty,
        precision,
        sms: bench.gpu().properties().sms as usize,
        smem_per_sm: bench.gpu().properties().smem_per_sm as usize,
    };
    let all: Vec<(String, IndexerConfig)> = candidates(problem)
        .into_iter()
        .enumerate()
        // The kernel for any shape only where it is quick.
        .filter(|(i, config)| *i == 0 || (m <= 16 && !config.entry.name().contains("any")))
        .map(|(i, config)| (if i > 0 { format!("{name}, {}", config.entry) } else { name.clone() }, config))
        .collect();
    let selected = format!("{K} of {name}");
    let wants = |name: &str| bench.wants("dsa_indexer", name);
    if !all.iter().any(|(name, _)| wants(name)) && !wants(&selected) {
        return;
    }

    // Each set has keys of its own, so that no cache holds them. So many keys differ that hardly any score is twice among the best.
    let distinct = if bench.measured { 16_381 } else { 61 };
    let few = Rng(5).normals(distinct * DIM);
    let of_one = keys.div_ceil(PAGE_ROWS);
    let pages: Vec<u32> = (0..(of_one * shape.sequences()) as u32).rev().collect();
    let bytes = pages.len() * PAGE_ROWS * ty.row_bytes(DIM).unwrap();
    let sets = bench.sets(bytes);
    let mut caches = vec![cache(d, &pages, &few, ty)];
    (1..sets).for_each(|_| caches.push(caches[0].to_device(d).unwrap()));
    let mut rows = RaggedRows::default();
    if prompt {
        rows.push(keys - m, m, &pages).unwrap();
    } else {
        pages.chunks(of_one).for_each(|pages| rows.push(keys - 1, 1, pages).unwrap());
    }
    rows.upload(d).unwrap();
    let (q, w) = (Rng(6).normals(m * HEADS * DIM), Rng(7).normals(m * HEADS));
    let there = (
        Tensor::from_vec(d, m, HEADS * DIM, q.clone()).unwrap(),
        Tensor::from_vec(d, m, HEADS, w.clone()).unwrap(),
    );
    bench.report.prepared();

    // Row t by the reference: keys repeat, and some of them are looked at.
    let rounded = |v: &f32| match ty {
        CacheType::Bf16 => half::bf16::from_f32(*v).to_f32(),
        CacheType::F16 => half::f16::from_f32(*v).to_f32(),
        _ => *v,
    };
    let few: Vec<f32> = few.iter().map(rounded).collect();
    let begins = |t: usize| if prompt { 0 } else { t * of_one * PAGE_ROWS };
    let want = |t: usize, s: usize| -> f64 {
        let key = &few[(begins(t) + s) % distinct * DIM..][..DIM];
        let (q, w) = (&q[t * HEADS * DIM..][..HEADS * DIM], &w[t * HEADS..][..HEADS]);
        if ty == CacheType::Int8 {
            return reference::indexer_scores_int8(q, w, key, &[0], HEADS, SCALE.into()).unwrap()[0];
        }
        let rounded = (precision == Precision::Fast).then(|| reference::rounded_query(q, DIM, ty));
        let q = rounded.as_deref().unwrap_or(q);
        reference::indexer_scores(q, w, key, &[0], HEADS, DIM, SCALE.into()).unwrap()[0]
    };
    let case = matches!(ty, CacheType::Bf16 | CacheType::Int8).then_some(Case {
        op: "LIGHTNING_INDEXER",
        ty: "F16",
        k: HEADS * DIM,
        n: keys,
        m,
    });
    for (name, config) in &all {
        if !wants(name) {
            continue;
        }
        let mut scores = Tensor::zeros(d, m, keys).unwrap();
        let (q, w) = (&there.0, &there.1);
        indexer_scores_with(q, w, &caches[0], &rows, SCALE, Some(*config), &mut scores, precision).unwrap();
        let got = scores.cuda().unwrap();
        for t in [0, m / 2, m - 1] {
            let row = got.to_vec(t * keys..(t + 1) * keys).unwrap();
            let visible = shape.visible(t);
            for first in (0..distinct.min(visible)).step_by(distinct.div_ceil(61)) {
                let wanted = want(t, first);
                let mut same = (first..visible).step_by(distinct);
                let close = |s: usize| (f64::from(row[s]) - wanted).abs() < 1e-3;
                assert!(same.all(close), "{name}: scores of row {t}");
            }
            assert!(row[visible..].iter().all(|s| *s == f32::NEG_INFINITY), "{name}: row {t}");
        }
        let mut run = |i: usize| -> Result<()> {
            indexer_scores_with(q, w, &caches[i], &rows, SCALE, Some(*config), &mut scores, precision)
        };
        let row = Row { name: name.clone(), work: shape.work(4 * m * keys), case, sets, launch: &mut run };
        bench.row(c, "dsa_indexer", row);
    }
    // In the way that is chosen, and by one and by two launches.
    let at_once = SelectConfig::fitting(problem, K).map(Selecting::AtOnce);
    let ways = [None, at_once, at_once.map(|_| Selecting::Apart)];
    for (i, how) in ways.into_iter().enumerate().filter(|(i, how)| *i == 0 || how.is_some()) {
        let name = format!("{selected}{}", ["", ", by one launch", ", by two"][i]);
        if !wants(&name) || m > 512 {
            continue;
        }
        let (mut scratch, mut out) = (IndexerScratch::new(d).unwrap(), Selection::new(d, K).unwrap());
        let (q, w) = (&there.0, &there.1);
        let mut run = |i: usize, out: &mut Selection| {
            indexer_select_with(q, w, &caches[i], &rows, SCALE, &mut scratch, out, precision, how)
        };
        run(0, &mut out).unwrap();
        // Of the device's own scores: which of two as good as equal ones is taken is theirs to say.
        let mut scores = Tensor::zeros(d, m, keys).unwrap();
        indexer_scores_with(q, w, &caches[0], &rows, SCALE, None, &mut scores, precision).unwrap();
        let (indices, lens) = (out.indices.to_vec().unwrap(), out.lens.to_vec().unwrap());
        for t in [0, m - 1] {
            let row = scores.cuda().unwrap().to_vec(t * keys..(t + 1) * keys).unwrap();
            let want = top_k(&row, keys, &[shape.visible(t) as u32], K).unwrap();
            assert!(indices[t * K..][..lens[t] as usize] == want[0][..], "{name}: row {t} differs");
        }
        let case = case.map(|case| Case { op: "LIGHTNING_INDEXER + TOP_K", ..case }).filter(|_| i == 0);
        // Rows that see no more than are selected are not scored.
        let work = if keys <= K {
            Work { bytes: 4 * m * keys, operations: None, memory: None }
        } else {
            shape.work(4 * m * K)
        };
        let mut launch = |i: usize| run(i, &mut out);
        bench.row(c, "dsa_indexer", Row { name, work, case, sets, launch: &mut launch });
    }
}
