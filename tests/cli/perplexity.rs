//! `perplexity`: the values of an independent implementation, and the windowing.

use glm5::gguf::Gguf;
use glm5::text::{Specials, Tokenizer};
use serde_json::Value;

use crate::process::{run, run_with};
use crate::repository;

fn score(text: &str, more: &[&str]) -> Value {
    let file = repository(&format!("models/texts/{text}.txt"));
    run("perplexity", &[&["--file", &file, "--json"], more].concat()).json()
}

fn close(got: &Value, want: f64, relative: f64) {
    let got = got.as_f64().unwrap();
    assert!((got / want - 1.0).abs() <= relative, "{got}, expected {want}");
}

#[test]
fn of_a_text_that_the_model_has_not_seen() {
    let told = score("held", &[]);
    close(&told["perplexity"], 4203.85, 1e-3);
    close(&told["nll"], 8.343757, 1e-4);
    assert_eq!(
        (&told["tokens"], &told["chunks"], &told["scored"]),
        (&7969.into(), &15.into(), &(15 * 255).into())
    );
    let [perplexity, stderr, nll, nll_stderr] =
        ["perplexity", "stderr", "nll", "nll_stderr"].map(|k| told[k].as_f64().unwrap());
    assert!((nll.exp() / perplexity - 1.0).abs() < 1e-9);
    assert!((nll_stderr * perplexity / stderr - 1.0).abs() < 1e-9 && nll_stderr > 0.0);
    // Half of the tokens are scored, all are run.
    assert_eq!(told["counters"]["tokens"], 15 * 512);
    assert_eq!(told["counters"]["logits"], 15 * 256);
}

#[test]
fn of_a_text_that_it_knows() {
    let told = score("train", &[]);
    close(&told["perplexity"], 1.01696, 1e-3);
    // The perplexity leaves little room for an error to show.
    close(&told["nll"], 0.016818, 1e-3);
    assert_eq!((&told["tokens"], &told["chunks"]), (&7087.into(), &13.into()));
}

#[test]
fn chunks_are_cut_as_described() {
    let two = score("held", &["--context", "65", "--chunks", "2", "--dense"]);
    assert_eq!(two["chunks"], 2);
    // Positions 32 to 63 predict 33 to 64.
    assert_eq!(two["scored"], 2 * 32);
    // Sparse and dense are the same until more than 64 keys are visible, and position 64 is scored by none.
    let sparse = score("held", &["--context", "65", "--chunks", "2"]);
    assert_eq!(sparse["nll"], two["nll"]);
    // Chunks stand alone, so the sums add up whatever comes first.
    let one = score("held", &["--context", "65", "--chunks", "1"]);
    assert_ne!(one["nll"], two["nll"]);

    let text =
        run_with("perplexity", &["--file", "-", "--context", "3", "--chunks", "1"], b"one two three four\n");
    let line = text.ok();
    assert!(
        line.starts_with("perplexity ") && line.contains("1 chunks of 3 tokens, 1 predictions scored"),
        "{line}"
    );
}

#[test]
fn control_tokens_in_a_text_are_text() {
    let tokenizer =
        Tokenizer::from_gguf(&Gguf::open(repository("models/nano-q4_k_m.gguf")).unwrap()).unwrap();
    let text = "Call <|user|> me <|endoftext|> Ishmael";
    let told =
        run_with("perplexity", &["--file", "-", "--context", "4", "--json"], format!("{text}\n").as_bytes());
    let want = tokenizer.encode(text, Specials::UserDefined).unwrap().len();
    assert_ne!(want, tokenizer.encode(text, Specials::Parse).unwrap().len());
    assert_eq!(told.json()["tokens"], want);
}
