//! Proof that it ran: what each layer did, counted as it happens.

use serde::Serialize;

use super::config::{Config, IndexerKind};
use crate::tensor::RaggedRows;

/// What one layer did since the counters were reset; every token of every step counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LayerCounters {
    /// Tokens that attended to all visible keys.
    pub dense: u64,
    /// Tokens that attended to keys selected by the layer's own indexer.
    pub full_sparse: u64,
    /// Tokens that attended to the selection of a layer below.
    pub shared_sparse: u64,
    /// Keys attended to, over all tokens.
    pub keys: u64,
    /// Keys visible, over all tokens.
    pub visible: u64,
}

/// Counters of the model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Passes through all layers.
    pub steps: u64,
    /// Tokens computed.
    pub tokens: u64,
    /// Rows of logits computed.
    pub logits: u64,
    /// Of the steps, those that a GPU replayed from a graph.
    pub replayed: u64,
    /// For each trunk layer.
    pub layers: Vec<LayerCounters>,
}

impl Counters {
    /// Zeros for `n_layers` layers.
    pub fn new(n_layers: usize) -> Self {
        Counters { layers: vec![LayerCounters::default(); n_layers], ..Counters::default() }
    }

    /// Back to zero, without giving memory back.
    pub fn reset(&mut self) {
        (self.steps, self.tokens, self.logits, self.replayed) = (0, 0, 0, 0);
        self.layers.fill(LayerCounters::default());
    }

    /// Counts a step of the first `n` of some rows, with a selection or without. One has all keys that a row sees, or as many of them as are selected.
    pub(super) fn count(&mut self, config: &Config, rows: &RaggedRows, n: usize, selected: bool) {
        self.steps += 1;
        self.tokens += n as u64;
        let most = if selected { config.index_topk } else { usize::MAX };
        for (layer, kind) in self.layers.iter_mut().zip(&config.indexers) {
            for visible in (0..n).map(|t| rows.visible(t)) {
                let keys = visible.min(most);
                layer.visible += visible as u64;
                layer.keys += keys as u64;
                match kind {
                    _ if keys == visible => layer.dense += 1,
                    IndexerKind::Full => layer.full_sparse += 1,
                    IndexerKind::Shared => layer.shared_sparse += 1,
                }
            }
        }
    }

    /// All layers added up.
    pub fn total(&self) -> LayerCounters {
        self.layers.iter().fold(LayerCounters::default(), |a, b| LayerCounters {
            dense: a.dense + b.dense,
            full_sparse: a.full_sparse + b.full_sparse,
            shared_sparse: a.shared_sparse + b.shared_sparse,
            keys: a.keys + b.keys,
            visible: a.visible + b.visible,
        })
    }
}
