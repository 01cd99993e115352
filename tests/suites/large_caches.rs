//! Caches of more than 4 GiB, in whose last pages an offset in bytes has more than 32 bits; of more than 2^32 values where there is memory for that.
//! What is written there, copied, attended, scored and selected is, bit for bit, what the same rows give in a small cache.
//!
//! Instantiated in `tests/device.rs` alone: an emulated GPU has 4 GiB, and with more of them each of these tests takes a minute there. With less
//! than 8 GiB free a test says so and is left out, or fails with `GLM5_REQUIRE_GPU=1`.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use glm5::kernels::mla_float;
use glm5::ops::dsa_indexer::config::{IndexerProblem, SelectConfig, candidates};
use glm5::ops::dsa_indexer::{IndexerScratch, Selecting, indexer_scores_with, indexer_select_with};
use glm5::ops::dsa_topk::Selection;
use glm5::ops::post_a::{IndexKeys, PostA, post_a};
use glm5::ops::rope::rope_angles;
use glm5::quant::GgmlType;
use glm5::tensor::{CacheType, Device, PAGE_ROWS, PagedRows, Precision, RaggedRows, Tensor};

use super::blocks::Rng;
use super::close::equal;
use super::dsa_select::rows_of;
use super::inputs::*;
use super::mla_attention::selections;
use super::sequences::{Batch, Sequence};
use super::{mla_decode, mla_prefill};

macro_rules! large_caches_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { large_caches, $devices, $cases; ;
        rows_are_written_and_copied, post_a_writes_rows, rows_are_attended, keys_are_scored_and_selected }
    };
}
pub(crate) use large_caches_properties;

const GIB: u64 = 1 << 30;

/// Width and type of latent rows, and of keys of the indexer.
const LATENT: [(usize, CacheType); 4] =
    [(576, CacheType::Bf16), (576, CacheType::F16), (576, CacheType::Fp8), (576, CacheType::F32)];
const KEYS: [(usize, CacheType); 4] =
    [(128, CacheType::Bf16), (128, CacheType::F16), (128, CacheType::Int8), (128, CacheType::F32)];

/// Two sequences, the second shorter, with `new` rows each: five pages and one.
fn sequences(new: usize) -> [Sequence; 2] {
    [Sequence { len: 4 * PAGE_ROWS + 37, new }, Sequence { len: PAGE_ROWS, new }]
}

/// The same rows in a small cache and in a large one.
struct Twins {
    batches: [Batch; 2],
    there: [(PagedRows, RaggedRows); 2],
    /// Of the large one.
    pages: usize,
    /// One large cache at a time.
    _alone: MutexGuard<'static, ()>,
}

impl Twins {
    /// None if there is not enough memory, which is said past the capture of what passing tests print.
    fn new(d: &Device, (width, ty): (usize, CacheType), new: usize) -> Option<Twins> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let free = d.gpu().unwrap().memory().unwrap().free;
        if free < 8 * GIB {
            let required = std::env::var_os("GLM5_REQUIRE_GPU").is_some_and(|v| !v.is_empty() && v != "0");
            assert!(!required, "GLM5_REQUIRE_GPU is set: {:.1} GiB are free", free as f64 / GIB as f64);
            let line =
                format!("a large cache of {ty}: left out, {:.1} GiB are free\n", free as f64 / GIB as f64);
            std::io::stderr().write_all(line.as_bytes()).unwrap();
            return None;
        }
        let page_bytes = PAGE_ROWS * ty.row_bytes(width).unwrap();
        let of_values = if free < 40 * GIB { page_bytes } else { page_bytes.min(PAGE_ROWS * width) };
        let pages = (1usize << 32) / of_values + 100;
        // The first page, those where offsets in bytes outgrow 31 and 32 bits, and late ones, before and behind each other.
        let [border, far] = [31, 32].map(|bits| ((1usize << bits) / page_bytes) as u32);
        let last = pages as u32 - 1;
        let batch = Batch::random(&sequences(new), width, ty, &mut Rng(width as u64));
        let batches = [
            batch.clone().in_pages(vec![vec![3, 0, 5, 1, 4], vec![2]]),
            batch.in_pages(vec![vec![last, 0, far, last - 2, border], vec![last - 1]]),
        ];
        let on = |batch: &Batch, pages: usize| {
            let mut cache = PagedRows::new(d, pages, width, ty).unwrap();
            cache.write(&whole(d, batch), &tensor(d, width, &batch.keys.concat())).unwrap();
            (cache, batch.layout(d).unwrap())
        };
        let there = [on(&batches[0], 6), on(&batches[1], pages)];
        Some(Twins { batches, there, pages, _alone: alone })
    }

    /// `f` of the small cache and of the large one must have the same bits.
    fn same<T: Bits>(&self, what: &str, f: impl Fn(&(PagedRows, RaggedRows)) -> T) {
        let [small, large] = self.there.each_ref().map(|there| f(there).bits());
        assert!(small == large, "{what}: other bits from a large cache");
    }

    /// All rows of both.
    fn rows(&self) -> [Vec<f32>; 2] {
        [0, 1].map(|i| {
            let (batch, cache) = (&self.batches[i], &self.there[i].0);
            let slots = |s: usize| (0..batch.sequences[s].len).map(move |p| batch.slot(s, p));
            (0..2).flat_map(slots).flat_map(|slot| cache.row(slot).unwrap()).collect()
        })
    }
}

/// Every key of every sequence as a row.
fn whole(d: &Device, batch: &Batch) -> RaggedRows {
    let mut rows = RaggedRows::default();
    for (s, table) in batch.sequences.iter().zip(batch.tables()) {
        rows.push(0, s.len, table).unwrap();
    }
    rows.upload(d).unwrap();
    rows
}

fn each_of(devices: &[Device], kinds: &[(usize, CacheType)]) -> Vec<(Device, (usize, CacheType))> {
    devices.iter().flat_map(|d| kinds.iter().map(|kind| (d.clone(), *kind))).collect()
}

pub fn rows_are_written_and_copied(devices: &[Device]) {
    for (d, kind) in each_of(devices, &[&LATENT[..], &KEYS].concat()) {
        let Some(mut twins) = Twins::new(&d, kind, 1) else { continue };
        let [small, large] = twins.rows();
        equal("large", &large, &small).unwrap();
        if kind.1 != CacheType::Int8 {
            equal("written", &large, &twins.batches[1].keys.concat()).unwrap();
        }
        let last = twins.pages as u32 - 1;
        let full = twins.batches[1].tables()[1][0]; // all rows of it were written
        let cache = &mut twins.there[1].0;
        let page = |cache: &PagedRows, page: u32| -> Vec<f32> {
            let slots = page * PAGE_ROWS as u32..(page + 1) * PAGE_ROWS as u32;
            slots.flat_map(|slot| cache.row(slot).unwrap()).collect()
        };
        let want = page(cache, full);
        assert!(want.iter().all(|v| v.is_finite()) && want.iter().any(|v| *v != 0.0));
        // Up, down, and up again, to pages of nobody.
        for (from, to) in [(full, last - 20), (last - 20, 20), (20, last - 21)] {
            cache.copy_page(from, to).unwrap();
            equal("copied", &page(cache, to), &want).unwrap();
        }
    }
}

/// Into latent caches; and into those of keys, beside latent ones that are as narrow as they can be.
pub fn post_a_writes_rows(devices: &[Device]) {
    for (d, kind) in each_of(devices, &[&LATENT[..], &KEYS].concat()) {
        let Some(mut twins) = Twins::new(&d, kind, 1) else { continue };
        let is_key = kind.0 == 128;
        let (latent, rope) = if is_key { (4, 4) } else { (512, 64) };
        for (batch, (cache, _)) in twins.batches.iter().zip(&mut twins.there) {
            let rows = whole(&d, batch);
            let (m, rng) = (rows.len(), &mut Rng(5));
            let mut of = |rows: usize, cols: usize| tensor(&d, cols, &rng.normals(rows * cols));
            let (q_a, q_norm) = (of(m, 32), of(1, 32));
            let (kv_a, kv_norm) = (of(m, latent + rope), of(1, latent));
            let (x, norm, bias) = (of(m, 128), of(1, 128), of(1, 128));
            let mut angles = poisoned(&d, m, rope);
            rope_angles(8e6, &rows, &mut angles).unwrap();
            let input = PostA {
                q_a: &q_a,
                q_norm: &q_norm,
                kv_a: &kv_a,
                kv_norm: &kv_norm,
                eps: 1e-5,
                angles: &angles,
                rows: &rows,
            };
            if is_key {
                let pages = cache.slots() / PAGE_ROWS;
                let mut beside = PagedRows::new(&d, pages, latent + rope, CacheType::Bf16).unwrap();
                let keys = IndexKeys { x: &x, norm: &norm, bias: &bias, eps: 1e-6, cache };
                post_a(&input, None, None, &mut beside, Some(keys)).unwrap();
            } else {
                post_a(&input, None, None, cache, None).unwrap();
            }
        }
        let [small, large] = twins.rows();
        equal("large", &large, &small).unwrap();
        let before = twins.batches[1].keys.concat();
        let others = large.iter().zip(&before).filter(|(a, b)| a != b).count();
        assert!(others > large.len() / 2, "{kind:?}: rows were not written");
    }
}

/// By every kernel, dense and over selected keys, and as a prompt.
pub fn rows_are_attended(devices: &[Device]) {
    for (d, kind) in each_of(devices, &LATENT) {
        let Some(twins) = Twins::new(&d, kind, 3) else { continue };
        let (m, ty, rng) = (twins.batches[0].rows(), kind.1, &mut Rng(6));
        let selected = selections(&twins.batches[0], rng);
        let number = match ty {
            CacheType::F32 => (GgmlType::F32, 0),
            CacheType::F16 => (GgmlType::F16, 0),
            ty => (GgmlType::BF16, u32::from(ty == CacheType::Fp8)),
        };
        let float = mla_float::INSTANCES.iter().find(|i| (i.ty, i.fp8) == number).unwrap().entry;
        let tiled = mla_decode::kernels(ty).filter(|_| ty != CacheType::F32);
        let each = [(20, None), (8, None), (2, Some(float))].into_iter();
        for (heads, kernel) in each.chain(tiled.map(|kernel| (3, Some(kernel)))) {
            let (config, q) = (mla_decode::config(heads), rng.normals(m * heads * 576));
            for selected in [None, Some(&selected[..])] {
                let what = format!("{heads} heads of {ty} by {kernel:?}");
                twins
                    .same(&what, |there| mla_decode::call(&d, there, &q, selected, &config, kernel).unwrap());
            }
        }
        let (q, weights) = (rng.normals(m * 2 * mla_prefill::HEAD), mla_prefill::weights(2));
        twins.same("prompt", |there| mla_prefill::call(&d, there, &q, &weights, None).unwrap());
    }
}

/// By every launch that could.
pub fn keys_are_scored_and_selected(devices: &[Device]) {
    let exact = Precision::Exact;
    for (d, kind) in each_of(devices, &KEYS) {
        for new in [1, 5] {
            let Some(twins) = Twins::new(&d, kind, new) else { continue };
            let (m, heads, rng) = (twins.batches[0].rows(), 32, &mut Rng(7));
            let (q, w) = (tensor(&d, heads * 128, &rng.normals(m * heads * 128)), rng.normals(m * heads));
            let w = tensor(&d, heads, &w);
            let gpu = d.gpu().unwrap().properties();
            let visible = twins.there[0].1.max_visible();
            let problem = IndexerProblem {
                m,
                sequences: 2,
                visible,
                heads,
                dim: 128,
                ty: kind.1,
                precision: exact,
                sms: gpu.sms as usize,
                smem_per_sm: gpu.smem_per_sm as usize,
            };
            for config in candidates(problem) {
                twins.same(config.entry.name(), |(keys, rows)| {
                    let mut scores = poisoned(&d, m, visible);
                    indexer_scores_with(&q, &w, keys, rows, 0.1, Some(config), &mut scores, exact).unwrap();
                    host(&scores)
                });
            }
            let at_once = SelectConfig::fitting(problem, 40);
            assert_eq!(at_once.is_some(), new == 1 && kind.1 != CacheType::F32);
            let shared = at_once.map(|config| SelectConfig { parts: 3, ..config });
            let at_once = [at_once, shared].into_iter().flatten().map(Selecting::AtOnce);
            for how in at_once.chain([Selecting::Apart]) {
                twins.same("selected", |(keys, rows)| {
                    let mut scratch = IndexerScratch::new(&d).unwrap();
                    let mut out = Selection::new(&d, 40).unwrap();
                    let how = Some(how);
                    indexer_select_with(&q, &w, keys, rows, 0.1, &mut scratch, &mut out, exact, how).unwrap();
                    rows_of(&out).unwrap()
                });
            }
        }
    }
}
