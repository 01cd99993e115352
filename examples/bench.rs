//! Prompt and decode speed: `cargo run --release --example bench`.

mod common;

use std::collections::HashMap;
use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use glm5::model::{Batch, Cache, Counters, LogitRows, Model, SeqId};
use glm5::tensor::{Device, Tensor};
use serde::Serialize;
use serde_json::json;

use common::args::{self, ModelArgs};
use common::failure::{self, EXIT_CODES, Result, usage};
use common::figures::HowItRan;
use common::load::Opened;
use common::progress;

/// Measures prompt (pp) and decode (tg) speed in tokens/s over sizes and depths, in the manner of llama-bench.
///
/// A test `pp512 @ d1024` computes 512 tokens at once behind 1024 others; `tg128` computes 128 tokens one by one. Tokens are
/// arbitrary, nothing is sampled or printed meanwhile. Each test runs once to warm up, then as often as asked for; the
/// table has mean and standard deviation.
#[derive(Debug, Parser)]
#[command(name = "bench", version, allow_negative_numbers = true, after_help = format!(
    "Example: two prompt sizes and decoding, at the beginning and behind 2048 tokens, on two threads:\n  \
     cargo run --release --example bench -- -p 128,512 -n 128 -d 0,2048 --threads 2\n\n\
     A layer with experts as each of eight GPUs has it, of invented weights, behind 32k keys:\n  \
     cargo run --release --features cuda --example bench -- --synthetic glm-5/8 --layers 3..4 -d 32768\n\n{EXIT_CODES}"
))]
struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Prompt sizes in tokens, separated by commas; 0 for none.
    #[arg(short = 'p', long, value_name = "N,..", value_delimiter = ',', value_parser = args::at_least(0), default_value = "512")]
    n_prompt: Vec<usize>,

    /// Numbers of tokens to decode, separated by commas; 0 for none.
    #[arg(short = 'n', long, value_name = "N,..", value_delimiter = ',', value_parser = args::at_least(0), default_value = "128")]
    n_gen: Vec<usize>,

    /// Depths: tokens in the cache before each test, separated by commas.
    #[arg(short = 'd', long, value_name = "N,..", value_delimiter = ',', value_parser = args::at_least(0), default_value = "0")]
    n_depth: Vec<usize>,

    /// How often each test is measured.
    #[arg(short, long, value_name = "N", value_parser = args::between(1, 1_000_000), default_value_t = 5)]
    repetitions: usize,

    /// Print one JSON object at the end, with every sample and the counters, and no table.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    failure::main(run)
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// All tokens at once.
    Prompt,
    /// One by one.
    Decode,
}

#[derive(Debug, Clone, Serialize)]
struct Test {
    name: String,
    kind: Kind,
    tokens: usize,
    depth: usize,
}

/// A test with what came of it.
#[derive(Debug, Serialize)]
struct Measured {
    #[serde(flatten)]
    test: Test,
    /// Tokens/s of every repetition.
    samples: Vec<f64>,
    mean: f64,
    /// Standard deviation of a sample; 0 for a single one.
    sd: f64,
    /// Of all repetitions together.
    counters: Counters,
}

fn run(args: Args) -> Result<()> {
    let tests = tests(&args);
    if tests.is_empty() {
        return usage("nothing to measure: -p and -n have no size above 0");
    }
    let opened = Opened::new(&args.model)?;
    let limit = opened.config.context_length;
    let takes = |t: &Test| t.depth.saturating_add(t.tokens);
    if let Some(t) = tests.iter().find(|t| takes(t) > limit) {
        return usage(format!("{} takes {} tokens, the model's context is {limit}", t.name, takes(t)));
    }
    let on = args.model.run_on()?;
    let context = tests.iter().map(takes).max().unwrap_or(1);
    let loaded = opened.load(&args.model, &on, context)?;
    let mut model = loaded.model;
    let mut cache = model.new_cache(context, on.cache_type)?;
    let seq = cache.new_sequence();
    let tokens = arbitrary_tokens(context, model.config().vocab_size);

    let ran = HowItRan::new(&model, cache.ty(), context);
    let name = model.config().name.clone().unwrap_or_else(|| "unnamed".into());
    let (shown, bytes) = match model.report().slice {
        Some(slice) => (format!("{name} {slice}"), model.report().ledger.taken.bytes),
        None => (name.clone(), opened.gguf.file_bytes()),
    };
    let size = format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let takes_rows = args.model.slice().is_some_and(|slice| !slice.embedding);
    let mut rows = takes_rows.then(|| Rows::new(&model));
    let mut measured = Vec::new();
    for test in tests {
        let spinner = progress::spinner(test.name.clone());
        let m = common::install(&on.device, || {
            let (tokens, rows) = (&tokens, rows.as_mut());
            let mut bench = Bench { model: &mut model, cache: &mut cache, seq, tokens, rows };
            bench.measure(test, args.repetitions)
        });
        spinner.finish_and_clear();
        let m = m?;
        if !args.json {
            if measured.is_empty() {
                common::show(&table_head())?;
            }
            common::show(&table_row(&shown, &size, &ran, &m))?;
        }
        measured.push(m);
    }
    if args.json {
        common::show_json(&json!({
            "model": name,
            "synthetic": args.model.synthetic.is_some(),
            "file_bytes": opened.gguf.file_bytes(),
            "load_seconds": loaded.time.as_secs_f64(),
            "ran": ran,
            "tests": measured,
            "load_report": model.report(),
        }))?;
    }
    Ok(())
}

fn row([model, size, device, precision, attention, test, speed]: [&str; 7]) -> String {
    format!(
        "| {model:20} | {size:>11} | {device:24} | {precision:9} | {attention:9} | {test:16} | {speed:>19} |\n"
    )
}

fn table_head() -> String {
    let head = row(["model", "size", "device", "precision", "attention", "test", "tokens/s"]);
    let line: String = head.trim_end().chars().map(|c| if c == '|' { '|' } else { '-' }).collect();
    format!("{head}{line}\n")
}

fn table_row(model: &str, size: &str, ran: &HowItRan, m: &Measured) -> String {
    let (precision, attention) = (ran.precision.to_string(), format!("{:?}", ran.attention).to_lowercase());
    let speed = format!("{:.1} ± {:.1}", m.mean, m.sd);
    row([model, size, &ran.device, &precision, &attention, &m.test.name, &speed])
}

/// All tests, depth by depth.
fn tests(args: &Args) -> Vec<Test> {
    let kinds = [(Kind::Prompt, "pp", &args.n_prompt), (Kind::Decode, "tg", &args.n_gen)];
    let mut tests = Vec::new();
    for &depth in &args.n_depth {
        for (kind, letters, sizes) in kinds {
            for &tokens in sizes.iter().filter(|n| **n > 0) {
                let at = if depth > 0 { format!(" @ d{depth}") } else { String::new() };
                tests.push(Test { name: format!("{letters}{tokens}{at}"), kind, tokens, depth });
            }
        }
    }
    tests
}

/// Tokens all over the vocabulary, so that all experts have work; the same in every run.
fn arbitrary_tokens(n: usize, vocab: usize) -> Vec<u32> {
    let mut state = 1u64;
    let mut next = || {
        // Knuth's MMIX generator; its high bits are the random ones.
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 33) % vocab as u64) as u32
    };
    (0..n).map(|_| next()).collect()
}

/// Tokens that one step fills the cache with, in a slice without an embedding.
const FILL: usize = 512;
/// Rows that take turns where one is decoded, so that not always the same experts have work.
const TURNS: usize = 64;

/// What a slice without an embedding takes: rows of random numbers of standard deviation 1, where the model is, by their number.
struct Rows {
    device: Device,
    hidden: usize,
    by_number: HashMap<usize, Vec<Tensor>>,
}

impl Rows {
    fn new(model: &Model) -> Self {
        let (device, hidden) = (model.device().clone(), model.config().hidden_size);
        Rows { device, hidden, by_number: HashMap::new() }
    }

    /// Has `n` rows there; in turns, if it is one.
    fn prepare(&mut self, n: usize) -> glm5::Result<()> {
        let turns = if n == 1 { TURNS } else { 1 };
        if n > 0 && !self.by_number.contains_key(&n) {
            let (values, device) = (arbitrary_values(turns * n * self.hidden), &self.device);
            let parts = values.chunks(n * self.hidden);
            let tensors = parts.map(|part| Tensor::from_vec(device, n, self.hidden, part.to_vec()));
            self.by_number.insert(n, tensors.collect::<glm5::Result<_>>()?);
        }
        Ok(())
    }
}

/// Uniform ones of standard deviation 1, the same in every run.
fn arbitrary_values(n: usize) -> Vec<f32> {
    let uniform = |bits: u32| (bits as f32 / 32_768.0 - 1.0) * 3f32.sqrt();
    arbitrary_tokens(n, 65_536).into_iter().map(uniform).collect()
}

struct Bench<'a> {
    model: &'a mut Model,
    cache: &'a mut Cache,
    seq: SeqId,
    tokens: &'a [u32],
    /// In place of tokens.
    rows: Option<&'a mut Rows>,
}

impl Bench<'_> {
    fn measure(&mut self, test: Test, repetitions: usize) -> glm5::Result<Measured> {
        let have = self.cache.len(self.seq)?;
        self.cache.truncate(self.seq, have.min(test.depth))?;
        if have < test.depth {
            self.fill(have..test.depth)?;
        }
        if let Some(rows) = &mut self.rows {
            rows.prepare(if test.kind == Kind::Decode { 1 } else { test.tokens })?;
        }
        self.once(&test)?;
        self.model.counters_mut().reset();
        let mut samples = Vec::with_capacity(repetitions);
        for _ in 0..repetitions {
            samples.push(test.tokens as f64 / self.once(&test)?.as_secs_f64().max(1e-9));
        }
        let (mean, sd) = mean_and_sd(&samples);
        Ok(Measured { test, samples, mean, sd, counters: self.model.counters().clone() })
    }

    /// Brings the sequence to a depth.
    fn fill(&mut self, new: Range<usize>) -> glm5::Result<()> {
        // Rows are as many tensors as there are numbers of them.
        let piece = if self.rows.is_some() { FILL } else { new.len() };
        for start in new.clone().step_by(piece) {
            let tokens = &self.tokens[start..new.end.min(start + piece)];
            let batch = Batch::one(self.seq, tokens, LogitRows::None);
            match &mut self.rows {
                Some(rows) => {
                    rows.prepare(tokens.len())?;
                    let given = &rows.by_number[&tokens.len()][0];
                    self.model.forward_hidden(&batch, given, self.cache)?;
                }
                None => {
                    self.model.forward(&batch, self.cache)?;
                }
            }
        }
        Ok(())
    }

    /// Computes the test's tokens and takes them out of the cache again.
    fn once(&mut self, test: &Test) -> glm5::Result<Duration> {
        let tokens = &self.tokens[test.depth..test.depth + test.tokens];
        let start = Instant::now();
        match test.kind {
            Kind::Prompt => {
                self.append(tokens, 0)?;
            }
            Kind::Decode => {
                for (i, token) in tokens.chunks(1).enumerate() {
                    self.append(token, i)?;
                }
            }
        }
        let time = start.elapsed();
        self.cache.truncate(self.seq, test.depth)?;
        Ok(time)
    }

    /// Appends tokens, and has what comes of the last one in host memory, as who samples from its logits must: a GPU is done then.
    fn append(&mut self, tokens: &[u32], turn: usize) -> glm5::Result<()> {
        let batch = Batch::one(self.seq, tokens, LogitRows::Last);
        let out = match &self.rows {
            Some(rows) => {
                let turns = &rows.by_number[&tokens.len()];
                self.model.forward_hidden(&batch, &turns[turn % turns.len()], self.cache)?
            }
            None => self.model.forward(&batch, self.cache)?,
        };
        out.host().map(drop)
    }
}

fn mean_and_sd(samples: &[f64]) -> (f64, f64) {
    let n = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / n;
    let squares: f64 = samples.iter().map(|x| (x - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0).max(1.0)).sqrt())
}
