//! The weights that the graph needs, requested by name: once to settle the ledger (no data is touched), once to load.

use std::cell::RefCell;
use std::collections::HashSet;

use super::config::IndexerKind;
use super::{Config, Slice};
use crate::error::{Error, Result};
use crate::gguf::{Cut, Dims, Gguf, Ledger, LedgerReport, Shard, Writer};
use crate::ops::ffn::Ffn;
use crate::quant::{GgmlType, SharedBytes, Weight, check_supported};
use crate::tensor::{Device, Matrix, Precision, Tensor};

/// All weights on a device.
pub(super) struct Weights {
    /// Of a slice without one, none.
    pub token_embd: Option<Matrix>,
    /// Behind the last layer. Of a slice without a head ones: nobody looks at what comes of it.
    pub output_norm: Tensor,
    /// The head.
    pub output: Option<Matrix>,
    pub layers: Vec<Layer>,
}

pub(super) struct Layer {
    pub attn_norm: Tensor,
    pub q_a: Matrix,
    pub q_a_norm: Tensor,
    pub q_b: Matrix,
    pub kv_a: Matrix,
    pub kv_a_norm: Tensor,
    pub k_b: Matrix,
    pub v_b: Matrix,
    pub output: Matrix,
    pub ffn_norm: Tensor,
    pub indexer: Option<Indexer>,
    pub ffn: LayerFfn,
}

pub(super) struct Indexer {
    pub q_b: Matrix,
    pub k: Matrix,
    pub k_norm: Tensor,
    pub k_norm_bias: Tensor,
    pub proj: Matrix,
}

#[allow(clippy::large_enum_variant)] // one per layer
pub(super) enum LayerFfn {
    Dense(Ffn),
    Moe { router: Matrix, bias: Tensor, experts: Ffn, shared: Option<Ffn> },
}

/// Settles the ledger of a file for a slice and rank `shard`: everything that the model needs is there, in types that can be computed
/// with and cut for the rank; everything there is needed or idle for a reason.
pub(super) fn account(gguf: &Gguf, config: &Config, slice: Slice, shard: Shard) -> Result<LedgerReport> {
    let mut ledger = Ledger::accounts_only(gguf);
    request(&mut ledger, config, slice, shard)?;
    let report = ledger.finish()?;
    let idle: HashSet<&str> = report.idle.iter().flat_map(|g| &g.names).map(String::as_str).collect();
    for t in gguf.tensors().iter().filter(|t| !idle.contains(t.name.as_str())) {
        let file = gguf.shards()[t.shard].path();
        check_supported(t.ty).map_err(|e| Error::tensor(file, &t.name, e.to_string()))?;
    }
    Ok(report)
}

/// Names and extents of the weights that a model of this config needs, in the order of files.
pub(super) fn wanted(config: &Config) -> Result<Vec<(String, Dims)>> {
    let nothing = Writer::new().to_gguf("nothing")?;
    let mut ledger = Ledger::noting_requests(&nothing);
    request(&mut ledger, config, Slice::whole(config), Shard::WHOLE)?;
    Ok(ledger.requests().to_vec())
}

/// Loads the weights of a slice of a file whose ledger is settled; `progress` is told the bytes that are where the model is, and all of them.
pub(super) fn load<'a>(
    gguf: &Gguf,
    config: &Config,
    slice: Slice,
    device: &'a Device,
    precision: Precision,
    progress: &'a mut dyn FnMut(u64, u64),
) -> Result<Weights> {
    let mut ledger = Ledger::new(gguf);
    let raw = request(&mut ledger, config, slice, Shard::WHOLE)?;
    let total = ledger.finish()?.taken.bytes;
    progress(0, total);
    let progress = RefCell::new(Progress { done: 0, total, tell: progress });
    let upload = Upload { device, fast: precision == Precision::Fast, progress };
    Ok(Weights {
        token_embd: raw.token_embd.map(|w| upload.blocks(w)).transpose()?,
        output_norm: match raw.output_norm {
            Some(w) => upload.vector(w)?,
            None => Tensor::from_vec(device, 1, config.hidden_size, vec![1.0; config.hidden_size])?,
        },
        layers: raw.layers.into_iter().map(|layer| upload.layer(layer)).collect::<Result<_>>()?,
        output: raw.output.map(|w| upload.matrix(w)).transpose()?,
    })
}

/// As in [`Weights`], still in the file.
struct RawWeights {
    token_embd: Option<Weight>,
    output_norm: Option<Weight>,
    output: Option<Weight>,
    layers: Vec<RawLayer>,
}

struct RawLayer {
    attn_norm: Weight,
    q_a: Weight,
    q_a_norm: Weight,
    q_b: Weight,
    kv_a: Weight,
    kv_a_norm: Weight,
    kv_b: RawKvB,
    output: Weight,
    ffn_norm: Weight,
    indexer: Option<[Weight; 5]>,
    ffn: RawFfn,
}

enum RawKvB {
    /// `attn_k_b` `[heads, rank, nope]` (transposed) and `attn_v_b` `[heads, v, rank]`.
    Split { k_b: Weight, v_b: Weight },
    /// The legacy `attn_kv_b` `[heads * (nope + v), rank]`: of each head the rows of k, then those of v.
    Whole { kv_b: Weight, nope: usize, v: usize },
}

type RawGlu = [Weight; 3];

#[allow(clippy::large_enum_variant)] // one per layer
enum RawFfn {
    Dense(RawGlu),
    Moe { router: Weight, bias: Weight, experts: RawGlu, shared: Option<RawGlu> },
}

/// Requests everything of a slice of the model of this config. Cuts for several ranks: heads by rows, slabs or columns, feed-forward widths by rows and columns,
/// the vocabulary by rows; what all ranks need is whole on each.
fn request(ledger: &mut Ledger<'_>, config: &Config, slice: Slice, shard: Shard) -> Result<RawWeights> {
    let (hidden, vocab) = (config.hidden_size, config.vocab_size);
    let mut take = Take { ledger, config, shard };
    // Without a head of its own the embedding serves as one.
    let tied = slice.head && !take.ledger.has("output.weight");
    let table = match slice.embedding || tied {
        true => Some(take.matrix("token_embd.weight", vocab, hidden, Cut::None)?),
        false => None,
    };
    let (mut output_norm, mut output) = (None, None);
    if slice.head {
        output_norm = Some(take.vector("output_norm.weight", hidden)?);
        let rows = Cut::Rows { unit: 1 };
        let own = take.ledger.take_optional("output.weight", Dims::matrix(vocab, hidden), rows, shard)?;
        output = own.or_else(|| table.clone());
    }
    let layers = slice.range().map(|i| take.layer(i)).collect::<Result<_>>()?;
    for i in (0..config.n_layers).filter(|i| !slice.range().contains(i)) {
        let prefix = format!("blk.{i}.");
        let reason = format!("layers that are not in the slice {}..{}", slice.first, slice.end);
        ledger.idle_where(&reason, |t| t.name.starts_with(&prefix));
    }
    if !slice.embedding {
        ledger.idle_where("embedding, not in the slice", |t| t.name == "token_embd.weight");
    }
    if !slice.head {
        let of_head = |name: &str| matches!(name, "output_norm.weight" | "output.weight");
        ledger.idle_where("head, not in the slice", |t| of_head(&t.name));
    }
    for i in config.n_layers..config.n_layers + config.n_nextn_layers {
        let prefix = format!("blk.{i}.");
        ledger.idle_where("MTP block, not part of the trunk", |t| t.name.starts_with(&prefix));
    }
    for (i, kind) in config.indexers.iter().enumerate() {
        if *kind == IndexerKind::Shared {
            let prefix = format!("blk.{i}.indexer.");
            ledger.idle_where("indexer copied into a layer that shares one", |t| t.name.starts_with(&prefix));
        }
    }
    let token_embd = table.filter(|_| slice.embedding);
    Ok(RawWeights { token_embd, output_norm, output, layers })
}

struct Take<'a, 'b> {
    ledger: &'a mut Ledger<'b>,
    config: &'a Config,
    shard: Shard,
}

impl Take<'_, '_> {
    fn matrix(&mut self, name: &str, rows: usize, cols: usize, cut: Cut) -> Result<Weight> {
        self.ledger.take(name, Dims::matrix(rows, cols), cut, self.shard)
    }

    fn stack(&mut self, name: &str, [slabs, rows, cols]: [usize; 3], cut: Cut) -> Result<Weight> {
        self.ledger.take(name, Dims::stack(slabs, rows, cols), cut, self.shard)
    }

    fn vector(&mut self, name: &str, n: usize) -> Result<Weight> {
        self.ledger.take(name, Dims::vector(n), Cut::None, self.shard)
    }

    fn layer(&mut self, i: usize) -> Result<RawLayer> {
        let c = self.config;
        let (hidden, q_rank, kv_rank) = (c.hidden_size, c.q_lora_rank, c.kv_lora_rank);
        let (qk, v) = (c.qk_head_dim(), c.v_head_dim);
        let name = |part: &str| format!("blk.{i}.{part}");
        Ok(RawLayer {
            attn_norm: self.vector(&name("attn_norm.weight"), hidden)?,
            q_a: self.matrix(&name("attn_q_a.weight"), q_rank, hidden, Cut::None)?,
            q_a_norm: self.vector(&name("attn_q_a_norm.weight"), q_rank)?,
            q_b: self.matrix(&name("attn_q_b.weight"), c.n_heads * qk, q_rank, Cut::Rows { unit: qk })?,
            kv_a: self.matrix(&name("attn_kv_a_mqa.weight"), c.latent_width(), hidden, Cut::None)?,
            kv_a_norm: self.vector(&name("attn_kv_a_norm.weight"), kv_rank)?,
            kv_b: self.kv_b(i)?,
            output: self.matrix(&name("attn_output.weight"), hidden, c.n_heads * v, Cut::Cols { unit: v })?,
            ffn_norm: self.vector(&name("ffn_norm.weight"), hidden)?,
            indexer: match c.indexers[i] {
                IndexerKind::Full => Some(self.indexer(i)?),
                IndexerKind::Shared => None,
            },
            ffn: self.ffn(i)?,
        })
    }

    fn kv_b(&mut self, i: usize) -> Result<RawKvB> {
        let c = self.config;
        let (heads, rank, nope, v) = (c.n_heads, c.kv_lora_rank, c.qk_nope_head_dim, c.v_head_dim);
        let [k_name, v_name, whole] =
            ["k_b", "v_b", "kv_b"].map(|part| format!("blk.{i}.attn_{part}.weight"));
        match (self.ledger.has(&k_name), self.ledger.has(&v_name)) {
            (false, false) if self.ledger.has(&whole) => {
                let kv_b = self.matrix(&whole, heads * (nope + v), rank, Cut::Rows { unit: nope + v })?;
                return Ok(RawKvB::Whole { kv_b, nope, v });
            }
            (true, true) => {
                self.ledger.idle(&whole, "attn_k_b and attn_v_b hold the same weights");
            }
            // One half alone: `take` below notes which is missing; say also that the other is there.
            (true, false) => self.ledger.missing(&v_name, format!("{k_name} is there without it")),
            (false, true) => self.ledger.missing(&k_name, format!("{v_name} is there without it")),
            (false, false) => {}
        }
        let k_b = self.stack(&k_name, [heads, rank, nope], Cut::Slabs)?;
        let v_b = self.stack(&v_name, [heads, v, rank], Cut::Slabs)?;
        Ok(RawKvB::Split { k_b, v_b })
    }

    fn indexer(&mut self, i: usize) -> Result<[Weight; 5]> {
        let c = self.config;
        let (hidden, heads, dim) = (c.hidden_size, c.index_n_heads, c.index_head_dim);
        let name = |part: &str| format!("blk.{i}.indexer.{part}");
        Ok([
            self.matrix(&name("attn_q_b.weight"), heads * dim, c.q_lora_rank, Cut::None)?,
            self.matrix(&name("attn_k.weight"), dim, hidden, Cut::None)?,
            self.vector(&name("k_norm.weight"), dim)?,
            self.vector(&name("k_norm.bias"), dim)?,
            self.matrix(&name("proj.weight"), heads, hidden, Cut::None)?,
        ])
    }

    fn ffn(&mut self, i: usize) -> Result<RawFfn> {
        let c = self.config;
        let (hidden, n, ff) = (c.hidden_size, c.n_routed_experts, c.moe_intermediate_size);
        let name = |part: &str| format!("blk.{i}.ffn_{part}.weight");
        if i < c.first_k_dense_replace {
            return Ok(RawFfn::Dense(self.glu(i, "", [1, c.intermediate_size, hidden])?));
        }
        let fused = name("gate_up_exps");
        if self.ledger.has(&fused) {
            let why = format!(
                "{fused} is there: fused gate and up are not supported, convert with separate tensors"
            );
            self.ledger.missing(&name("gate_exps"), why);
        }
        let shared = match c.n_shared_experts {
            0 => None,
            n => Some(self.glu(i, "_shexp", [1, n * ff, hidden])?),
        };
        Ok(RawFfn::Moe {
            router: self.matrix(&name("gate_inp"), n, hidden, Cut::None)?,
            bias: self.vector(&format!("blk.{i}.exp_probs_b.bias"), n)?,
            experts: self.glu(i, "_exps", [n, ff, hidden])?,
            shared,
        })
    }

    fn glu(&mut self, i: usize, suffix: &str, [slabs, ff, hidden]: [usize; 3]) -> Result<RawGlu> {
        let name = |part: &str| format!("blk.{i}.ffn_{part}{suffix}.weight");
        Ok([
            self.stack(&name("gate"), [slabs, ff, hidden], Cut::Rows { unit: 1 })?,
            self.stack(&name("up"), [slabs, ff, hidden], Cut::Rows { unit: 1 })?,
            self.stack(&name("down"), [slabs, hidden, ff], Cut::Cols { unit: 1 })?,
        ])
    }
}

struct Upload<'a> {
    device: &'a Device,
    /// Linear layers take rounded activations.
    fast: bool,
    progress: RefCell<Progress<'a>>,
}

/// How far it is, and who is told.
struct Progress<'a> {
    /// Bytes that are there.
    done: u64,
    /// Bytes of all weights.
    total: u64,
    tell: &'a mut dyn FnMut(u64, u64),
}

impl Upload<'_> {
    /// More bytes are there. A head that is the embedding again, and weights that were made anew, are not in the file's sum.
    fn told(&self, bytes: usize) {
        let Progress { done, total, tell } = &mut *self.progress.borrow_mut();
        *done = (*done + bytes as u64).min(*total);
        tell(*done, *total);
    }

    /// As it is in the file.
    fn blocks(&self, w: Weight) -> Result<Matrix> {
        let bytes = w.bytes().len();
        Matrix::new(self.device, w).inspect(|_| self.told(bytes))
    }

    /// Of a linear layer.
    fn matrix(&self, w: Weight) -> Result<Matrix> {
        let bytes = w.bytes().len();
        let there =
            if self.fast { Matrix::for_fast_linear(self.device, w) } else { Matrix::new(self.device, w) };
        there.inspect(|_| self.told(bytes))
    }

    fn vector(&self, w: Weight) -> Result<Tensor> {
        let bytes = w.bytes().len();
        Tensor::from_vec(self.device, 1, w.cols(), w.dequantize(0, 0..1)?).inspect(|_| self.told(bytes))
    }

    fn glu(&self, [gate, up, down]: RawGlu) -> Result<Ffn> {
        if self.fast {
            let bytes = [&gate, &up, &down].map(|w| w.bytes().len()).iter().sum();
            return Ffn::for_fast_linear(self.device, gate, up, down).inspect(|_| self.told(bytes));
        }
        Ffn::new(self.blocks(gate)?, self.blocks(up)?, self.blocks(down)?)
    }

    fn layer(&self, raw: RawLayer) -> Result<Layer> {
        let (k_b, v_b) = match raw.kv_b {
            RawKvB::Split { k_b, v_b } => (k_b, v_b),
            RawKvB::Whole { kv_b, nope, v } => split_kv_b(&kv_b, nope, v)?,
        };
        let indexer = match raw.indexer {
            None => None,
            Some([q_b, k, k_norm, k_norm_bias, proj]) => Some(Indexer {
                q_b: self.matrix(q_b)?,
                k: self.matrix(k)?,
                k_norm: self.vector(k_norm)?,
                k_norm_bias: self.vector(k_norm_bias)?,
                proj: self.matrix(proj)?,
            }),
        };
        let ffn = match raw.ffn {
            RawFfn::Dense(glu) => LayerFfn::Dense(self.glu(glu)?),
            RawFfn::Moe { router, bias, experts, shared } => LayerFfn::Moe {
                router: self.blocks(router)?,
                bias: self.vector(bias)?,
                experts: self.glu(experts)?,
                shared: shared.map(|glu| self.glu(glu)).transpose()?,
            },
        };
        Ok(Layer {
            attn_norm: self.vector(raw.attn_norm)?,
            q_a: self.matrix(raw.q_a)?,
            q_a_norm: self.vector(raw.q_a_norm)?,
            q_b: self.matrix(raw.q_b)?,
            kv_a: self.matrix(raw.kv_a)?,
            kv_a_norm: self.vector(raw.kv_a_norm)?,
            k_b: self.matrix(k_b)?,
            v_b: self.matrix(v_b)?,
            output: self.matrix(raw.output)?,
            ffn_norm: self.vector(raw.ffn_norm)?,
            indexer,
            ffn,
        })
    }
}

/// `attn_k_b` and `attn_v_b` from the legacy `attn_kv_b` `[heads * (nope + v), rank]`: `k_b[h][r][d] = kv_b[h (nope + v) +
/// d][r]`, transposed and therefore f32 (blocks cannot be turned); `v_b[h][j] = kv_b[h (nope + v) + nope + j]`, whole rows
/// of blocks.
fn split_kv_b(kv_b: &Weight, nope: usize, v: usize) -> Result<(Weight, Weight)> {
    let (rank, heads) = (kv_b.cols(), kv_b.rows() / (nope + v));
    let mut k = vec![0f32; heads * rank * nope];
    let mut v_rows = Vec::with_capacity(heads * v * kv_b.row_bytes());
    for h in 0..heads {
        let first = h * (nope + v);
        let rows = kv_b.dequantize(0, first..first + nope)?;
        let k = &mut k[h * rank * nope..][..rank * nope];
        for (d, row) in rows.chunks_exact(rank).enumerate() {
            row.iter().enumerate().for_each(|(r, x)| k[r * nope + d] = *x);
        }
        v_rows.extend_from_slice(kv_b.rows_bytes(0, first + nope..first + nope + v));
    }
    let k_bytes: Vec<u8> = k.iter().flat_map(|x| x.to_le_bytes()).collect();
    Ok((
        Weight::new(GgmlType::F32, [heads, rank, nope], SharedBytes::from(k_bytes))?,
        Weight::new(kv_b.ty(), [heads, v, rank], SharedBytes::from(v_rows))?,
    ))
}
