//! The forward pass: a thin graph over [`crate::ops`].

use std::path::Path;

use super::batch::Batch;
use super::cache::Cache;
use super::config::{Config, INDEX_NORM_EPS, IndexerKind};
use super::counters::{Counters, LayerCounters};
use super::observe::{Event, Ignore, Observer};
use super::report::LoadReport;
use super::weights::{self, Indexer, Layer, LayerFfn, Weights};
use crate::error::{Error, Result};
use crate::gguf::Gguf;
use crate::ops::dsa_indexer::{IndexerScratch, indexer_select};
use crate::ops::dsa_topk::Selection;
use crate::ops::embedding::embedding_of;
use crate::ops::ffn::{FfnScratch, ffn_from};
use crate::ops::linear::{LinearInput, Rotated, head_linear, linear_from};
use crate::ops::logits::logits_of;
use crate::ops::mla_attention::{MlaConfig, MlaOptions, MlaScratch, mla_attention_with};
use crate::ops::moe::{MoeOptions, MoeScratch, moe_with};
use crate::ops::norm::{add_rms_norm, rms_norm};
use crate::ops::post_a::{IndexKeys, PostA, post_a};
use crate::ops::rope::rope_angles;
use crate::ops::router::{Routing, router};
use crate::tensor::{CacheType, Device, Heads, Matrix, PagedRows, Precision, RaggedRows, Tensor};

/// Tokens computed at a time: bounds the workspace, fills the GEMM tiles.
const STEP_TOKENS: usize = 512;

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
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadOptions {
    /// Numerics of the quantized linear layers.
    pub precision: Precision,
    /// Sparse, or dense for comparison.
    pub attention: Attention,
}

/// A loaded model with its workspace. Sequences live in [`Cache`]s, of which there may be several.
pub struct Model {
    config: Config,
    report: LoadReport,
    device: Device,
    options: LoadOptions,
    weights: Weights,
    workspace: Workspace,
    counters: Counters,
}

impl Model {
    /// Opens a file (any shard of a split set) and loads it.
    ///
    /// # Errors
    /// What is wrong with the file: [`Error::Io`], [`Error::File`], [`Error::Ledger`], [`Error::Unsupported`].
    pub fn open(path: impl AsRef<Path>, device: &Device, options: &LoadOptions) -> Result<Self> {
        Self::load(&Gguf::open(path)?, device, options, &mut |_, _| {})
    }

    /// Loads a file that is open already; `progress` is told how many layers are done, and of how many.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn load(
        gguf: &Gguf,
        device: &Device,
        options: &LoadOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let report = LoadReport::new(gguf)?;
        let config = report.config.clone();
        let weights = weights::load(gguf, &config, device, options.precision, progress)?;
        Ok(Model {
            workspace: Workspace::new(&config, device)?,
            counters: Counters::new(config.n_layers),
            config,
            report,
            device: device.clone(),
            options: *options,
            weights,
        })
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
    /// the batch. How sequences are cut into batches, and what else a batch holds,
    /// changes results only by f32 rounding; under [`Precision::Fast`] by more, since an activation may go to the other of
    /// two int8 steps.
    ///
    /// # Errors
    /// [`Error::Argument`] for an empty batch, empty, unknown or repeated sequences, unknown tokens; [`Error::Capacity`] if
    /// cache or context are too small. Sequences are unchanged after an error.
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
        self.check(batch, cache)?;
        let sequences = batch.sequences();
        cache.reserve(sequences.iter().map(|s| (s.seq, s.tokens.len())))?;
        let done = self.steps(batch, cache, observer);
        for s in sequences {
            match &done {
                Ok(()) => cache.commit(s.seq, s.tokens.len()),
                // Gives back what was reserved; the sequence is known, so this cannot fail.
                Err(_) => cache.truncate(s.seq, cache.len(s.seq)?)?,
            }
        }
        done.map(|()| &self.workspace.all_logits)
    }

    fn check(&self, batch: &Batch<'_>, cache: &Cache) -> Result<()> {
        if !cache.fits(&self.config) {
            return Err(Error::argument("cache", "one made by this model", "one of other layers"));
        }
        let vocab = self.config.vocab_size;
        if batch.sequences().is_empty() || batch.sequences().iter().any(|s| s.tokens.is_empty()) {
            return Err(Error::argument("batch", "at least one token of each sequence", "none"));
        }
        match batch.sequences().iter().flat_map(|s| s.tokens).find(|t| **t as usize >= vocab) {
            Some(t) => Err(Error::argument("token id", format!("below the vocabulary size {vocab}"), t)),
            None => Ok(()),
        }
    }

    /// Runs the batch in steps of at most [`STEP_TOKENS`] rows.
    fn steps(&mut self, batch: &Batch<'_>, cache: &mut Cache, observer: &mut dyn Observer) -> Result<()> {
        self.workspace.all_logits.resize(0)?;
        self.workspace.begin(cache.capacity());
        for s in batch.sequences() {
            let wanted = s.logits.range(s.tokens.len());
            let mut at = 0;
            while at < s.tokens.len() {
                if self.workspace.tokens.len() == STEP_TOKENS {
                    self.step(cache, observer)?;
                    self.workspace.begin(cache.capacity());
                }
                let (pages, len) = cache.table(s.seq)?;
                let end = s.tokens.len().min(at + STEP_TOKENS - self.workspace.tokens.len());
                self.workspace.push(&s.tokens[at..end], len + at, pages, |i| wanted.contains(&(at + i)))?;
                at = end;
            }
        }
        self.step(cache, observer)
    }

    /// All layers for the rows in the workspace.
    fn step(&mut self, cache: &mut Cache, observer: &mut dyn Observer) -> Result<()> {
        let Model { config: c, weights, workspace: ws, counters, options, device, .. } = self;
        let precision = options.precision;
        let eps = c.rms_norm_eps;
        ws.resize(cache.capacity())?;
        let sparse = options.attention == Attention::Sparse && ws.rows.max_visible() > c.index_topk;
        counters.steps += 1;
        counters.tokens += ws.rows.len() as u64;

        ws.upload(device)?;
        embedding_of(&weights.token_embd, &ws.tokens_there, &mut ws.x)?;
        observer.see(Event::Embedding(&ws.x));
        rope_angles(c.rope_theta, &ws.rows, &mut ws.angles)?;
        let norms_after = weights.layers.iter().skip(1).map(|l| &l.attn_norm).chain([&weights.output_norm]);
        rms_norm(&ws.x, &weights.layers[0].attn_norm, eps, ws.h.values_mut())?;
        for (i, (layer, norm_after)) in weights.layers.iter().zip(norms_after).enumerate() {
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
            head_linear(&layer.v_b, &ws.u, ws.u_heads, ws.o.values_mut(), ws.o_heads, precision)?;
            linear_from(&[&layer.output], &mut ws.o, &mut [&mut ws.r], &mut [], precision)?;
            observer.see(Event::Attention { layer: i, out: &ws.r });
            count(&mut counters.layers[i], c.indexers[i], &ws.rows, selected);

            add_rms_norm(&mut ws.x, &ws.r, &layer.ffn_norm, eps, ws.h.values_mut())?;
            match &layer.ffn {
                LayerFfn::Dense(w) => ffn_from(w, &mut ws.h, &mut ws.ffn, &mut ws.r, precision)?,
                LayerFfn::Moe { router: w, bias, experts, shared } => {
                    let h = ws.h.values();
                    router(w, bias, h, &c.router, &mut ws.routing)?;
                    observer.see(Event::Routing { layer: i, routing: &ws.routing });
                    let memory = MoeOptions { scratch: ws.moe.as_mut(), ..MoeOptions::default() };
                    moe_with(memory, experts, shared.as_ref(), h, &ws.routing, &mut ws.r, precision)?;
                }
            }
            add_rms_norm(&mut ws.x, &ws.r, norm_after, eps, ws.h.values_mut())?;
            observer.see(Event::Layer { layer: i, x: &ws.x });
        }
        observer.see(Event::Final(ws.h.values()));

        counters.logits += ws.wanted.len() as u64;
        if ws.wanted.is_empty() {
            return Ok(());
        }
        let (head, rows) = (&weights.output, &ws.wanted_there);
        if ws.all_logits.rows() == 0 {
            return logits_of(head, ws.h.values(), rows, &mut ws.gathered, &mut ws.all_logits, precision);
        }
        logits_of(head, ws.h.values(), rows, &mut ws.gathered, &mut ws.logits, precision)?;
        ws.all_logits.append(&ws.logits)
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
    let (qr, qr_tiles) = ws.qr.both_mut(tiled)?;
    post_a(&input, Some(qr), qr_tiles, latent, index)?;
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
    head_linear(k_b, &ws.q, ws.nope_heads, &mut ws.q_abs, ws.absorbed_heads, precision)
}

/// What a layer attended to. A selection has all keys that a row sees, or as many of them as there is room for.
fn count(counters: &mut LayerCounters, kind: IndexerKind, rows: &RaggedRows, selected: Option<&Selection>) {
    let most = selected.map_or(usize::MAX, Selection::k);
    for t in 0..rows.len() {
        let visible = rows.visible(t);
        let keys = visible.min(most);
        counters.visible += visible as u64;
        counters.keys += keys as u64;
        match kind {
            _ if keys == visible => counters.dense += 1,
            IndexerKind::Full => counters.full_sparse += 1,
            IndexerKind::Shared => counters.shared_sparse += 1,
        }
    }
}

/// Rows of the step in progress, intermediate results, and the head layouts of both.
struct Workspace {
    tokens: Vec<u32>,
    rows: RaggedRows,
    /// Rows of the step that want logits.
    wanted: Vec<u32>,
    /// Both where the model is.
    tokens_there: Tensor<u32>,
    wanted_there: Tensor<u32>,
    mla: MlaConfig,
    /// Of `q`: the parts without and with rotation.
    nope_heads: Heads,
    pe_heads: Heads,
    /// Of `q_abs`: the same two.
    absorbed_heads: Heads,
    absorbed_pe_heads: Heads,
    /// Of `q_idx`: the rotated part.
    index_rope_heads: Heads,
    /// Of `u` and `o`: whole heads.
    u_heads: Heads,
    o_heads: Heads,
    /// Residual stream.
    x: Tensor,
    /// Normed stream.
    h: LinearInput,
    /// Output of a block.
    r: Tensor,
    angles: Tensor,
    /// Latent queries, and the same normed.
    q_a: Tensor,
    qr: LinearInput,
    kv: Tensor,
    q: Tensor,
    q_abs: Tensor,
    u: Tensor,
    o: LinearInput,
    k_idx: Tensor,
    w_idx: Tensor,
    q_idx: Tensor,
    selection: Selection,
    indexer_scratch: IndexerScratch,
    routing: Routing,
    /// Memory of operations on a GPU.
    mla_scratch: Option<MlaScratch>,
    moe: Option<MoeScratch>,
    ffn: FfnScratch,
    gathered: LinearInput,
    logits: Tensor,
    /// Logits of all steps of a batch.
    all_logits: Tensor,
}

impl Workspace {
    fn new(c: &Config, device: &Device) -> Result<Self> {
        let tensor = |cols| Tensor::zeros(device, 0, cols);
        let input = |cols| LinearInput::new(device, cols);
        let on_gpu = device.gpu().is_ok();
        let (n, qk, latent) = (c.n_heads, c.qk_head_dim(), c.latent_width());
        let (nope, pe, rank) = (c.qk_nope_head_dim, c.qk_rope_head_dim, c.kv_lora_rank);
        Ok(Workspace {
            tokens: Vec::new(),
            rows: RaggedRows::default(),
            wanted: Vec::new(),
            tokens_there: Tensor::zeros(device, 0, 1)?,
            wanted_there: Tensor::zeros(device, 0, 1)?,
            mla: MlaConfig { n_heads: n, kv_lora_rank: rank, qk_rope_head_dim: pe, sm_scale: c.sm_scale() },
            nope_heads: Heads { n, stride: qk, offset: 0, len: nope },
            pe_heads: Heads { n, stride: qk, offset: nope, len: pe },
            absorbed_heads: Heads { n, stride: latent, offset: 0, len: rank },
            absorbed_pe_heads: Heads { n, stride: latent, offset: rank, len: pe },
            index_rope_heads: Heads { n: c.index_n_heads, stride: c.index_head_dim, offset: 0, len: pe },
            u_heads: Heads { n, stride: rank, offset: 0, len: rank },
            o_heads: Heads { n, stride: c.v_head_dim, offset: 0, len: c.v_head_dim },
            x: tensor(c.hidden_size)?,
            h: input(c.hidden_size)?,
            r: tensor(c.hidden_size)?,
            angles: tensor(pe)?,
            q_a: tensor(c.q_lora_rank)?,
            qr: input(c.q_lora_rank)?,
            kv: tensor(latent)?,
            q: tensor(n * qk)?,
            q_abs: tensor(n * latent)?,
            u: tensor(n * rank)?,
            o: input(n * c.v_head_dim)?,
            k_idx: tensor(c.index_head_dim)?,
            w_idx: tensor(c.index_n_heads)?,
            q_idx: tensor(c.index_n_heads * c.index_head_dim)?,
            selection: Selection::new(device, c.index_topk)?,
            indexer_scratch: IndexerScratch::new(device)?,
            routing: Routing::new(device, c.n_routed_experts, c.router.n_experts_per_tok)?,
            mla_scratch: if on_gpu { Some(MlaScratch::new(device)?) } else { None },
            moe: if on_gpu { Some(MoeScratch::new(device)?) } else { None },
            ffn: FfnScratch::new(device, c.intermediate_size)?,
            gathered: input(c.hidden_size)?,
            logits: tensor(c.vocab_size)?,
            all_logits: tensor(c.vocab_size)?,
        })
    }

    /// Starts a step; `capacity` tokens of page table are the most it can need.
    fn begin(&mut self, capacity: usize) {
        self.tokens.clear();
        self.wanted.clear();
        self.rows.clear();
        self.rows.reserve(capacity);
    }

    /// Adds a piece of a sequence; `wanted(i)` says whether its token `i` wants logits.
    fn push(
        &mut self,
        tokens: &[u32],
        start: usize,
        pages: &[u32],
        wanted: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let first = self.tokens.len();
        self.rows.push(start, tokens.len(), pages)?;
        self.tokens.extend_from_slice(tokens);
        self.wanted.extend((0..tokens.len()).filter(|i| wanted(*i)).map(|i| (first + i) as u32));
        Ok(())
    }

    /// Brings what the step is about to the device.
    fn upload(&mut self, device: &Device) -> Result<()> {
        self.tokens_there.assign(&self.tokens)?;
        self.wanted_there.assign(&self.wanted)?;
        self.rows.upload(device)
    }

    /// Gives all intermediate results the rows of the step; a selection only if the cache can hold more than it selects.
    fn resize(&mut self, capacity: usize) -> Result<()> {
        let m = self.tokens.len();
        let Workspace {
            x, h, r, angles, q_a, qr, kv, q, q_abs, u, o, k_idx, w_idx, q_idx, selection, ..
        } = self;
        for t in [x, r, angles, q_a, kv, q, q_abs, u, k_idx, w_idx, q_idx] {
            t.resize(m)?;
        }
        for t in [h, qr, o] {
            t.resize(m)?;
        }
        if capacity > selection.k() { selection.resize(m) } else { Ok(()) }
    }
}
