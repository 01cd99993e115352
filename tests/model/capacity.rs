//! What is asked wrongly, or for more than there is, is an error that says so and changes nothing.

use glm5::Error;
use glm5::model::{Batch, Cache, LogitRows, Model, SeqId, Sequence};
use glm5::tensor::{CacheType, PAGE_ROWS};

use crate::common::{self, MODELS, VOCAB, append};
use crate::texts::Texts;

fn piece(seq: SeqId, tokens: &[u32]) -> Sequence<'_> {
    Sequence { seq, tokens, logits: LogitRows::ALL }
}

/// Everything about the cache that can be asked for.
fn state(cache: &Cache, sequences: &[SeqId]) -> Vec<(usize, Vec<f32>)> {
    let of = |s: &SeqId| {
        let n = cache.len(*s).unwrap();
        let rows = (0..n).flat_map(|p| (0..4).map(move |l| (l, p)));
        (n, rows.flat_map(|(l, p)| cache.latent_row(*s, l, p).unwrap()).collect())
    };
    let mut all: Vec<_> = sequences.iter().map(of).collect();
    all.push((cache.available(), Vec::new()));
    all
}

/// Runs the same work twice, with and without refused calls in between.
#[test]
fn errors_change_nothing() {
    for (which, name) in MODELS.iter().enumerate() {
        let text = &Texts::of(which).tokens[0];
        let mut results = [false, true].map(|disturbed| {
            let mut model = common::open(name);
            let mut cache = model.new_cache(3 * PAGE_ROWS, CacheType::F32).unwrap();
            let a = cache.new_sequence();
            append(&mut model, &mut cache, a, &text[..70]);
            let b = cache.fork(a).unwrap();
            append(&mut model, &mut cache, b, &text[70..72]);
            let gone = cache.new_sequence();
            cache.remove(gone).unwrap();
            assert_eq!(cache.available(), 0);
            if disturbed {
                let before = state(&cache, &[a, b]);
                for (parts, sequences) in refused(a, b, gone, text) {
                    let error = model.forward(&Batch::new(sequences), &mut cache).map(|_| ()).unwrap_err();
                    let line = error.to_string();
                    assert!(parts.iter().all(|p| line.contains(p)), "expected {parts:?} in {line}");
                    assert!(!line.contains('\n'));
                    assert!(state(&cache, &[a, b]) == before, "changed by a refused call: {line}");
                }
                cache_errors(&mut cache, a, gone);
                assert!(state(&cache, &[a, b]) == before);
            }
            let mut logits = append(&mut model, &mut cache, a, &text[70..100]);
            logits.extend(append(&mut model, &mut cache, b, &text[72..128]));
            logits
        });
        let [undisturbed, disturbed] = &mut results;
        assert!(undisturbed == disturbed, "{name}: refused calls changed later results");
    }
}

type Refused<'a> = (&'static [&'static str], Vec<Sequence<'a>>);

fn refused(a: SeqId, b: SeqId, gone: SeqId, text: &[u32]) -> Vec<Refused<'_>> {
    const NO_TOKEN: &[u32] = &[5, VOCAB, 6];
    const ABSURD: &[u32] = &[u32::MAX];
    vec![
        (&["batch", "at least one token"], vec![]),
        (&["batch", "at least one token"], vec![piece(a, &text[70..71]), piece(b, &[])]),
        (&["batch", "each sequence once", "twice"], vec![piece(a, &text[70..71]), piece(a, &text[71..72])]),
        (
            &["batch", "each sequence once"],
            vec![piece(a, &text[70..71]), piece(b, &text[..1]), piece(a, &text[..1])],
        ),
        (&["sequence", "one of this cache"], vec![piece(a, &text[70..71]), piece(gone, &text[..1])]),
        (&["token id", "below the vocabulary size 4096", "4096"], vec![piece(a, NO_TOKEN)]),
        (&["token id", "4294967295"], vec![piece(a, &text[70..71]), piece(b, ABSURD)]),
        // 70 tokens in two pages: 59 more would need a third.
        (&["cache pages of 64 tokens", "1 needed, 0 available"], vec![piece(a, &text[70..129])]),
        // One piece fits, both do not.
        (&["cache pages", "1 needed"], vec![piece(b, &text[72..100]), piece(a, &text[70..129])]),
        (&["cache pages", "2 needed"], vec![piece(b, &text[72..130]), piece(a, &text[70..129])]),
    ]
}

fn cache_errors(cache: &mut Cache, a: SeqId, gone: SeqId) {
    let says = |e: Error, part: &str| assert!(e.to_string().contains(part), "{part:?} in {e}");
    says(cache.truncate(a, 71).unwrap_err(), "at most 70");
    says(cache.truncate(gone, 0).unwrap_err(), "one of this cache");
    says(cache.fork(gone).unwrap_err(), "one of this cache");
    says(cache.remove(gone).unwrap_err(), "one of this cache");
    says(cache.len(gone).unwrap_err(), "one of this cache");
    says(cache.is_empty(gone).unwrap_err(), "one of this cache");
    says(cache.latent_row(a, 0, 70).unwrap_err(), "below 70");
    says(cache.latent_row(a, 4, 0).unwrap_err(), "layer");
    says(cache.index_row(a, 4, 0).unwrap_err(), "layer");
}

#[test]
fn the_context_is_the_limit_of_a_sequence() {
    let mut model = common::open(MODELS[0]);
    let context = model.config().context_length;
    assert_eq!(context, 4096);
    let mut cache = model.new_cache(context + 2 * PAGE_ROWS, CacheType::Bf16).unwrap();
    let seq = cache.new_sequence();
    let many: Vec<u32> = (0..context as u32 + 1).map(|i| i % 4000).collect();
    let error = model.forward(&Batch::one(seq, &many, LogitRows::Last), &mut cache).map(|_| ()).unwrap_err();
    match error {
        Error::Capacity { what, needed: 4097, available: 4096 } => {
            assert!(what.contains("context"), "{what}")
        }
        other => panic!("{other}"),
    }
    assert_eq!((cache.len(seq).unwrap(), cache.available()), (0, cache.capacity()));
}

/// Forks that share a page and write to it in one batch: all but the last of its holders need a copy.
#[test]
fn forks_that_write_together_need_one_page_less() {
    let mut model = common::open(MODELS[0]);
    let text = &Texts::of(0).tokens[0];
    let mut cache = model.new_cache(2 * PAGE_ROWS, CacheType::F32).unwrap();
    let a = cache.new_sequence();
    append(&mut model, &mut cache, a, &text[..10]);
    let b = cache.fork(a).unwrap();
    assert_eq!(cache.available(), PAGE_ROWS);
    let batch = Batch::new(vec![piece(a, &text[10..12]), piece(b, &text[10..13])]);
    assert_eq!(model.forward(&batch, &mut cache).unwrap().rows(), 5);
    assert_eq!(cache.available(), 0);
}

#[test]
fn caches_of_absurd_sizes() {
    let model = common::open(MODELS[0]);
    let says = |tokens, part: &str| {
        let error = model.new_cache(tokens, CacheType::F32).unwrap_err().to_string();
        assert!(error.contains(part), "{part:?} in {error}");
    };
    says(0, "at least 1 token");
    says(1 << 33, "cache tokens");
    says(usize::MAX, "cache tokens");
    let cache = model.new_cache(1, CacheType::F16).unwrap();
    assert_eq!((cache.capacity(), cache.ty()), (PAGE_ROWS, CacheType::F16));
}

/// Both models have rows of the same width; only one has indexer keys in every layer.
#[test]
fn a_cache_of_another_model_is_refused() {
    let mut models = MODELS.map(common::open);
    let mut other = |from: usize, to: usize| {
        let mut cache = models[from].new_cache(64, CacheType::F32).unwrap();
        let seq = cache.new_sequence();
        let model: &mut Model = &mut models[to];
        let error =
            model.forward(&Batch::one(seq, &[1], LogitRows::Last), &mut cache).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("cache: expected one made by this model"), "{error}");
        assert_eq!(cache.len(seq).unwrap(), 0);
    };
    other(0, 1);
    other(1, 0);
}

/// Ids of removed sequences stay unknown, also after new ones were made, and so do those of other caches.
#[test]
fn ids_are_not_reused() {
    let model = common::open(MODELS[0]);
    let mut cache = model.new_cache(64, CacheType::F32).unwrap();
    let a = cache.new_sequence();
    cache.remove(a).unwrap();
    let b = cache.new_sequence();
    assert_ne!(a, b);
    assert!(cache.len(a).is_err() && cache.is_empty(b).unwrap());
    let mut other = model.new_cache(64, CacheType::F32).unwrap();
    let c = other.new_sequence();
    assert!(other.len(b).is_err() && cache.len(c).is_err(), "a sequence of another cache");
}

/// What loading tells: from nothing to all, which is what the ledger says is used.
#[test]
fn loading_tells_how_far_it_is() {
    for name in common::MODELS {
        let (gguf, mut told) = (common::gguf(name), Vec::new());
        let options = glm5::model::LoadOptions::default();
        let model =
            Model::load(&gguf, common::device(), &options, &mut |done, total| told.push((done, total)))
                .unwrap();
        let all = model.report().ledger.taken.bytes;
        assert!(
            told.len() > 60 && told.is_sorted() && told.iter().all(|(_, total)| *total == all),
            "{told:?}"
        );
        assert_eq!((told[0].0, told.last().unwrap().0), (0, all));
    }
}
