//! Looking into a forward pass: intermediate results are shown to an observer as they come.

use crate::ops::dsa_topk::Selection;
use crate::ops::router::Routing;
use crate::tensor::{PagedRows, RaggedRows, Tensor};

/// An intermediate result of a step. Rows are those of the step, in order.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Residual stream after the embedding, `[m, hidden]`.
    Embedding(&'a Tensor),
    /// Inputs of a layer's selection. `q` is rotated; scores follow with [`crate::ops::dsa_indexer::indexer_scores`].
    Indexer {
        /// Trunk layer.
        layer: usize,
        /// `[m, heads * dim]`.
        q: &'a Tensor,
        /// `[m, heads]`, not yet scaled.
        w: &'a Tensor,
        /// Cached keys, the rows of this step included.
        keys: &'a PagedRows,
        /// Layout of the step.
        rows: &'a RaggedRows,
        /// What was selected.
        selection: &'a Selection,
    },
    /// Experts of a layer.
    Routing {
        /// Trunk layer.
        layer: usize,
        /// Ids, weights, logits.
        routing: &'a Routing,
    },
    /// Output of a layer's attention block before it is added to the residual stream, `[m, hidden]`.
    Attention {
        /// Trunk layer.
        layer: usize,
        /// The output.
        out: &'a Tensor,
    },
    /// Residual stream after a layer, `[m, hidden]`.
    Layer {
        /// Trunk layer.
        layer: usize,
        /// The stream.
        x: &'a Tensor,
    },
    /// After the final norm, `[m, hidden]`: input of the output head.
    Final(&'a Tensor),
}

/// Receives the events of a forward pass.
pub trait Observer {
    /// Called for each event, in order of computation.
    fn see(&mut self, event: Event<'_>);

    /// Whether events are wanted at all. Steps that show none may be replayed from graphs on a GPU.
    fn wants_events(&self) -> bool {
        true
    }

    /// Whether [`Event::Indexer`] is wanted also where selection is skipped because all keys are attended to. Costs the
    /// indexer's query projection then.
    fn wants_indexer(&self) -> bool {
        false
    }
}

/// Sees nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ignore;

impl Observer for Ignore {
    fn see(&mut self, _: Event<'_>) {}

    fn wants_events(&self) -> bool {
        false
    }
}

impl<F: FnMut(Event<'_>)> Observer for F {
    fn see(&mut self, event: Event<'_>) {
        self(event)
    }
}
