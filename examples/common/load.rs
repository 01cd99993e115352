//! Opening and loading with a progress bar.

use std::time::{Duration, Instant};

use glm5::gguf::Gguf;
use glm5::model::{Config, Model, Plan, PlanOptions, Slice};
use glm5::text::Tokenizer;

use super::args::{ModelArgs, RunOn};
use super::failure::{Result, usage};
use super::progress;

/// A file whose headers have been read: enough to tokenize and to check what is asked for.
pub struct Opened {
    pub gguf: Gguf,
    /// Of the layers that are to be loaded.
    pub config: Config,
    /// Of synthetic models none.
    tokenizer: Option<Tokenizer>,
    slice: Option<Slice>,
    time: Duration,
}

impl Opened {
    pub fn new(args: &ModelArgs) -> Result<Self> {
        let start = Instant::now();
        let gguf = args.open()?;
        // The config first: a file of another model is refused as such, not for its tokenizer.
        let mut config = Config::from_gguf(&gguf)?;
        let slice = args.slice();
        if let Some(slice) = slice {
            config = match config.slice(slice) {
                Err(glm5::Error::Argument { expected, got, .. }) => {
                    return usage(format!("--layers: expected {expected}, got {got}"));
                }
                sliced => sliced?,
            };
        }
        let tokenizer = match &args.synthetic {
            Some(_) => None,
            None => Some(Tokenizer::from_gguf(&gguf)?),
        };
        Ok(Opened { gguf, config, tokenizer, slice, time: start.elapsed() })
    }

    /// The file's tokenizer, unless the model takes or gives no texts.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        if let Some(Slice { embedding, head, .. }) = self.slice
            && !(embedding && head)
        {
            let flag = if embedding { "--no-head" } else { "--no-embedding" };
            return usage(format!(
                "{flag}: texts take embedding and head; without, layers are for bench and --plan-only"
            ));
        }
        match &self.tokenizer {
            Some(tokenizer) => Ok(tokenizer),
            None => usage(
                "--synthetic: such a model has no tokenizer and writes no text; it is for bench and --plan-only",
            ),
        }
    }

    /// Loads the weights, for a cache of `context` tokens. On a GPU that is planned before: what does not fit is refused before memory is taken, and
    /// steps have as many tokens as fit.
    pub fn load(&self, args: &ModelArgs, on: &RunOn, context: usize) -> Result<Loaded> {
        let start = Instant::now();
        let mut options = on.options;
        if let Some(gpu) = on.device.as_gpu() {
            let planned = PlanOptions { load: options, cache_type: on.cache_type, context, gpus: 1 };
            let plan = Plan::new(&self.gguf, gpu.properties(), &planned)?;
            if args.verbose {
                eprintln!("{plan}");
            }
            plan.expect_fits()?;
            options.step_tokens = Some(plan.step_tokens);
        }
        let bar = progress::bytes("load");
        let mut progress = |done: u64, total: u64| {
            bar.set_length(total);
            bar.set_position(done);
        };
        let model = Model::load(&self.gguf, &on.device, &options, &mut progress);
        bar.finish_and_clear();
        let model = model?;
        if args.verbose {
            eprintln!("{}\n  device {}", model.report(), on.device.name());
        }
        Ok(Loaded { model, time: self.time + start.elapsed() })
    }
}

/// A model and how long it took to get it, from opening the file on.
pub struct Loaded {
    pub model: Model,
    pub time: Duration,
}
