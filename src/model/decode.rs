//! Steps that decode one token of each sequence on a GPU: recorded once for a number of rows, then replayed.
//!
//! Rows are as many as a power of two; those behind the sequences are padding, which writes to a page of the cache that no sequence has. Launches
//! are made for as many keys as there can be, recorded or not, so that the bits are the same. Lengths, pages and tokens lie on the device.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};

use super::batch::{Batch, LogitRows};
use super::cache::Cache;
use super::graph::{Attention, Model};
use super::observe::Observer;
use crate::cuda::Graph;
use crate::error::{Error, Result};
use crate::tensor::{PAGE_ROWS, RaggedRows, Tensor};

/// Most rows of such a step.
const MOST: usize = 64;

/// Which memory graphs were recorded with. No two are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemoryId(u64);

impl MemoryId {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        MemoryId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The graphs of a cache, whose addresses they hold, recorded by one model.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    of: Option<MemoryId>,
    /// By the number of rows, and whether they select keys.
    steps: HashMap<(usize, bool), Step>,
}

#[derive(Debug, Default)]
struct Step {
    /// The rows whose copy on the device the graph holds.
    rows: RaggedRows,
    graph: Option<Graph>,
    /// It could not be recorded.
    refused: bool,
}

impl Recorded {
    /// Forgets the graphs that were recorded with other memory.
    fn keep(&mut self, memory: MemoryId) {
        if self.of != Some(memory) {
            self.steps.values_mut().for_each(|step| (step.graph, step.refused) = (None, false));
            self.of = Some(memory);
        }
    }
}

impl Model {
    /// Whether a batch is one token of each sequence, with logits, on a GPU.
    pub(super) fn decodes(&self, batch: &Batch<'_>) -> bool {
        let all = batch.sequences();
        self.device.as_gpu().is_some()
            && all.len() <= MOST
            && all
                .iter()
                .all(|s| s.tokens.len() == 1 && !matches!(s.logits, LogitRows::None | LogitRows::From(1..)))
    }

    /// Such a step, of tokens or of `given` rows. `cache` has room for it.
    pub(super) fn decode(
        &mut self,
        batch: &Batch<'_>,
        given: Option<&Tensor>,
        cache: &mut Cache,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let n = batch.sequences().len();
        let rows = n.next_power_of_two();
        let most = cache.longest();
        let mut recorded = mem::take(&mut cache.recorded);
        recorded.keep(self.memory);
        let ws = &mut self.workspace;
        ws.all_logits.resize(0)?;
        ws.begin(0);
        let lens = batch.sequences().iter().map(|s| cache.len(s.seq)).collect::<Result<Vec<_>>>()?;
        let longest = lens.iter().max().map_or(0, |len| len + 1);
        let (sparse_model, k) = (self.options.attention == Attention::Sparse, self.config.index_topk);
        let sparse = sparse_model && longest > k;
        let step = recorded.steps.entry((rows, sparse)).or_default();
        // Its rows take the place of the workspace's, which no graph holds.
        mem::swap(&mut ws.rows, &mut step.rows);
        ws.rows.clear();
        ws.rows.plan(if sparse_model && !sparse { k.min(most) } else { most });
        ws.rows.reserve(rows * most);
        let pushed = batch.sequences().iter().zip(lens).try_for_each(|(s, len)| {
            let (pages, _) = cache.table(s.seq)?;
            ws.push(s.tokens, len, pages, |_| true)
        });
        let padded = pushed.and_then(|()| {
            (n..rows).try_for_each(|i| ws.push(&[0], i % PAGE_ROWS, &[cache.spare_page()], |_| true))
        });
        let done = padded.and_then(|()| self.decode_rows(given, cache, observer, sparse, step));
        if done.is_ok() {
            self.counters.count(&self.config, &self.workspace.rows, n, sparse);
            self.count_logits(n);
        }
        mem::swap(&mut self.workspace.rows, &mut step.rows);
        cache.recorded = recorded;
        done.and_then(|()| self.workspace.all_logits.resize(n))
    }

    /// The rows in the workspace: by the graph of such steps, or one by one, and recorded for the next time.
    fn decode_rows(
        &mut self,
        given: Option<&Tensor>,
        cache: &mut Cache,
        observer: &mut dyn Observer,
        sparse: bool,
        step: &mut Step,
    ) -> Result<()> {
        let memory = self.memory;
        self.noting_moves(|model| {
            model.workspace.resize(cache.capacity())?;
            model.workspace.upload_tokens()
        })?;
        self.workspace.rows.upload(&self.device)?;
        if let Some(given) = given {
            // Padding has the first ones again, of which there are more than that: what the last step left would grow and grow.
            let (n, x) = (given.rows(), &mut self.workspace.x);
            x.copy_rows(0, given, 0..n)?;
            x.copy_rows(n, given, 0..x.rows() - n)?;
        }
        let records = self.options.graphs && !observer.wants_events();
        if let Some(graph) = step.graph.as_mut().filter(|_| records && self.memory == memory) {
            graph.launch()?;
            self.counters.replayed += 1;
            return self.workspace.all_logits.resize_to_overwrite(self.workspace.wanted.len());
        }
        self.noting_moves(|model| model.layers(cache, observer, sparse))?;
        // Where memory has grown, other steps are recorded anew, and this one when nothing grows any more.
        if !records || step.refused || self.memory != memory {
            return Ok(());
        }
        self.workspace.all_logits.resize(0)?; // what is there stays, and is counted again by what is recorded
        let gpu = self.device.gpu()?.clone();
        match gpu.capture(|| self.layers(cache, observer, sparse)) {
            Ok(graph) => step.graph = Some(graph),
            // The step itself is done, and those that follow can do without. Its logits are there, however far the recording came.
            Err(Error::OutOfMemory { .. }) => {
                step.refused = true;
                self.workspace.all_logits.resize_to_overwrite(self.workspace.wanted.len())?;
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }
}
