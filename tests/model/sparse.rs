//! Sparse attention: the same bits as dense attention while all keys are selected, another result afterwards, and counters
//! that prove which of them ran. Causality. Cache types and precisions against f32.

use glm5::model::{Batch, Event, IndexerKind, LayerCounters, LoadOptions, LogitRows, Model, Observer};
use glm5::tensor::{CacheType, Device, Precision};
use proptest::prelude::*;

use crate::common::{self, MODELS, TOP_K};
use crate::texts::Texts;

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|r| r.iter().map(|x| x.to_bits()).collect()).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn distances(got: &[Vec<f32>], want: &[Vec<f32>]) -> Vec<f64> {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(g, w)| common::distance(g, w)).collect()
}

#[test]
fn dense_and_sparse_are_one_up_to_top_k() {
    for (which, name) in MODELS.iter().enumerate() {
        let text = &Texts::of(which).tokens[0];
        let mut sparse = common::open(name);
        let mut dense = common::open_with(name, &common::dense());
        // A step within top-k, and one that goes beyond it.
        for n in [TOP_K, 200] {
            let a = common::one_shot(&mut sparse, &text[..n]);
            let b = common::one_shot(&mut dense, &text[..n]);
            assert!(bits(&a[..TOP_K]) == bits(&b[..TOP_K]), "{name}, step of {n}: other bits within top-k");
            if n > TOP_K {
                let changed = distances(&a[TOP_K..], &b[TOP_K..]);
                assert!(median(changed.clone()) > 0.01, "{name}: selection changes too little, {changed:?}");
                assert!(changed.iter().all(|d| *d > 1e-4));
            }
        }
        // One token at a time.
        let mut logits = [&mut sparse, &mut dense].map(|model| {
            let mut cache = model.new_cache(128, CacheType::F32).unwrap();
            let seq = cache.new_sequence();
            let step = |t: &u32| common::append(model, &mut cache, seq, &[*t]).remove(0);
            text[..TOP_K + 2].iter().map(step).collect::<Vec<_>>()
        });
        let [a, b] = &mut logits;
        assert!(bits(&a[..TOP_K]) == bits(&b[..TOP_K]), "{name}: other bits within top-k when decoding");
        assert!(a[TOP_K + 1] != b[TOP_K + 1]);
    }
}

fn run(model: &mut Model, text: &[u32], first: usize) {
    model.counters_mut().reset();
    let mut cache = model.new_cache(text.len(), CacheType::F32).unwrap();
    let seq = cache.new_sequence();
    model.forward(&Batch::one(seq, &text[..first], LogitRows::None), &mut cache).unwrap();
    for t in &text[first..] {
        model.forward(&Batch::one(seq, &[*t], LogitRows::Last), &mut cache).unwrap();
    }
}

#[test]
fn counters_say_what_ran() {
    let (n, first) = (80, 70);
    for (which, name) in MODELS.iter().enumerate() {
        let text = &Texts::of(which).tokens[0][..n];
        let mut model = common::open(name);
        run(&mut model, text, first);
        let beyond = (n - TOP_K) as u64;
        let visible = (n * (n + 1) / 2) as u64;
        let keys = visible - beyond * (beyond + 1) / 2;
        let kinds = model.config().indexers.clone();
        assert_eq!(kinds.contains(&IndexerKind::Shared), which == 1);
        let c = model.counters().clone();
        assert_eq!((c.steps, c.tokens, c.logits), (1 + (n - first) as u64, n as u64, (n - first) as u64));
        for (layer, kind) in c.layers.iter().zip(&kinds) {
            let (full_sparse, shared_sparse) = match kind {
                IndexerKind::Full => (beyond, 0),
                IndexerKind::Shared => (0, beyond),
            };
            let dense = TOP_K as u64;
            assert_eq!(*layer, LayerCounters { dense, full_sparse, shared_sparse, keys, visible }, "{name}");
        }
        let total = c.total();
        assert_eq!((total.keys, total.dense), (4 * keys, 4 * TOP_K as u64));

        let mut dense = common::open_with(name, &common::dense());
        run(&mut dense, text, first);
        let all = LayerCounters { dense: n as u64, keys: visible, visible, ..LayerCounters::default() };
        assert_eq!(dense.counters().layers, [all; 4]);
    }
}

/// The same bits run to run, for any number of threads, and whether or not somebody looks.
#[test]
fn bits_depend_on_the_input_alone() {
    let tokens = &Texts::of(1).tokens[0][..90];
    let run = |threads: usize, observed: bool| {
        let device = Device::cpu(Some(threads)).unwrap();
        let path = common::path(&format!("{}.gguf", MODELS[1]));
        let mut model = Model::open(path, &device, &LoadOptions::default()).unwrap();
        let mut cache = model.new_cache(128, CacheType::F32).unwrap();
        let seq = cache.new_sequence();
        let mut all = Vec::new();
        // Within top-k, where an observer has scores computed that nobody needs; beyond; single tokens.
        for piece in [&tokens[..40], &tokens[40..80]].into_iter().chain(tokens[80..].chunks(1)) {
            let batch = Batch::one(seq, piece, LogitRows::ALL);
            let logits = match observed {
                true => model.forward_observed(&batch, &mut cache, &mut Selected::default()),
                false => model.forward(&batch, &mut cache),
            };
            all.extend(common::rows(logits.unwrap()));
        }
        bits(&all)
    };
    let first = run(1, false);
    for (threads, observed) in [(1, false), (1, true), (2, false), (3, true)] {
        assert!(run(threads, observed) == first, "{threads} threads, observed: {observed}");
    }
}

proptest! {
    #![proptest_config(common::config(6))]

    /// What comes after a token does not change its logits: nothing leaks through attention, selection, experts that
    /// several tokens share, or pages.
    #[test]
    fn logits_do_not_depend_on_later_tokens(
        which in 0..MODELS.len(),
        p in 1usize..150,
        later in prop::collection::vec(0..common::VOCAB, 1..60),
    ) {
        let texts = Texts::of(which);
        let text = [&texts.tokens[0][..p], &later[..]].concat();
        let got = common::one_shot(&mut common::open(MODELS[which]), &text);
        let worst = common::worst(&got[..p], &texts.logits[0][..p]);
        prop_assert!(worst <= 1e-5, "distance {:e}", worst);
    }
}

/// bf16 has 8 bits of precision, f16 11, fp8 4, with keys of the indexer in int8: what that costs on 400 tokens, most of them beyond top-k.
#[test]
fn narrow_caches_are_close() {
    for name in MODELS {
        let text = common::prompt(name, "p2");
        let mut model = common::open(name);
        let exact = common::one_shot(&mut model, &text);
        for (ty, bound) in [(CacheType::Bf16, 8e-3), (CacheType::F16, 1e-3), (CacheType::Fp8, 4e-2)] {
            let mut cache = model.new_cache(text.len(), ty).unwrap();
            assert_eq!(cache.ty(), ty);
            let seq = cache.new_sequence();
            let got = common::append(&mut model, &mut cache, seq, &text);
            let all = distances(&got, &exact);
            let median = median(all.clone());
            let worst = all.iter().copied().fold(0.0, f64::max);
            println!("{name} {ty}: median {median:.1e}, worst {worst:.1e}");
            assert!(median <= bound && worst <= 0.5, "{name} {ty}: median {median:e}, worst {worst:e}");
            assert!(median > 0.0, "{name} {ty}: the cache is not what it says");
        }
    }
}

/// Keys selected at each position of each layer that selects.
#[derive(Default)]
struct Selected(Vec<Vec<u32>>);

impl Observer for Selected {
    fn wants_indexer(&self) -> bool {
        true
    }

    fn see(&mut self, event: Event<'_>) {
        if let Event::Indexer { rows, selection, .. } = event {
            self.0.extend((0..rows.len()).map(|t| selection.row(t).unwrap().to_vec()));
        }
    }
}

/// Activations rounded to 8 bits: the bars for two right implementations, of which one rounds. Prompt and decoding.
#[test]
fn fast_is_within_the_bars_of_8_bit_activations() {
    let fast = LoadOptions { precision: Precision::Fast, ..LoadOptions::default() };
    for (name, same) in MODELS.into_iter().zip([0.99, 0.93]) {
        let text = common::prompt(name, "p2");
        let mut runs = [LoadOptions::default(), fast].map(|options| {
            let mut model = common::open_with(name, &options);
            let mut cache = model.new_cache(text.len(), CacheType::F32).unwrap();
            let seq = cache.new_sequence();
            let mut selected = Selected::default();
            let batch = Batch::one(seq, &text[..340], LogitRows::ALL);
            let mut logits = common::rows(model.forward_observed(&batch, &mut cache, &mut selected).unwrap());
            for t in &text[340..] {
                logits.extend(common::append(&mut model, &mut cache, seq, &[*t]));
            }
            (logits, selected.0)
        });
        let [(exact, keys), (got, fast_keys)] = &mut runs;
        for (what, range) in [("prompt", 0..340), ("decoding", 340..400)] {
            let all = distances(&got[range.clone()], &exact[range.clone()]);
            let worst = all.iter().copied().fold(0.0, f64::max);
            let equal =
                range.clone().filter(|t| common::argmax(&got[*t]) == common::argmax(&exact[*t])).count();
            let (median, equal) = (median(all), equal as f64 / range.len() as f64);
            println!("{name} {what}: median {median:.1e}, worst {worst:.1e}, argmax {equal:.3}");
            assert!(
                median <= 4e-2 && worst <= 0.5 && equal >= same,
                "{name} {what}: {median} {worst} {equal}"
            );
            assert!(median > 1e-3, "{name} {what}: not rounded");
        }
        let pairs = keys.iter().zip(&*fast_keys).filter(|(k, _)| k.len() == TOP_K);
        let overlap = |(a, b): (&Vec<u32>, &Vec<u32>)| a.iter().filter(|k| b.contains(k)).count();
        let (n, common) = pairs.fold((0, 0), |(n, sum), pair| (n + TOP_K, sum + overlap(pair)));
        let share = common as f64 / n as f64;
        println!("{name}: overlap of selections {share:.4}");
        assert!(n > 10_000 && share >= 0.95, "{name}: overlap {share}");
    }
}
