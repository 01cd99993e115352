//! What a file holds and what the model makes of it, from its headers alone.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::config::{Config, IndexerKind};
use super::slice::Slice;
use super::weights;
use crate::error::Result;
use crate::gguf::{Gguf, LedgerReport, Shard};

/// Result of reading the headers: hyperparameters, the settled ledger, sizes. Prints as a short text, serializes to JSON.
#[derive(Debug, Clone, Serialize)]
pub struct LoadReport {
    /// The file, or the first of its split set.
    pub file: PathBuf,
    /// Files of the set.
    pub files: usize,
    /// Bytes of all files.
    pub file_bytes: u64,
    /// Which member of the family the file is, in words.
    pub variant: String,
    /// Trunk layers of the file.
    pub file_layers: usize,
    /// What of it is loaded, if not all. Then all that follows is about these layers.
    pub slice: Option<Slice>,
    /// `F` or `S` for each trunk layer: indexer of its own, or shared.
    pub indexer_pattern: String,
    /// Bytes per token of all caches, by cache type.
    pub cache_bytes_per_token: CacheBytes,
    /// Hyperparameters.
    pub config: Config,
    /// Accounts of all tensors.
    pub ledger: LedgerReport,
}

/// Bytes per token of all caches.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct CacheBytes {
    /// With f32 caches.
    pub f32: usize,
    /// With bf16 or f16 caches.
    pub bf16: usize,
}

impl LoadReport {
    /// Reads the hyperparameters and settles the ledger. No tensor data is touched.
    ///
    /// # Errors
    /// As [`Config::from_gguf`]; [`crate::Error::Ledger`] if tensors and model do not match; [`crate::Error::File`] naming a
    /// tensor of a type that is known by its size only.
    pub fn new(gguf: &Gguf) -> Result<Self> {
        Self::for_shard(gguf, Shard::WHOLE)
    }

    /// As [`LoadReport::new`] for one rank of several: checks also that every weight can be cut for it. Counts and bytes
    /// are those of whole tensors.
    ///
    /// # Errors
    /// As [`LoadReport::new`]; [`crate::Error::File`] naming the first tensor that cannot be cut, and why.
    pub fn for_shard(gguf: &Gguf, shard: Shard) -> Result<Self> {
        Self::for_slice(gguf, None, shard)
    }

    /// As [`LoadReport::for_shard`], of a slice of the model.
    ///
    /// # Errors
    /// As [`LoadReport::for_shard`] and [`Config::slice`].
    pub fn for_slice(gguf: &Gguf, slice: Option<Slice>, shard: Shard) -> Result<Self> {
        let whole = Config::from_gguf(gguf)?;
        let loaded = slice.unwrap_or(Slice::whole(&whole));
        let config = whole.slice(loaded)?;
        let ledger = weights::account(gguf, &whole, loaded, shard)?;
        let letter = |k: &IndexerKind| if *k == IndexerKind::Full { 'F' } else { 'S' };
        Ok(LoadReport {
            file: gguf.path().to_owned(),
            files: gguf.shards().len(),
            file_bytes: gguf.file_bytes(),
            variant: variant(&whole),
            file_layers: whole.n_layers,
            slice,
            indexer_pattern: config.indexers.iter().map(letter).collect(),
            cache_bytes_per_token: CacheBytes {
                f32: config.cache_bytes_per_token(size_of::<f32>()),
                bf16: config.cache_bytes_per_token(size_of::<half::bf16>()),
            },
            config,
            ledger,
        })
    }
}

fn variant(c: &Config) -> String {
    let shared = c.indexers.contains(&IndexerKind::Shared);
    let full_size = (c.n_layers, c.hidden_size, c.n_routed_experts) == (78, 6144, 256);
    match (full_size, shared) {
        (true, false) => "GLM-5 or 5.1".into(),
        (true, true) => "GLM-5.2 or 5.3".into(),
        (false, false) => "GLM-5 architecture in other sizes, every indexer full".into(),
        (false, true) => "GLM-5.2 architecture in other sizes, indexers shared".into(),
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (c, l) = (&self.config, &self.ledger);
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let files =
            if self.files > 1 { format!(" and {} more files", self.files - 1) } else { String::new() };
        writeln!(f, "{}{files}, {:.3} GiB", self.file.display(), gib(self.file_bytes))?;
        writeln!(f, "  {} ({})", self.variant, c.name.as_deref().unwrap_or("unnamed").escape_debug())?;
        writeln!(
            f,
            "  {} trunk + {} nextn layers, hidden {}, vocab {}, context {}, rope base {}",
            self.file_layers, c.n_nextn_layers, c.hidden_size, c.vocab_size, c.context_length, c.rope_theta
        )?;
        if let Some(slice) = self.slice {
            writeln!(f, "  of these layers {slice}")?;
        }
        writeln!(
            f,
            "  {} heads, latent {} + {}, {} experts ({} used, {} shared), {} dense layers",
            c.n_heads,
            c.kv_lora_rank,
            c.qk_rope_head_dim,
            c.n_routed_experts,
            c.router.n_experts_per_tok,
            c.n_shared_experts,
            c.first_k_dense_replace
        )?;
        writeln!(
            f,
            "  indexer top {}: {} full, {} shared ({})",
            c.index_topk,
            c.n_full_indexers(),
            c.n_layers - c.n_full_indexers(),
            self.indexer_pattern
        )?;
        let types: Vec<String> = l.types.iter().map(|t| format!("{} {}", t.tensors, t.ty)).collect();
        writeln!(f, "  {} tensors: {}", l.total.tensors, types.join(", "))?;
        writeln!(f, "  used {} ({:.3} GiB)", l.taken.tensors, gib(l.taken.bytes))?;
        for idle in &l.idle {
            writeln!(f, "  idle {} ({:.3} GiB): {}", idle.count.tensors, gib(idle.count.bytes), idle.reason)?;
        }
        let cache = self.cache_bytes_per_token;
        write!(f, "  cache {} bytes per token in f32, {} in bf16 or f16", cache.f32, cache.bf16)?;
        for a in &c.assumptions {
            write!(f, "\n  assumed: {a}")?;
        }
        Ok(())
    }
}
