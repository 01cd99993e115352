//! One sequence of a model: what it has seen, what it is fed next.

use std::borrow::Cow;

use glm5::model::{Batch, Cache, LogitRows, Model, SeqId};
use glm5::tensor::CacheType;
use indicatif::ProgressBar;

use super::failure::Result;
use super::interrupt;

/// Prompt tokens between two looks at Ctrl-C and two moves of the bar. The text does not depend on it; smaller pieces make
/// smaller matrix products, and the model takes 512 at a time.
const PIECE: usize = 512;

/// A model with a cache for one sequence.
pub struct Session {
    pub model: Model,
    cache: Cache,
    seq: SeqId,
    /// The tokens in the cache.
    tokens: Vec<u32>,
    limit: usize,
}

impl Session {
    /// A cache of `context` tokens.
    pub fn new(model: Model, context: usize, ty: CacheType) -> Result<Self> {
        let mut cache = model.new_cache(context, ty)?;
        let seq = cache.new_sequence();
        Ok(Session { model, cache, seq, tokens: Vec::with_capacity(context), limit: context })
    }

    /// Tokens that the sequence can have.
    pub fn context(&self) -> usize {
        self.limit
    }

    /// Tokens that still fit.
    pub fn room(&self) -> usize {
        self.limit - self.tokens.len()
    }

    /// Element type of the cache.
    pub fn cache_type(&self) -> CacheType {
        self.cache.ty()
    }

    /// How many of `prompt`'s tokens are in the cache already and need not be computed again. At least one is: the logits
    /// behind the last token are wanted.
    pub fn reusable(&self, prompt: &[u32]) -> usize {
        let common = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        common.min(prompt.len().saturating_sub(1))
    }

    /// Makes `prompt`, at least one token, the content of the sequence. Gives the logits of what comes next, or nothing
    /// if Ctrl-C came first.
    pub fn prefill(&mut self, prompt: &[u32], bar: &ProgressBar) -> Result<Option<Cow<'_, [f32]>>> {
        let reused = self.reusable(prompt);
        self.cache.truncate(self.seq, reused)?;
        self.tokens.truncate(reused);
        let new = &prompt[reused..];
        let (first, last) = new.split_at(new.len().saturating_sub(1) / PIECE * PIECE);
        for piece in first.chunks(PIECE) {
            if interrupt::requested() {
                return Ok(None);
            }
            self.model.forward(&Batch::one(self.seq, piece, LogitRows::None), &mut self.cache)?;
            self.tokens.extend_from_slice(piece);
            bar.inc(piece.len() as u64);
        }
        if interrupt::requested() {
            return Ok(None);
        }
        let logits = self.model.forward(&Batch::one(self.seq, last, LogitRows::Last), &mut self.cache)?;
        self.tokens.extend_from_slice(last);
        Ok(Some(logits.host()?))
    }

    /// Appends one token; gives the logits of the next.
    pub fn decode(&mut self, token: u32) -> Result<Cow<'_, [f32]>> {
        let logits = self.model.forward(&Batch::one(self.seq, &[token], LogitRows::Last), &mut self.cache)?;
        self.tokens.push(token);
        Ok(logits.host()?)
    }
}
