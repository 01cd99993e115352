//! Texts with known margins: nowhere do they come so close to selecting another key or expert that rounding could decide.
//! Only so can results of different cuts be compared in f32 at every position.

use std::sync::OnceLock;

use glm5::model::{Batch, Event, LogitRows, Observer};
use glm5::ops::dsa_indexer::indexer_scores;
use glm5::tensor::{CacheType, Precision, Tensor};
use glm5::text::{Specials, Tokenizer};

use crate::common::{self, MODELS, TOP_K};

/// Smallest distance between the last key (or expert) selected and the first rejected. Rounding moves scores by about 1e-6.
const MARGIN: f32 = 1e-5;

/// Tokens of [`Texts::main`]: two internal steps of 512 and a rest.
pub const LONG: usize = 1050;

/// Where the branches leave the main text: below top-k, within a page, at the end of a page.
pub const FORKS: [usize; 3] = [40, 100, 128];

/// Tokens of the branches.
pub const BRANCH: usize = 260;

/// Texts of a model that share beginnings, with the logits of their tokens in one pass each.
pub struct Texts {
    /// The main text, then for each of [`FORKS`] one that leaves it there.
    pub tokens: Vec<Vec<u32>>,
    pub logits: Vec<Vec<Vec<f32>>>,
}

/// The texts of model `i` of [`MODELS`]. Places in the shipped texts were searched for by their margins.
fn tokens(i: usize) -> Vec<Vec<u32>> {
    let tokenizer = Tokenizer::from_gguf(&common::gguf(MODELS[i])).unwrap();
    let encode = |file: &str| {
        let text = std::fs::read_to_string(common::path(&format!("texts/{file}"))).unwrap();
        tokenizer.encode(&text, Specials::Text).unwrap()
    };
    let (start, others) = [(3600, [300, 700, 1100]), (1350, [900, 700, 1100])][i];
    let main = &encode("train-shared.txt")[start..start + LONG - 2];
    let main = [&tokenizer.prefix().unwrap()[..], main].concat();
    let held = encode("held.txt");
    let branch = |(at, from): (usize, usize)| [&main[..at], &held[from..from + BRANCH - at]].concat();
    let branches = FORKS.into_iter().zip(others).map(branch).collect::<Vec<_>>();
    [vec![main], branches].concat()
}

impl Texts {
    pub fn of(i: usize) -> &'static Texts {
        static TEXTS: [OnceLock<Texts>; 2] = [const { OnceLock::new() }; 2];
        TEXTS[i].get_or_init(|| {
            let mut model = common::open(MODELS[i]);
            let tokens = tokens(i);
            let logits = tokens.iter().map(|t| common::one_shot(&mut model, t)).collect();
            Texts { tokens, logits }
        })
    }
}

struct Gaps {
    /// Router bias of each layer that has one.
    bias: Vec<Option<Vec<f32>>>,
    used: usize,
    smallest: f32,
    seen: usize,
}

impl Gaps {
    /// Notes the gap between the `k` largest of `values` and the others.
    fn note(&mut self, mut values: Vec<f32>, k: usize) {
        if values.len() > k {
            values.sort_by(|a, b| b.total_cmp(a));
            self.smallest = self.smallest.min(values[k - 1] - values[k]);
            self.seen += 1;
        }
    }
}

impl Observer for Gaps {
    fn see(&mut self, event: Event<'_>) {
        match event {
            Event::Indexer { q, w, keys, rows, .. } => {
                let mut scores = Tensor::zeros(q.device(), rows.len(), rows.max_visible()).unwrap();
                let scale = 1.0 / (q.cols() as f32).sqrt();
                indexer_scores(q, w, keys, rows, scale, &mut scores, Precision::Exact).unwrap();
                for (t, row) in common::rows(&scores).into_iter().enumerate() {
                    self.note(row[..rows.positions()[t] as usize + 1].to_vec(), TOP_K);
                }
            }
            Event::Routing { layer, routing } => {
                let bias = self.bias[layer].clone().unwrap();
                for logits in common::rows(&routing.logits) {
                    let biased =
                        logits.iter().zip(&bias).map(|(l, b)| 1.0 / (1.0 + (-l).exp()) + b).collect();
                    self.note(biased, self.used);
                }
            }
            _ => {}
        }
    }
}

#[test]
fn the_texts_have_margins() {
    for (i, name) in MODELS.iter().enumerate() {
        let mut model = common::open(name);
        let file = common::gguf(name);
        let bias = |i| {
            let name = format!("blk.{i}.exp_probs_b.bias");
            file.tensor(&name).map(|_| common::values(&file, &name))
        };
        for (j, text) in tokens(i).iter().enumerate() {
            let mut cache = model.new_cache(text.len(), CacheType::F32).unwrap();
            let seq = cache.new_sequence();
            let bias = (0..4).map(bias).collect();
            let used = model.config().router.n_experts_per_tok;
            let mut gaps = Gaps { bias, used, smallest: f32::INFINITY, seen: 0 };
            model.forward_observed(&Batch::one(seq, text, LogitRows::None), &mut cache, &mut gaps).unwrap();
            println!("{name}, text {j}: smallest of {} gaps {:.1e}", gaps.seen, gaps.smallest);
            assert!(
                gaps.seen > 3 * text.len() && gaps.smallest > MARGIN,
                "{name}, text {j}: {:e}",
                gaps.smallest
            );
        }
    }
}
