//! Arguments that several examples take.

use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, StringValueParser, TypedValueParser};
use glm5::gguf::{Gguf, Metadata};
use glm5::model::{Attention, LoadOptions, Slice, Synthetic};
use glm5::tensor::{CacheType, Device, DeviceChoice, Precision};
use glm5::text::SamplingParams;

use super::failure::{Failure, Result, usage};

/// The model of every example that is told no other.
const DEFAULT_MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/nano-q4_k_m.gguf");

/// Cache tokens that are not asked for: enough for an evening, little memory.
pub const DEFAULT_CONTEXT: usize = 4096;

/// Integers of at least `least`.
pub fn at_least(least: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    between(least, usize::MAX)
}

/// Integers from `least` to `most`.
pub fn between(least: usize, most: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.parse() {
        Ok(n) if (least..=most).contains(&n) => Ok(n),
        _ if most == usize::MAX => Err(format!("expected an integer of at least {least}")),
        _ => Err(format!("expected an integer from {least} to {most}")),
    }
}

/// Texts of at least one character.
pub fn some_text(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("expected at least one character".into()) } else { Ok(text.into()) }
}

/// `A..B` or `N`.
fn layers(text: &str) -> Result<Range<usize>, String> {
    let (first, end) = text.split_once("..").unwrap_or(("0", text));
    match (first.parse(), end.parse()) {
        (Ok(first), Ok(end)) if first < end => Ok(first..end),
        _ => Err("expected layers A..B with A below B, or N for 0..N".into()),
    }
}

fn precision() -> impl TypedValueParser<Value = Precision> {
    let precision = |name: String| if name == "fast" { Precision::Fast } else { Precision::Exact };
    PossibleValuesParser::new(["exact", "fast"]).map(precision)
}

fn device() -> impl TypedValueParser<Value = DeviceChoice> {
    StringValueParser::new().try_map(|name| name.parse::<DeviceChoice>())
}

fn cache_type() -> impl TypedValueParser<Value = CacheType> {
    PossibleValuesParser::new(["f32", "bf16", "f16", "fp8"]).try_map(|name| name.parse::<CacheType>())
}

/// Which file.
#[derive(Debug, Clone, clap::Args)]
pub struct FileArgs {
    /// GGUF file, or any shard of a split set [default: models/nano-q4_k_m.gguf of the source tree].
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
}

impl FileArgs {
    /// The file to open.
    pub fn path(&self) -> Result<&Path> {
        match &self.model {
            Some(path) => Ok(path),
            None if Path::new(DEFAULT_MODEL).exists() => Ok(Path::new(DEFAULT_MODEL)),
            None => Err(Failure::Run(format!(
                "{DEFAULT_MODEL}: the default model is not there; name a file with --model"
            ))),
        }
    }
}

/// Which model and how it is run.
#[derive(Debug, Clone, clap::Args)]
pub struct ModelArgs {
    #[command(flatten)]
    pub file: FileArgs,

    /// In place of a file a model of invented weights, for benches and plans: `glm-5` or `glm-5.2`, then if wanted `/8` for one of eight parts
    /// (heads, vocabulary and feed-forward widths divided, as a GPU of eight has it) and `:10` for another number of layers than 78.
    #[arg(long, value_name = "NAME", value_parser = Synthetic::named, conflicts_with = "model")]
    pub synthetic: Option<Synthetic>,

    /// Only layers A up to B, B not included, counted from 0; N for 0..N. The first must have an indexer of its own.
    #[arg(long, value_name = "A..B", value_parser = layers)]
    layers: Option<Range<usize>>,

    /// Leave the embedding out: the layers take rows in place of tokens, in `bench` random ones of standard deviation 1.
    #[arg(long, requires = "layers")]
    no_embedding: bool,

    /// Leave final norm and head out: the layers give rows in place of logits.
    #[arg(long, requires = "layers")]
    no_head: bool,

    /// Where to run: `auto` is a GPU that this build has kernels for, or else the CPU; `cpu`; `cuda`, or `cuda:1` for the second GPU.
    #[arg(long, value_name = "DEVICE", value_parser = device(), default_value = "auto")]
    pub device: DeviceChoice,

    /// CPU threads, 1 to 1024 [default: all cores].
    #[arg(short, long, value_name = "N", value_parser = between(1, 1024))]
    pub threads: Option<usize>,

    /// Numerics of quantized layers: `exact` keeps activations in f32; `fast` rounds them to int8, or to f16 for many tokens, as
    /// kernels on matrix units need it (on the CPU for comparison, not for speed) [default: exact; GPUs: fast].
    #[arg(long, value_name = "HOW", value_parser = precision())]
    precision: Option<Precision>,

    /// Attend to all visible keys, always, and not only to those that the indexer selects.
    #[arg(long)]
    pub dense: bool,

    /// Tokens of a prompt computed at a time, 1 to 65536 [default: 512; GPUs: as many as fit, at most 2048].
    #[arg(long, value_name = "N", value_parser = between(1, 65_536))]
    step_tokens: Option<usize>,

    /// Element type of the caches [default: f32; GPUs: bf16].
    #[arg(long, value_name = "TYPE", value_parser = cache_type())]
    cache_type: Option<CacheType>,

    /// Print what the file holds and what the model makes of it, on standard error.
    #[arg(short, long)]
    pub verbose: bool,
}

impl ModelArgs {
    /// The file, with its headers read.
    pub fn open(&self) -> Result<Gguf> {
        match &self.synthetic {
            Some(model) => Ok(model.gguf()?),
            None => Ok(Gguf::open(self.file.path()?)?),
        }
    }

    /// The part of the model, if not all of it.
    pub fn slice(&self) -> Option<Slice> {
        let layers = self.layers.clone()?;
        Some(Slice { embedding: !self.no_embedding, head: !self.no_head, ..Slice::layers(layers) })
    }

    /// The device, and how a model runs on it. Says so on standard error where that was not asked for.
    pub fn run_on(&self) -> Result<RunOn> {
        self.run_on_or_plan(false)
    }

    /// The same; with `planned` as on a GPU, whatever the device is.
    pub fn run_on_or_plan(&self, planned: bool) -> Result<RunOn> {
        let chosen = Device::open(self.device, self.threads)?;
        let on_gpu = planned || chosen.device.gpu().is_ok();
        let (precision, cache_type) = match on_gpu {
            true => (Precision::Fast, CacheType::Bf16),
            false => (Precision::Exact, CacheType::F32),
        };
        let attention = if self.dense { Attention::Dense } else { Attention::Sparse };
        let run_on = RunOn {
            options: LoadOptions {
                precision: self.precision.unwrap_or(precision),
                attention,
                step_tokens: self.step_tokens,
                slice: self.slice(),
                ..LoadOptions::default()
            },
            cache_type: self.cache_type.unwrap_or(cache_type),
            device: chosen.device.clone(),
        };
        if self.device == DeviceChoice::Auto && !planned {
            eprintln!("{chosen}; precision {}, cache {}", run_on.options.precision, run_on.cache_type);
        }
        Ok(run_on)
    }
}

/// Where and how a model runs.
#[derive(Debug, Clone)]
pub struct RunOn {
    pub device: Device,
    pub options: LoadOptions,
    pub cache_type: CacheType,
}

/// How tokens are drawn. What is not given comes from the file (chats) or is greedy (plain text).
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Divides the logits; 0 takes the best token [default: 0; chats: the file's, else 1].
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,

    /// Only the K best tokens; 0 for all [default: 0; chats: the file's].
    #[arg(long, value_name = "K", value_parser = at_least(0))]
    top_k: Option<usize>,

    /// Only the best tokens whose probabilities sum to P, above 0 and up to 1 [default: 1; chats: the file's, else 0.95].
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,

    /// Only tokens at least P times as probable as the best, 0 to 1 [default: 0; chats: the file's].
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,

    /// Divides positive logits of recent tokens and multiplies negative ones; 1 for none [default: 1; chats: the file's].
    #[arg(long, value_name = "X")]
    repeat_penalty: Option<f32>,

    /// Subtracted from a logit for every recent occurrence of its token.
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    frequency_penalty: f32,

    /// Subtracted from a logit once if its token occurred recently.
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    presence_penalty: f32,

    /// How many tokens are recent for the penalties; 0 turns them off [default: 64; chats: the file's].
    #[arg(long, value_name = "N", value_parser = at_least(0))]
    penalty_last_n: Option<usize>,

    /// Where the random numbers begin: the same seed gives the same text.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl SamplingArgs {
    /// These over greedy defaults. Worth asking for before anything is loaded: it finds absurd values.
    pub fn over_greedy(&self) -> Result<SamplingParams> {
        self.over(SamplingParams::default())
    }

    /// These over what the file advises for chats.
    pub fn over_file(&self, metadata: &Metadata) -> Result<SamplingParams> {
        self.over(SamplingParams::from_metadata(metadata)?)
    }

    fn over(&self, base: SamplingParams) -> Result<SamplingParams> {
        let params = SamplingParams {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(base.repeat_penalty),
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            penalty_last_n: self.penalty_last_n.unwrap_or(base.penalty_last_n),
            seed: self.seed,
        };
        match params.check() {
            Ok(()) => Ok(params),
            Err(glm5::Error::Argument { what, expected, got }) => {
                usage(format!("--{}: expected {expected}, got {got}", what.replace('_', "-")))
            }
            Err(e) => usage(e),
        }
    }
}

/// Cache tokens: `asked` if the model can have so many, else `default`.
pub fn context(asked: Option<usize>, default: usize, model_context: usize) -> Result<usize> {
    match asked {
        Some(n) if n > model_context => {
            usage(format!("--context {n}: the model's context is {model_context} tokens"))
        }
        Some(n) => Ok(n),
        None => Ok(default.min(model_context)),
    }
}
