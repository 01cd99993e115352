//! Rows of a ragged batch over paged caches, and their copy on a GPU.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::{Device, PAGE_ROWS};
use crate::cuda::{Buffer, Gpu};
use crate::error::{Error, Result};
use crate::sys::ragged_rows;

/// In [`Gpu::held`].
const LABEL: &str = "rows of a batch";

/// Layout of a ragged batch: for every row its position, its cache slot and the page table of its sequence.
///
/// Row `t` sees the keys at positions `0 ..= position(t)` of its own sequence; the key at position `s` lies in slot
/// `page_table[s / PAGE_ROWS] * PAGE_ROWS + s % PAGE_ROWS`. Rows of one sequence are consecutive and in order of position.
///
/// It is made in host memory. Operations on a GPU take the copy that [`RaggedRows::upload`] puts there.
#[derive(Debug, Default)]
pub struct RaggedRows {
    positions: Vec<u32>,
    slots: Vec<u32>,
    table_starts: Vec<u32>,
    tables: Vec<u32>,
    /// On a GPU, one behind the other: positions, slots, table starts, tables.
    copy: Option<Buffer<u32>>,
    /// Whether the copy is of these rows.
    uploaded: bool,
    /// Keys that launches are made for, at least.
    planned: usize,
    /// What graphs that hold the copy were recorded for.
    recorded: Mutex<Option<Recorded>>,
}

/// Rows that recorded launches take: so many, none with more keys, all in slots below the smallest of their caches.
#[derive(Debug)]
struct Recorded {
    rows: usize,
    reach: usize,
    slots: usize,
    /// Positions and places of tables, if a launch has these in its parameters.
    fixed: Option<[Vec<u32>; 2]>,
}

impl RaggedRows {
    /// Forgets all rows, keeps the memory.
    pub fn clear(&mut self) {
        self.uploaded = false;
        self.planned = 0;
        self.positions.clear();
        self.slots.clear();
        self.table_starts.clear();
        self.tables.clear();
    }

    /// From here on launches on a GPU are made as if rows could see so many keys, recorded or not: they are the same then, and so are the bits.
    pub(crate) fn plan(&mut self, keys: usize) {
        self.planned = keys;
    }

    /// Makes room for page tables of `tokens` tokens in all, so that growing sequences do not allocate.
    pub fn reserve(&mut self, tokens: usize) {
        self.tables.reserve(tokens.div_ceil(PAGE_ROWS));
    }

    /// Adds `n` rows of one sequence at positions `start .. start + n`; `pages` is its page table, which must cover them.
    ///
    /// # Errors
    /// [`Error::Shape`] if the table is too short, or positions have more than 32 bits.
    pub fn push(&mut self, start: usize, n: usize, pages: &[u32]) -> Result<()> {
        let end =
            start.checked_add(n).filter(|end| *end <= pages.len() * PAGE_ROWS && *end <= u32::MAX as usize);
        let numbered = pages.iter().all(|p| p.checked_mul(PAGE_ROWS as u32).is_some());
        let (Some(end), true) = (end, numbered) else {
            let want = format!("a page table for {n} tokens from {start} on");
            return Err(Error::shape("ragged rows", want, format!("{} pages", pages.len())));
        };
        self.uploaded = false;
        let table = self.tables.len() as u32;
        self.tables.extend_from_slice(pages);
        for p in start..end {
            self.positions.push(p as u32);
            self.slots.push(pages[p / PAGE_ROWS] * PAGE_ROWS as u32 + (p % PAGE_ROWS) as u32);
            self.table_starts.push(table);
        }
        Ok(())
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// Position of each row in its sequence.
    pub fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// Cache slot of each row.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Keys that row `t` may see: its position + 1.
    #[inline]
    pub(crate) fn visible(&self, t: usize) -> usize {
        self.positions[t] as usize + 1
    }

    /// Sequences, as far as neighbouring rows tell.
    pub(crate) fn sequences(&self) -> usize {
        self.len() - (1..self.len()).filter(|t| self.follows(*t)).count()
    }

    /// The rows of each sequence.
    pub(crate) fn parts(&self) -> Vec<Range<usize>> {
        let mut parts: Vec<Range<usize>> = Vec::new();
        for t in 0..self.len() {
            match parts.last_mut() {
                Some(part) if self.follows(t) => part.end = t + 1,
                _ => parts.push(t..t + 1),
            }
        }
        parts
    }

    /// Whether row `t`, which is not the first, is of the sequence of the row before.
    fn follows(&self, t: usize) -> bool {
        self.table_starts[t] == self.table_starts[t - 1] && self.positions[t] > self.positions[t - 1]
    }

    /// Most keys any row may see.
    pub fn max_visible(&self) -> usize {
        self.positions.iter().map(|p| *p as usize + 1).max().unwrap_or(0)
    }

    /// Keys that the pages of a table hold, at most: as far as rows may move on while a graph holds them.
    pub(crate) fn reach(&self) -> usize {
        let ends = self.table_starts.iter().skip(1).copied().chain([self.tables.len() as u32]);
        // Rows of a sequence have one table; behind that of the last of them the next begins.
        let pages =
            self.table_starts.iter().zip(ends).map(|(start, end)| end.saturating_sub(*start) as usize);
        self.max_visible().max(pages.max().unwrap_or(0) * PAGE_ROWS).max(self.planned)
    }

    /// Most keys for which a launch is made: those that rows see, or as many as they may see if it is recorded.
    pub(crate) fn most_keys(&self, gpu: &Gpu) -> usize {
        if gpu.capturing() || self.planned > 0 { self.reach() } else { self.max_visible() }
    }

    /// Slot of the key at position `s` of row `t`'s sequence; `s < visible(t)`.
    #[inline]
    pub(crate) fn slot_of(&self, t: usize, s: usize) -> u32 {
        self.tables[self.table_starts[t] as usize + s / PAGE_ROWS] * PAGE_ROWS as u32 + (s % PAGE_ROWS) as u32
    }

    /// Copies the rows to a GPU, once they are all there; for the CPU there is nothing to do. Graphs that were recorded with these rows
    /// follow: memory once grown is kept. They serve as many rows as there were, at any positions that the pages of their tables held then
    /// (tables may have pages ahead), in any pages of the same caches; those with [`mla_prefill`](crate::ops::mla_prefill) at the same positions,
    /// with tables of the same lengths. For other rows see [`RaggedRows::detach`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] for rows that a graph that is still there does not serve: nothing is copied then. [`Error::OutOfMemory`] or
    /// [`Error::Driver`].
    pub fn upload(&mut self, device: &Device) -> Result<()> {
        let Device::Cuda(gpu) = device else { return Ok(()) };
        self.expect_recorded()?;
        let parts = [&self.positions, &self.slots, &self.table_starts, &self.tables];
        let all: Vec<u32> = parts.into_iter().flatten().copied().collect();
        let copy = self.copy.take().filter(|copy| copy.gpu().same(gpu) && copy.len() >= all.len());
        let mut copy = match copy {
            Some(copy) => copy,
            None => gpu.alloc(LABEL, all.len().max(3 * self.len() + self.tables.capacity()))?,
        };
        copy.upload(0, &all)?;
        (self.copy, self.uploaded) = (Some(copy), true);
        Ok(())
    }

    /// Fails if a graph holds the copy and does not serve these rows: it would read others, or beyond a cache.
    fn expect_recorded(&self) -> Result<()> {
        let recorded = &mut *self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(copy) = self.copy.as_ref().filter(|copy| copy.is_held()) else {
            *recorded = None;
            return Ok(());
        };
        let room = copy.len();
        let Some(Recorded { rows, reach, slots, fixed }) = &*recorded else { return Ok(()) };
        let (rows, reach, slots) = (*rows, *reach, *slots);
        let there = 3 * self.positions.len() + self.tables.len();
        let stay =
            fixed.as_ref().is_none_or(|[at, tables]| *at == self.positions && *tables == self.table_starts);
        if stay && self.len() == rows && self.reach() <= reach && self.max_slot() < slots && there <= room {
            return Ok(());
        }
        let at = if fixed.is_some() { " at their positions" } else { "" };
        let why = format!(
            "a graph was recorded for {rows} rows{at} of at most {reach} keys in slots below {slots}, and {room} values of memory"
        );
        let rows = format!("{} rows of {} keys in slots up to {}", self.len(), self.reach(), self.max_slot());
        Err(Error::unsupported(rows, why))
    }

    /// The copy on `gpu`, for kernels that reach caches of `slots` slots by it, which hold these rows. Kernels may read it before they wait for
    /// those in front: no kernel writes it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if these rows were not uploaded there.
    pub(crate) fn on_gpu(&self, gpu: &Gpu, slots: usize) -> Result<ragged_rows> {
        let Some(copy) = self.copy.as_ref().filter(|copy| self.uploaded && copy.gpu().same(gpu)) else {
            return Err(Error::unsupported("rows of a batch", "they were not uploaded to that GPU"));
        };
        if gpu.capturing() {
            let recorded = &mut *self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
            let all = recorded.get_or_insert(Recorded {
                rows: self.len(),
                reach: self.reach(),
                slots,
                fixed: None,
            });
            (all.reach, all.slots) = (all.reach.min(self.reach()), all.slots.min(slots));
        }
        let (m, at) = (self.len(), copy.as_prologue_ptr());
        let [positions, slots, table_starts, tables] = [0, 1, 2, 3].map(|part| at.wrapping_add(part * m));
        Ok(ragged_rows { positions, slots, table_starts, tables, m: m as u32 })
    }

    /// As [`RaggedRows::on_gpu`], for kernels whose parameters depend on the positions of these rows.
    pub(crate) fn on_gpu_as_they_are(&self, gpu: &Gpu, slots: usize) -> Result<ragged_rows> {
        let there = self.on_gpu(gpu, slots)?;
        if let Some(recorded) = &mut *self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
            && gpu.capturing()
        {
            recorded.fixed = Some([self.positions.clone(), self.table_starts.clone()]);
        }
        Ok(there)
    }

    /// Leaves the copy on a GPU to the graphs that hold it: they keep the rows of the last upload, and the next one takes memory of its own. For
    /// rows that those graphs do not serve, before they are recorded again ([`Graph::update`](crate::cuda::Graph::update)) or in place of that.
    pub fn detach(&mut self) {
        (self.copy, self.uploaded) = (None, false);
        *self.recorded.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Largest slot any row can reach, for bounds checks against a cache.
    pub fn max_slot(&self) -> usize {
        self.tables.iter().map(|p| (*p as usize + 1) * PAGE_ROWS - 1).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_have_32_bits() {
        // One page for all of them; zeros that nobody writes take no memory.
        let pages = vec![0u32; (1 << 26) + 1];
        let mut rows = RaggedRows::default();
        for (start, n) in [(u32::MAX as usize, 1), (u32::MAX as usize - 1, 2), (1 << 32, 1), (usize::MAX, 1)]
        {
            let refused = rows.push(start, n, &pages);
            assert!(matches!(refused, Err(Error::Shape { .. })), "{n} from {start}: {refused:?}");
        }
        assert!(rows.is_empty());
        rows.push(63, 1, &pages[..1]).unwrap();
        assert!(rows.push(64, 1, &pages[..1]).is_err() && rows.len() == 1);
    }

    #[test]
    fn launches_may_be_planned_for_more_keys() {
        let mut rows = RaggedRows::default();
        rows.push(5, 2, &[3]).unwrap();
        assert_eq!((rows.max_visible(), rows.reach()), (7, PAGE_ROWS));
        rows.plan(1000);
        assert_eq!((rows.max_visible(), rows.reach()), (7, 1000));
        rows.clear();
        rows.push(5, 2, &[3]).unwrap();
        assert_eq!(rows.reach(), PAGE_ROWS);
    }
}
