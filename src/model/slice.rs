//! A part of a model: some of its layers, with or without what is in front of them and behind them.

use std::fmt;
use std::ops::Range;

use serde::Serialize;

use super::config::{Config, IndexerKind};
use crate::error::{Error, Result};

/// Trunk layers `first..end` of a file, alone. Whatever of a model is about layers (config, caches, counters, events) is about these then, and
/// counts them from 0.
///
/// Without an embedding rows of the residual stream are the input ([`Model::forward_hidden`](super::Model::forward_hidden)); without a head they are
/// the output, that is the rows behind the last layer in place of logits. So slices one behind another compute what the whole model does:
///
/// ```no_run
/// # use glm5::model::{Batch, LoadOptions, LogitRows, Model, Slice};
/// # use glm5::tensor::{CacheType, Device};
/// # fn main() -> glm5::Result<()> {
/// # let (path, device) = ("models/nano-q4_k_m.gguf", Device::cpu(None)?);
/// let slice = |slice| Model::open(path, &device, &LoadOptions { slice: Some(slice), ..LoadOptions::default() });
/// let mut front = slice(Slice { head: false, ..Slice::layers(0..2) })?;
/// let mut back = slice(Slice { embedding: false, ..Slice::layers(2..4) })?;
/// let (mut cache, mut cache_of_back) = (front.new_cache(64, CacheType::F32)?, back.new_cache(64, CacheType::F32)?);
/// let (seq, seq_of_back) = (cache.new_sequence(), cache_of_back.new_sequence());
/// let tokens = [4079, 4081];
/// let hidden = front.forward(&Batch::one(seq, &tokens, LogitRows::ALL), &mut cache)?; // [2, hidden]
/// let batch = Batch::one(seq_of_back, &tokens, LogitRows::Last);
/// let logits = back.forward_hidden(&batch, hidden, &mut cache_of_back)?; // [1, vocab]
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Slice {
    /// The first layer, from 0.
    pub first: usize,
    /// The one behind the last.
    pub end: usize,
    /// Whether it takes tokens.
    pub embedding: bool,
    /// Whether it gives logits, with the final norm.
    pub head: bool,
}

impl Slice {
    /// These layers between embedding and head.
    pub const fn layers(layers: Range<usize>) -> Self {
        Slice { first: layers.start, end: layers.end, embedding: true, head: true }
    }

    /// All of a model.
    pub fn whole(config: &Config) -> Self {
        Slice::layers(0..config.n_layers)
    }

    /// Its layers.
    pub fn range(self) -> Range<usize> {
        self.first..self.end
    }
}

/// `3..7`, and what is left out.
impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.first, self.end)?;
        match (self.embedding, self.head) {
            (true, true) => Ok(()),
            (false, true) => f.write_str(" without embedding"),
            (true, false) => f.write_str(" without head"),
            (false, false) => f.write_str(" without embedding and head"),
        }
    }
}

impl Config {
    /// The config of some of its layers.
    ///
    /// # Errors
    /// [`Error::Argument`] for no layers, layers that are not there, and a first layer without an indexer: it would share the selection of a layer
    /// that is not in the slice.
    pub fn slice(&self, slice: Slice) -> Result<Config> {
        let Slice { first, end, .. } = slice;
        if first >= end || end > self.n_layers {
            return Err(Error::argument(
                "layers",
                format!("A..B with A below B, up to 0..{}", self.n_layers),
                format!("{first}..{end}"),
            ));
        }
        if self.indexers[first] == IndexerKind::Shared {
            let full =
                self.indexers[..first].iter().rposition(|kind| *kind == IndexerKind::Full).unwrap_or(0);
            let expected =
                format!("a first layer that selects keys itself, such as {full}, the nearest below");
            return Err(Error::argument(
                "layers",
                expected,
                format!("{first}..{end}: layer {first} shares the selection of layer {full}"),
            ));
        }
        let n_layers = end - first;
        Ok(Config {
            n_layers,
            first_k_dense_replace: self.first_k_dense_replace.saturating_sub(first).min(n_layers),
            indexers: self.indexers[slice.range()].to_vec(),
            ..self.clone()
        })
    }
}
