//! Paged caches: latent rows of every layer, indexer keys of the full ones, one page table per sequence.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Config;
use super::config::IndexerKind;
use super::decode::Recorded;
use crate::error::{Error, Result};
use crate::tensor::{CacheType, Device, PAGE_ROWS, PagedRows};

/// A sequence of a [`Cache`]. Ids are not reused, and no two caches have one in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SeqId(u64);

/// Keys and values of any number of sequences, in pages of [`PAGE_ROWS`] tokens that forks share until one of them writes.
#[derive(Debug)]
pub struct Cache {
    /// Per layer, `[latent | rotated key]`.
    pub(super) latent: Vec<PagedRows>,
    /// Per layer, for those with an indexer of their own.
    pub(super) index: Vec<Option<PagedRows>>,
    sequences: HashMap<SeqId, Entry>,
    free: Vec<u32>,
    /// Sequences that hold each page.
    holders: Vec<u32>,
    /// Tokens that one sequence may have: the model's context.
    max_len: usize,
    /// Steps of a GPU over this cache.
    pub(super) recorded: Recorded,
}

#[derive(Debug, Clone, Default)]
struct Entry {
    len: usize,
    pages: Vec<u32>,
}

impl Cache {
    pub(super) fn new(config: &Config, device: &Device, tokens: usize, ty: CacheType) -> Result<Self> {
        if tokens == 0 {
            return Err(Error::argument("cache size", "at least 1 token", tokens));
        }
        if ty == CacheType::Int8 {
            return Err(Error::unsupported("latent rows of int8", "that is a type of the indexer's keys"));
        }
        let pages = tokens.div_ceil(PAGE_ROWS);
        // And one more can be numbered.
        let numbered = |p: &u32| p.checked_add(1).and_then(|p| p.checked_mul(PAGE_ROWS as u32)).is_some();
        let pages_u32 = u32::try_from(pages).ok().filter(numbered);
        let Some(pages_u32) = pages_u32 else {
            let available = (u32::MAX as usize / PAGE_ROWS * PAGE_ROWS) as u64;
            return Err(Error::Capacity { what: "cache tokens".into(), needed: tokens as u64, available });
        };
        // On a GPU one more, which no sequence has: what pads a step goes there.
        let there = pages + usize::from(device.as_gpu().is_some());
        let rows = |width, ty| PagedRows::new(device, there, width, ty);
        let latent =
            config.indexers.iter().map(|_| rows(config.latent_width(), ty)).collect::<Result<_>>()?;
        let index = config.indexers.iter().map(|kind| match kind {
            IndexerKind::Full => rows(config.index_head_dim, ty.of_keys()).map(Some),
            IndexerKind::Shared => Ok(None),
        });
        Ok(Cache {
            latent,
            index: index.collect::<Result<_>>()?,
            sequences: HashMap::new(),
            free: (0..pages_u32).rev().collect(),
            holders: vec![0; pages],
            max_len: config.context_length,
            recorded: Recorded::default(),
        })
    }

    /// Tokens that fit in all pages together.
    pub fn capacity(&self) -> usize {
        self.holders.len() * PAGE_ROWS
    }

    /// Most tokens that a sequence can have.
    pub(super) fn longest(&self) -> usize {
        self.capacity().min(self.max_len.next_multiple_of(PAGE_ROWS))
    }

    /// On a GPU, the page that no sequence has.
    pub(super) fn spare_page(&self) -> u32 {
        self.holders.len() as u32
    }

    /// Tokens that fit in the pages that no sequence holds.
    pub fn available(&self) -> usize {
        self.free.len() * PAGE_ROWS
    }

    /// Type of the latent rows; keys of the indexer have that of [`CacheType::of_keys`].
    pub fn ty(&self) -> CacheType {
        self.latent.first().map_or(CacheType::F32, PagedRows::ty)
    }

    /// A new, empty sequence.
    pub fn new_sequence(&mut self) -> SeqId {
        self.insert(Entry::default())
    }

    /// Tokens of a sequence.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such sequence.
    pub fn len(&self, seq: SeqId) -> Result<usize> {
        Ok(self.entry(seq)?.len)
    }

    /// Whether a sequence has no tokens yet.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such sequence.
    pub fn is_empty(&self, seq: SeqId) -> Result<bool> {
        Ok(self.len(seq)? == 0)
    }

    /// Drops the tokens from position `len` on.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such sequence or it is shorter.
    pub fn truncate(&mut self, seq: SeqId, len: usize) -> Result<()> {
        let entry = self.sequences.get_mut(&seq).ok_or_else(|| unknown(seq))?;
        if len > entry.len {
            return Err(Error::argument("length", format!("at most {}", entry.len), len));
        }
        entry.len = len;
        let released = entry.pages.split_off(len.div_ceil(PAGE_ROWS));
        self.release(&released);
        Ok(())
    }

    /// A second sequence with the same tokens. It shares the pages of the first; whichever writes to a shared page first
    /// takes a copy of it.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such sequence.
    pub fn fork(&mut self, seq: SeqId) -> Result<SeqId> {
        let copy = self.entry(seq)?.clone();
        copy.pages.iter().for_each(|p| self.holders[*p as usize] += 1);
        Ok(self.insert(copy))
    }

    /// Forgets a sequence.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such sequence.
    pub fn remove(&mut self, seq: SeqId) -> Result<()> {
        let entry = self.sequences.remove(&seq).ok_or_else(|| unknown(seq))?;
        self.release(&entry.pages);
        Ok(())
    }

    /// The cached row `[latent | rotated key]` of a layer at a position, as f32. For tests and traces.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such sequence, layer or position.
    pub fn latent_row(&self, seq: SeqId, layer: usize, position: usize) -> Result<Vec<f32>> {
        let rows = self.latent.get(layer).ok_or_else(|| no_layer(layer))?;
        rows.row(self.slot(seq, position)?)
    }

    /// The cached indexer key of a full layer at a position, as f32. For tests and traces.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such sequence, full layer or position.
    pub fn index_row(&self, seq: SeqId, layer: usize, position: usize) -> Result<Vec<f32>> {
        let rows = self.index.get(layer).and_then(Option::as_ref).ok_or_else(|| no_layer(layer))?;
        rows.row(self.slot(seq, position)?)
    }

    /// Whether the cache has the layers and widths that a model of this config needs.
    pub(super) fn fits(&self, config: &Config) -> bool {
        let widths = |kind: &IndexerKind| match kind {
            IndexerKind::Full => (config.latent_width(), Some(config.index_head_dim)),
            IndexerKind::Shared => (config.latent_width(), None),
        };
        let own = self.latent.iter().zip(&self.index);
        let own = own.map(|(latent, index)| (latent.width(), index.as_ref().map(PagedRows::width)));
        own.eq(config.indexers.iter().map(widths))
    }

    /// Makes room for `n` more tokens of each sequence; the lengths stay until [`Cache::commit`].
    ///
    /// # Errors
    /// [`Error::Argument`] for unknown or repeated sequences, [`Error::Capacity`] if pages or the model's context run out;
    /// nothing is changed then.
    pub(super) fn reserve(&mut self, wanted: impl Iterator<Item = (SeqId, usize)> + Clone) -> Result<()> {
        let mut needed = 0;
        for (i, (seq, n)) in wanted.clone().enumerate() {
            if wanted.clone().take(i).any(|(s, _)| s == seq) {
                return Err(Error::argument("batch", "each sequence once", format!("{seq:?} twice")));
            }
            let entry = self.entry(seq)?;
            if entry.len + n > self.max_len {
                let what = "tokens of the model's context".to_owned();
                return Err(Error::Capacity {
                    what,
                    needed: (entry.len + n) as u64,
                    available: self.max_len as u64,
                });
            }
            let total = (entry.len + n).div_ceil(PAGE_ROWS);
            needed += total.saturating_sub(entry.pages.len());
            if let Some(page) = self.tail(entry) {
                // Of all holders that write to a page, the last keeps it.
                let earlier = wanted.clone().take(i).filter_map(|(s, _)| self.tail(self.entry(s).ok()?));
                let holders = self.holders[page as usize] as usize;
                needed += (holders - earlier.filter(|p| *p == page).count() > 1) as usize;
            }
        }
        if needed > self.free.len() {
            return Err(Error::Capacity {
                what: format!("cache pages of {PAGE_ROWS} tokens"),
                needed: needed as u64,
                available: self.free.len() as u64,
            });
        }
        for (seq, n) in wanted {
            self.grow(seq, n)?;
        }
        Ok(())
    }

    /// The page table of a sequence, reserved pages included, and its length.
    pub(super) fn table(&self, seq: SeqId) -> Result<(&[u32], usize)> {
        let entry = self.entry(seq)?;
        Ok((&entry.pages, entry.len))
    }

    /// Adds `n` computed tokens to a sequence.
    pub(super) fn commit(&mut self, seq: SeqId, n: usize) {
        if let Some(entry) = self.sequences.get_mut(&seq) {
            entry.len += n;
        }
    }

    /// The page that the next token goes to, if there is one yet.
    fn tail(&self, entry: &Entry) -> Option<u32> {
        entry.pages.get(entry.len / PAGE_ROWS).copied()
    }

    /// The pages were counted by `reserve`.
    fn grow(&mut self, seq: SeqId, n: usize) -> Result<()> {
        let tail = self.tail(self.entry(seq)?).filter(|p| self.holders[*p as usize] > 1);
        let copy = tail.and_then(|shared| Some((shared, *self.free.last()?)));
        if let Some((shared, page)) = copy {
            // First, since it can fail.
            for rows in self.latent.iter_mut().chain(self.index.iter_mut().flatten()) {
                rows.copy_page(shared, page)?;
            }
        }
        let Some(mut entry) = self.sequences.remove(&seq) else { return Ok(()) };
        if let Some((shared, page)) = copy {
            self.free.pop();
            entry.pages[entry.len / PAGE_ROWS] = page;
            self.holders[shared as usize] -= 1;
            self.holders[page as usize] = 1;
        }
        // The table gets its full size at once, so that decoding across pages allocates nothing.
        let most = self.holders.len().min(self.max_len.div_ceil(PAGE_ROWS));
        entry.pages.reserve_exact(most.saturating_sub(entry.pages.len()));
        while entry.pages.len() < (entry.len + n).div_ceil(PAGE_ROWS)
            && let Some(page) = self.free.pop()
        {
            self.holders[page as usize] = 1;
            entry.pages.push(page);
        }
        self.sequences.insert(seq, entry);
        Ok(())
    }

    fn insert(&mut self, entry: Entry) -> SeqId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = SeqId(NEXT.fetch_add(1, Ordering::Relaxed));
        self.sequences.insert(id, entry);
        id
    }

    fn release(&mut self, pages: &[u32]) {
        for p in pages {
            self.holders[*p as usize] -= 1;
            if self.holders[*p as usize] == 0 {
                self.free.push(*p);
            }
        }
    }

    fn entry(&self, seq: SeqId) -> Result<&Entry> {
        self.sequences.get(&seq).ok_or_else(|| unknown(seq))
    }

    fn slot(&self, seq: SeqId, position: usize) -> Result<u32> {
        let entry = self.entry(seq)?;
        if position >= entry.len {
            return Err(Error::argument("position", format!("below {}", entry.len), position));
        }
        Ok(entry.pages[position / PAGE_ROWS] * PAGE_ROWS as u32 + (position % PAGE_ROWS) as u32)
    }
}

fn unknown(seq: SeqId) -> Error {
    Error::argument("sequence", "one of this cache", format!("{seq:?}"))
}

fn no_layer(layer: usize) -> Error {
    Error::argument("layer", "one that has this cache", layer)
}
