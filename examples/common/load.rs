//! Opening and loading with a progress bar.

use std::time::{Duration, Instant};

use glm5::gguf::Gguf;
use glm5::model::{Config, Model};
use glm5::text::Tokenizer;

use super::args::{ModelArgs, RunOn};
use super::failure::{Result, usage};
use super::progress;

/// A file whose headers have been read: enough to tokenize and to check what is asked for.
pub struct Opened {
    pub gguf: Gguf,
    pub config: Config,
    /// Of synthetic models none.
    tokenizer: Option<Tokenizer>,
    time: Duration,
}

impl Opened {
    pub fn new(args: &ModelArgs) -> Result<Self> {
        let start = Instant::now();
        let gguf = args.open()?;
        // The config first: a file of another model is refused as such, not for its tokenizer.
        let config = Config::from_gguf(&gguf)?;
        let tokenizer = match &args.synthetic {
            Some(_) => None,
            None => Some(Tokenizer::from_gguf(&gguf)?),
        };
        Ok(Opened { gguf, config, tokenizer, time: start.elapsed() })
    }

    /// The file's tokenizer, without which there are no texts.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        match &self.tokenizer {
            Some(tokenizer) => Ok(tokenizer),
            None => usage(
                "--synthetic: such a model has no tokenizer and writes no text; it is for bench and --plan-only",
            ),
        }
    }

    /// Loads the weights.
    pub fn load(&self, args: &ModelArgs, on: &RunOn) -> Result<Loaded> {
        let start = Instant::now();
        let bar = progress::bytes("load");
        let mut progress = |done: u64, total: u64| {
            bar.set_length(total);
            bar.set_position(done);
        };
        let model = Model::load(&self.gguf, &on.device, &on.options, &mut progress);
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
