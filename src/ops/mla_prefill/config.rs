//! Which kernels attend with expanded keys and values, and to which keys at a time.

use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::ops::mla_attention::config::{LATENT, WIDTH};
use crate::tensor::{CacheType, PAGE_ROWS, RaggedRows};

/// Widths of a head that kernels take: of the part of a key that comes from the latent, and of a value; a whole key is as wide as a value
/// (`cuda/include/params/mla_prefill.h`, which has the other numbers, too).
pub const NOPE: usize = 192;
/// See [`NOPE`].
pub const HEAD: usize = 256;

/// Rows of a sequence that a block of threads attends for.
pub const ROWS: usize = 128;

/// Keys that a block of threads expands: blocks of keys are multiples of it.
pub const EXPAND: usize = 128;

/// Keys of a tile, and its bytes.
pub(crate) const KEYS: usize = 32;
/// See [`KEYS`].
pub(crate) const TILE: usize = KEYS * 2 * (HEAD + HEAD);

/// Sequences of a launch, at most.
pub(crate) const SEQUENCES: usize = 64;

/// Keys that are expanded at a time, unless the scratch says otherwise.
pub(crate) const KEYS_AT_A_TIME: usize = 4096;

/// Attention on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefillProblem {
    /// Width of the latent part of a cache row.
    pub kv_lora_rank: usize,
    /// Width of a cache row.
    pub width: usize,
    /// Width of the part of a key that comes from the latent.
    pub nope: usize,
    /// Width of a value.
    pub v: usize,
    /// Type of the cache.
    pub ty: CacheType,
}

/// Kernels, in the order of their launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefillKernels {
    /// Rows of pages, one behind the other.
    pub gather: Entry,
    /// Keys, and values, of all heads from them.
    pub expand: [Entry; 2],
    /// Attention to these.
    pub attend: Entry,
}

impl PrefillKernels {
    /// For a problem.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for widths or types that no kernel was built for.
    pub fn pick(problem: PrefillProblem) -> Result<Self> {
        let PrefillProblem { kv_lora_rank, width, nope, v, ty } = problem;
        let none = || {
            let what = format!(
                "expanded attention of {nope} + {} and {v} over {ty} rows of {width}",
                width - kv_lora_rank
            );
            Error::unsupported(what, "no kernel was built for it")
        };
        if (kv_lora_rank, width, nope, v) != (LATENT, WIDTH, NOPE, HEAD) {
            return Err(none());
        }
        let expand =
            |values| kernels::mla_expand::INSTANCES.iter().find(|i| i.values == values).map(|i| i.entry);
        let gather = kernels::mla_gather::INSTANCES.iter().find(|i| i.cache == ty.code());
        Ok(PrefillKernels {
            gather: gather.ok_or_else(none)?.entry,
            expand: [expand(0).ok_or_else(none)?, expand(1).ok_or_else(none)?],
            attend: kernels::mla_prefill::INSTANCES.first().ok_or_else(none)?.entry,
        })
    }
}

/// A sequence of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PrefillSequence {
    /// Its first row in the batch.
    pub row: u32,
    /// Its rows.
    pub rows: u32,
    /// The place of its first key among those of all, which begin at multiples of a page.
    pub first: u32,
    /// Its keys.
    pub keys: u32,
}

/// Sequences of which a launch takes all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PrefillGroup {
    pub sequences: Vec<PrefillSequence>,
    /// Places of keys, a multiple of [`EXPAND`].
    pub keys: usize,
    /// Tiles of rows.
    pub row_tiles: usize,
}

/// Groups of the sequences of a batch, in order.
///
/// # Errors
/// [`Error::Capacity`] for more keys than can be numbered.
pub(crate) fn groups(rows: &RaggedRows) -> Result<Vec<PrefillGroup>> {
    let parts = rows.parts();
    let group = |parts: &[std::ops::Range<usize>]| {
        let mut group = PrefillGroup::default();
        for part in parts {
            let keys = rows.visible(part.end - 1);
            // All are below 2^32 if the last place is.
            let sequence = [part.start, part.len(), group.keys, keys].map(|n| n as u32);
            let [row, rows, first, keys_32] = sequence;
            group.sequences.push(PrefillSequence { row, rows, first, keys: keys_32 });
            group.keys += keys.next_multiple_of(PAGE_ROWS);
            group.row_tiles += part.len().div_ceil(ROWS);
        }
        group.keys = group.keys.next_multiple_of(EXPAND);
        match u32::try_from(group.keys) {
            Ok(_) => Ok(group),
            Err(_) => Err(Error::Capacity {
                what: "keys of a launch".into(),
                needed: group.keys as u64,
                available: u32::MAX.into(),
            }),
        }
    };
    parts.chunks(SEQUENCES).map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::mla_attention::MlaConfig;
    use crate::ops::mla_prefill::expanded_wins;

    fn rows(sequences: &[(usize, usize)]) -> RaggedRows {
        let mut rows = RaggedRows::default();
        for (start, n) in sequences {
            let pages: Vec<u32> = (0..(start + n).div_ceil(PAGE_ROWS) as u32).collect();
            rows.push(*start, *n, &pages).unwrap();
        }
        rows
    }

    #[test]
    fn widths_are_those_of_glm_5() {
        let problem =
            PrefillProblem { kv_lora_rank: 512, width: 576, nope: 192, v: 256, ty: CacheType::Bf16 };
        let picked = PrefillKernels::pick(problem).unwrap();
        assert_eq!(picked.gather.name(), "mla_gather_c1_w8");
        assert_eq!(picked.expand.map(Entry::name), ["mla_expand_v0_b1_w8", "mla_expand_v1_b1_w8"]);
        assert_eq!(picked.attend.name(), "mla_prefill_b1_w8");
        for ty in [CacheType::F32, CacheType::F16, CacheType::Fp8] {
            PrefillKernels::pick(PrefillProblem { ty, ..problem }).unwrap();
        }
        for other in [
            PrefillProblem { kv_lora_rank: 511, ..problem },
            PrefillProblem { width: 577, ..problem },
            PrefillProblem { nope: 128, ..problem },
            PrefillProblem { v: 128, ..problem },
            PrefillProblem { ty: CacheType::Int8, ..problem },
        ] {
            assert!(matches!(PrefillKernels::pick(other), Err(Error::Unsupported { .. })), "{other:?}");
        }
    }

    #[test]
    fn sequences_begin_with_pages() {
        let all = groups(&rows(&[(0, 5), (60, 70), (1000, 1)])).unwrap();
        let [group] = &all[..] else { panic!("{all:?}") };
        let of = |row, rows, first, keys| PrefillSequence { row, rows, first, keys };
        assert_eq!(group.sequences, [of(0, 5, 0, 5), of(5, 70, 64, 130), of(75, 1, 256, 1001)]);
        assert_eq!((group.keys, group.row_tiles), (1280, 3));
        let many = groups(&rows(&[(3, 129); 65])).unwrap();
        assert_eq!(many.iter().map(|g| g.sequences.len()).collect::<Vec<_>>(), [64, 1]);
        assert_eq!((many[0].keys, many[0].row_tiles), (64 * 192, 128));
        assert_eq!(many[1].sequences, [of(64 * 129, 129, 0, 132)]);
        assert!(groups(&RaggedRows::default()).unwrap().is_empty());
    }

    #[test]
    fn long_prompts_are_expanded() {
        let config = MlaConfig { n_heads: 64, kv_lora_rank: 512, qk_rope_head_dim: 64, sm_scale: 1.0 / 16.0 };
        let wins = |sequences: &[(usize, usize)]| expanded_wins(&rows(sequences), 192, 256, &config);
        // Behind many keys every key is expanded for the rows of the chunk: from 400 on.
        assert!(!wins(&[(32_768, 384)]) && wins(&[(32_768, 512)]));
        // A prompt's first chunk: rows see half of its keys.
        assert!(!wins(&[(0, 768)]) && wins(&[(0, 1024)]));
        // Single tokens never, however many; a few beside a long chunk do not matter.
        assert!(!wins(&[(4096, 1); 64]) && wins(&[(8192, 2048), (4096, 1)]));
        assert!(!wins(&[]));
    }
}
