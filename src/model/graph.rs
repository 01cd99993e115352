//! The forward pass: a thin graph over [`crate::ops`].

use std::path::Path;

use super::batch::Batch;
use super::cache::Cache;
use super::config::{Config, INDEX_NORM_EPS};
use super::counters::Counters;
use super::decode::MemoryId;
use super::observe::{Event, Ignore, Observer};
use super::report::LoadReport;
use super::slice::Slice;
use super::weights::{self, Indexer, Layer, LayerFfn, Weights};
use super::workspace::Workspace;
use crate::cuda::Gpu;
use crate::error::{Error, Result};
use crate::gguf::{Gguf, Shard};
use crate::ops;
use crate::ops::dsa_indexer::indexer_select;
use crate::ops::embedding::embedding_of;
use crate::ops::ffn::ffn_from;
use crate::ops::linear::{
    InputForms, LinearInput, Rotated, Rounded, head_linear_from, head_linear_into, linear_from,
};
use crate::ops::logits::{chosen_rows, logits_of};
use crate::ops::mla_attention::{MlaOptions, mla_attention_with};
use crate::ops::moe::{self, MoeOptions, moe_from};
use crate::ops::norm::rms_norm_into;
use crate::ops::post_a::{IndexKeys, PostA, post_a};
use crate::ops::rope::rope_angles;
use crate::ops::router::router;
use crate::tensor::{CacheType, Device, Matrix, PagedRows, Precision, Tensor};

/// Tokens of a step: bounds the workspace, fills the tiles of matrix products. Every expert of GLM-5 has a thirty-second of them.
const STEP_TOKENS: usize = 512;
pub(super) const STEP_TOKENS_GPU: usize = 2048;

/// More would be more pairs of tokens and experts than one operation takes.
const MOST_STEP_TOKENS: usize = 65_536;

/// Which keys a token attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Attention {
    /// As trained: the indexer's selection once more than `index_topk` keys are visible.
    #[default]
    Sparse,
    /// All visible keys, always.
    Dense,
}

/// How a model is loaded and run.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions {
    /// Numerics of the quantized linear layers.
    pub precision: Precision,
    /// Sparse, or dense for comparison.
    pub attention: Attention,
    /// Whether a GPU records the steps that decode one token of each sequence, as graphs, and replays them. The bits are the same without.
    pub graphs: bool,
    /// Most tokens that are computed at a time, of a prompt or a batch: 1 to 65536. Without, 512 on a CPU and 2048 on a GPU, whose experts each have
    /// few of them; less take less memory ([`Plan`](super::Plan) tells what fits).
    pub step_tokens: Option<usize>,
    /// Some of the layers alone, for tests and benches on a part of a model; otherwise all of it.
    pub slice: Option<Slice>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            precision: Precision::default(),
            attention: Attention::default(),
            graphs: true,
            step_tokens: None,
            slice: None,
        }
    }
}

/// A loaded model with its workspace. Sequences live in [`Cache`]s, of which there may be several.
pub struct Model {
    pub(super) config: Config,
    report: LoadReport,
    pub(super) device: Device,
    pub(super) options: LoadOptions,
    weights: Weights,
    pub(super) workspace: Workspace,
    pub(super) counters: Counters,
    /// Of its memory: graphs that were recorded with another are of no use any more.
    pub(super) memory: MemoryId,
}

impl Model {
    /// Opens a file (any shard of a split set) and loads it.
    ///
    /// # Errors
    /// What is wrong with the file: [`Error::Io`], [`Error::File`], [`Error::Ledger`], [`Error::Unsupported`].
    pub fn open(path: impl AsRef<Path>, device: &Device, options: &LoadOptions) -> Result<Self> {
        Self::load(&Gguf::open(path)?, device, options, &mut |_, _| {})
    }

    /// Loads a file that is open already; `progress` is told how many bytes of weights are where the model is, and of how many. On a GPU they go
    /// there in pieces of 16 MiB by way of pinned memory, 32 MiB in all; beside these host memory holds only what the system keeps of the mapped
    /// file, and while a weight is repacked into tiles the GPU holds its blocks, too.
    ///
    /// # Errors
    /// As [`Model::open`]; those of [`Config::slice`]; [`Error::Argument`] for [`LoadOptions::step_tokens`] out of range.
    pub fn load(
        gguf: &Gguf,
        device: &Device,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        if let Some(n) = options.step_tokens.filter(|n| !(1..=MOST_STEP_TOKENS).contains(n)) {
            return Err(Error::argument("tokens of a step", format!("1 to {MOST_STEP_TOKENS}"), n));
        }
        let report = LoadReport::for_slice(gguf, options.slice, Shard::WHOLE)?;
        let config = report.config.clone();
        let whole = Config::from_gguf(gguf)?;
        let slice = options.slice.unwrap_or(Slice::whole(&whole));
        let weights = weights::load(gguf, &whole, slice, device, options.precision, progress)?;
        Ok(Model {
            workspace: Workspace::new(&config, slice.head, device)?,
            memory: MemoryId::new(),
            counters: Counters::new(config.n_layers),
            config,
            report,
            device: device.clone(),
            options: *options,
            weights,
        })
    }

    /// Gives the memory of the workspace back.
    pub(super) fn forget_workspace(&mut self) -> Result<()> {
        self.workspace = Workspace::new(&self.config, self.weights.output.is_some(), &self.device)?;
        self.memory = MemoryId::new();
        Ok(())
    }

    /// Hyperparameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What was loaded.
    pub fn report(&self) -> &LoadReport {
        &self.report
    }

    /// Where it runs.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How it runs.
    pub fn options(&self) -> &LoadOptions {
        &self.options
    }

    /// What has been computed since the start or the last [`Counters::reset`].
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The counters, to reset them.
    pub fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// A cache for `tokens` tokens, over all sequences and rounded up to whole pages. `ty` is that of latent rows; beside
    /// [`CacheType::Fp8`] keys of the indexer are [`CacheType::Int8`].
    ///
    /// # Errors
    /// [`Error::Argument`] for none, [`Error::Capacity`] for more than can be addressed, [`Error::Unsupported`] if rows of this model cannot
    /// be of the type.
    pub fn new_cache(&self, tokens: usize, ty: CacheType) -> Result<Cache> {
        Cache::new(&self.config, &self.device, tokens, ty)
    }

    /// Appends the tokens of a batch to their sequences and returns the wanted logits, `[rows, vocab]`, in the order of
    /// the batch; of a [`Slice`] without a head the same rows of the residual stream behind its last layer, `[rows, hidden]`. How sequences are cut into batches, and what else a batch holds,
    /// changes results only by f32 rounding; under [`Precision::Fast`] by more, since an activation may go to the other of
    /// two int8 steps.
    ///
    /// # Errors
    /// [`Error::Argument`] for an empty batch, empty, unknown or repeated sequences, unknown tokens, and of a [`Slice`] without an embedding;
    /// [`Error::Capacity`] if cache or context are too small. Sequences are unchanged after an error.
    pub fn forward(&mut self, batch: &Batch<'_>, cache: &mut Cache) -> Result<&Tensor> {
        self.forward_observed(batch, cache, &mut Ignore)
    }

    /// As [`Model::forward`], showing intermediate results to `observer`.
    ///
    /// # Errors
    /// As [`Model::forward`].
    pub fn forward_observed(
        &mut self,
        batch: &Batch<'_>,
        cache: &mut Cache,
        observer: &mut dyn Observer,
    ) -> Result<&Tensor> {
        if self.weights.token_embd.is_none() {
            return Err(Error::argument("input", "rows, for a slice without an embedding", "tokens"));
        }
        self.run(batch, None, cache, observer)
    }

    /// As [`Model::forward`], of a [`Slice`] without an embedding: `hidden` `[tokens of the batch, hidden]` is the residual stream in front of its
    /// first layer, on the model's device, in the order of the batch. Tokens are counted and not looked at.
    ///
    /// # Errors
    /// As [`Model::forward`]; [`Error::Argument`] if there is an embedding, [`Error::Shape`] or [`Error::Unsupported`] for rows of another number or
    /// width, or elsewhere.
    pub fn forward_hidden(
        &mut self,
        batch: &Batch<'_>,
        hidden: &Tensor,
        cache: &mut Cache,
    ) -> Result<&Tensor> {
        self.forward_hidden_observed(batch, hidden, cache, &mut Ignore)
    }

    /// As [`Model::forward_hidden`], showing intermediate results to `observer`.
    ///
    /// # Errors
    /// As [`Model::forward_hidden`].
    pub fn forward_hidden_observed(
        &mut self,
        batch: &Batch<'_>,
        hidden: &Tensor,
        cache: &mut Cache,
        observer: &mut dyn Observer,
    ) -> Result<&Tensor> {
        if self.weights.token_embd.is_some() {
            return Err(Error::argument("input", "tokens, for a model with an embedding", "rows"));
        }
        let n = batch.sequences().iter().map(|s| s.tokens.len()).sum();
        ops::expect("forward", "hidden", hidden, n, self.config.hidden_size)?;
        ops::on_one_device("forward", &[&self.device, hidden.device()])?;
        self.run(batch, Some(hidden), cache, observer)
    }

    /// A pass, of tokens or of `given` rows.
    fn run(
        &mut self,
        batch: &Batch<'_>,
        given: Option<&Tensor>,
        cache: &mut Cache,
        observer: &mut dyn Observer,
    ) -> Result<&Tensor> {
        self.check(batch, cache)?;
        let sequences = batch.sequences();
        cache.reserve(sequences.iter().map(|s| (s.seq, s.tokens.len())))?;
        let done = match self.decodes(batch) {
            true => self.decode(batch, given, cache, observer),
            false => self.steps(batch, given, cache, observer),
        };
        for s in sequences {
            match &done {
                Ok(()) => cache.commit(s.seq, s.tokens.len()),
                // Gives back what was reserved; the sequence is known, so this cannot fail.
                Err(_) => cache.truncate(s.seq, cache.len(s.seq)?)?,
            }
        }
        done.map(|()| &self.workspace.all_logits)
    }

    /// Most tokens of a step.
    pub(super) fn step_tokens(&self) -> usize {
        let default = if self.device.as_gpu().is_some() { STEP_TOKENS_GPU } else { STEP_TOKENS };
        self.options.step_tokens.unwrap_or(default)
    }

    /// Does something with the workspace. If memory of a GPU was taken meanwhile, by whomever, some of it may have moved, and graphs that hold
    /// what it was before are of no use any more.
    pub(super) fn noting_moves<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let allocations = |model: &Self| model.device.as_gpu().map_or(0, Gpu::allocations);
        let before = allocations(self);
        let done = work(self);
        if allocations(self) != before {
            self.memory = MemoryId::new();
        }
        done
    }

    fn check(&self, batch: &Batch<'_>, cache: &Cache) -> Result<()> {
        if !cache.fits(&self.config) {
            return Err(Error::argument("cache", "one made by this model", "one of other layers"));
        }
        let vocab = match self.weights.token_embd {
            Some(_) => self.config.vocab_size,
            None => usize::MAX, // nobody looks
        };
        if batch.sequences().is_empty() || batch.sequences().iter().any(|s| s.tokens.is_empty()) {
            return Err(Error::argument("batch", "at least one token of each sequence", "none"));
        }
        match batch.sequences().iter().flat_map(|s| s.tokens).find(|t| **t as usize >= vocab) {
            Some(t) => Err(Error::argument("token id", format!("below the vocabulary size {vocab}"), t)),
            None => Ok(()),
        }
    }

    /// Runs the batch in steps.
    fn steps(
        &mut self,
        batch: &Batch<'_>,
        given: Option<&Tensor>,
        cache: &mut Cache,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let most = self.step_tokens();
        // The first row of the step, of those that were given.
        let mut first = 0;
        self.workspace.all_logits.resize(0)?;
        self.workspace.begin(cache.capacity());
        for s in batch.sequences() {
            let wanted = s.logits.range(s.tokens.len());
            let mut at = 0;
            while at < s.tokens.len() {
                if self.workspace.tokens.len() == most {
                    self.step(given.map(|rows| (rows, first)), cache, observer)?;
                    first += self.workspace.tokens.len();
                    self.workspace.begin(cache.capacity());
                }
                let (pages, len) = cache.table(s.seq)?;
                let end = s.tokens.len().min(at + most - self.workspace.tokens.len());
                self.workspace.push(&s.tokens[at..end], len + at, pages, |i| wanted.contains(&(at + i)))?;
                at = end;
            }
        }
        self.step(given.map(|rows| (rows, first)), cache, observer)
    }

    /// A step of the rows in the workspace; their input may be given, from a row on.
    fn step(
        &mut self,
        given: Option<(&Tensor, usize)>,
        cache: &mut Cache,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let sparse = self.selects();
        self.noting_moves(|model| {
            model.workspace.resize(cache.capacity())?;
            model.workspace.upload(&model.device)?;
            if let Some((rows, first)) = given {
                let m = model.workspace.tokens.len();
                model.workspace.x.copy_rows(0, rows, first..first + m)?;
            }
            model.layers(cache, observer, sparse)
        })?;
        self.counters.count(&self.config, &self.workspace.rows, self.workspace.tokens.len(), sparse);
        self.count_logits(self.workspace.wanted.len());
        Ok(())
    }

    /// Counts rows of logits, if that is what comes out.
    pub(super) fn count_logits(&mut self, rows: usize) {
        if self.weights.output.is_some() {
            self.counters.logits += rows as u64;
        }
    }

    /// Whether rows of the workspace see more keys than are selected.
    fn selects(&self) -> bool {
        self.options.attention == Attention::Sparse
            && self.workspace.rows.max_visible() > self.config.index_topk
    }

    /// All layers for the rows in the workspace, which has room for them, and whose copies are where the model is. Without an embedding their input
    /// is there.
    pub(super) fn layers(
        &mut self,
        cache: &mut Cache,
        observer: &mut dyn Observer,
        sparse: bool,
    ) -> Result<()> {
        let Model { config: c, weights, workspace: ws, options, .. } = self;
        let precision = options.precision;
        let eps = c.rms_norm_eps;
        if let Some(table) = &weights.token_embd {
            embedding_of(table, &ws.tokens_there, &mut ws.x)?;
        }
        observer.see(Event::Embedding(&ws.x));
        rope_angles(c.rope_theta, &ws.rows, &mut ws.angles)?;
        // What comes behind each layer: a norm, and what its output is rounded for. The head takes some of its rows.
        let next = weights.layers.iter().skip(1).map(|l| (&l.attn_norm, l.rounded()));
        let after = next.chain([(&weights.output_norm, Rounded::default())]);
        let first = &weights.layers[0];
        rms_norm_into(&mut ws.x, None, &first.attn_norm, eps, &mut ws.h, first.rounded())?;
        for (i, (layer, (norm_after, rounded_after))) in weights.layers.iter().zip(after).enumerate() {
            let caches = (&mut cache.latent[i], cache.index[i].as_mut());
            attention_input(c, layer, ws, caches, precision, sparse || observer.wants_indexer())?;
            if let (Some(_), Some(keys)) = (&layer.indexer, &cache.index[i])
                && (sparse || observer.wants_indexer())
            {
                let (scale, scratch, out) = (c.index_scale(), &mut ws.indexer_scratch, &mut ws.selection);
                indexer_select(&ws.q_idx, &ws.w_idx, keys, &ws.rows, scale, scratch, out, precision)?;
                observer.see(Event::Indexer {
                    layer: i,
                    q: &ws.q_idx,
                    w: &ws.w_idx,
                    keys,
                    rows: &ws.rows,
                    selection: &ws.selection,
                });
            }
            let selected = sparse.then_some(&ws.selection);
            let memory = MlaOptions { scratch: ws.mla_scratch.as_mut(), ..MlaOptions::default() };
            mla_attention_with(memory, &ws.q_abs, &cache.latent[i], &ws.rows, selected, &ws.mla, &mut ws.u)?;
            let (u, o, tiled) = (&mut ws.u_rounded, &mut ws.o, layer.output.is_tiled());
            head_linear_into(&layer.v_b, &ws.u, ws.u_heads, u, o, ws.o_heads, tiled, precision)?;
            linear_from(&[&layer.output], &mut ws.o, &mut [&mut ws.r], &mut [], precision)?;
            observer.see(Event::Attention { layer: i, out: &ws.r });

            let rounded = layer.ffn.rounded(ws.tokens.len());
            rms_norm_into(&mut ws.x, Some(&ws.r), &layer.ffn_norm, eps, &mut ws.h, rounded)?;
            match &layer.ffn {
                LayerFfn::Dense(w) => ffn_from(w, &mut ws.h, &mut ws.ffn, &mut ws.r, precision)?,
                LayerFfn::Moe { router: w, bias, experts, shared } => {
                    router(w, bias, ws.h.values(), &c.router, &mut ws.routing)?;
                    observer.see(Event::Routing { layer: i, routing: &ws.routing });
                    let memory = MoeOptions { scratch: ws.moe.as_mut(), ..MoeOptions::default() };
                    let (h, shared) = (&mut ws.h, shared.as_ref());
                    moe_from(memory, experts, shared, h, &ws.routing, &mut ws.r, precision)?;
                }
            }
            rms_norm_into(&mut ws.x, Some(&ws.r), norm_after, eps, &mut ws.h, rounded_after)?;
            observer.see(Event::Layer { layer: i, x: &ws.x });
        }
        if weights.output.is_some() {
            observer.see(Event::Final(ws.h.values()));
        }

        if ws.wanted.is_empty() {
            return Ok(());
        }
        let (rows, first) = (&ws.wanted_there, ws.all_logits.rows() == 0);
        let out = if first { &mut ws.all_logits } else { &mut ws.logits };
        match &weights.output {
            Some(head) => logits_of(head, ws.h.values(), rows, &mut ws.gathered, out, precision)?,
            None => chosen_rows(&ws.x, rows, out)?,
        }
        if first { Ok(()) } else { ws.all_logits.append(&ws.logits) }
    }
}

impl Layer {
    /// What the normed stream is rounded for in front of it.
    fn rounded(&self) -> Rounded {
        let k = self.indexer.as_ref().map(|indexer| &indexer.k);
        let tiles = [&self.q_a, &self.kv_a].into_iter().chain(k).any(Matrix::is_tiled);
        Rounded { tiles, rows: false }
    }
}

impl LayerFfn {
    /// The same, of `m` tokens.
    fn rounded(&self, m: usize) -> Rounded {
        match self {
            LayerFfn::Dense(w) => Rounded { tiles: w.gate().is_tiled() || w.up().is_tiled(), rows: false },
            LayerFfn::Moe { experts, shared, .. } => moe::takes(experts, shared.as_ref(), m),
        }
    }
}

/// From the normed stream `h` to what attention needs: absorbed and rotated queries in `q_abs`, latent rows and, on full layers, the
/// indexer's keys in their caches; `with_queries` the indexer's queries and weights in `q_idx` and `w_idx`.
fn attention_input(
    c: &Config,
    layer: &Layer,
    ws: &mut Workspace,
    (latent, keys): (&mut PagedRows, Option<&mut PagedRows>),
    precision: Precision,
    with_queries: bool,
) -> Result<()> {
    let Layer { q_a, kv_a, q_b, k_b, .. } = layer;
    let queries = layer.indexer.as_ref().filter(|_| with_queries);
    let from_h = |ws: &[&Matrix], outs: &mut [&mut Tensor], h: &mut LinearInput| {
        linear_from(ws, h, outs, &mut [], precision)
    };
    match (&layer.indexer, queries) {
        (_, Some(Indexer { k, proj, .. })) => {
            let outs = &mut [&mut ws.q_a, &mut ws.kv, &mut ws.k_idx, &mut ws.w_idx];
            from_h(&[q_a, kv_a, k, proj], outs, &mut ws.h)?;
        }
        (Some(Indexer { k, .. }), None) => {
            let outs = &mut [&mut ws.q_a, &mut ws.kv, &mut ws.k_idx];
            from_h(&[q_a, kv_a, k], outs, &mut ws.h)?;
        }
        (None, _) => from_h(&[q_a, kv_a], &mut [&mut ws.q_a, &mut ws.kv], &mut ws.h)?,
    }
    let input = PostA {
        q_a: &ws.q_a,
        q_norm: &layer.q_a_norm,
        kv_a: &ws.kv,
        kv_norm: &layer.kv_a_norm,
        eps: c.rms_norm_eps,
        angles: &ws.angles,
        rows: &ws.rows,
    };
    let index = layer.indexer.as_ref().zip(keys).map(|(indexer, cache)| IndexKeys {
        x: &ws.k_idx,
        norm: &indexer.k_norm,
        bias: &indexer.k_norm_bias,
        eps: INDEX_NORM_EPS,
        cache,
    });
    let tiled = q_b.is_tiled() || layer.indexer.as_ref().is_some_and(|indexer| indexer.q_b.is_tiled());
    let InputForms { values, tiles, .. } = ws.qr.forms_mut(Rounded { tiles: tiled, rows: false })?;
    post_a(&input, Some(values), tiles, latent, index)?;
    let pe = Rotated {
        matrix: 0,
        heads: ws.pe_heads,
        angles: &ws.angles,
        to: Some((&mut ws.q_abs, ws.absorbed_pe_heads)),
    };
    let index = Rotated { matrix: 1, heads: ws.index_rope_heads, angles: &ws.angles, to: None };
    match queries {
        Some(indexer) => {
            let outs = &mut [&mut ws.q, &mut ws.q_idx];
            linear_from(&[q_b, &indexer.q_b], &mut ws.qr, outs, &mut [pe, index], precision)?
        }
        None => linear_from(&[q_b], &mut ws.qr, &mut [&mut ws.q], &mut [pe], precision)?,
    }
    let (q, q_abs) = (&mut ws.q_rounded, &mut ws.q_abs);
    head_linear_from(k_b, &ws.q, ws.nope_heads, q, q_abs, ws.absorbed_heads, precision)
}
