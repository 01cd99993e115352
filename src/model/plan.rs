//! What a model takes of a GPU, before anything is taken: the run itself, on a GPU that only counts.

use std::fmt;

use serde::Serialize;

use super::batch::{Batch, LogitRows};
use super::cache::{Cache, SeqId};
use super::config::IndexerKind;
use super::graph::{LoadOptions, Model, STEP_TOKENS_GPU};
use super::observe::{Event, Ignore, Observer};
use super::report::LoadReport;
use super::slice::Slice;
use crate::cuda::{Gpu, Properties, planned};
use crate::error::{Error, Result};
use crate::gguf::{Gguf, Shard};
use crate::tensor::{CacheType, Device, PAGE_ROWS, Tensor};

/// Taken by the driver, for code, for graphs and for what lies between allocations: assumed, not counted.
const RESERVE: u64 = 1 << 30;

/// With fewer tokens at a time a prompt reads all experts for few of them each.
const LEAST_STEP_TOKENS: usize = 128;

/// What is planned for.
#[derive(Debug, Clone, Copy)]
pub struct PlanOptions {
    /// How the model will run.
    pub load: LoadOptions,
    /// Type of the latent rows of the cache.
    pub cache_type: CacheType,
    /// Tokens of the cache.
    pub context: usize,
    /// GPUs that share the weights, each with a cache of its own.
    pub gpus: usize,
}

/// Memory of one GPU by what it is for, in bytes, and the launches of a step. Prints as a table, serializes to JSON.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// The GPU.
    pub gpu: String,
    /// How many there are.
    pub gpus: usize,
    /// The part of the model, if not all of it.
    pub slice: Option<Slice>,
    /// Its memory.
    pub memory: u64,
    /// Weights. Of several GPUs, what each has, without the padding of tiles.
    pub weights: u64,
    /// Most that loading takes at a time: a weight that is repacked is there twice.
    pub loading: u64,
    /// Tokens of the cache.
    pub context: usize,
    /// Type of its latent rows.
    pub cache_type: CacheType,
    /// The cache.
    pub cache: u64,
    /// Of each further token.
    pub cache_per_token: u64,
    /// Tokens of a step of a prompt: as asked for, or the most with which it fits, by halves from 2048 to 128.
    pub step_tokens: usize,
    /// Memory of a step of a prompt and of decoding, with the cache full, the largest first. Of several GPUs as of one, which is more than they take.
    pub workspaces: Vec<(&'static str, u64)>,
    /// Assumed, for what was not counted: driver, code, graphs.
    pub reserve: u64,
    /// All of it.
    pub needed: u64,
    /// The largest cache that fits, in tokens, up to the model's context, with steps as asked for or the smallest; 0 for none.
    pub longest: usize,
    /// Launches of a step that decodes one token.
    pub launches: Launches,
}

/// Launches of a step that decodes one token: of one layer of each kind, if there are such, and of the step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Launches {
    /// A dense layer, past what is selected.
    pub dense: Option<u64>,
    /// A layer with experts and an indexer of its own, past what is selected.
    pub full: Option<u64>,
    /// The same where all keys are selected.
    pub full_short: Option<u64>,
    /// A layer with experts that shares a selection.
    pub shared: Option<u64>,
    /// All layers, embedding and head, past what is selected.
    pub step: u64,
}

impl Plan {
    /// Loads the model and runs it, on a GPU that only counts. Of the file the headers are needed, and the norms, which are read.
    ///
    /// # Errors
    /// As [`Model::load`] and [`Model::new_cache`]; [`Error::Argument`] for no GPU, and for more context than the model has. A plan that does not
    /// fit is none: see [`Plan::expect_fits`].
    pub fn new(gguf: &Gguf, gpu: &Properties, options: &PlanOptions) -> Result<Self> {
        let PlanOptions { load, cache_type, context, gpus } = *options;
        if gpus == 0 {
            return Err(Error::argument("GPUs", "1 or more", gpus));
        }
        let report = LoadReport::for_slice(gguf, load.slice, Shard::new(0, gpus)?)?;
        let most = report.config.context_length;
        if context == 0 || context > most {
            return Err(Error::argument("context", format!("1 to {most} tokens"), context));
        }
        let (there, counter) = planned(gpu.clone());
        let options = LoadOptions { graphs: false, ..load };
        let mut model = Model::load(gguf, &Device::Cuda(there.clone()), &options, &mut |_, _| {})?;
        // Matrices, and vectors, which are activations; what else there is now is workspace.
        let loaded = ["weights", "activations"].map(|label| (label, held(&there, label)));
        let (mut weights, mut loading) = (loaded.iter().map(|(_, bytes)| bytes).sum(), counter.peak());
        if gpus > 1 {
            (weights, loading) = (report.ledger.part_bytes, report.ledger.part_bytes);
        }
        let mut run = |context: usize, step: usize| {
            model.options.step_tokens = Some(step);
            Run::new(&mut model, &there, loaded, context, cache_type)
        };
        let needed = |run: &Run| (weights + run.cache + run.workspaces()).max(loading) + RESERVE;
        let (mut step, least) = match load.step_tokens {
            Some(n) => (n, n),
            None => (STEP_TOKENS_GPU, LEAST_STEP_TOKENS),
        };
        let mut asked = run(context, step)?;
        while needed(&asked) > gpu.memory && step > least {
            step /= 2;
            asked = run(context, step)?;
        }
        // The largest of whole pages, by halves.
        let (mut fits, mut too_many) = (0, most.div_ceil(PAGE_ROWS) + 1);
        while too_many - fits > 1 {
            let pages = fits + (too_many - fits) / 2;
            match needed(&run((pages * PAGE_ROWS).min(most), least)?) <= gpu.memory {
                true => fits = pages,
                false => too_many = pages,
            }
        }
        let one_more = run(1, step)?.cache;
        let two_more = run((PAGE_ROWS + 1).min(most), step)?.cache;
        Ok(Plan {
            gpu: gpu.to_string(),
            gpus,
            slice: load.slice,
            memory: gpu.memory,
            weights,
            loading,
            context,
            cache_type,
            cache: asked.cache,
            cache_per_token: two_more.saturating_sub(one_more) / PAGE_ROWS as u64,
            step_tokens: step,
            needed: needed(&asked),
            workspaces: asked.by_label,
            reserve: RESERVE,
            longest: (fits * PAGE_ROWS).min(most),
            launches: launches(&mut model, &there, cache_type)?,
        })
    }

    /// Whether it fits.
    pub fn fits(&self) -> bool {
        self.needed <= self.memory
    }

    /// Fails unless it fits, and says what would.
    ///
    /// # Errors
    /// [`Error::Capacity`].
    pub fn expect_fits(&self) -> Result<()> {
        if self.fits() {
            return Ok(());
        }
        let would = match self.longest {
            0 => "no context would fit".into(),
            n => format!("a context of {n} tokens would fit"),
        };
        let what = format!(
            "{}: bytes for a context of {} tokens in {}; {would}",
            self.gpu, self.context, self.cache_type
        );
        Err(Error::Capacity { what, needed: self.needed, available: self.memory })
    }
}

/// Memory that a run took.
struct Run {
    cache: u64,
    by_label: Vec<(&'static str, u64)>,
}

impl Run {
    /// A step of a prompt, then one that decodes, at the end of a cache of so many tokens.
    fn new(
        model: &mut Model,
        gpu: &Gpu,
        loaded: [(&'static str, u64); 2],
        context: usize,
        ty: CacheType,
    ) -> Result<Self> {
        model.forget_workspace()?;
        let mut cache = model.new_cache(context, ty)?;
        let of_cache = held(gpu, "cache");
        let seq = cache.new_sequence();
        let new = context.saturating_sub(1).min(model.step_tokens());
        cache.reserve([(seq, context - 1 - new)].into_iter())?;
        cache.commit(seq, context - 1 - new);
        if new > 0 {
            pass(model, seq, new, &mut cache, &mut Ignore)?;
        }
        pass(model, seq, 1, &mut cache, &mut Ignore)?;
        let earlier = |label: &str| loaded.iter().find(|(l, _)| *l == label).map_or(0, |(_, bytes)| *bytes);
        let grown = gpu.held().into_iter().filter(|(label, _)| *label != "cache");
        let mut by_label: Vec<_> = grown.map(|(label, bytes)| (label, bytes - earlier(label))).collect();
        by_label.retain(|(_, bytes)| *bytes > 0);
        by_label.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        Ok(Run { cache: of_cache, by_label })
    }

    fn workspaces(&self) -> u64 {
        self.by_label.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// A pass of `n` tokens, or of as many rows of a slice without an embedding.
fn pass(
    model: &mut Model,
    seq: SeqId,
    n: usize,
    cache: &mut Cache,
    observer: &mut dyn Observer,
) -> Result<()> {
    let tokens = vec![0; n];
    let batch = Batch::one(seq, &tokens, LogitRows::Last);
    match model.options().slice {
        Some(Slice { embedding: false, .. }) => {
            let rows = Tensor::zeros(model.device(), n, model.config().hidden_size)?;
            model.forward_hidden_observed(&batch, &rows, cache, observer).map(drop)
        }
        _ => model.forward_observed(&batch, cache, observer).map(drop),
    }
}

fn held(gpu: &Gpu, label: &str) -> u64 {
    gpu.held().iter().find(|(l, _)| *l == label).map_or(0, |(_, bytes)| *bytes)
}

/// Counts launches from layer to layer.
struct PerLayer<'a> {
    gpu: &'a Gpu,
    at: u64,
    layers: Vec<u64>,
}

fn issued(gpu: &Gpu) -> u64 {
    gpu.launches().iter().map(|(_, n)| n).sum()
}

impl Observer for PerLayer<'_> {
    fn see(&mut self, event: Event<'_>) {
        if let Event::Layer { .. } = event {
            let now = issued(self.gpu);
            self.layers.push(now - self.at);
            self.at = now;
        }
    }
}

fn launches(model: &mut Model, gpu: &Gpu, ty: CacheType) -> Result<Launches> {
    let config = model.config().clone();
    let mut step = |visible: usize| -> Result<(Vec<u64>, u64)> {
        let mut cache = model.new_cache(visible, ty)?;
        let seq = cache.new_sequence();
        cache.reserve([(seq, visible - 1)].into_iter())?;
        cache.commit(seq, visible - 1);
        let before = issued(gpu);
        let mut seen = PerLayer { gpu, at: before, layers: Vec::new() };
        pass(model, seq, 1, &mut cache, &mut seen)?;
        Ok((seen.layers, issued(gpu) - before))
    };
    let past = (config.index_topk + 1).min(config.context_length);
    let ((long, all), (short, _)) = (step(past)?, step(1)?);
    // Not the first, in which the embedding is counted.
    let of = |counts: &[u64], dense: bool, kind: IndexerKind| {
        let is = |i: &usize| (*i < config.first_k_dense_replace) == dense && config.indexers[*i] == kind;
        (1..counts.len()).find(is).map(|i| counts[i])
    };
    Ok(Launches {
        dense: of(&long, true, IndexerKind::Full),
        full: of(&long, false, IndexerKind::Full),
        full_short: of(&short, false, IndexerKind::Full),
        shared: of(&long, false, IndexerKind::Shared),
        step: all,
    })
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = |bytes: u64| format!("{:9.3} GiB", bytes as f64 / f64::from(1u32 << 30));
        let of = if self.gpus > 1 { format!(", each of {}", self.gpus) } else { String::new() };
        writeln!(f, "plan for {}{of}", self.gpu)?;
        if let Some(slice) = self.slice {
            writeln!(f, "  layers     {slice}")?;
        }
        writeln!(f, "  weights    {} ({} while loading)", gib(self.weights), gib(self.loading).trim_start())?;
        let (context, ty) = (self.context, self.cache_type);
        writeln!(
            f,
            "  cache      {} for {context} tokens in {ty}, {} bytes each",
            gib(self.cache),
            self.cache_per_token
        )?;
        writeln!(f, "  steps      {} tokens of a prompt at a time", self.step_tokens)?;
        for (label, bytes) in &self.workspaces {
            writeln!(f, "  workspace  {} {label}", gib(*bytes))?;
        }
        writeln!(f, "  reserve    {} for driver, code and graphs (assumed)", gib(self.reserve))?;
        let verdict = if self.fits() { "fits" } else { "does NOT fit" };
        writeln!(f, "  needed     {} of {}: {verdict}", gib(self.needed), gib(self.memory).trim_start())?;
        writeln!(f, "  largest context that fits: {} tokens", self.longest)?;
        let Launches { dense, full, full_short, shared, step } = self.launches;
        let layer = |n: Option<u64>| n.map_or("none".into(), |n| n.to_string());
        write!(
            f,
            "  launches of a decode step: {step}; of a layer: dense {}, full indexer {} ({} up to what is selected), shared {}",
            layer(dense),
            layer(full),
            layer(full_short),
            layer(shared)
        )
    }
}
