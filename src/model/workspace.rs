//! What a step is about, and its intermediate results. Memory once grown is kept.

use super::config::Config;
use crate::error::Result;
use crate::ops::dsa_indexer::IndexerScratch;
use crate::ops::dsa_topk::Selection;
use crate::ops::ffn::FfnScratch;
use crate::ops::linear::{HeadScratch, LinearInput};
use crate::ops::mla_attention::{MlaConfig, MlaScratch};
use crate::ops::moe::MoeScratch;
use crate::ops::router::Routing;
use crate::tensor::{Device, Heads, RaggedRows, Tensor};

/// Rows of the step in progress, intermediate results, and the head layouts of both.
pub(super) struct Workspace {
    pub tokens: Vec<u32>,
    pub rows: RaggedRows,
    /// Rows of the step that want logits.
    pub wanted: Vec<u32>,
    /// Both where the model is.
    pub tokens_there: Tensor<u32>,
    pub wanted_there: Tensor<u32>,
    pub mla: MlaConfig,
    /// Of `q`: the parts without and with rotation.
    pub nope_heads: Heads,
    pub pe_heads: Heads,
    /// Of `q_abs`: the same two.
    pub absorbed_heads: Heads,
    pub absorbed_pe_heads: Heads,
    /// Of `q_idx`: the rotated part.
    pub index_rope_heads: Heads,
    /// Of `u` and `o`: whole heads.
    pub u_heads: Heads,
    pub o_heads: Heads,
    /// Residual stream.
    pub x: Tensor,
    /// Normed stream.
    pub h: LinearInput,
    /// Output of a block.
    pub r: Tensor,
    pub angles: Tensor,
    /// Latent queries, and the same normed.
    pub q_a: Tensor,
    pub qr: LinearInput,
    pub kv: Tensor,
    pub q: Tensor,
    pub q_abs: Tensor,
    pub u: Tensor,
    pub o: LinearInput,
    /// Parts of heads of `q` and `u`, rounded.
    pub q_rounded: HeadScratch,
    pub u_rounded: HeadScratch,
    pub k_idx: Tensor,
    pub w_idx: Tensor,
    pub q_idx: Tensor,
    pub selection: Selection,
    pub indexer_scratch: IndexerScratch,
    pub routing: Routing,
    /// Memory of operations on a GPU.
    pub mla_scratch: Option<MlaScratch>,
    pub moe: Option<MoeScratch>,
    pub ffn: FfnScratch,
    pub gathered: LinearInput,
    pub logits: Tensor,
    /// Logits of all steps of a batch; without a head rows of `x`.
    pub all_logits: Tensor,
}

impl Workspace {
    pub fn new(c: &Config, head: bool, device: &Device) -> Result<Self> {
        let outputs = if head { c.vocab_size } else { c.hidden_size };
        let tensor = |cols| Tensor::zeros(device, 0, cols);
        let input = |cols| LinearInput::new(device, cols);
        let on_gpu = device.as_gpu().is_some();
        let (n, qk, latent) = (c.n_heads, c.qk_head_dim(), c.latent_width());
        let (nope, pe, rank) = (c.qk_nope_head_dim, c.qk_rope_head_dim, c.kv_lora_rank);
        let nope_heads = Heads { n, stride: qk, offset: 0, len: nope };
        let u_heads = Heads { n, stride: rank, offset: 0, len: rank };
        Ok(Workspace {
            tokens: Vec::new(),
            rows: RaggedRows::default(),
            wanted: Vec::new(),
            tokens_there: Tensor::zeros(device, 0, 1)?,
            wanted_there: Tensor::zeros(device, 0, 1)?,
            mla: MlaConfig { n_heads: n, kv_lora_rank: rank, qk_rope_head_dim: pe, sm_scale: c.sm_scale() },
            nope_heads,
            pe_heads: Heads { n, stride: qk, offset: nope, len: pe },
            absorbed_heads: Heads { n, stride: latent, offset: 0, len: rank },
            absorbed_pe_heads: Heads { n, stride: latent, offset: rank, len: pe },
            index_rope_heads: Heads { n: c.index_n_heads, stride: c.index_head_dim, offset: 0, len: pe },
            u_heads,
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
            q_rounded: HeadScratch::new(device, nope_heads)?,
            u_rounded: HeadScratch::new(device, u_heads)?,
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
            logits: tensor(outputs)?,
            all_logits: tensor(outputs)?,
        })
    }

    /// Starts a step; `capacity` tokens of page table are the most it can need.
    pub fn begin(&mut self, capacity: usize) {
        self.tokens.clear();
        self.wanted.clear();
        self.rows.clear();
        self.rows.reserve(capacity);
    }

    /// Adds a piece of a sequence; `wanted(i)` says whether its token `i` wants logits.
    pub fn push(
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
    pub fn upload(&mut self, device: &Device) -> Result<()> {
        self.upload_tokens()?;
        self.rows.upload(device)
    }

    /// The same but for the rows.
    pub fn upload_tokens(&mut self) -> Result<()> {
        self.tokens_there.assign(&self.tokens)?;
        self.wanted_there.assign(&self.wanted)
    }

    /// Gives all intermediate results the rows of the step; a selection only if the cache can hold more than it selects.
    pub fn resize(&mut self, capacity: usize) -> Result<()> {
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
