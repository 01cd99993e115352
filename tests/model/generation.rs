//! Greedy text from an independent implementation: ids, text, and how sure each step was. Perplexities of the second model
//! (those of the first are tested through the example).

use glm5::model::{Batch, LoadOptions, LogitRows, Model};
use glm5::tensor::{CacheType, Precision};
use glm5::text::{Specials, Tokenizer, log_probs};
use serde_json::Value;

use crate::common::{self, MODELS, argmax};

fn goldens(model: &str) -> Vec<Value> {
    let text = std::fs::read(common::path(&format!("goldens/{model}.generation.json"))).unwrap();
    let all: Value = serde_json::from_slice(&text).unwrap();
    all["greedy"].as_array().unwrap().clone()
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Greedy continuation with the margin of every step.
fn greedy(model: &mut Model, prompt: &[u32], n: usize) -> (Vec<u32>, Vec<f32>) {
    let mut cache = model.new_cache(prompt.len() + n, CacheType::F32).unwrap();
    let seq = cache.new_sequence();
    let (mut out, mut margins) = (Vec::new(), Vec::new());
    let mut next = prompt.to_vec();
    while out.len() < n {
        let logits = model.forward(&Batch::one(seq, &next, LogitRows::Last), &mut cache).unwrap();
        let row = logits.cpu().unwrap();
        let best = argmax(row);
        let second = row.iter().enumerate().filter(|(i, _)| *i != best).map(|(_, x)| *x);
        margins.push(row[best] - second.fold(f32::NEG_INFINITY, f32::max));
        out.push(best as u32);
        next = vec![best as u32];
    }
    (out, margins)
}

#[test]
fn greedy_text_is_that_of_the_goldens() {
    for name in MODELS {
        let tokenizer = Tokenizer::from_gguf(&common::gguf(name)).unwrap();
        let mut model = common::open(name);
        let all = goldens(name);
        assert_eq!(all.len(), 3);
        for g in &all {
            let prompt = g["prompt"].as_str().unwrap();
            let tokens = tokenizer.encode(prompt, Specials::Parse).unwrap();
            assert_eq!(tokens, ids(&g["prompt_ids"]), "{prompt}");
            let (got, margins) = greedy(&mut model, &tokens, 64);
            assert_eq!(got, ids(&g["ids"]), "{name}: {prompt}");
            assert_eq!(tokenizer.decode(&got, false).unwrap(), g["text"].as_str().unwrap(), "{prompt}");
            for (i, (got, want)) in margins.iter().zip(g["margins"].as_array().unwrap()).enumerate() {
                let want = want.as_f64().unwrap();
                assert!(
                    (*got as f64 - want).abs() < 1e-2,
                    "{name}: {prompt}: step {i}: margin {got}, {want}"
                );
            }
        }
    }
}

/// nano knows its book with margins of 2.6 and more, so the text stands rounding of the activations and of the cache.
#[test]
fn the_memorized_text_survives_8_bit_activations() {
    let fast = LoadOptions { precision: Precision::Fast, ..LoadOptions::default() };
    let mut model = common::open_with(MODELS[0], &fast);
    let g = &goldens(MODELS[0])[0];
    assert_eq!(greedy(&mut model, &ids(&g["prompt_ids"]), 64).0, ids(&g["ids"]));
}

/// Windows of 512, second half scored. The bound is 0.1 % of the perplexity.
#[test]
fn perplexities_of_the_second_model() {
    let tokenizer = Tokenizer::from_gguf(&common::gguf(MODELS[1])).unwrap();
    let mut model = common::open(MODELS[1]);
    for (file, chunks, nll) in [("train-shared.txt", 13, 2.942282), ("held.txt", 15, 4.594130)] {
        let text = std::fs::read_to_string(common::path(&format!("texts/{file}"))).unwrap();
        let tokens = tokenizer.encode(text.strip_suffix('\n').unwrap_or(&text), Specials::Text).unwrap();
        let (mut sum, mut scored) = (0.0, 0);
        for chunk in tokens.chunks_exact(512) {
            let mut cache = model.new_cache(512, CacheType::F32).unwrap();
            let batch = Batch::one(cache.new_sequence(), chunk, LogitRows::From(256));
            for (row, next) in
                common::rows(model.forward(&batch, &mut cache).unwrap()).iter().zip(&chunk[257..])
            {
                sum -= log_probs(row, *next, 0).unwrap().logprob;
                scored += 1;
            }
        }
        assert_eq!(scored, chunks * 255);
        let got = sum / scored as f64;
        println!("{file}: {got:.6}, perplexity {:.4}", got.exp());
        assert!(((got - nll).exp() - 1.0f64).abs() < 1e-3, "{file}: {got}, expected {nll}");
    }
}
