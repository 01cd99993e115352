//! The linear layers of GLM-5 that are one matrix in tiles, at full width and as the part that one of eight GPUs has.
//!
//! Elsewhere: `linear_fused` has `k_b` and `v_b` with one matrix per head (here is `k_b` as one matrix of all their rows) and what
//! shares a launch; `linear` the router and the indexer's weights, which files have as F32, and what they have as F16 or BF16. There
//! are no rows of routed experts.

use glm5::quant::{GgmlType, tiles};

/// A matrix `[n, k]`: `n` outputs of `k` inputs.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// The tensors that have it; of eight parts where it says so.
    pub what: &'static str,
    pub k: usize,
    pub n: usize,
    /// Of those in tiles the ones that there are kernels for are run; see [`Shape::types`].
    pub types: &'static [GgmlType],
    /// Numbers of tokens.
    pub tokens: &'static [usize],
}

/// Prompts and decoding.
pub const ALL: &[usize] = &[1, 2, 4, 8, 16, 32, 64, 512, 2048, 8192];

/// Logits are wanted of the last token of each sequence.
const LOGITS: &[usize] = &[1, 2, 4, 8, 16, 32, 64];

const OUTPUT: &[GgmlType] = &[GgmlType::Q6_K];

/// What `k_b` is in plain files: rows of 192 are no multiple of 256.
const Q5_0: &[GgmlType] = &[GgmlType::Q5_0];

/// Cut by eight: `q_b`, gate, up and the output by rows, `wo` and down by columns. The rest is on every GPU. `wo` and the shared
/// down have one shape then, and so have the shared gate and up and `q_a` before.
pub const SHAPES: [Shape; 18] = [
    shape("q_a; shared gate, up", 6144, 2048, &tiles::TYPES, ALL),
    shape("kv_a", 6144, 576, &tiles::TYPES, ALL),
    shape("q_b", 2048, 16_384, &tiles::TYPES, ALL),
    shape("wo", 16_384, 6144, &tiles::TYPES, ALL),
    shape("indexer q_b", 2048, 4096, &tiles::TYPES, ALL),
    shape("indexer k", 6144, 128, &tiles::TYPES, ALL),
    shape("k_b, heads as rows", 192, 32_768, Q5_0, ALL),
    shape("dense gate, up", 6144, 12_288, &tiles::TYPES, ALL),
    shape("dense gate and up in one", 6144, 24_576, &tiles::TYPES, ALL),
    shape("dense down; eh_proj", 12_288, 6144, &tiles::TYPES, ALL),
    shape("shared down; wo / 8", 2048, 6144, &tiles::TYPES, ALL),
    shape("output", 6144, 154_880, OUTPUT, LOGITS),
    shape("q_b / 8", 2048, 2048, &tiles::TYPES, ALL),
    shape("dense gate, up / 8", 6144, 1536, &tiles::TYPES, ALL),
    shape("dense down / 8", 1536, 6144, &tiles::TYPES, ALL),
    shape("shared gate, up / 8", 6144, 256, &tiles::TYPES, ALL),
    shape("shared down / 8", 256, 6144, &tiles::TYPES, ALL),
    shape("output / 8", 6144, 19_360, OUTPUT, LOGITS),
];

pub const fn shape(
    what: &'static str,
    k: usize,
    n: usize,
    types: &'static [GgmlType],
    tokens: &'static [usize],
) -> Shape {
    Shape { what, k, n, types, tokens }
}

impl Shape {
    /// The types that there are kernels for in tiles. Q5_0 is for rows that no K type fits.
    pub fn types(&self) -> impl Iterator<Item = GgmlType> {
        let fits = |ty: &GgmlType| self.k.is_multiple_of(ty.block_elems());
        let wanted = |ty: &GgmlType| *ty != GgmlType::Q5_0 || self.types == Q5_0;
        self.types.iter().copied().filter(|ty| tiles::TYPES.contains(ty)).filter(fits).filter(wanted)
    }
}
