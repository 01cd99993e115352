//! Models of invented weights, for benches without a file: the shapes of the family, valid random blocks, a realistic router.
//!
//! Nothing is held: a tensor is made when it is brought to a device, out of a pool of random blocks of its type that is repeated from a place of
//! the tensor's own, and given back afterwards. So loading takes host memory for the largest tensor (2.2 GB of a full-width model) and the pools.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::config::{ARCHITECTURE, Config, IndexerKind};
use super::weights;
use crate::error::{Error, Result};
use crate::gguf::{Array, Gguf, Value, Writer};
use crate::ops::router::{Gating, RouterConfig};
use crate::quant::{GgmlType, quantize};

/// Dense layers in front.
const N_DENSE: usize = 3;

/// Router biases as trained: measured were 6.82 to 7.06 in one set of layers. With logits of standard deviation 1 this spread gives an expert
/// between a fifth and three times of its share of the tokens, as a rule.
const BIAS: f32 = 6.94;
const BIAS_SPREAD: f32 = 0.03;

/// Threads that make a tensor.
const MOST_THREADS: usize = 8;
/// Bytes that are worth a thread.
const PER_THREAD: usize = 4 << 20;

/// Types of the weights; norms, router and the projection of the indexer are F32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Types {
    /// The embedding.
    pub embedding: GgmlType,
    /// Attention, indexer, dense layers and shared experts.
    pub attention: GgmlType,
    /// Gate and up of the experts.
    pub gate_up: GgmlType,
    /// Down of the experts.
    pub down: GgmlType,
    /// The output head.
    pub head: GgmlType,
}

/// As in files of Q4_K_M.
impl Default for Types {
    fn default() -> Self {
        Types {
            embedding: GgmlType::Q4_K,
            attention: GgmlType::Q8_0,
            gate_up: GgmlType::Q4_K,
            down: GgmlType::Q5_K,
            head: GgmlType::Q6_K,
        }
    }
}

/// A model to be invented: hyperparameters, types, and where the random numbers begin.
///
/// ```
/// use glm5::model::{LoadReport, Synthetic};
/// # fn main() -> glm5::Result<()> {
/// let gguf = Synthetic::named("glm-5.2/8:10")?.gguf()?; // one of eight parts of the first ten layers
/// let report = LoadReport::new(&gguf)?;
/// assert_eq!((report.config.n_heads, &report.indexer_pattern[..]), (8, "FFFSSSFSSS"));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Synthetic {
    /// Hyperparameters. Blocks behind the trunk (`n_nextn_layers`) are not made.
    pub config: Config,
    /// Types of the weights.
    pub types: Types,
    /// The same seed gives the same bytes.
    pub seed: u64,
}

impl Synthetic {
    /// Names that [`Synthetic::named`] knows: 5.1 has the shape of 5, and 5.3 that of 5.2.
    pub const NAMES: [&'static str; 4] = ["glm-5", "glm-5.1", "glm-5.2", "glm-5.3"];

    /// A model by name, full size with 78 layers. Behind it may stand `/8` for one of eight parts (or of another number) as a GPU of several has
    /// it, that is heads, vocabulary and the widths of feed-forward layers divided, and `:10` for another number of layers than 78.
    ///
    /// # Errors
    /// [`Error::Argument`] for another name, for no part or layer, and for parts that do not come out even.
    pub fn named(name: &str) -> Result<Self> {
        let junk = || {
            let names = Self::NAMES.join(", ");
            Error::argument(
                "synthetic model",
                format!("one of {names}, then /PARTS and :LAYERS if wanted"),
                name,
            )
        };
        let count = |text: Option<&str>, default: usize| match text {
            None => Ok(default),
            Some(text) => text.parse().ok().filter(|n| (1..=1024).contains(n)).ok_or_else(junk),
        };
        let (front, layers) = name.split_once(':').map_or((name, None), |(a, b)| (a, Some(b)));
        let (family, parts) = front.split_once('/').map_or((front, None), |(a, b)| (a, Some(b)));
        let (n_layers, parts) = (count(layers, 78)?, count(parts, 1)?);
        let shares = match Self::NAMES.iter().position(|n| *n == family) {
            Some(i) => i >= 2,
            None => return Err(junk()),
        };
        let mut config = full_size(n_layers, shares);
        let c = &mut config;
        let divided =
            [&mut c.n_heads, &mut c.vocab_size, &mut c.intermediate_size, &mut c.moe_intermediate_size];
        for n in divided {
            if !n.is_multiple_of(parts) {
                return Err(Error::argument(
                    "parts of a synthetic model",
                    format!("a divisor of {n}"),
                    parts,
                ));
            }
            *n /= parts;
        }
        config.name = Some(format!("synthetic {front}"));
        Ok(Synthetic { config, types: Types::default(), seed: 0 })
    }

    /// The model as a file that is read, which does not exist: see [`Writer::to_gguf`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] for types that cannot be made, those that [`quantize`] does not know; [`Error::Argument`] if rows are not whole
    /// blocks of their type.
    pub fn gguf(&self) -> Result<Gguf> {
        let name = self.config.name.as_deref().unwrap_or("synthetic");
        self.writer()?.to_gguf(name)
    }

    /// The same as a file to be written.
    ///
    /// # Errors
    /// As [`Synthetic::gguf`].
    pub fn writer(&self) -> Result<Writer> {
        let Types { embedding, attention, gate_up, down, head } = self.types;
        for ty in [embedding, attention, gate_up, down, head] {
            quantize(ty, &vec![0.0; ty.block_elems()])?;
        }
        let mut writer = Writer::new();
        keys(&self.config).into_iter().for_each(|(key, value)| writer.key(key, value));
        let pools = Arc::new(Pools { seed: self.seed, made: Mutex::default() });
        for (i, (name, dims)) in weights::wanted(&self.config)?.into_iter().enumerate() {
            let (ty, values) = self.contents(&name, dims.cols, dims.rows);
            let (pools, place) = (pools.clone(), random(self.seed ^ PLACES, i as u64));
            writer.made(name, ty, &dims.extents(), move |bytes| pools.fill(ty, values, place, bytes))?;
        }
        Ok(writer)
    }

    /// Type and values of a tensor. Weights have the standard deviation that keeps values at 1: that of one over the root of the number of inputs.
    fn contents(&self, name: &str, cols: usize, rows: usize) -> (GgmlType, Values) {
        let types = &self.types;
        let normal = |inputs: usize| Values { mean: 0.0, spread: 1.0 / (inputs as f32).sqrt() };
        let part = match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((_, part)) => part,
            None => name,
        };
        match part {
            "indexer.k_norm.bias" => (GgmlType::F32, Values { mean: 0.0, spread: 0.1 }),
            "exp_probs_b.bias" => (GgmlType::F32, Values { mean: BIAS, spread: BIAS_SPREAD }),
            "ffn_gate_inp.weight" | "indexer.proj.weight" => (GgmlType::F32, normal(cols)),
            "token_embd.weight" => (types.embedding, normal(1)),
            "output.weight" => (types.head, normal(cols)),
            "ffn_gate_exps.weight" | "ffn_up_exps.weight" => (types.gate_up, normal(cols)),
            "ffn_down_exps.weight" => (types.down, normal(cols)),
            // Stored transposed.
            "attn_k_b.weight" => (types.attention, normal(rows)),
            _ if part.ends_with("norm.weight") => (GgmlType::F32, Values { mean: 1.0, spread: 0.0 }),
            _ => (types.attention, normal(cols)),
        }
    }
}

/// GLM-5, or with `shares` GLM-5.2, of `n_layers` layers.
fn full_size(n_layers: usize, shares: bool) -> Config {
    // GLM-5.2: layers 0, 1, 2, then every fourth from 6 on.
    let full = |i: usize| !shares || i < 3 || (i - 2).is_multiple_of(4);
    let kind = |i| if full(i) { IndexerKind::Full } else { IndexerKind::Shared };
    Config {
        name: None,
        n_layers,
        n_nextn_layers: 0,
        context_length: if shares { 1 << 20 } else { 202_752 },
        vocab_size: 154_880,
        hidden_size: 6144,
        intermediate_size: 12_288,
        first_k_dense_replace: N_DENSE.min(n_layers),
        moe_intermediate_size: 2048,
        n_routed_experts: 256,
        n_shared_experts: 1,
        router: RouterConfig {
            n_experts_per_tok: 8,
            gating: Gating::Sigmoid,
            norm_topk_prob: true,
            routed_scaling_factor: 2.5,
            n_groups: 1,
            n_groups_used: 1,
        },
        n_heads: 64,
        q_lora_rank: 2048,
        kv_lora_rank: 512,
        qk_nope_head_dim: 192,
        qk_rope_head_dim: 64,
        v_head_dim: 256,
        rms_norm_eps: 1e-5,
        rope_theta: if shares { 8e6 } else { 1e6 },
        index_n_heads: 32,
        index_head_dim: 128,
        index_topk: 2048,
        indexers: (0..n_layers).map(kind).collect(),
        assumptions: Vec::new(),
    }
}

/// The keys from which [`Config::from_gguf`] reads `c` again.
fn keys(c: &Config) -> Vec<(String, Value)> {
    let mut keys: Vec<(String, Value)> = vec![("general.architecture".into(), ARCHITECTURE.into())];
    if let Some(name) = &c.name {
        keys.push(("general.name".into(), name.as_str().into()));
    }
    let mut key = |name: &str, value: Value| keys.push((format!("{ARCHITECTURE}.{name}"), value));
    let latent = c.latent_width();
    for (name, n) in [
        ("block_count", c.n_layers),
        ("nextn_predict_layers", 0),
        ("context_length", c.context_length),
        ("vocab_size", c.vocab_size),
        ("embedding_length", c.hidden_size),
        ("feed_forward_length", c.intermediate_size),
        ("leading_dense_block_count", c.first_k_dense_replace),
        ("expert_feed_forward_length", c.moe_intermediate_size),
        ("expert_count", c.n_routed_experts),
        ("expert_used_count", c.router.n_experts_per_tok),
        ("expert_shared_count", c.n_shared_experts),
        ("expert_group_count", c.router.n_groups),
        ("expert_group_used_count", c.router.n_groups_used),
        ("expert_gating_func", if c.router.gating == Gating::Softmax { 1 } else { 2 }),
        ("attention.head_count", c.n_heads),
        ("attention.head_count_kv", 1),
        ("attention.q_lora_rank", c.q_lora_rank),
        ("attention.kv_lora_rank", c.kv_lora_rank),
        ("attention.key_length", latent),
        ("attention.value_length", c.kv_lora_rank),
        ("attention.key_length_mla", c.qk_head_dim()),
        ("attention.value_length_mla", c.v_head_dim),
        ("rope.dimension_count", c.qk_rope_head_dim),
        ("attention.indexer.head_count", c.index_n_heads),
        ("attention.indexer.key_length", c.index_head_dim),
        ("attention.indexer.top_k", c.index_topk),
    ] {
        key(name, Value::U64(n as u64));
    }
    key("expert_weights_norm", c.router.norm_topk_prob.into());
    key("expert_weights_scale", c.router.routed_scaling_factor.into());
    key("attention.layer_norm_rms_epsilon", c.rms_norm_eps.into());
    key("rope.freq_base", c.rope_theta.into());
    let full = c.indexers.iter().map(|kind| *kind == IndexerKind::Full).collect();
    key("attention.indexer.types", Array::Bool(full).into());
    keys
}

/// Values of a tensor: normally distributed, up to 3.5 standard deviations.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Values {
    mean: f32,
    spread: f32,
}

/// Keeps places of tensors apart from values.
const PLACES: u64 = 0x5851_F42D_4C95_7F2D;

/// Number `i` of the random numbers of a seed: SplitMix64.
fn random(seed: u64, i: u64) -> u64 {
    let z = seed.wrapping_add((i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The same, about normally distributed with standard deviation 1: the sum of four that are uniform.
fn normal(seed: u64, i: u64) -> f32 {
    let bits = random(seed, i);
    let sum: u64 = (0..4).map(|k| (bits >> (16 * k)) & 0xFFFF).sum();
    // Of variance 4 / 12 in units of 2^16.
    (sum as f32 / 65_536.0 - 2.0) * 3f32.sqrt()
}

/// Pools of blocks.
struct Pools {
    seed: u64,
    made: Mutex<HashMap<Kind, Arc<Vec<u8>>>>,
}

/// Type, mean and spread; these as their bits.
type Kind = (GgmlType, [u32; 2]);

/// Blocks of a pool: a prime number, so that rows, and experts, do not repeat with it.
fn pool_blocks(ty: GgmlType) -> usize {
    match ty.block_elems() {
        256.. => 8191,
        32.. => 65_537,
        _ => 2_097_143,
    }
}

impl Pools {
    /// Fills a tensor with the blocks of its pool from `place` on, over and over.
    fn fill(&self, ty: GgmlType, values: Values, place: u64, bytes: &mut [u8]) {
        if values.spread == 0.0 {
            let one = quantize(ty, &vec![values.mean; ty.block_elems()]).unwrap_or_default();
            return bytes.chunks_exact_mut(one.len().max(1)).for_each(|block| block.copy_from_slice(&one));
        }
        let pool = self.pool(ty, values);
        // Never: the types were tried.
        if pool.is_empty() {
            return;
        }
        let first = (place % pool_blocks(ty) as u64) as usize * ty.block_bytes();
        let threads = thread::available_parallelism().map_or(1, |n| n.get()).min(MOST_THREADS);
        let each = bytes.len().div_ceil(threads).max(PER_THREAD);
        let fill = |start: usize, part: &mut [u8]| {
            let mut at = (first + start) % pool.len();
            let mut rest = part;
            while !rest.is_empty() {
                let n = rest.len().min(pool.len() - at);
                let (now, later) = rest.split_at_mut(n);
                now.copy_from_slice(&pool[at..at + n]);
                (rest, at) = (later, 0);
            }
        };
        if bytes.len() <= each {
            return fill(0, bytes);
        }
        // Not the pool of the device: who waits there may be given work that looks at this very tensor.
        thread::scope(|scope| {
            for (i, part) in bytes.chunks_mut(each).enumerate() {
                scope.spawn(move || fill(i * each, part));
            }
        });
    }

    fn pool(&self, ty: GgmlType, values: Values) -> Arc<Vec<u8>> {
        let kind: Kind = (ty, [values.mean, values.spread].map(f32::to_bits));
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.entry(kind).or_insert_with(|| Arc::new(self.new_pool(ty, values))).clone()
    }

    fn new_pool(&self, ty: GgmlType, Values { mean, spread }: Values) -> Vec<u8> {
        let blocks = pool_blocks(ty);
        let threads = thread::available_parallelism().map_or(1, |n| n.get()).min(MOST_THREADS);
        let each = blocks.div_ceil(threads);
        let seed = random(self.seed, u64::from(ty.id()) << 32 | u64::from(spread.to_bits()));
        let part = |first: usize| {
            let elems = ty.block_elems();
            let values = (first * elems..blocks.min(first + each) * elems)
                .map(|i| mean + spread * normal(seed, i as u64));
            // Cannot fail: such values fit every type, and the type was tried.
            quantize(ty, &values.collect::<Vec<_>>()).unwrap_or_default()
        };
        let part = &part;
        thread::scope(|scope| {
            let parts: Vec<_> =
                (0..blocks).step_by(each).map(|first| scope.spawn(move || part(first))).collect();
            parts.into_iter().flat_map(|part| part.join().unwrap_or_default()).collect()
        })
    }
}
