//! Text in and out: tokenizer, chat template, incremental detokenizer, sampler, stop conditions.

mod byte_level;
mod detokenizer;
mod log_probs;
mod rng;
mod sampler;
mod sampling_params;
mod stop;
mod template;
mod tokenizer;
mod vocabulary;

pub use detokenizer::Detokenizer;
pub use log_probs::{LogProbs, log_probs};
pub use sampler::Sampler;
pub use sampling_params::SamplingParams;
pub use stop::{Finish, StopMatcher, TextStream};
pub use template::{ChatOptions, ChatTemplate};
pub use tokenizer::{Specials, Tokenizer};
pub use vocabulary::{TokenType, TokenizerData};
