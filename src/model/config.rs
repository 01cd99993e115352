//! Hyperparameters from the file's metadata, checked before anything is built on them.

use serde::Serialize;

use crate::error::{Error, Result};
use crate::gguf::{Gguf, Metadata, OneOrMany, Value};
use crate::ops::router::{Gating, RouterConfig};

/// The one architecture that this crate runs.
pub const ARCHITECTURE: &str = "glm-dsa";

/// Eps of the indexer's LayerNorm; no key holds it.
pub const INDEX_NORM_EPS: f32 = 1e-6;

/// Context lengths from here on mean GLM-5.2's sharing of indexers where the file does not say.
const SHARED_INDEXER_CONTEXT: usize = 1 << 20;

/// No width, count or vocabulary of a sane file exceeds this; products of two fit 64 bits easily.
const MAX_EXTENT: usize = 1 << 24;

/// No model of this family has nearly as many blocks; names are requested for each before the tensors are looked at.
const MAX_BLOCKS: usize = 1 << 12;

/// Room for a selection is taken for every row of a step: 512 rows of this are 128 MiB.
const MAX_TOPK: usize = 1 << 16;

/// Where a layer's selected keys come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexerKind {
    /// Its own indexer.
    Full,
    /// The selection of the nearest full layer below, for the same query token.
    Shared,
}

/// Hyperparameters, by the names of the model's papers and config files.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)] // the names are the documentation; keys and meanings stand in `from_gguf`
pub struct Config {
    pub name: Option<String>,
    /// Trunk layers: blocks without the MTP ones.
    pub n_layers: usize,
    /// MTP blocks behind the trunk.
    pub n_nextn_layers: usize,
    pub context_length: usize,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub first_k_dense_replace: usize,
    pub moe_intermediate_size: usize,
    pub n_routed_experts: usize,
    pub n_shared_experts: usize,
    pub router: RouterConfig,
    pub n_heads: usize,
    pub q_lora_rank: usize,
    pub kv_lora_rank: usize,
    pub qk_nope_head_dim: usize,
    pub qk_rope_head_dim: usize,
    pub v_head_dim: usize,
    pub rms_norm_eps: f32,
    pub rope_theta: f32,
    pub index_n_heads: usize,
    pub index_head_dim: usize,
    pub index_topk: usize,
    /// For each trunk layer.
    pub indexers: Vec<IndexerKind>,
    /// Decisions that the file left open, one sentence each.
    pub assumptions: Vec<String>,
}

impl Config {
    /// Reads and checks the hyperparameters.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for another architecture (by name, with the reason) or a feature that the forward pass lacks;
    /// [`Error::File`] naming the key for what is missing, of the wrong type or out of range.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let meta = gguf.metadata();
        let architecture: &str = meta.require("general.architecture")?;
        check_architecture(architecture)?;
        let mut keys = Keys { meta, assumptions: Vec::new() };

        let blocks = keys.extent_up_to("block_count", 1, MAX_BLOCKS)?;
        let n_nextn_layers = keys.count_or("nextn_predict_layers", 0)?;
        if n_nextn_layers >= blocks {
            let found = format!("expected fewer than the {blocks} blocks, found {n_nextn_layers}");
            return Err(keys.error("nextn_predict_layers", found));
        }
        let n_layers = blocks - n_nextn_layers;
        let qk_rope_head_dim = keys.extent("rope.dimension_count", 2)?;
        let key_length = keys.extent("attention.key_length_mla", qk_rope_head_dim + 1)?;
        let kv_lora_rank = keys.extent("attention.kv_lora_rank", 1)?;
        let n_routed_experts = keys.extent("expert_count", 1)?;
        let context_length = keys.extent_up_to("context_length", 1, 1 << 31)?;
        let config = Config {
            name: meta.get::<&str>("general.name")?.map(str::to_owned),
            n_layers,
            n_nextn_layers,
            context_length,
            vocab_size: keys.vocab_size()?,
            hidden_size: keys.extent("embedding_length", 1)?,
            intermediate_size: keys.extent("feed_forward_length", 1)?,
            first_k_dense_replace: keys.count("leading_dense_block_count")?.min(n_layers),
            moe_intermediate_size: keys.moe_intermediate_size(n_layers)?,
            n_routed_experts,
            n_shared_experts: keys.count("expert_shared_count")?,
            router: keys.router(n_routed_experts)?,
            n_heads: keys.extent("attention.head_count", 1)?,
            q_lora_rank: keys.extent("attention.q_lora_rank", 1)?,
            kv_lora_rank,
            qk_nope_head_dim: key_length - qk_rope_head_dim,
            qk_rope_head_dim,
            v_head_dim: keys.extent("attention.value_length_mla", 1)?,
            rms_norm_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
            rope_theta: keys.positive("rope.freq_base")?,
            index_n_heads: keys.extent("attention.indexer.head_count", 1)?,
            index_head_dim: keys.extent("attention.indexer.key_length", qk_rope_head_dim)?,
            index_topk: keys.extent_up_to("attention.indexer.top_k", 1, MAX_TOPK)?,
            indexers: keys.indexers(gguf, n_layers, context_length)?,
            assumptions: Vec::new(),
        };
        if !qk_rope_head_dim.is_multiple_of(2) {
            let found = format!("expected an even width, found {qk_rope_head_dim}");
            return Err(keys.error("rope.dimension_count", found));
        }
        keys.must_be("attention.head_count_kv", 1, "absorbed attention has one latent head")?;
        keys.must_be(
            "attention.key_length",
            kv_lora_rank + qk_rope_head_dim,
            "a cache row is latent + rotated key",
        )?;
        keys.must_be("attention.value_length", kv_lora_rank, "the values are the latent")?;
        keys.no_rope_scaling()?;
        Ok(Config { assumptions: keys.assumptions, ..config })
    }

    /// Width of a latent cache row.
    pub fn latent_width(&self) -> usize {
        self.kv_lora_rank + self.qk_rope_head_dim
    }

    /// Width of a query head before absorption.
    pub fn qk_head_dim(&self) -> usize {
        self.qk_nope_head_dim + self.qk_rope_head_dim
    }

    /// Softmax scale of the main attention, absorbed or not.
    pub fn sm_scale(&self) -> f32 {
        1.0 / (self.qk_head_dim() as f32).sqrt()
    }

    /// Scale of the indexer's scores.
    pub fn index_scale(&self) -> f32 {
        1.0 / ((self.index_n_heads * self.index_head_dim) as f32).sqrt()
    }

    /// Layers that own an indexer.
    pub fn n_full_indexers(&self) -> usize {
        self.indexers.iter().filter(|k| **k == IndexerKind::Full).count()
    }

    /// Bytes per token of all caches, with `bytes` per value.
    pub fn cache_bytes_per_token(&self, bytes: usize) -> usize {
        (self.latent_width() * self.n_layers + self.index_head_dim * self.n_full_indexers()) * bytes
    }
}

fn check_architecture(name: &str) -> Result<()> {
    let reason = match name {
        ARCHITECTURE => return Ok(()),
        "glm5-next" | "glm5next" => {
            "GLM-5.3-Flash is another model (linear attention layers, several residual streams); this crate runs GLM-5, \
             5.1, 5.2 and 5.3, architecture glm-dsa"
        }
        "deepseek2" => "it has the same family of attention but no indexer (DeepSeek, GLM-4.7-Flash)",
        "deepseek32" => "DeepSeek-V3.2 rotates its indexer differently",
        _ => "this crate runs GLM-5, 5.1, 5.2 and 5.3, architecture glm-dsa",
    };
    Err(Error::unsupported(format!("architecture {}", name.escape_debug()), reason))
}

/// The keys of the architecture, read by their name without prefix.
struct Keys<'a> {
    meta: &'a Metadata,
    assumptions: Vec<String>,
}

impl Keys<'_> {
    fn key(name: &str) -> String {
        format!("{ARCHITECTURE}.{name}")
    }

    fn error(&self, name: &str, message: impl Into<String>) -> Error {
        Error::key(self.meta.file(), &Self::key(name), message)
    }

    fn assume(&mut self, sentence: String) {
        self.assumptions.push(sentence);
    }

    fn extent(&self, name: &str, least: usize) -> Result<usize> {
        self.extent_up_to(name, least, MAX_EXTENT)
    }

    fn extent_up_to(&self, name: &str, least: usize, most: usize) -> Result<usize> {
        let n: usize = self.meta.require(&Self::key(name))?;
        if (least..=most).contains(&n) {
            return Ok(n);
        }
        Err(self.error(name, format!("expected {least} to {most}, found {n}")))
    }

    fn count(&self, name: &str) -> Result<usize> {
        self.extent(name, 0)
    }

    fn count_or(&mut self, name: &str, default: usize) -> Result<usize> {
        if self.meta.value(&Self::key(name)).is_some() {
            return self.count(name);
        }
        self.assume(format!("{} is absent: {default}", Self::key(name)));
        Ok(default)
    }

    fn positive(&self, name: &str) -> Result<f32> {
        let x: f32 = self.meta.require(&Self::key(name))?;
        if x.is_finite() && x > 0.0 {
            return Ok(x);
        }
        Err(self.error(name, format!("expected a positive number, found {x}")))
    }

    fn must_be(&self, name: &str, want: usize, why: &str) -> Result<()> {
        match self.meta.get::<usize>(&Self::key(name))? {
            Some(n) if n != want => Err(self.error(name, format!("expected {want} ({why}), found {n}"))),
            _ => Ok(()),
        }
    }

    fn no_rope_scaling(&self) -> Result<()> {
        let prefix = Self::key("rope.scaling.");
        // Some writers spell out that there is none.
        let harmless = |k: &str, v: &Value| match (&k[prefix.len()..], v) {
            ("type", Value::Str(s)) => s == "none",
            ("factor", Value::F32(x)) => *x == 1.0,
            _ => false,
        };
        let mut scaling = self.meta.iter().filter(|(k, _)| k.starts_with(&prefix));
        match scaling.find(|(k, v)| !harmless(k, v)) {
            None => Ok(()),
            Some((k, v)) => Err(Error::unsupported(format!("{k} = {v}"), "GLM-5 has no rope scaling")),
        }
    }

    fn vocab_size(&mut self) -> Result<usize> {
        if self.meta.value(&Self::key("vocab_size")).is_some() {
            let rows = self.extent("vocab_size", 1)?;
            let tokens =
                self.meta.get::<&crate::gguf::StrArray>("tokenizer.ggml.tokens")?.map_or(0, |t| t.len());
            if tokens > rows {
                let found =
                    format!("expected at least the {tokens} tokens of tokenizer.ggml.tokens, found {rows}");
                return Err(self.error("vocab_size", found));
            }
            return Ok(rows);
        }
        let tokens = self.meta.require::<&crate::gguf::StrArray>("tokenizer.ggml.tokens")?.len();
        self.assume(format!("{} is absent: {tokens}, the number of tokens", Self::key("vocab_size")));
        Ok(tokens)
    }

    fn moe_intermediate_size(&self, n_layers: usize) -> Result<usize> {
        let name = "expert_feed_forward_length";
        let sizes: OneOrMany<u64> = self.meta.require(&Self::key(name))?;
        let size = match &sizes {
            OneOrMany::One(n) => Some(*n),
            // An array has one entry per block; dense blocks may say 0, and the experts of all others are of one width.
            OneOrMany::Many(v) => {
                let mut widths = v.iter().take(n_layers).copied().filter(|n| *n > 0);
                let first = widths.next();
                first.filter(|first| widths.all(|n| n == *first))
            }
        };
        match size.map(usize::try_from) {
            Some(Ok(n)) if (1..=MAX_EXTENT).contains(&n) => Ok(n),
            _ => {
                let found = match &sizes {
                    OneOrMany::One(n) => n.to_string(),
                    OneOrMany::Many(v) => format!("{} entries that differ or are 0", v.len()),
                };
                Err(self.error(name, format!("expected one width from 1 to {MAX_EXTENT}, found {found}")))
            }
        }
    }

    fn router(&mut self, n_experts: usize) -> Result<RouterConfig> {
        let n_experts_per_tok = self.extent_up_to("expert_used_count", 1, n_experts)?;
        let gating = match self.meta.get::<u32>(&Self::key("expert_gating_func"))? {
            Some(1) => Gating::Softmax,
            Some(2) => Gating::Sigmoid,
            Some(n) => {
                return Err(self
                    .error("expert_gating_func", format!("expected 1 (softmax) or 2 (sigmoid), found {n}")));
            }
            None => {
                self.assume(format!("{} is absent: sigmoid", Self::key("expert_gating_func")));
                Gating::Sigmoid
            }
        };
        let norm_topk_prob = self.meta.require(&Self::key("expert_weights_norm"))?;
        let routed_scaling_factor = self.positive("expert_weights_scale")?;
        let (n_groups, n_groups_used) = self.expert_groups(n_experts, n_experts_per_tok)?;
        Ok(RouterConfig {
            n_experts_per_tok,
            gating,
            norm_topk_prob,
            routed_scaling_factor,
            n_groups,
            n_groups_used,
        })
    }

    /// Groups of experts, and how many of them a token's experts may come from. No key, 0 and 1 all mean that there are no groups.
    fn expert_groups(&self, n_experts: usize, n_experts_per_tok: usize) -> Result<(usize, usize)> {
        let (count, used) = ("expert_group_count", "expert_group_used_count");
        let n = self.meta.get::<usize>(&Self::key(count))?.unwrap_or(1).max(1);
        if !n_experts.is_multiple_of(n) {
            let found = format!("expected a divisor of the {n_experts} experts, found {n}");
            return Err(self.error(count, found));
        }
        if n == 1 {
            return match self.meta.get::<usize>(&Self::key(used))? {
                Some(n) if n > 1 => {
                    Err(self.error(used, format!("expected 1, as there are no groups, found {n}")))
                }
                _ => Ok((1, 1)),
            };
        }
        let n_used = self.extent_up_to(used, 1, n)?;
        let most = n_experts / n * n_used;
        if n_experts_per_tok > most {
            let found = format!(
                "expected 1 to {most}, the experts of {n_used} of {n} groups, found {n_experts_per_tok}"
            );
            return Err(self.error("expert_used_count", found));
        }
        Ok((n, n_used))
    }

    /// The key decides; without it the context length does, and layers without indexer tensors can only be shared.
    fn indexers(&mut self, gguf: &Gguf, n_layers: usize, context: usize) -> Result<Vec<IndexerKind>> {
        let name = "attention.indexer.types";
        let kind = |full: bool| if full { IndexerKind::Full } else { IndexerKind::Shared };
        let kinds: Vec<IndexerKind> = match self.meta.get::<OneOrMany<bool>>(&Self::key(name))? {
            Some(OneOrMany::One(full)) => vec![kind(full); n_layers],
            Some(OneOrMany::Many(full)) if full.len() == n_layers => full.into_iter().map(kind).collect(),
            Some(OneOrMany::Many(full)) => {
                let found =
                    format!("expected one entry for each of {n_layers} trunk layers, found {}", full.len());
                return Err(self.error(name, found));
            }
            None => self.default_indexers(gguf, n_layers, context),
        };
        if kinds[0] == IndexerKind::Shared {
            return Err(self.error(name, "expected layer 0 to have an indexer of its own, found it shared"));
        }
        Ok(kinds)
    }

    fn default_indexers(&mut self, gguf: &Gguf, n_layers: usize, context: usize) -> Vec<IndexerKind> {
        let key = Self::key("attention.indexer.types");
        let shares = context >= SHARED_INDEXER_CONTEXT;
        // GLM-5.2: layers 0, 1, 2, then every fourth from 6 on.
        let by_length = |i: usize| !shares || (i + 1).saturating_sub(3).is_multiple_of(4);
        let there = |i: usize| gguf.tensor(&format!("blk.{i}.indexer.attn_k.weight")).is_some();
        let full: Vec<bool> = (0..n_layers).map(|i| by_length(i) && (i == 0 || there(i))).collect();
        let why = if shares { "from 1 M on: the pattern of GLM-5.2" } else { "below 1 M: all full" };
        self.assume(format!("{key} is absent: context length {context} is {why}"));
        let missing = (0..n_layers).filter(|i| by_length(*i) && !full[*i]).count();
        if missing > 0 {
            self.assume(format!("{missing} of these layers have no indexer tensors and can only be shared"));
        }
        full.into_iter().map(|f| if f { IndexerKind::Full } else { IndexerKind::Shared }).collect()
    }
}
