//! mla_attention: absorbed latent attention at GLM-5's widths, over contexts of their own for each sequence: dense, and over 2048 keys that
//! are selected at random; chunks of a prompt behind cached keys. Goals: sparse, 64 heads, 9 us for one row, 14 for 8, 67 for 64; 8 and 16 heads,
//! 64 rows, 75 % of the copy rate; dense over 256k keys and more, 8 and 16 heads, 88 %; prefill of 2048 rows half of the f16 rate.
//!
//! Bytes are those of keys that some row attends, once each, of queries and outputs; their roof is that of reading, which most of them are. What is compared: some rows and heads, with keys
//! as they are and within what rounding of queries and weights costs.

use criterion::Criterion;
use glm5::kernels::{Entry, mla_decode};
use glm5::ops::dsa_topk::Selection;
use glm5::ops::mla_attention::{MlaConfig, MlaOptions, MlaScratch, mla_attention_with};
use glm5::quant::GgmlType;
use glm5::tensor::{CacheType, Device, PAGE_ROWS, RaggedRows, Tensor};

use super::baselines::Case as Baseline;
use super::blocks::Rng;
use super::data::repeated;
use super::paged::Repeated;
use super::report::{Memory, Work};
use super::{Bench, Row};

const RANK: usize = 512;
const WIDTH: usize = 576;
const SM_SCALE: f32 = 1.0 / 16.0;

/// Cases by every kernel that takes them, where the choice is open: only if the filter has this.
const VARIANTS: &str = "mla_variants";

/// Pages that differ; the others repeat them. A prime.
const PAGES: usize = 31;

/// A case: `sequences`, each with `new` rows behind others, so that the last one sees `keys`; of which `selected` are attended.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Case {
    ty: CacheType,
    heads: usize,
    sequences: usize,
    new: usize,
    keys: usize,
    selected: Option<usize>,
}

impl Case {
    fn m(self) -> usize {
        self.sequences * self.new
    }

    fn pages(self) -> usize {
        self.keys.div_ceil(PAGE_ROWS)
    }

    /// Bytes of a cache in which all contexts lie apart.
    fn cached(self) -> usize {
        self.sequences * self.pages() * PAGE_ROWS * self.ty.row_bytes(WIDTH).unwrap()
    }

    fn name(self) -> String {
        let Case { ty, heads, sequences, new, keys, selected } = self;
        let of = selected.map_or(format!("{keys} keys"), |selected| format!("{selected} of {keys} keys"));
        let rows = match (sequences, new) {
            (1, new) if new > 1 => format!("{new} tokens of a sequence"),
            (sequences, 1) => format!("{sequences} sequences"),
            _ => format!("{new} tokens of each of {sequences} sequences"),
        };
        format!("{ty}, {heads} heads, {rows}, {of}")
    }

    /// Keys that row `t` attends.
    fn attended(self, t: usize) -> usize {
        let visible = self.keys - self.new + t % self.new + 1;
        self.selected.map_or(visible, |selected| selected.min(visible))
    }

    fn work(self) -> Work {
        let attended: usize = (0..self.m()).map(|t| self.attended(t)).sum();
        let keys = match self.selected {
            Some(_) => attended.min(self.sequences * self.keys),
            None => self.sequences * self.keys,
        };
        let indices = self.selected.map_or(0, |_| 4 * attended);
        let bytes =
            keys * self.ty.row_bytes(WIDTH).unwrap() + self.m() * self.heads * (WIDTH + RANK) * 4 + indices;
        let operations = Some((attended * self.heads * 2 * (WIDTH + RANK)) as u64);
        Work { bytes, operations, memory: Some(Memory::Read) }
    }

    /// Bytes that must differ between sets of buffers.
    fn bytes(self) -> usize {
        self.work().bytes
    }

    /// llama.cpp had one context for all rows, and passed the selection as a mask over all keys.
    fn baseline(self) -> Option<Baseline> {
        let op = if self.selected.is_some() { "FLASH_ATTN_SELECTED" } else { "FLASH_ATTN" };
        let same = self.sequences == 1 && !matches!(self.ty, CacheType::F32 | CacheType::Fp8);
        same.then_some(Baseline { op, ty: "F16", k: self.keys, n: self.heads, m: self.new })
    }
}

/// A cache with room for the largest case of a type. Its keys are as they come back.
fn cache(d: &Device, ty: CacheType, pages: usize) -> Repeated {
    let keys = Rng(3).normals(PAGES * PAGE_ROWS * WIDTH).iter().map(|v| (v * 64.0).round() / 64.0).collect();
    let mut cache = Repeated::new(d, ty, WIDTH, keys, pages);
    if ty == CacheType::Fp8 {
        let slots = 0..(PAGES * PAGE_ROWS) as u32;
        cache.keys = slots.flat_map(|slot| cache.rows.row(slot).unwrap()).collect();
    }
    cache
}

/// Rows of a case and what they select, for one of several sets: pages from another place on.
struct Set {
    rows: RaggedRows,
    selection: Option<Selection>,
    positions: Vec<Vec<u32>>,
    tables: Vec<Vec<u32>>,
}

impl Set {
    fn new(d: &Device, case: Case, cache: &Repeated, number: usize) -> Self {
        let rng = &mut Rng(number as u64 + 1);
        let mut rows = RaggedRows::default();
        let tables = cache.tables(number, case.sequences, case.pages());
        for table in &tables {
            rows.push(case.keys - case.new, case.new, table).unwrap();
        }
        rows.upload(d).unwrap();
        let mut positions = Vec::new();
        let selection = case.selected.map(|k| {
            let mut indices = vec![u32::MAX; case.m() * k];
            let mut lens = Vec::new();
            for t in 0..case.m() {
                let visible = case.keys - case.new + t % case.new + 1;
                let row = sample(visible, case.attended(t), rng);
                indices[t * k..][..row.len()].copy_from_slice(&row);
                lens.push(row.len() as u32);
                positions.push(row);
            }
            Selection {
                indices: Tensor::from_vec(d, case.m(), k, indices).unwrap(),
                lens: Tensor::from_vec(d, case.m(), 1, lens).unwrap(),
            }
        });
        Set { rows, selection, positions, tables }
    }

    /// How often row `t` attends each of the keys that differ.
    fn counts(&self, case: Case, cache: &Repeated, t: usize) -> Vec<f64> {
        let mut counts = vec![0.0; PAGES * PAGE_ROWS];
        let table = &self.tables[t / case.new];
        let mut count = |position: usize| counts[cache.row_of(table, position)] += 1.0;
        match case.selected {
            Some(_) => self.positions[t].iter().for_each(|position| count(*position as usize)),
            None => (0..case.attended(t)).for_each(count),
        }
        counts
    }
}

/// `k` of `n` positions, ascending, each anywhere in its own part of them.
fn sample(n: usize, k: usize, rng: &mut Rng) -> Vec<u32> {
    let part = |i: usize| n * i / k;
    (0..k).map(|i| (part(i) + rng.below(part(i + 1) - part(i))) as u32).collect()
}

/// Attention of one head over the keys that differ, by how often they are attended.
fn attend(q: &[f32], keys: &[f32], counts: &[f64]) -> Vec<f64> {
    let dot = |key: &[f32]| q.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let logits: Vec<f64> = keys.chunks(WIDTH).map(|key| f64::from(SM_SCALE) * dot(key)).collect();
    let top =
        logits.iter().zip(counts).filter(|(_, n)| **n > 0.0).fold(f64::NEG_INFINITY, |a, (l, _)| a.max(*l));
    let (mut out, mut sum) = (vec![0.0; RANK], 0.0);
    for ((logit, n), key) in logits.iter().zip(counts).zip(keys.chunks(WIDTH)).filter(|((_, n), _)| **n > 0.0)
    {
        let p = n * (logit - top).exp();
        sum += p;
        out.iter_mut().zip(key).for_each(|(out, v)| *out += p * f64::from(*v));
    }
    out.iter_mut().for_each(|v| *v /= sum);
    out
}

fn compare(name: &str, case: Case, set: &Set, cache: &Repeated, q: &[f32], out: &Tensor) {
    let Case { heads, ty, .. } = case;
    let bound = match ty {
        CacheType::F32 => 1e-4,
        CacheType::F16 => 3e-3,
        // Keys are compared with as they come back: fp8 is as exact as bf16.
        CacheType::Bf16 | CacheType::Fp8 => 2e-2,
        CacheType::Int8 => unreachable!("no kernel was built for it"),
    };
    let m = case.m();
    for t in [0, m / 2, m - 1] {
        let counts = set.counts(case, cache, t);
        for head in [0, heads / 2, heads - 1] {
            let want = attend(&q[(t * heads + head) * WIDTH..][..WIDTH], &cache.keys, &counts);
            let at = (t * heads + head) * RANK;
            let got = out.cuda().unwrap().to_vec(at..at + RANK).unwrap();
            let off: f64 = got.iter().zip(&want).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
            let of: f64 = want.iter().map(|v| v * v).sum();
            assert!(
                off <= bound * bound * of,
                "{name}: row {t}, head {head}: off by {off:e} of {of:e}, squared"
            );
        }
    }
}

fn run(
    bench: &Bench,
    c: &mut Criterion,
    group: &str,
    name: String,
    case: Case,
    cache: &Repeated,
    kernel: Option<Entry>,
) {
    let d = &bench.device;
    let mut scratch = MlaScratch::new(d).unwrap();
    let config = MlaConfig {
        n_heads: case.heads,
        kv_lora_rank: RANK,
        qk_rope_head_dim: WIDTH - RANK,
        sm_scale: SM_SCALE,
    };
    let values = repeated(&Rng(2).normals(WIDTH * 61), case.m() * case.heads * WIDTH);
    let q = Tensor::from_vec(d, case.m(), case.heads * WIDTH, values.clone()).unwrap();
    let mut out = Tensor::zeros(d, case.m(), case.heads * RANK).unwrap();
    let sets = bench.sets(case.bytes());
    let sets: Vec<Set> = (0..sets).map(|i| Set::new(d, case, cache, i)).collect();
    let mut launch = |i: usize, out: &mut Tensor| {
        let options = MlaOptions { lse: None, scratch: Some(&mut scratch), kernel };
        mla_attention_with(options, &q, &cache.rows, &sets[i].rows, sets[i].selection.as_ref(), &config, out)
    };
    launch(1, &mut out).unwrap();
    compare(&name, case, &sets[1], cache, &values, &out);
    let mut launch = |i: usize| launch(i, &mut out);
    let row = Row { name, work: case.work(), case: case.baseline(), sets: sets.len(), launch: &mut launch };
    bench.row(c, group, row);
}

/// Decode of one token of each sequence, then several tokens of one, then prefill.
fn cases(measured: bool) -> Vec<Case> {
    use CacheType::{Bf16, F16, F32, Fp8};
    let mut all = Vec::new();
    let one = Case { ty: Bf16, heads: 64, sequences: 1, new: 1, keys: 2048, selected: None };
    if !measured {
        for (ty, heads) in [(Bf16, 8), (F16, 20), (Fp8, 16), (Fp8, 17), (F32, 3)] {
            all.push(Case { ty, heads, sequences: 2, keys: 130, ..one });
            all.push(Case { ty, heads, new: 3, keys: 200, selected: Some(70), ..one });
        }
        return all;
    }
    for ty in [Bf16, F16, Fp8] {
        for heads in [8, 16, 64] {
            for sequences in [1, 2, 4, 8, 16, 64] {
                for keys in [2048, 4096, 32_768, 131_072, 204_800] {
                    let dense = Case { ty, heads, sequences, keys, ..one };
                    // f16 costs what bf16 does: the ends of the table show it.
                    if ty == F16
                        && (heads == 16
                            || ![1, 8, 64].contains(&sequences)
                            || ![2048, 131_072].contains(&keys))
                    {
                        continue;
                    }
                    all.push(dense);
                    if keys > 2048 {
                        all.push(Case { selected: Some(2048), ..dense });
                    }
                }
            }
        }
    }
    for sequences in [1, 2, 4, 8, 16, 64] {
        all.push(Case { heads: 32, sequences, keys: 32_768, selected: Some(2048), ..one });
    }
    for heads in [8, 64] {
        for (keys, selected) in [(2048, None), (4096, Some(2048))] {
            for sequences in [1, 8] {
                all.push(Case { ty: F32, heads, sequences, keys, selected, ..one });
            }
            for new in [4, 64] {
                all.push(Case { heads, new, keys, selected, ..one });
            }
        }
        for new in [4, 64] {
            all.push(Case { heads, new, keys: 32_768, ..one });
        }
        for keys in [2048, 32_768 + 2048, 131_072 + 2048] {
            let prefill = Case { heads, new: 2048, keys, ..one };
            all.push(prefill);
            if keys > 2048 {
                all.push(Case { selected: Some(2048), ..prefill });
                all.push(Case { ty: Fp8, selected: Some(2048), ..prefill });
            }
        }
    }
    all
}

pub fn benches(bench: &Bench, c: &mut Criterion) {
    let cases = cases(bench.measured);
    for ty in [CacheType::Bf16, CacheType::F16, CacheType::Fp8, CacheType::F32] {
        let kernels = |case: Case| {
            let fp8 = u32::from(case.ty == CacheType::Fp8);
            let open = matches!(case.ty, CacheType::Bf16 | CacheType::Fp8)
                && (case.heads > 16 || !bench.measured)
                && case.keys <= 34_816;
            let all = mla_decode::INSTANCES.iter();
            all.filter(move |i| open && i.ty == GgmlType::BF16 && i.fp8 == fp8)
        };
        let mut rows = Vec::new();
        for case in cases.iter().copied().filter(|case| case.ty == ty) {
            if !bench.holds("mla_attention", &case.name(), case.cached()) {
                continue;
            }
            if bench.wants("mla_attention", &case.name()) {
                rows.push(("mla_attention", case.name(), case, None));
            }
            for i in kernels(case).filter(|_| bench.filter.contains(VARIANTS)) {
                let name = format!("{}, by {}", case.name(), i.entry);
                if bench.wants(VARIANTS, &name) {
                    rows.push((VARIANTS, name, case, Some(i.entry)));
                }
            }
        }
        let Some(pages) = rows.iter().map(|(_, _, case, _)| case.sequences * case.pages()).max() else {
            continue;
        };
        // Several sets of small cases lie apart, too.
        let room =
            if bench.measured { bench.sets(1) / (ty.row_bytes(WIDTH).unwrap() * PAGE_ROWS) } else { 8 };
        let cache = cache(&bench.device, ty, pages.max(room));
        bench.report.prepared();
        for (group, name, case, kernel) in rows {
            run(bench, c, group, name, case, &cache, kernel);
        }
    }
}
