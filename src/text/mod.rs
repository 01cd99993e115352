//! Text in and out: tokenizer, chat template, incremental detokenizer, sampler, stop conditions.

mod byte_level;
mod template;
mod tokenizer;
mod vocabulary;

pub use template::{ChatOptions, ChatTemplate};
pub use tokenizer::{Specials, Tokenizer};
pub use vocabulary::{TokenType, TokenizerData};
