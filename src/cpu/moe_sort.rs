//! Sorting of a routing by expert: two passes over the ids.

use crate::error::Result;
use crate::ops::moe_sort::reference::tiles;
use crate::ops::moe_sort::{NONE, SortOptions, SortedPairs};
use crate::tensor::Tensor;

pub(crate) fn moe_sort(ids: &Tensor<u32>, options: &SortOptions, out: &mut SortedPairs) -> Result<()> {
    let (ids, n, first) = (ids.cpu()?, out.n_experts(), options.first_expert);
    let local = |id: u32| (id as usize).checked_sub(first).filter(|e| *e < n);
    let offsets = out.offsets.cpu_mut()?;
    offsets.fill(0);
    ids.iter().filter_map(|id| local(*id)).for_each(|e| offsets[e + 1] += 1);
    for e in 0..n {
        offsets[e + 1] += offsets[e];
    }
    let mut next = offsets.to_vec();
    let (sorted, places) = (out.sorted.cpu_mut()?, out.places.cpu_mut()?);
    for (pair, id) in ids.iter().enumerate() {
        places[pair] = match local(*id) {
            None => NONE,
            Some(e) => {
                let place = next[e];
                next[e] += 1;
                sorted[place as usize] = pair as u32;
                place
            }
        };
    }
    let tiles = tiles(offsets, options.height);
    for (words, tile) in out.tiles.cpu_mut()?.chunks_exact_mut(4).zip(&tiles) {
        words.copy_from_slice(&tile.words());
    }
    let counters = out.counters.cpu_mut()?;
    counters.fill(0);
    counters[0] = tiles.len() as u32;
    Ok(())
}
