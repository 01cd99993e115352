//! How well a model predicts a text: `cargo run --release --example perplexity -- --file TEXT`.

mod common;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use glm5::model::{Batch, Cache, LogitRows, Model, SeqId};
use glm5::text::{Specials, log_probs};
use serde_json::json;

use common::args::{self, ModelArgs};
use common::failure::{self, EXIT_CODES, Result, fail, usage};
use common::figures::HowItRan;
use common::load::Opened;
use common::{progress, prompt};

/// Perplexity of a text: exp of the mean negative log-probability of its tokens, windowed as llama.cpp's tool does.
///
/// The text (one final line end is dropped, control tokens in it are ordinary text, nothing is put before it) is cut into
/// chunks of --context tokens, the rest is left out. Each chunk is run alone from position 0, and its second half is scored:
/// with 512, the predictions at positions 256 to 510.
#[derive(Debug, Parser)]
#[command(name = "perplexity", version, allow_negative_numbers = true, after_help = format!(
    "Example: a text that the small model has never seen:\n  \
     cargo run --release --example perplexity -- --file models/texts/held.txt\n\n{EXIT_CODES}"
))]
struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// UTF-8 text to score, `-` for standard input.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,

    /// Tokens of a chunk, 3 up to the model's context.
    #[arg(short, long, value_name = "N", value_parser = args::at_least(3), default_value_t = 512)]
    context: usize,

    /// Score the first N chunks only [default: all].
    #[arg(long, value_name = "N", value_parser = args::at_least(1))]
    chunks: Option<usize>,

    /// Print one JSON object at the end, nothing else.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    failure::main(run)
}

fn run(args: Args) -> Result<()> {
    let text = prompt::read(&args.file)?;
    let opened = Opened::new(&args.model)?;
    let (n, limit) = (args.context, opened.config.context_length);
    if n > limit {
        return usage(format!("--context {n}: the model's context is {limit} tokens"));
    }
    let tokens = opened.tokenizer()?.encode(&text, Specials::UserDefined)?;
    let available = tokens.len() / n;
    if available == 0 {
        let file = prompt::name(&args.file);
        return fail(format!("{file}: {} tokens are less than one chunk of {n} (--context)", tokens.len()));
    }
    let chunks = args.chunks.unwrap_or(available).min(available);

    let on = args.model.run_on()?;
    let loaded = opened.load(&args.model, &on, n)?;
    let mut model = loaded.model;
    let mut cache = model.new_cache(n, on.cache_type)?;
    let seq = cache.new_sequence();
    let bar = progress::bar("score", chunks, "chunks");
    let mut score = Score::default();
    let scored = common::install(&on.device, || {
        tokens.chunks_exact(n).take(chunks).try_for_each(|chunk| {
            score_chunk(&mut model, &mut cache, seq, chunk, &mut score)?;
            bar.inc(1);
            bar.set_message(format!("perplexity {:.4}", score.perplexity()));
            Ok::<_, glm5::Error>(())
        })
    });
    bar.finish_and_clear();
    scored?;

    let (perplexity, error) = (score.perplexity(), score.perplexity() * score.nll_error());
    if args.json {
        common::show_json(&json!({
            "perplexity": perplexity,
            "stderr": error,
            "nll": score.mean(),
            "nll_stderr": score.nll_error(),
            "tokens": tokens.len(),
            "chunks": chunks,
            "scored": score.n,
            "ran": HowItRan::new(&model, cache.ty(), n),
            "counters": model.counters(),
            "load_report": model.report(),
        }))?;
    } else {
        common::show(&format!(
            "perplexity {perplexity:.5} +/- {error:.5} ({chunks} chunks of {n} tokens, {} predictions scored, mean nll {:.6})\n",
            score.n,
            score.mean()
        ))?;
    }
    Ok(())
}

/// Sums over all scored predictions.
#[derive(Debug, Default)]
struct Score {
    n: usize,
    nll: f64,
    nll_squared: f64,
}

impl Score {
    fn add(&mut self, nll: f64) {
        self.n += 1;
        self.nll += nll;
        self.nll_squared += nll * nll;
    }

    fn mean(&self) -> f64 {
        self.nll / self.n as f64
    }

    fn perplexity(&self) -> f64 {
        self.mean().exp()
    }

    /// Standard error of the mean; that of the perplexity is so many times the perplexity, to first order.
    fn nll_error(&self) -> f64 {
        let variance = self.nll_squared / self.n as f64 - self.mean() * self.mean();
        (variance.max(0.0) / (self.n as f64 - 1.0).max(1.0)).sqrt()
    }
}

/// Runs a chunk from position 0 and scores what its second half predicts; behind the last token there is nothing to score.
fn score_chunk(
    model: &mut Model,
    cache: &mut Cache,
    seq: SeqId,
    chunk: &[u32],
    score: &mut Score,
) -> glm5::Result<()> {
    let first = chunk.len() / 2;
    cache.truncate(seq, 0)?;
    let logits = model.forward(&Batch::one(seq, chunk, LogitRows::From(first)), cache)?;
    let values = logits.host()?;
    for (row, &next) in values.chunks_exact(logits.cols()).zip(&chunk[first + 1..]) {
        score.add(-log_probs(row, next, 0)?.logprob);
    }
    Ok(())
}
