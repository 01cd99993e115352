//! Paged rows: storage of the caches, and the layout of a ragged batch over them.

use half::{bf16, f16};

use super::{Device, Tensor, elsewhere, zeroed};
use crate::cuda::{self, Buffer, Gpu};
use crate::error::{Error, Result};
use crate::quant::scalar::f16_to_f32;
use crate::sys::ragged_rows;

/// Rows (tokens) per page.
pub const PAGE_ROWS: usize = 64;

/// Element type of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheType {
    /// 4 bytes, exact. Default on the CPU.
    #[default]
    F32,
    /// 2 bytes, range of f32, 8 bits of precision.
    Bf16,
    /// 2 bytes, 11 bits of precision, overflows beyond 65504.
    F16,
}

impl CacheType {
    /// Its number to kernels (`CACHE_F32` and so on of `cuda/include/params/cache.h`).
    pub(crate) fn code(self) -> u32 {
        match self {
            CacheType::F32 => 0,
            CacheType::Bf16 => 1,
            CacheType::F16 => 2,
        }
    }

    /// Bytes per value.
    pub fn bytes(self) -> usize {
        match self {
            CacheType::F32 => 4,
            CacheType::Bf16 | CacheType::F16 => 2,
        }
    }
}

impl std::fmt::Display for CacheType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CacheType::F32 => "f32",
            CacheType::Bf16 => "bf16",
            CacheType::F16 => "f16",
        })
    }
}

impl std::str::FromStr for CacheType {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "f32" => Ok(CacheType::F32),
            "bf16" => Ok(CacheType::Bf16),
            "f16" => Ok(CacheType::F16),
            _ => Err(Error::argument("cache type", "f32, bf16 or f16", s)),
        }
    }
}

#[derive(Debug)]
enum Rows {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
    /// Values of the type, as bytes.
    Cuda(CacheType, Buffer<u8>),
}

/// In [`Gpu::held`].
const LABEL: &str = "rows of a batch";

/// `pages * PAGE_ROWS` rows of `width` values. A *slot* is `page * PAGE_ROWS + row in page`.
#[derive(Debug)]
pub struct PagedRows {
    device: Device,
    width: usize,
    slots: usize,
    rows: Rows,
}

impl PagedRows {
    /// Reserves `pages` pages of zeros. On the CPU the system commits memory only as rows are written.
    ///
    /// # Errors
    /// [`Error::Shape`] for an empty cache, [`Error::Capacity`] for more pages than can be numbered or more memory than there
    /// is; [`Error::OutOfMemory`] or [`Error::Driver`] of a GPU.
    pub fn new(device: &Device, pages: usize, width: usize, ty: CacheType) -> Result<Self> {
        if pages == 0 || width == 0 {
            return Err(Error::shape(
                "cache",
                "pages and values",
                format!("{pages} pages of rows of {width}"),
            ));
        }
        let slots = pages.checked_mul(PAGE_ROWS).filter(|slots| u32::try_from(*slots).is_ok());
        let Some((slots, n)) = slots.and_then(|slots| Some((slots, values_of_cache(slots, width)?))) else {
            let available = (u32::MAX as usize / PAGE_ROWS) as u64;
            return Err(Error::Capacity { what: "cache pages".into(), needed: pages as u64, available });
        };
        let rows = match (device, ty) {
            (Device::Cuda(gpu), _) => Rows::Cuda(ty, gpu.zeros("cache", n * ty.bytes())?),
            (_, CacheType::F32) => Rows::F32(zeroed(n)?),
            (_, CacheType::Bf16) => Rows::Bf16(zeroed(n)?),
            (_, CacheType::F16) => Rows::F16(zeroed(n)?),
        };
        Ok(PagedRows { device: device.clone(), width, slots, rows })
    }

    /// Where it lives.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Values per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows in all pages.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Element type.
    pub fn ty(&self) -> CacheType {
        match self.rows {
            Rows::F32(_) => CacheType::F32,
            Rows::Bf16(_) => CacheType::Bf16,
            Rows::F16(_) => CacheType::F16,
            Rows::Cuda(ty, _) => ty,
        }
    }

    /// Fails unless the rows are in host memory.
    pub(crate) fn on_cpu(&self) -> Result<&Self> {
        match self.rows {
            Rows::Cuda(..) => elsewhere("cache", &self.device),
            _ => Ok(self),
        }
    }

    /// The rows on a GPU, `[slots, width]` values of the type as bytes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if they live elsewhere.
    pub(crate) fn cuda(&self) -> Result<&Buffer<u8>> {
        match &self.rows {
            Rows::Cuda(_, bytes) => Ok(bytes),
            _ => elsewhere("cache", &self.device),
        }
    }

    /// As [`PagedRows::cuda`], writable.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if they live elsewhere.
    pub(crate) fn cuda_mut(&mut self) -> Result<&mut Buffer<u8>> {
        match &mut self.rows {
            Rows::Cuda(_, bytes) => Ok(bytes),
            _ => elsewhere("cache", &self.device),
        }
    }

    /// Stores row `t` of `src` at the slot of row `t`, rounded to the cache's type. No two rows have the same slot, as those of sequences
    /// that own their pages never have.
    ///
    /// # Errors
    /// [`Error::Shape`] if widths, counts or slots do not fit; [`Error::Unsupported`] if `src` lies elsewhere, or for rows that were not
    /// uploaded to the GPU of the cache; [`Error::Driver`]. Nothing is written then.
    pub fn write(&mut self, rows: &RaggedRows, src: &Tensor) -> Result<()> {
        let slots = rows.slots();
        if src.cols() != self.width || src.rows() != slots.len() {
            return Err(Error::shape(
                "cache write",
                format!("[{}, {}]", slots.len(), self.width),
                format!("{:?}", src.shape()),
            ));
        }
        self.expect_slots(rows)?;
        if let Rows::Cuda(ty, bytes) = &mut self.rows {
            return cuda::cache::write(bytes, *ty, rows, src);
        }
        self.write_values(rows, src.cpu()?)
    }

    /// As [`PagedRows::write`], `[rows, width]` values of rows whose slots exist, on the CPU.
    pub(crate) fn write_values(&mut self, rows: &RaggedRows, values: &[f32]) -> Result<()> {
        let w = self.width;
        let rows = values.chunks_exact(w).zip(rows.slots().iter().map(|s| *s as usize * w));
        match &mut self.rows {
            Rows::F32(v) => rows.for_each(|(x, at)| v[at..at + w].copy_from_slice(x)),
            Rows::Bf16(v) => rows.for_each(|(x, at)| round(x, &mut v[at..at + w], bf16::from_f32)),
            Rows::F16(v) => rows.for_each(|(x, at)| round(x, &mut v[at..at + w], f16::from_f32)),
            Rows::Cuda(..) => return elsewhere("cache", &self.device),
        }
        Ok(())
    }

    /// Fails unless every row has a slot in this cache.
    pub(crate) fn expect_slots(&self, rows: &RaggedRows) -> Result<()> {
        match rows.slots().iter().find(|s| **s as usize >= self.slots) {
            None => Ok(()),
            Some(s) => Err(Error::shape("cache write", format!("slots below {}", self.slots), s)),
        }
    }

    /// Copies page `from` to another page `to`.
    ///
    /// # Errors
    /// [`Error::Shape`] if there is no such page; [`Error::Driver`] of a GPU.
    pub fn copy_page(&mut self, from: u32, to: u32) -> Result<()> {
        let pages = self.slots / PAGE_ROWS;
        if from.max(to) as usize >= pages {
            return Err(Error::shape("copy page", format!("pages below {pages}"), format!("{from} to {to}")));
        }
        let n = PAGE_ROWS * self.width;
        let (from, to) = (from as usize * n, to as usize * n);
        match &mut self.rows {
            Rows::F32(v) => v.copy_within(from..from + n, to),
            Rows::Bf16(v) => v.copy_within(from..from + n, to),
            Rows::F16(v) => v.copy_within(from..from + n, to),
            Rows::Cuda(ty, bytes) => {
                let size = ty.bytes();
                bytes.copy_within(from * size..(from + n) * size, to * size)?;
            }
        }
        Ok(())
    }

    /// Reads the row at `slot` as f32. For tests, traces and references.
    ///
    /// # Errors
    /// [`Error::Shape`] if there is no such slot; [`Error::Driver`] of a GPU.
    pub fn row(&self, slot: u32) -> Result<Vec<f32>> {
        if slot as usize >= self.slots {
            return Err(Error::shape("cache row", format!("a slot below {}", self.slots), slot));
        }
        let Rows::Cuda(ty, bytes) = &self.rows else {
            let mut out = vec![0.0; self.width];
            self.read(slot, &mut out);
            return Ok(out);
        };
        let n = self.width * ty.bytes();
        let row = bytes.to_vec(slot as usize * n..(slot as usize + 1) * n)?;
        let halves =
            |f: fn(u16) -> f32| row.chunks_exact(2).map(|b| f(u16::from_le_bytes([b[0], b[1]]))).collect();
        Ok(match ty {
            CacheType::F32 => bytemuck::allocation::pod_collect_to_vec(&row),
            CacheType::Bf16 => halves(|bits| bf16::from_bits(bits).to_f32()),
            CacheType::F16 => halves(|bits| f16::from_bits(bits).to_f32()),
        })
    }

    /// The row at `slot` converted into `buf` (the row itself when it is f32 already, so nothing is copied then).
    #[inline(always)]
    pub(crate) fn row_in<'a>(&'a self, slot: u32, buf: &'a mut [f32]) -> &'a [f32] {
        let at = slot as usize * self.width;
        if let Rows::F32(v) = &self.rows {
            return &v[at..at + self.width];
        }
        self.read(slot, buf);
        buf
    }

    #[inline(always)]
    fn read(&self, slot: u32, out: &mut [f32]) {
        let range = slot as usize * self.width..(slot as usize + 1) * self.width;
        match &self.rows {
            Rows::F32(v) => out.copy_from_slice(&v[range]),
            Rows::Bf16(v) => v[range].iter().zip(out).for_each(|(x, o)| *o = x.to_f32()),
            // Not the half crate's conversion: it asks for F16C in a call for every value.
            Rows::F16(v) => v[range].iter().zip(out).for_each(|(x, o)| *o = f16_to_f32(x.to_le_bytes())),
            Rows::Cuda(..) => out.fill(f32::NAN), // Callers have asked `on_cpu`.
        }
    }
}

/// `slots * width`, if f32 values of that number can be addressed.
fn values_of_cache(slots: usize, width: usize) -> Option<usize> {
    slots.checked_mul(width).filter(|n| *n <= isize::MAX as usize / 4)
}

fn round<T>(x: &[f32], out: &mut [T], f: impl Fn(f32) -> T) {
    x.iter().zip(out).for_each(|(x, o)| *o = f(*x));
}

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
}

impl RaggedRows {
    /// Forgets all rows, keeps the memory.
    pub fn clear(&mut self) {
        self.uploaded = false;
        self.positions.clear();
        self.slots.clear();
        self.table_starts.clear();
        self.tables.clear();
    }

    /// Makes room for page tables of `tokens` tokens in all, so that growing sequences do not allocate.
    pub fn reserve(&mut self, tokens: usize) {
        self.tables.reserve(tokens.div_ceil(PAGE_ROWS));
    }

    /// Adds `n` rows of one sequence at positions `start .. start + n`; `pages` is its page table, which must cover them.
    ///
    /// # Errors
    /// [`Error::Shape`] if the table is too short.
    pub fn push(&mut self, start: usize, n: usize, pages: &[u32]) -> Result<()> {
        let end = start.checked_add(n).filter(|end| *end <= pages.len() * PAGE_ROWS);
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

    /// Most keys any row may see.
    pub fn max_visible(&self) -> usize {
        self.positions.iter().map(|p| *p as usize + 1).max().unwrap_or(0)
    }

    /// Slot of the key at position `s` of row `t`'s sequence; `s < visible(t)`.
    #[inline]
    pub(crate) fn slot_of(&self, t: usize, s: usize) -> u32 {
        self.tables[self.table_starts[t] as usize + s / PAGE_ROWS] * PAGE_ROWS as u32 + (s % PAGE_ROWS) as u32
    }

    /// Copies the rows to a GPU, once they are all there; for the CPU there is nothing to do. Memory once grown is kept, so that addresses
    /// stay as long as there are as many rows and no more pages than before: graphs may hold them.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::Driver`].
    pub fn upload(&mut self, device: &Device) -> Result<()> {
        let Device::Cuda(gpu) = device else { return Ok(()) };
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

    /// The copy on `gpu`, for kernels.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if these rows were not uploaded there.
    pub(crate) fn on_gpu(&self, gpu: &Gpu) -> Result<ragged_rows> {
        let Some(copy) = self.copy.as_ref().filter(|copy| self.uploaded && copy.gpu().same(gpu)) else {
            return Err(Error::unsupported("rows of a batch", "they were not uploaded to that GPU"));
        };
        let (m, at) = (self.len(), copy.as_ptr());
        let [positions, slots, table_starts, tables] = [0, 1, 2, 3].map(|part| at.wrapping_add(part * m));
        Ok(ragged_rows { positions, slots, table_starts, tables, m: m as u32 })
    }

    /// Largest slot any row can reach, for bounds checks against a cache.
    pub fn max_slot(&self) -> usize {
        self.tables.iter().map(|p| (*p as usize + 1) * PAGE_ROWS - 1).max().unwrap_or(0)
    }
}
