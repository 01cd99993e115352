//! Sorting of a routing, as specified: one expert after the other.

use super::NONE;

/// A tile of neighbouring places of one expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// Its first place.
    pub first: u32,
    /// The expert, counted from the first one of the stack.
    pub expert: u16,
    /// Places.
    pub count: u16,
    /// Number of the first tile of this expert.
    pub begin: u32,
    /// Tiles of this expert.
    pub tiles: u32,
}

impl Tile {
    /// As it lies in memory.
    pub(crate) fn words(self) -> [u32; 4] {
        [self.first, u32::from(self.expert) | u32::from(self.count) << 16, self.begin, self.tiles]
    }

    pub(crate) fn from_words(words: &[u32]) -> Self {
        let word = |i: usize| words.get(i).copied().unwrap_or_default();
        Tile {
            first: word(0),
            expert: word(1) as u16,
            count: (word(1) >> 16) as u16,
            begin: word(2),
            tiles: word(3),
        }
    }
}

/// What [`super::moe_sort`] finds, in host memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sorted {
    /// The first place of each expert, then the number of places.
    pub offsets: Vec<u32>,
    /// The pair `token * top_k + slot` at each place.
    pub sorted: Vec<u32>,
    /// The place of each pair, or [`NONE`].
    pub places: Vec<u32>,
    /// Experts with most places first, of equals the lower one.
    pub tiles: Vec<Tile>,
    /// The number of tiles, then zeros.
    pub counters: Vec<u32>,
}

/// Pairs sorted by expert, and by number within; those whose id is not of `first_expert..first_expert + n_experts` are left out.
pub fn sort(ids: &[u32], n_experts: usize, first_expert: usize, height: usize) -> Sorted {
    let mut out = Sorted {
        offsets: vec![0],
        sorted: vec![],
        places: vec![NONE; ids.len()],
        tiles: vec![],
        counters: vec![],
    };
    for e in 0..n_experts {
        for (pair, _) in ids.iter().enumerate().filter(|(_, id)| **id as usize == first_expert + e) {
            out.places[pair] = out.sorted.len() as u32;
            out.sorted.push(pair as u32);
        }
        out.offsets.push(out.sorted.len() as u32);
    }
    out.tiles = tiles(&out.offsets, height);
    out.counters = vec![out.tiles.len() as u32, 0, 0, 0];
    out
}

/// Tiles of at most `height` places of experts that begin at `offsets`, which has the end behind the last one.
pub fn tiles(offsets: &[u32], height: usize) -> Vec<Tile> {
    let rows = |e: usize| offsets[e + 1] - offsets[e];
    let mut order: Vec<usize> = (0..offsets.len() - 1).collect();
    order.sort_by_key(|e| std::cmp::Reverse(rows(*e))); // stable
    let (mut out, height) = (Vec::new(), height as u32);
    for e in order {
        let (begin, tiles) = (out.len() as u32, rows(e).div_ceil(height));
        out.extend((0..tiles).map(|i| Tile {
            first: offsets[e] + i * height,
            expert: e as u16,
            count: (rows(e) - i * height).min(height) as u16,
            begin,
            tiles,
        }));
    }
    out
}
