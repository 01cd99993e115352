//! What a run took and what ran, for people and as JSON.

use std::fmt;
use std::time::Duration;

use glm5::model::{Attention, Counters, LoadOptions, Model};
use glm5::tensor::{CacheType, Precision};
use serde::Serialize;

use super::answer::Answer;
use super::session::Session;

/// Tokens and the time that they took.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Rate {
    pub tokens: usize,
    pub seconds: f64,
    pub tokens_per_second: f64,
}

impl Rate {
    pub fn new(tokens: usize, time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        let tokens_per_second = if tokens == 0 { 0.0 } else { tokens as f64 / seconds.max(1e-9) };
        Rate { tokens, seconds, tokens_per_second }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rate { tokens, seconds, tokens_per_second } = self;
        let s = if *tokens == 1 { " " } else { "s" };
        write!(f, "{tokens:5} token{s} in {seconds:7.3} s, {tokens_per_second:8.1} tokens/s")
    }
}

/// How the model ran: where, with which numerics, over which keys.
#[derive(Debug, Clone, Serialize)]
pub struct HowItRan {
    pub device: String,
    pub precision: Precision,
    pub attention: Attention,
    pub cache_type: CacheType,
    /// Tokens that the cache holds.
    pub context: usize,
}

impl HowItRan {
    pub fn new(model: &Model, cache_type: CacheType, context: usize) -> Self {
        let LoadOptions { precision, attention, .. } = *model.options();
        HowItRan { device: model.device().name(), precision, attention, cache_type, context }
    }
}

/// Figures of one answer.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// From opening the file to the loaded model.
    pub load_seconds: f64,
    /// Prompt tokens that were in the cache already; not part of `prompt`.
    pub reused_tokens: usize,
    pub prompt: Rate,
    /// Tokens fed back one by one, sampling and printing included.
    pub decode: Rate,
    pub ran: HowItRan,
    pub counters: Counters,
}

impl Figures {
    pub fn new(load_time: Duration, session: &Session, prompt_tokens: usize, answer: &Answer) -> Self {
        let model = &session.model;
        Figures {
            load_seconds: load_time.as_secs_f64(),
            reused_tokens: answer.reused,
            prompt: Rate::new(prompt_tokens - answer.reused, answer.prompt_time),
            decode: Rate::new(answer.decode_steps, answer.decode_time),
            ran: HowItRan::new(model, session.cache_type(), session.context()),
            counters: model.counters().clone(),
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (total, ran) = (self.counters.total(), &self.ran);
        writeln!(f, "load            {:12.3} s", self.load_seconds)?;
        write!(f, "prompt    {}", self.prompt)?;
        if self.reused_tokens > 0 {
            write!(f, " ({} more were in the cache)", self.reused_tokens)?;
        }
        writeln!(f, "\ndecode    {}", self.decode)?;
        writeln!(
            f,
            "attention {} dense, {} full-sparse, {} shared-sparse token-layers; {} of {} visible keys",
            total.dense, total.full_sparse, total.shared_sparse, total.keys, total.visible
        )?;
        let HowItRan { device, precision, cache_type, context, .. } = ran;
        write!(f, "ran on    {device}, precision {precision}, cache {context} tokens in {cache_type}")
    }
}
