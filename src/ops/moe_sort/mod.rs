//! Sorting of a routing by expert: which tokens each expert takes, in tiles for grouped products.

pub mod config;
pub mod reference;

use config::{MAX_EXPERTS, MAX_PAIRS};
use reference::{Sorted, Tile};

use super::on_one_device;
use crate::error::{Error, Result};
use crate::kernels::Entry;
use crate::tensor::{Device, Tensor};
use crate::{cpu, cuda};

/// In place of an id: the pair is left out. In place of a place: the pair has none.
pub const NONE: u32 = u32::MAX;

/// Numbers of 32 bits in a [`Tile`] on a device (`moe_tile` of `cuda/include/params/moe_sort.h`).
const TILE_WORDS: usize = 4;

/// Counters: the number of tiles, and three for kernels that take tiles.
const COUNTERS: usize = 4;

/// What [`moe_sort`] is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SortOptions {
    /// The id of the first expert of this stack: of several parts each has its own experts.
    pub first_expert: usize,
    /// Whether an id outside of this stack is an error. If not, its pair is left out.
    pub strict: bool,
    /// Places of a tile, at most.
    pub height: usize,
    /// A kernel of [`config::candidates`] in place of the one that is chosen: for benches and tests.
    pub kernel: Option<Entry>,
}

/// Result of [`moe_sort`], reused from step to step: memory once grown is kept, so that a graph may hold what has room for its step.
#[derive(Debug)]
pub struct SortedPairs {
    n_experts: usize,
    pairs: usize,
    top_k: usize,
    height: usize,
    /// `[1, n_experts + 1]`
    pub(crate) offsets: Tensor<u32>,
    /// `[1, pairs]`, or longer, as those that follow.
    pub(crate) sorted: Tensor<u32>,
    /// `[1, pairs]`
    pub(crate) places: Tensor<u32>,
    /// `[tiles, 4]`
    pub(crate) tiles: Tensor<u32>,
    /// `[1, 4]`: the number of tiles, and three that kernels count in, zeros behind [`moe_sort`].
    pub(crate) counters: Tensor<u32>,
    /// Blocks of threads of a launch that have counted. Zero between launches.
    pub(crate) arrived: Tensor<u32>,
}

impl SortedPairs {
    /// Room for no pairs yet, for a stack of `n_experts`.
    ///
    /// # Errors
    /// [`Error::Argument`] for no experts or more than 512; as [`Tensor::zeros`].
    pub fn new(device: &Device, n_experts: usize) -> Result<Self> {
        if n_experts == 0 || n_experts > MAX_EXPERTS {
            return Err(Error::argument("experts of a stack", format!("1 to {MAX_EXPERTS}"), n_experts));
        }
        Ok(SortedPairs {
            n_experts,
            pairs: 0,
            top_k: 1,
            height: 1,
            offsets: Tensor::zeros(device, 1, n_experts + 1)?,
            sorted: Tensor::zeros(device, 0, 1)?,
            places: Tensor::zeros(device, 0, 1)?,
            tiles: Tensor::zeros(device, 0, TILE_WORDS)?,
            counters: Tensor::zeros(device, 1, COUNTERS)?,
            arrived: Tensor::zeros(device, 1, 1)?,
        })
    }

    /// Where it lives.
    pub fn device(&self) -> &Device {
        self.offsets.device()
    }

    /// Experts of the stack.
    pub fn n_experts(&self) -> usize {
        self.n_experts
    }

    /// Pairs of token and slot that were sorted, those that were left out included.
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// Slots of each token.
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// Places of a tile, at most.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Tiles, at most: what grids of kernels that take them are made for.
    pub fn max_tiles(&self) -> usize {
        max_tiles(self.pairs, self.n_experts, self.height)
    }

    /// Grows to what a call needs; those that had room keep their addresses. If one fails, others may have grown.
    pub(crate) fn grow(&mut self, pairs: usize, height: usize) -> Result<()> {
        let tiles = max_tiles(pairs, self.n_experts, height);
        for (tensor, rows) in [(&mut self.sorted, pairs), (&mut self.places, pairs), (&mut self.tiles, tiles)]
        {
            if tensor.rows() < rows {
                tensor.resize(rows)?;
            }
        }
        Ok(())
    }

    /// A copy in host memory, of what is defined.
    ///
    /// # Errors
    /// [`Error::Driver`] of a GPU, also of earlier work.
    pub fn to_host(&self) -> Result<Sorted> {
        let offsets = self.offsets.to_vec()?;
        let counters = self.counters.to_vec()?;
        let kept = offsets.last().map_or(0, |n| *n as usize);
        let cut = |tensor: &Tensor<u32>, n: usize| -> Result<Vec<u32>> {
            let mut values = tensor.to_vec()?;
            values.truncate(n);
            Ok(values)
        };
        let tiles = cut(&self.tiles, counters[0] as usize * TILE_WORDS)?;
        Ok(Sorted {
            offsets,
            sorted: cut(&self.sorted, kept)?,
            places: cut(&self.places, self.pairs)?,
            tiles: tiles.chunks_exact(TILE_WORDS).map(Tile::from_words).collect(),
            counters,
        })
    }
}

/// Tiles of at most `height` of so many pairs: full ones, and one that is not for each expert that has any.
pub(crate) fn max_tiles(pairs: usize, n_experts: usize, height: usize) -> usize {
    pairs / height + pairs.min(n_experts)
}

/// Sorts the pairs of token and slot of a routing by expert, stable: `out` has for each expert its pairs, for each pair its place, and
/// tiles of at most `height` places, the experts with most places first. `ids` `[m, top_k]`. Ids of [`NONE`] are left out, and those of
/// other stacks unless they are an error. Always the same result for the same ids. One launch on GPUs, from which nothing comes back.
///
/// # Errors
/// [`Error::Argument`] for no height or one above 65,535, for a stack of whose experts one would have no id, and on the CPU for an id that is an error
/// (a GPU traps there, which is an [`Error::Driver`] of a later call); [`Error::Capacity`] for 2^23 pairs or more;
/// [`Error::Unsupported`] across devices. Nothing is changed then, but that memory may have grown.
pub fn moe_sort(ids: &Tensor<u32>, options: &SortOptions, out: &mut SortedPairs) -> Result<()> {
    let SortOptions { first_expert, strict, height, .. } = *options;
    if height == 0 || height > usize::from(u16::MAX) {
        return Err(Error::argument("height of a tile", "1 to 65535", height));
    }
    let most = NONE as usize - out.n_experts; // so that the last id is that of no expert
    if first_expert > most {
        return Err(Error::argument("first expert", format!("at most {most}"), first_expert));
    }
    let [m, top_k] = ids.shape();
    let pairs = m * top_k;
    if pairs > MAX_PAIRS {
        return Err(Error::Capacity {
            what: "pairs of token and slot".into(),
            needed: pairs as u64,
            available: MAX_PAIRS as u64,
        });
    }
    on_one_device("moe_sort", &[ids.device(), out.device()])?;
    if strict && let Device::Cpu(_) = ids.device() {
        let stack = first_expert..first_expert + out.n_experts;
        if let Some(id) = ids.cpu()?.iter().find(|id| **id != NONE && !stack.contains(&(**id as usize))) {
            return Err(Error::argument("expert id", format!("{stack:?}"), id));
        }
    }
    let launch = match ids.device() {
        Device::Cpu(_) => None,
        Device::Cuda(_) => Some(config::SortConfig::pick(pairs, out.n_experts, options.kernel)?),
    };
    out.grow(pairs, height)?;
    match launch {
        None => cpu::moe_sort::moe_sort(ids, options, out)?,
        Some(config) => cuda::moe_sort::moe_sort(ids, config, options, out)?,
    }
    (out.pairs, out.top_k, out.height) = (pairs, top_k, height);
    Ok(())
}
