//! However a text is cut into batches, whatever else is in them and in the cache, its logits are the same; and pages are
//! accounted for exactly. Compared at every position, as relative L2 distance of rows of logits.

use std::collections::HashMap;

use glm5::Error;
use glm5::model::{Batch, Cache, LogitRows, Model, SeqId, Sequence};
use glm5::tensor::{CacheType, PAGE_ROWS};
use proptest::prelude::*;

use crate::common::{self, MODELS};
use crate::texts::{FORKS, LONG, Texts};

/// One token at a time takes other kernels than many, with other orders of summation: 2e-6 measured.
const BOUND: f64 = 2e-5;

/// Pages of the cache in [`any_history_gives_the_same_logits`]: few, so that they run out and are reused.
const PAGES: usize = 9;

#[derive(Debug, Clone)]
enum Op {
    New,
    /// For some of the sequences: which text to go on with, how many tokens, which logits.
    Append(Vec<(prop::sample::Index, usize, usize, LogitRows)>),
    Fork(prop::sample::Index),
    /// To so many 256ths of its length.
    Truncate(prop::sample::Index, usize),
    Remove(prop::sample::Index),
}

fn op() -> impl Strategy<Value = Op> {
    let n =
        prop_oneof![4 => Just(1usize), 2 => 2usize..5, 3 => 5usize..63, 2 => 63usize..66, 1 => 66usize..140];
    let rows = prop_oneof![
        1 => Just(LogitRows::None),
        2 => Just(LogitRows::Last),
        3 => Just(LogitRows::ALL),
        1 => (0usize..80).prop_map(LogitRows::From),
    ];
    let piece = (any::<prop::sample::Index>(), 0..=FORKS.len(), n, rows);
    prop_oneof![
        1 => Just(Op::New),
        8 => prop::collection::vec(piece, 1..4).prop_map(Op::Append),
        2 => any::<prop::sample::Index>().prop_map(Op::Fork),
        2 => (any::<prop::sample::Index>(), 0usize..=256).prop_map(|(i, n)| Op::Truncate(i, n)),
        1 => any::<prop::sample::Index>().prop_map(Op::Remove),
    ]
}

/// What a sequence should be.
#[derive(Debug, Clone)]
struct Expected {
    id: SeqId,
    text: usize,
    len: usize,
    /// Names of its pages; forks have the same ones.
    pages: Vec<usize>,
}

/// What the whole cache should be.
#[derive(Debug, Clone, Default)]
struct Plain {
    sequences: Vec<Expected>,
    next_page: usize,
}

impl Plain {
    fn holders(&self) -> HashMap<usize, usize> {
        let pages = self.sequences.iter().flat_map(|s| &s.pages);
        pages.fold(HashMap::new(), |mut all, p| {
            *all.entry(*p).or_default() += 1;
            all
        })
    }

    fn free(&self) -> Option<usize> {
        PAGES.checked_sub(self.holders().len())
    }

    /// Adds `n` tokens of `text` to sequence `i`: a page that others hold too is copied before it is written.
    fn append(&mut self, i: usize, text: usize, n: usize) {
        let holders = self.holders();
        let s = &mut self.sequences[i];
        if let Some(tail) = s.pages.get_mut(s.len / PAGE_ROWS).filter(|p| holders[*p] > 1) {
            *tail = self.next_page;
            self.next_page += 1;
        }
        (s.text, s.len) = (text, s.len + n);
        while s.pages.len() < s.len.div_ceil(PAGE_ROWS) {
            s.pages.push(self.next_page);
            self.next_page += 1;
        }
    }
}

struct Machine<'a> {
    texts: &'a Texts,
    model: &'a mut Model,
    cache: Cache,
    plain: Plain,
    worst: f64,
    refused: usize,
}

impl Machine<'_> {
    fn run(&mut self, op: &Op) {
        let n = self.plain.sequences.len();
        match op {
            Op::New => {
                let id = self.cache.new_sequence();
                self.plain.sequences.push(Expected { id, text: 0, len: 0, pages: Vec::new() });
            }
            _ if n == 0 => {}
            Op::Append(pieces) => self.append(pieces),
            Op::Fork(i) => {
                let parent = self.plain.sequences[i.index(n)].clone();
                let id = self.cache.fork(parent.id).unwrap();
                self.plain.sequences.push(Expected { id, ..parent });
            }
            Op::Truncate(i, part) => {
                let s = &mut self.plain.sequences[i.index(n)];
                s.len = s.len * part / 256;
                s.pages.truncate(s.len.div_ceil(PAGE_ROWS));
                self.cache.truncate(s.id, s.len).unwrap();
            }
            Op::Remove(i) => {
                let s = self.plain.sequences.swap_remove(i.index(n));
                self.cache.remove(s.id).unwrap();
                assert!(self.cache.len(s.id).is_err());
            }
        }
        self.check();
    }

    fn append(&mut self, pieces: &[(prop::sample::Index, usize, usize, LogitRows)]) {
        let texts = &self.texts.tokens;
        let mut after = self.plain.clone();
        let mut used = Vec::new();
        let mut batch = Vec::new();
        let mut wanted = Vec::new();
        for (i, text, n, rows) in pieces {
            let i = i.index(self.plain.sequences.len());
            if used.contains(&i) {
                continue;
            }
            used.push(i);
            let s = &self.plain.sequences[i];
            // Another text only where it has the same beginning.
            let same = texts[*text].get(..s.len) == texts[s.text].get(..s.len);
            let text = if same { *text } else { s.text };
            let end = (s.len + n).min(texts[text].len());
            if end == s.len {
                continue;
            }
            batch.push(Sequence { seq: s.id, tokens: &texts[text][s.len..end], logits: *rows });
            let first = match rows {
                LogitRows::None => end,
                LogitRows::Last => end - 1,
                LogitRows::From(j) => end.min(s.len + j),
            };
            wanted.extend(&self.texts.logits[text][first..end]);
            after.append(i, text, end - s.len);
        }
        if batch.is_empty() {
            return;
        }
        let result = self.model.forward(&Batch::new(batch), &mut self.cache);
        match (after.free(), result) {
            (Some(_), Ok(logits)) => {
                assert_eq!(logits.shape(), [wanted.len(), common::VOCAB as usize]);
                for (got, want) in common::rows(logits).iter().zip(wanted) {
                    self.worst = self.worst.max(common::distance(got, want));
                }
                assert!(self.worst <= BOUND, "distance {:e}", self.worst);
                self.plain = after;
            }
            (None, Err(Error::Capacity { .. })) => self.refused += 1,
            (free, result) => panic!("{free:?} pages free afterwards, and {:?}", result.map(|t| t.shape())),
        }
    }

    fn check(&self) {
        assert_eq!(self.cache.available(), self.plain.free().unwrap() * PAGE_ROWS);
        for s in &self.plain.sequences {
            assert_eq!(self.cache.len(s.id).unwrap(), s.len);
            assert_eq!(self.cache.is_empty(s.id).unwrap(), s.len == 0);
            assert!(self.cache.latent_row(s.id, 0, s.len).is_err());
        }
    }
}

/// A cache all of whose pages hold something.
fn dirty(model: &mut Model, pages: usize) -> Cache {
    let mut cache = model.new_cache(pages * PAGE_ROWS, CacheType::F32).unwrap();
    let seq = cache.new_sequence();
    let junk: Vec<u32> = (0..cache.capacity() as u32).map(|i| i * 37 % common::VOCAB).collect();
    model.forward(&Batch::one(seq, &junk, LogitRows::None), &mut cache).unwrap();
    assert_eq!(cache.available(), 0);
    cache.remove(seq).unwrap();
    assert_eq!(cache.available(), cache.capacity());
    cache
}

proptest! {
    #![proptest_config(common::config(8))]

    /// Cuts, ragged batches in any order, forks continued differently, truncation, removal, reuse of dirty pages.
    #[test]
    fn any_history_gives_the_same_logits(
        ops in prop::collection::vec(op(), 10..40),
        which in 0..MODELS.len(),
    ) {
        let mut model = common::open(MODELS[which]);
        let cache = dirty(&mut model, PAGES);
        let texts = Texts::of(which);
        let plain = Plain::default();
        let mut machine = Machine { texts, model: &mut model, cache, plain, worst: 0.0, refused: 0 };
        machine.run(&Op::New);
        machine.run(&Op::New);
        ops.iter().for_each(|op| machine.run(op));
        println!("{} ops, worst {:.1e}, {} refused", ops.len(), machine.worst, machine.refused);
        for s in std::mem::take(&mut machine.plain.sequences) {
            machine.cache.remove(s.id).unwrap();
        }
        prop_assert_eq!(machine.cache.available(), machine.cache.capacity());
    }
}

/// The main text cut at these places gives the logits of one pass.
fn check_cuts(which: usize, n: usize, cuts: &[usize]) {
    let texts = Texts::of(which);
    let mut model = common::open(MODELS[which]);
    let mut cache = model.new_cache(n, CacheType::F32).unwrap();
    let seq = cache.new_sequence();
    let mut got = Vec::new();
    for at in cuts.iter().copied().chain([n]) {
        let from = got.len();
        got.extend(common::append(&mut model, &mut cache, seq, &texts.tokens[0][from..at]));
    }
    let worst = common::worst(&got, &texts.logits[0][..n]);
    println!("{} cut in {}: worst {worst:.1e}", MODELS[which], cuts.len() + 1);
    assert!(worst <= BOUND, "{} cut at {cuts:?}: {worst:e}", MODELS[which]);
}

#[test]
fn cuts_around_pages_and_steps() {
    for which in 0..MODELS.len() {
        check_cuts(which, LONG, &(1..LONG.div_ceil(100)).map(|i| i * 100).collect::<Vec<_>>());
        check_cuts(which, 200, &[63, 64, 65, 127, 129]);
        check_cuts(which, 200, &[64, 128, 192]);
        check_cuts(which, 560, &[511, 512, 513]);
        check_cuts(which, 560, &[1]);
        check_cuts(which, LONG, &[30]);
    }
}

/// Starts below top-k and decodes across it, one token at a time: keys of the indexer must have been cached all along.
#[test]
fn decoding_is_prefill() {
    for which in 0..MODELS.len() {
        check_cuts(which, 140, &(20..140).collect::<Vec<_>>());
    }
}

#[test]
fn batches_longer_than_a_step_in_any_order() {
    for (which, name) in MODELS.iter().enumerate() {
        let texts = Texts::of(which);
        let mut model = common::open(name);
        // Text, tokens, wanted logits.
        let all = [
            (0, 513, LogitRows::From(500)),
            (1, 200, LogitRows::ALL),
            (2, 64, LogitRows::Last),
            (3, 250, LogitRows::None),
            (3, 65, LogitRows::From(1000)),
        ];
        for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1, 0, 4, 2, 3]] {
            let mut cache = model.new_cache(20 * PAGE_ROWS, CacheType::F32).unwrap();
            let mut want: Vec<&Vec<f32>> = Vec::new();
            let mut sequences = Vec::new();
            for (text, n, logits) in order.map(|i| all[i]) {
                sequences.push(Sequence {
                    seq: cache.new_sequence(),
                    tokens: &texts.tokens[text][..n],
                    logits,
                });
                let first = match logits {
                    LogitRows::None => n,
                    LogitRows::Last => n - 1,
                    LogitRows::From(i) => i.min(n),
                };
                want.extend(&texts.logits[text][first..n]);
            }
            assert_eq!(want.len(), 13 + 200 + 1);
            let steps = model.counters().steps;
            let got = common::rows(model.forward(&Batch::new(sequences), &mut cache).unwrap());
            assert_eq!(model.counters().steps - steps, 3);
            let want: Vec<_> = want.into_iter().cloned().collect();
            let worst = common::worst(&got, &want);
            println!("{name} {order:?}: worst {worst:.1e}");
            assert!(worst <= BOUND, "{name} {order:?}: {worst:e}");
        }
    }
}
