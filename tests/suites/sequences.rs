//! Ragged batches over paged caches: sequences of random length whose pages lie in any order among each other's.

use std::sync::LazyLock;

use glm5::Result;
use glm5::tensor::{CacheType, Device, PAGE_ROWS, PagedRows, RaggedRows};
use proptest::prelude::*;

use super::blocks::Rng;
use super::inputs::tensor;

/// One sequence: `len` keys, of which the last `new` are the rows of the batch.
#[derive(Debug, Clone, Copy)]
pub struct Sequence {
    pub len: usize,
    pub new: usize,
}

/// One to `most` sequences, lengths at the borders of pages, as many new tokens as a step of speculative decoding may have.
pub fn any_sequences(most: usize) -> impl Strategy<Value = Vec<Sequence>> {
    let len = prop_oneof![prop::sample::select(vec![1usize, 2, 63, 64, 65, 127, 128, 129, 193]), 1usize..150];
    let new = prop_oneof![2 => Just(1usize), 3 => 1usize..=8];
    let sequence = (len, new).prop_map(|(len, new)| Sequence { len, new: new.min(len) });
    prop::collection::vec(sequence, 1..=most)
}

/// Any type of cache that rounds values one by one, and so takes rows of any width.
pub fn any_cache_type() -> impl Strategy<Value = CacheType> {
    prop::sample::select(vec![CacheType::F32, CacheType::Bf16, CacheType::F16])
}

/// Sequences with their keys.
#[derive(Debug, Clone)]
pub struct Batch {
    pub sequences: Vec<Sequence>,
    /// Rows `[len, width]` of each sequence by position, rounded to the type of the cache, but for int8.
    pub keys: Vec<Vec<f32>>,
    ty: CacheType,
    width: usize,
    tables: Vec<Vec<u32>>,
    pages: usize,
}

impl Batch {
    /// Random keys of variance 1, `width` values each.
    pub fn random(sequences: &[Sequence], width: usize, ty: CacheType, rng: &mut Rng) -> Batch {
        // Tables may be longer than the sequence, and some pages belong to nobody.
        let counts: Vec<usize> = sequences.iter().map(|s| s.len.div_ceil(PAGE_ROWS) + rng.below(2)).collect();
        let pages = counts.iter().sum::<usize>() + 1;
        let mut free: Vec<u32> = (0..pages as u32).collect();
        for i in (1..pages).rev() {
            free.swap(i, rng.below(i + 1));
        }
        let tables = counts.iter().map(|n| free.split_off(free.len() - n)).collect();
        let keys = sequences.iter().map(|s| rounded(ty, width, &rng.normals(s.len * width))).collect();
        Batch { sequences: sequences.to_vec(), keys, ty, width, tables, pages }
    }

    /// Rows of the batch.
    pub fn rows(&self) -> usize {
        self.sequences.iter().map(|s| s.new).sum()
    }

    /// Each sequence with the rows of the batch and the positions that are its own.
    pub fn parts(&self) -> impl Iterator<Item = (&[f32], std::ops::Range<usize>, Vec<u32>)> {
        let mut first = 0;
        self.sequences.iter().zip(&self.keys).map(move |(s, keys)| {
            first += s.new;
            (&keys[..], first - s.new..first, (s.len - s.new..s.len).map(|p| p as u32).collect())
        })
    }

    /// Pages of each sequence.
    pub fn tables(&self) -> &[Vec<u32>] {
        &self.tables
    }

    /// The same keys in these pages of a cache of more.
    pub fn in_pages(self, tables: Vec<Vec<u32>>) -> Batch {
        let pages = tables.iter().flatten().max().map_or(0, |p| *p as usize + 1);
        Batch { tables, pages, ..self }
    }

    /// Slot of the key of a sequence at a position.
    pub fn slot(&self, sequence: usize, position: usize) -> u32 {
        self.tables[sequence][position / PAGE_ROWS] * PAGE_ROWS as u32 + (position % PAGE_ROWS) as u32
    }

    /// Position of each row.
    pub fn positions(&self) -> Vec<u32> {
        self.parts().flat_map(|(_, _, positions)| positions).collect()
    }

    /// The cache, NaN in every slot that holds no key, and the layout.
    pub fn on(&self, d: &Device) -> Result<(PagedRows, RaggedRows)> {
        let mut values = vec![f32::NAN; self.pages * PAGE_ROWS * self.width];
        for ((s, keys), pages) in self.sequences.iter().zip(&self.keys).zip(&self.tables) {
            for p in 0..s.len {
                let slot = pages[p / PAGE_ROWS] as usize * PAGE_ROWS + p % PAGE_ROWS;
                values[slot * self.width..][..self.width]
                    .copy_from_slice(&keys[p * self.width..][..self.width]);
            }
        }
        Ok((PagedRows::from_values(d, self.pages, self.width, self.ty, &values)?, self.layout(d)?))
    }

    /// The layout alone.
    pub fn layout(&self, d: &Device) -> Result<RaggedRows> {
        let mut rows = RaggedRows::default();
        self.lay_out(d, &mut rows)?;
        Ok(rows)
    }

    /// The same in memory that is there.
    pub fn lay_out(&self, d: &Device, rows: &mut RaggedRows) -> Result<()> {
        rows.clear();
        for (s, pages) in self.sequences.iter().zip(&self.tables) {
            rows.push(s.len - s.new, s.new, pages)?;
        }
        rows.upload(d)
    }

    /// Pages of the sequence that row `t` belongs to.
    pub fn table_of(&self, t: usize) -> &[u32] {
        let rows = self.sequences.iter().zip(&self.tables).flat_map(|(s, table)| vec![table; s.new]);
        rows.into_iter().nth(t).unwrap()
    }

    /// The same with new keys where `which(sequence, position)`.
    pub fn with_other_keys(&self, which: impl Fn(usize, usize) -> bool, rng: &mut Rng) -> Batch {
        let mut other = self.clone();
        for (i, keys) in other.keys.iter_mut().enumerate() {
            for (position, key) in keys.chunks_mut(self.width).enumerate().filter(|(p, _)| which(i, *p)) {
                debug_assert!(position < self.sequences[i].len);
                key.copy_from_slice(&rounded(self.ty, self.width, &rng.normals(self.width)));
            }
        }
        other
    }

    /// Each `len` neighbouring values of a key times what `by` says, rounded again.
    pub fn scale_blocks(&mut self, len: usize, mut by: impl FnMut() -> f32) {
        for keys in &mut self.keys {
            for block in keys.chunks_mut(self.width).flat_map(|key| key.chunks_mut(len)) {
                let by = by();
                block.iter_mut().for_each(|v| *v *= by);
            }
            *keys = rounded(self.ty, self.width, keys);
        }
    }

    /// The same keys, rounded to another type of cache.
    pub fn as_type(&self, ty: CacheType) -> Batch {
        let keys = self.keys.iter().map(|keys| rounded(ty, self.width, keys)).collect();
        Batch { keys, ty, ..self.clone() }
    }

    /// The beginnings of the sequences, `lens` keys of them, in the same pages; one row each.
    pub fn beginnings(&self, lens: &[usize]) -> Batch {
        self.earlier(&lens.iter().map(|len| Sequence { len: *len, new: 1 }).collect::<Vec<_>>())
    }

    /// The same sequences when they were shorter, in the same pages.
    pub fn earlier(&self, sequences: &[Sequence]) -> Batch {
        let mut other = Batch { sequences: sequences.to_vec(), ..self.clone() };
        for (sequence, keys) in sequences.iter().zip(&mut other.keys) {
            keys.truncate(sequence.len * self.width);
        }
        other
    }

    /// The same with tables of no more pages than the sequences need.
    pub fn without_spare_pages(mut self) -> Batch {
        for (sequence, table) in self.sequences.iter().zip(&mut self.tables) {
            table.truncate(sequence.len.div_ceil(PAGE_ROWS));
        }
        self
    }
}

/// What a cache of this type keeps of rows.
pub fn rounded(ty: CacheType, width: usize, rows: &[f32]) -> Vec<f32> {
    match ty {
        CacheType::Int8 => return rows.to_vec(), // The cache rounds a row as a whole.
        CacheType::Fp8 => {}
        _ => return rows.iter().map(|v| super::cache::rounded(ty, *v)).collect(),
    }
    let (n, cpu) = (rows.len() / width, Device::cpu(Some(1)).unwrap());
    let cache = PagedRows::from_values(&cpu, n.div_ceil(PAGE_ROWS).max(1), width, ty, rows).unwrap();
    (0..n as u32).flat_map(|slot| cache.row(slot).unwrap()).collect()
}
