//! All of a layer's attention behind its first projections, operation after operation as the model composes them, over paged caches: `post_a`,
//! queries, absorption, selection, attention, values. Against attention as it is trained, in plain f64 with a key and a value for each head.

use glm5::kernels::Entry;
use glm5::ops::dsa_indexer::{IndexerScratch, indexer_select};
use glm5::ops::dsa_topk::Selection;
use glm5::ops::linear::{Rotated, TiledOptions, head_linear, linear_rotated, linear_tiled_with};
use glm5::ops::mla_attention::{MlaConfig, mla_attention};
use glm5::ops::mla_prefill::mla_prefill;
use glm5::ops::post_a::{IndexKeys, PostA, post_a};
use glm5::ops::rope::rope_angles;
use glm5::quant::{GgmlType, Weight};
use glm5::tensor::{
    CacheType, Device, Heads, Matrix, PAGE_ROWS, PagedRows, Precision, QuantizedTiles, RaggedRows, Tensor,
};
use glm5::{Error, Result};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::Rng;
use super::close::{equal, relative};
use super::inputs::{host, matrix, on_each, poisoned, tensor, values};
use super::mla_attention::selection;
use super::sequences::{any_cache_type, rounded};

mod layer;
mod trained;

use layer::*;
use trained::{Off, Trained};

macro_rules! attention_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { attention, $devices, $cases;
        is_attention_as_trained(case), later_tokens_do_not_matter(case);
        steps_across_top_k_are_one_prompt, forks_share_their_pages, huge_queries_stay_finite, truncated_sequences_leave_nothing,
        pages_go_on_to_new_sequences_as_they_are, layers_share_a_selection, drafts_attend_what_an_earlier_row_selected,
        takes_many_heads_and_a_few_new_tokens, queries_in_tiles_are_the_same, expanded_form_is_attention_as_trained }
    };
}
pub(crate) use attention_properties;

/// Of which kernels differ.
const CACHES: [CacheType; 3] = [CacheType::F32, CacheType::Bf16, CacheType::Fp8];

#[derive(Debug, Clone)]
pub struct Case {
    lens: Vec<usize>,
    ty: CacheType,
    precision: Precision,
    in_tiles: bool,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    let len = prop_oneof![prop::sample::select(vec![1usize, TOP_K, TOP_K + 1, 64, 65]), 1usize..70];
    let precision = prop::sample::select(vec![Precision::Exact, Precision::Fast]);
    let lens = prop::collection::vec(len, 1..3);
    let ty = prop_oneof![3 => any_cache_type(), 1 => Just(CacheType::Fp8)];
    (lens, ty, precision, any::<bool>(), any::<u64>())
        .prop_map(|(lens, ty, precision, in_tiles, seed)| Case { lens, ty, precision, in_tiles, seed })
}

/// How far scores may be off, of what heads have in the largest, and the outputs of a row: what rounding of caches, queries and activations
/// costs. Rounded activations decide where two keys with other values are nearly as good: 2 per cent of the output, and what 2 per mille of the
/// products in logits do. 1500 random cases needed less than half of the latter.
fn bounds(precision: Precision, ty: CacheType) -> (f64, Off) {
    match (precision, ty) {
        (Precision::Exact, CacheType::F32) => (1e-5, 5e-5.into()),
        (Precision::Exact, CacheType::Fp8) => (4e-2, 3e-2.into()), // beside it keys are int8
        (Precision::Exact, _) => (2e-2, 3e-2.into()),
        (Precision::Fast, _) => (5e-2, Off { of_length: 2e-2, of_logits: 2e-3 }),
    }
}

/// The same for the outputs of all rows, in L2 of these. 1236 random cases with rounded activations needed 0.019.
fn together(precision: Precision, ty: CacheType) -> f64 {
    match (precision, ty) {
        (Precision::Exact, CacheType::F32) => 1e-5,
        (Precision::Exact, _) => 7.5e-3,
        (Precision::Fast, _) => 6e-2,
    }
}

impl Case {
    /// Every sequence to its end, some tokens of some sequences at a time.
    fn run(&self, d: &Device, layer: &Layer) -> Result<Vec<Row>> {
        let mut on_device = OnDevice::new(layer, d, self.ty, self.precision)?.with_tiles(self.in_tiles);
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
    let trained = Trained::new(&layer, c.ty);
    let (slack, bound) = bounds(c.precision, c.ty);
    for d in devices {
        let rows = c.run(d, &layer).map_err(|e: Error| TestCaseError::fail(e.to_string()))?;
        trained.check(&layer, &rows, slack, bound)?;
        trained.follow_together(&rows, together(c.precision, c.ty))?;
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
    equal("the beginning", &beginning(&layer)?, &beginning(&other)?)
}

/// A short prompt and then token by token from below `TOP_K` keys to above it, and all of it at once: the same keys and outputs (mistakes 22,
/// 28), which are attention as trained.
pub fn steps_across_top_k_are_one_prompt(devices: &[Device]) {
    let (prompt, n) = (9, TOP_K + 12);
    let layer = Layer::random(&[n], &mut Rng(8));
    for d in devices {
        let new = || OnDevice::new(&layer, d, CacheType::F32, Precision::Exact).unwrap();
        let at_once = new().step(&[(0, 0, n)]).unwrap();
        Trained::new(&layer, CacheType::F32).check(&layer, &at_once, 1e-5, 5e-5).unwrap();
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
    for (d, ty) in devices.iter().flat_map(|d| CACHES.map(|ty| (d, ty))) {
        let trained = Trained::new(&layer, ty);
        let mut both = OnDevice::new(&layer, d, ty, Precision::Exact).unwrap();
        both.step(&[(0, 0, fork)]).unwrap();
        both.pages[1][0] = both.pages[0][0];
        for cache in [&mut both.latent, &mut both.keys] {
            cache.copy_page(both.pages[0][1], both.pages[1][1]).unwrap();
        }
        let mut rows = both.step(&[(0, fork, fork + 3), (1, fork, fork + 1)]).unwrap();
        rows.extend(both.step(&[(1, fork + 1, n), (0, fork + 3, n)]).unwrap());
        let (slack, bound) = bounds(Precision::Exact, ty);
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
    let trained = Trained::new(&layer, CacheType::F32);
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

/// The same keys and the same bits.
fn same(got: &[Row], want: &[Row]) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        let place = format!("sequence {}, position {}", want.sequence, want.position);
        assert_eq!(got.attended, want.attended, "{place}");
        equal(&place, &got.out, &want.out).unwrap();
    }
}

/// A sequence that is cut back and goes on with other tokens, rows of the old ones still behind it, in the last page, in a page before, and below
/// `TOP_K` keys: the same bits as from caches in which there never was anything else.
pub fn truncated_sequences_leave_nothing(devices: &[Device]) {
    let rng = &mut Rng(11);
    let n = PAGE_ROWS + 9;
    let cuts = [PAGE_ROWS + 2, PAGE_ROWS - 3, TOP_K - 6];
    let mut layers = vec![Layer::random(&[n], rng)];
    for cut in cuts {
        let mut next = layers[layers.len() - 1].clone();
        next.tokens[0].truncate(cut);
        next.tokens[0].extend(tokens(n - cut, rng));
        layers.push(next);
    }
    for (d, ty) in devices.iter().flat_map(|d| CACHES.map(|ty| (d, ty))) {
        for precision in [Precision::Exact, Precision::Fast] {
            let new = |layer| OnDevice::new(layer, d, ty, precision).unwrap();
            let mut stale = new(&layers[0]);
            stale.fill(&[(0, 0, n - 2)], true).unwrap();
            stale.step(&[(0, n - 2, n)]).unwrap();
            for (layer, cut) in layers[1..].iter().zip(cuts) {
                stale.layer = layer;
                let mut fresh = new(layer);
                fresh.fill(&[(0, 0, cut)], true).unwrap();
                for part in [(0, cut, cut + 1), (0, cut + 1, (cut + 8).min(n))] {
                    same(&stale.step(&[part]).unwrap(), &fresh.step(&[part]).unwrap());
                }
            }
        }
    }
}

/// Pages of a sequence that is no more, its rows still in them, in another order in the table of a new one: the same bits as from caches in
/// which it never was.
pub fn pages_go_on_to_new_sequences_as_they_are(devices: &[Device]) {
    let (n, first) = (PAGE_ROWS + 20, PAGE_ROWS - 2);
    let layer = Layer::random(&[n, n], &mut Rng(12));
    for (d, ty) in devices.iter().flat_map(|d| CACHES.map(|ty| (d, ty))) {
        let new = || {
            let mut new = OnDevice::new(&layer, d, ty, Precision::Exact).unwrap();
            new.pages[1] = new.pages[0].iter().rev().copied().collect();
            new
        };
        let [mut used, mut fresh] = [new(), new()];
        used.fill(&[(0, 0, n)], true).unwrap();
        for layer in [&mut used, &mut fresh] {
            layer.fill(&[(1, 0, first)], true).unwrap();
        }
        for part in [(1, first, first + 1), (1, first + 1, first + 6)] {
            same(&used.step(&[part]).unwrap(), &fresh.step(&[part]).unwrap());
        }
    }
}

/// A layer without an indexer attends, over its own cache, what another one selected for the same rows, of sequences of their own.
pub fn layers_share_a_selection(devices: &[Device]) {
    let rng = &mut Rng(13);
    let lens = [TOP_K + 30, PAGE_ROWS + 7];
    let layers = [(); 2].map(|()| Layer::random(&lens, rng));
    // Rows that see fewer keys than are selected, and more; then one row.
    let steps =
        [vec![(0, 20, 32), (1, PAGE_ROWS - 3, PAGE_ROWS + 3)], vec![(1, PAGE_ROWS + 3, PAGE_ROWS + 4)]];
    for (d, ty) in devices.iter().flat_map(|d| CACHES.map(|ty| (d, ty))) {
        let trained = layers.each_ref().map(|layer| Trained::new(layer, ty));
        for precision in [Precision::Exact, Precision::Fast] {
            let (slack, bound) = bounds(precision, ty);
            let [mut full, mut shared] =
                layers.each_ref().map(|layer| OnDevice::new(layer, d, ty, precision).unwrap());
            full.fill(&[(0, 0, 20), (1, 0, PAGE_ROWS - 3)], true).unwrap();
            shared.fill(&[(0, 0, 20), (1, 0, PAGE_ROWS - 3)], false).unwrap();
            for parts in &steps {
                let rows = full.step(parts).unwrap();
                trained[0].check(&layers[0], &rows, slack, bound).unwrap();
                let others = shared.attend(parts, Keys::These(&full.selection)).unwrap();
                trained[1].follows(&others, bound).unwrap();
                // It is the same keys that gave this.
                let keys = |rows: &[Row]| rows.iter().map(|row| row.attended.clone()).collect::<Vec<_>>();
                assert_eq!(keys(&others), keys(&rows));
            }
        }
    }
}

/// Draft tokens behind a row attend what that row selected, with and without themselves; and rows before it, of that, what they see.
pub fn drafts_attend_what_an_earlier_row_selected(devices: &[Device]) {
    let p = PAGE_ROWS - 2;
    let layer = Layer::random(&[p + 6], &mut Rng(14));
    for (d, ty) in devices.iter().flat_map(|d| CACHES.map(|ty| (d, ty))) {
        let trained = Trained::new(&layer, ty);
        for precision in [Precision::Exact, Precision::Fast] {
            let mut draft = OnDevice::new(&layer, d, ty, precision).unwrap();
            draft.fill(&[(0, 0, p)], true).unwrap();
            let rows = draft.step(&[(0, p, p + 1)]).unwrap();
            let (slack, bound) = bounds(precision, ty);
            trained.check(&layer, &rows, slack, bound).unwrap();
            let best = &rows[0].attended;
            // One after the other, as drafts are made: the selection as it lies on the device.
            let of_row = std::mem::replace(&mut draft.selection, Selection::new(d, TOP_K).unwrap());
            for next in [p + 1, p + 2] {
                let rows = draft.attend(&[(0, next, next + 1)], Keys::These(&of_row)).unwrap();
                assert_eq!(&rows[0].attended, best);
                trained.follows(&rows, bound).unwrap();
            }
            // Together, with themselves, with each other, and with positions that nobody sees.
            let and = |more: &[usize]| [best.clone(), more.iter().map(|p| *p as u32).collect()].concat();
            let given =
                [and(&[]), and(&[p + 2]), and(&[p + 1, p + 2, p + 3]), and(&[p + 3, p + 4, p + 5, 1 << 20])];
            let given = selection(d, &given).unwrap();
            let rows = draft.attend(&[(0, p + 1, p + 5)], Keys::These(&given)).unwrap();
            let more: Vec<usize> = rows.iter().map(|row| row.attended.len() - best.len()).collect();
            assert_eq!(more, [0, 1, 3, 2]);
            trained.follows(&rows, bound).unwrap();
            // Rows before it, of which one sees only some of what was selected, and one nothing.
            let late = best[1..].to_vec();
            let (none, some) = (late[0] as usize, late[TOP_K / 2] as usize);
            let parts = [(0, none - 1, none), (0, some, some + 1), (0, p, p + 1)];
            let given = selection(d, &[late.clone(), late.clone(), late]).unwrap();
            let rows = draft.attend(&parts, Keys::These(&given)).unwrap();
            let seen: Vec<usize> = rows.iter().map(|row| row.attended.len()).collect();
            assert_eq!(seen, [0, TOP_K / 2 + 1, TOP_K - 1]);
            trained.follows(&rows, bound).unwrap();
        }
    }
}

/// Behind more keys than are selected. On GPUs it is another kernel that attends over more than 16 heads.
pub fn takes_many_heads_and_a_few_new_tokens(devices: &[Device]) {
    let first = TOP_K + 3;
    let cases = [
        (8, CacheType::Bf16, Precision::Exact, 6),
        (8, CacheType::Fp8, Precision::Fast, 7),
        (20, CacheType::Bf16, Precision::Fast, 7),
        (20, CacheType::Bf16, Precision::Exact, 4),
        (20, CacheType::Fp8, Precision::Exact, 6),
        (64, CacheType::Bf16, Precision::Fast, 4),
        (64, CacheType::Fp8, Precision::Fast, 8),
    ];
    for heads in [8, 20, 64] {
        let layer = Layer::with_heads(heads, &[first + 8], &mut Rng(heads as u64));
        let trained = [CacheType::Bf16, CacheType::Fp8].map(|ty| Trained::new(&layer, ty));
        let family = if heads > 16 { "mla_decode" } else { "mla_few" };
        for (d, (_, ty, precision, n)) in
            devices.iter().flat_map(|d| cases.into_iter().filter(|c| c.0 == heads).map(move |c| (d, c)))
        {
            let mut all = OnDevice::new(&layer, d, ty, precision).unwrap();
            all.fill(&[(0, 0, first)], true).unwrap();
            let launches = || {
                let counts = d.gpu().map(|gpu| gpu.launches()).unwrap_or_default();
                let of = |(entry, n): &(Entry, u64)| (entry.family() == family).then_some(*n);
                counts.iter().filter_map(of).sum::<u64>()
            };
            let before = launches();
            let rows = all.step(&[(0, first, first + n)]).unwrap();
            assert_eq!(launches() - before, u64::from(d.gpu().is_ok()), "{family} of {heads} heads");
            let (slack, bound) = bounds(precision, ty);
            let trained = &trained[usize::from(ty == CacheType::Fp8)];
            trained.check(&layer, &rows, slack, bound).unwrap();
            trained.each_head_follows(&rows, bound).unwrap();
        }
    }
}

/// On GPUs normed queries can come as tiles, rounded where they are made: the same bits as rounded afterwards, of few tokens and of many.
pub fn queries_in_tiles_are_the_same(devices: &[Device]) {
    let n = TOP_K + 22;
    let layer = Layer::random(&[n, 3], &mut Rng(15));
    for d in devices.iter().filter(|d| d.gpu().is_ok()) {
        let new =
            |tiles| OnDevice::new(&layer, d, CacheType::Bf16, Precision::Fast).unwrap().with_tiles(tiles);
        let [mut apart, mut in_tiles] = [new(false), new(true)];
        assert!(in_tiles.in_tiles && !apart.in_tiles);
        for parts in [vec![(0, 0, 20)], vec![(0, 20, 24), (1, 0, 3)], vec![(0, 24, 25)], vec![(0, 25, n)]] {
            let step = |layer: &mut OnDevice<'_>| {
                let launches = || d.gpu().unwrap().launches().iter().map(|(_, n)| n).sum::<u64>();
                let before = launches();
                let rows = layer.step(&parts).unwrap();
                (rows, launches() - before)
            };
            let ((want, many), (got, fewer)) = (step(&mut apart), step(&mut in_tiles));
            same(&got, &want);
            assert_eq!(fewer, many - 1, "launches, of which one rounds");
        }
    }
}

/// In place of absorption, attention and values where rows attend all that they see: of a prompt in pieces, beside another, and below `TOP_K` keys
/// in a layer that selects beyond. On GPUs its matrix products are in bf16, whatever the cache.
pub fn expanded_form_is_attention_as_trained(devices: &[Device]) {
    let lens = [PAGE_ROWS + 6, TOP_K + 9];
    let layer = Layer::random(&lens, &mut Rng(16));
    for (d, ty) in devices.iter().flat_map(|d| CACHES.map(|ty| (d, ty))) {
        let trained = Trained::new(&layer, ty);
        for precision in [Precision::Exact, Precision::Fast] {
            let (slack, bound) = bounds(precision, ty);
            let of_bf16 = bounds(precision, CacheType::Bf16).1;
            let expanded = if d.gpu().is_ok() { bound.max(of_bf16) } else { bound };
            let new = || OnDevice::new(&layer, d, ty, precision).unwrap().expanded();
            let mut dense = new();
            for parts in [[(0, 0, 17), (1, 0, 5)], [(0, 17, PAGE_ROWS + 2), (1, 5, 6)]] {
                trained.follows(&dense.attend(&parts, Keys::All).unwrap(), expanded).unwrap();
            }
            trained
                .follows(&dense.attend(&[(0, PAGE_ROWS + 2, lens[0])], Keys::All).unwrap(), expanded)
                .unwrap();
            let mut sparse = new();
            for (part, bound) in
                [((1, 0, 9), expanded), ((1, 9, TOP_K), expanded), ((1, TOP_K, lens[1]), bound)]
            {
                trained.check(&layer, &sparse.step(&[part]).unwrap(), slack, bound).unwrap();
            }
        }
    }
}
