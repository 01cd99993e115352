//! Paged rows: storage of the caches.

use std::ops::Range;

use bytemuck::cast_slice_mut;
use half::{bf16, f16};

use super::{Device, RaggedRows, Tensor, elsewhere, zeroed};
use crate::cuda::{self, Buffer};
use crate::error::{Error, Result};
use crate::quant::cache_rows::{self, INT8_KEY, int8_key, read_fp8_row, read_int8_key, write_fp8_row};
use crate::quant::scalar::f16_to_f32;

/// Rows (tokens) per page.
pub const PAGE_ROWS: usize = 64;

/// Type of the values of a cache.
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
    /// Latent rows alone: e4m3 with a power of two as scale for each 128 values, the last 64 values bf16; 656 bytes of 576 values. A value
    /// comes back within 1/16 of itself or 4.4e-6 of the largest of its block.
    Fp8,
    /// Keys of the indexer alone, 128 values: int8 with one scale after rotation by a Hadamard matrix; 132 bytes. A key comes back within
    /// 4.5 % of its length, as a rule 1 %.
    Int8,
}

impl CacheType {
    /// Its number to kernels (`CACHE_F32` and so on of `cuda/include/params/cache.h`).
    pub(crate) fn code(self) -> u32 {
        match self {
            CacheType::F32 => 0,
            CacheType::Bf16 => 1,
            CacheType::F16 => 2,
            CacheType::Fp8 => 3,
            CacheType::Int8 => 4,
        }
    }

    /// Bytes of a row of `width` values.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for widths that the type does not have.
    pub fn row_bytes(self, width: usize) -> Result<usize> {
        let bytes = match self {
            CacheType::F32 => width.checked_mul(4),
            CacheType::Bf16 | CacheType::F16 => width.checked_mul(2),
            CacheType::Fp8 => cache_rows::fp8_row_bytes(width),
            CacheType::Int8 => (width == cache_rows::INT8_KEY).then_some(width + 4),
        };
        let why = match self {
            CacheType::Fp8 => "they are some times 128 latent values, and 64 rotated ones",
            CacheType::Int8 => "keys have 128 values",
            _ => "that is more than can be addressed",
        };
        bytes.ok_or_else(|| Error::unsupported(format!("cache rows of {width} values as {self}"), why))
    }

    /// The type that keys of the indexer have beside latent rows of this one.
    pub fn of_keys(self) -> Self {
        match self {
            CacheType::Fp8 => CacheType::Int8,
            ty => ty,
        }
    }
}

impl std::fmt::Display for CacheType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CacheType::F32 => "f32",
            CacheType::Bf16 => "bf16",
            CacheType::F16 => "f16",
            CacheType::Fp8 => "fp8",
            CacheType::Int8 => "int8",
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
            "fp8" => Ok(CacheType::Fp8),
            "int8" => Ok(CacheType::Int8),
            _ => Err(Error::argument("cache type", "f32, bf16, f16, fp8 or int8", s)),
        }
    }
}

#[derive(Debug)]
enum Rows {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
    Fp8(Vec<u8>),
    /// Pages of quants, then scales.
    Int8(Vec<u8>),
    /// Rows of the type, as bytes.
    Cuda(CacheType, Buffer<u8>),
}

impl Rows {
    /// Zeros in host memory: `values` of them, or `bytes` of a type whose rows are bytes.
    fn on_host(ty: CacheType, values: usize, bytes: usize) -> Result<Self> {
        Ok(match ty {
            CacheType::F32 => Rows::F32(zeroed(values)?),
            CacheType::Bf16 => Rows::Bf16(zeroed(values)?),
            CacheType::F16 => Rows::F16(zeroed(values)?),
            CacheType::Fp8 => Rows::Fp8(zeroed(bytes)?),
            CacheType::Int8 => Rows::Int8(zeroed(bytes)?),
        })
    }

    /// Rows of `w` values in host memory, of `bytes` each, at slots that exist.
    fn store(
        &mut self,
        slots: impl Iterator<Item = usize>,
        w: usize,
        bytes: usize,
        values: &[f32],
    ) -> Result<()> {
        let rows = values.chunks_exact(w).zip(slots);
        match self {
            Rows::F32(v) => rows.for_each(|(x, s)| v[s * w..(s + 1) * w].copy_from_slice(x)),
            Rows::Bf16(v) => rows.for_each(|(x, s)| round(x, &mut v[s * w..(s + 1) * w], bf16::from_f32)),
            Rows::F16(v) => rows.for_each(|(x, s)| round(x, &mut v[s * w..(s + 1) * w], f16::from_f32)),
            Rows::Fp8(v) => rows.for_each(|(x, s)| write_fp8_row(x, &mut v[s * bytes..(s + 1) * bytes])),
            Rows::Int8(v) => rows.for_each(|(x, s)| {
                let (quants, scale) = int8_place(s);
                if let (Some(x), Some(quants)) = (x.as_array(), cast_slice_mut(&mut v[quants]).as_mut_array())
                {
                    let value = int8_key(x, quants);
                    v[scale].copy_from_slice(&value.to_le_bytes());
                }
            }),
            Rows::Cuda(..) => return Err(Error::unsupported("a cache on a GPU", "it is not in host memory")),
        }
        Ok(())
    }

    /// Those in host memory; none of others.
    fn bytes(&self) -> &[u8] {
        match self {
            Rows::F32(v) => bytemuck::cast_slice(v),
            Rows::Bf16(v) => bytemuck::cast_slice(v),
            Rows::F16(v) => bytemuck::cast_slice(v),
            Rows::Fp8(v) | Rows::Int8(v) => v,
            Rows::Cuda(..) => &[],
        }
    }

    /// As [`Rows::bytes`], writable.
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Rows::F32(v) => bytemuck::cast_slice_mut(v),
            Rows::Bf16(v) => bytemuck::cast_slice_mut(v),
            Rows::F16(v) => bytemuck::cast_slice_mut(v),
            Rows::Fp8(v) | Rows::Int8(v) => v,
            Rows::Cuda(..) => &mut [],
        }
    }
}

/// `pages * PAGE_ROWS` rows of `width` values. A *slot* is `page * PAGE_ROWS + row in page`.
///
/// Rows lie one behind the other, but for [`CacheType::Int8`]: a page has the quants of its keys, then their scales, so that quants begin
/// at multiples of 128 bytes.
#[derive(Debug)]
pub struct PagedRows {
    device: Device,
    width: usize,
    slots: usize,
    row_bytes: usize,
    rows: Rows,
}

impl PagedRows {
    /// Reserves `pages` pages of zeros. On the CPU the system commits memory only as rows are written.
    ///
    /// # Errors
    /// [`Error::Shape`] for an empty cache, [`Error::Unsupported`] for a width that the type does not have, [`Error::Capacity`] for more
    /// pages than can be numbered or more memory than there is; [`Error::OutOfMemory`] or [`Error::Driver`] of a GPU.
    pub fn new(device: &Device, pages: usize, width: usize, ty: CacheType) -> Result<Self> {
        if pages == 0 || width == 0 {
            return Err(Error::shape(
                "cache",
                "pages and values",
                format!("{pages} pages of rows of {width}"),
            ));
        }
        let row_bytes = ty.row_bytes(width)?;
        let slots = pages.checked_mul(PAGE_ROWS).filter(|slots| u32::try_from(*slots).is_ok());
        let Some((slots, n)) = slots.and_then(|slots| Some((slots, values_of_cache(slots, width)?))) else {
            let available = (u32::MAX as usize / PAGE_ROWS) as u64;
            return Err(Error::Capacity { what: "cache pages".into(), needed: pages as u64, available });
        };
        let rows = match device {
            Device::Cuda(gpu) => Rows::Cuda(ty, gpu.zeros("cache", slots * row_bytes)?),
            Device::Cpu(_) => Rows::on_host(ty, n, slots * row_bytes)?,
        };
        Ok(PagedRows { device: device.clone(), width, slots, row_bytes, rows })
    }

    /// As [`PagedRows::new`], with `values` in the first slots, rounded to the type. For tests and measurements.
    ///
    /// # Errors
    /// [`Error::Shape`] for anything but whole rows, or more than there are slots; as [`PagedRows::new`].
    pub fn from_values(
        device: &Device,
        pages: usize,
        width: usize,
        ty: CacheType,
        values: &[f32],
    ) -> Result<Self> {
        let mut cache = Self::new(device, pages, width, ty)?;
        let n = values.len();
        if !n.is_multiple_of(width) || n > cache.slots * width {
            let want = format!("at most {} rows of {width}", cache.slots);
            return Err(Error::shape("cache", want, format!("{n} values")));
        }
        let slots = 0..n / width;
        if let Rows::Cuda(ty, buffer) = &mut cache.rows {
            let mut host = Rows::on_host(*ty, cache.slots * width, buffer.len())?;
            host.store(slots, width, cache.row_bytes, values)?;
            buffer.upload(0, host.bytes())?;
        } else {
            cache.rows.store(slots, width, cache.row_bytes, values)?;
        }
        Ok(cache)
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
            Rows::Fp8(_) => CacheType::Fp8,
            Rows::Int8(_) => CacheType::Int8,
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

    /// The rows on a GPU, `[slots, width]` of the type as bytes.
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
            return cuda::cache::write(bytes, *ty, self.slots, rows, src);
        }
        self.write_values(rows, src.cpu()?)
    }

    /// As [`PagedRows::write`], `[rows, width]` values of rows whose slots exist, on the CPU.
    pub(crate) fn write_values(&mut self, rows: &RaggedRows, values: &[f32]) -> Result<()> {
        let slots = rows.slots().iter().map(|s| *s as usize);
        match &self.rows {
            Rows::Cuda(..) => elsewhere("cache", &self.device),
            _ => self.rows.store(slots, self.width, self.row_bytes, values),
        }
    }

    /// A copy on a device, the same one or another.
    ///
    /// # Errors
    /// As [`PagedRows::new`]; [`Error::Driver`] of the GPU where they lie.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        let mut copy = Self::new(device, self.slots / PAGE_ROWS, self.width, self.ty())?;
        match (&self.rows, &mut copy.rows) {
            (Rows::Cuda(_, from), Rows::Cuda(_, to)) if from.gpu().same(to.gpu()) => {
                to.copy_from(0, from, 0..from.len())?;
            }
            (Rows::Cuda(_, from), Rows::Cuda(_, to)) => to.upload(0, &from.to_vec(0..from.len())?)?,
            (Rows::Cuda(_, from), to) => from.download(0, to.bytes_mut())?,
            (from, Rows::Cuda(_, to)) => to.upload(0, from.bytes())?,
            (from, to) => to.bytes_mut().copy_from_slice(from.bytes()),
        }
        Ok(copy)
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
        let (values, bytes) = (PAGE_ROWS * self.width, PAGE_ROWS * self.row_bytes);
        let page = |page: u32, n: usize| page as usize * n..(page as usize + 1) * n;
        let (to_value, to_byte) = (page(to, values).start, page(to, bytes).start);
        match &mut self.rows {
            Rows::F32(v) => v.copy_within(page(from, values), to_value),
            Rows::Bf16(v) => v.copy_within(page(from, values), to_value),
            Rows::F16(v) => v.copy_within(page(from, values), to_value),
            Rows::Fp8(v) | Rows::Int8(v) => v.copy_within(page(from, bytes), to_byte),
            Rows::Cuda(_, v) => v.copy_within(page(from, bytes), to_byte)?,
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
        let n = self.row_bytes;
        let mut out = vec![0.0; self.width];
        if *ty == CacheType::Int8 {
            let (quants, scale) = int8_place(slot as usize);
            let (quants, scale) = (bytes.to_vec(quants)?, bytes.to_vec(scale)?);
            read_int8_key(&quants, f32_at(&scale), &mut out);
            return Ok(out);
        }
        let row = bytes.to_vec(slot as usize * n..(slot as usize + 1) * n)?;
        let halves = |out: &mut [f32], f: fn(u16) -> f32| {
            out.iter_mut().zip(row.as_chunks::<2>().0).for_each(|(o, b)| *o = f(u16::from_le_bytes(*b)));
        };
        match ty {
            CacheType::F32 => out.iter_mut().zip(row.as_chunks::<4>().0).for_each(|(o, b)| *o = f32_at(b)),
            CacheType::Bf16 => halves(&mut out, |bits| bf16::from_bits(bits).to_f32()),
            CacheType::F16 => halves(&mut out, |bits| f16::from_bits(bits).to_f32()),
            CacheType::Fp8 | CacheType::Int8 => read_fp8_row(&row, &mut out),
        }
        Ok(out)
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

    /// The quants of the key at `slot`, rotated as they are kept, into `out`, and their scale; `None` for any other type.
    #[inline(always)]
    pub(crate) fn int8_row(&self, slot: u32, out: &mut [f32]) -> Option<f32> {
        let Rows::Int8(v) = &self.rows else {
            return None;
        };
        let (quants, scale) = int8_place(slot as usize);
        out.iter_mut().zip(&v[quants]).for_each(|(o, q)| *o = f32::from(*q as i8));
        Some(f32_at(&v[scale]))
    }

    #[inline(always)]
    fn read(&self, slot: u32, out: &mut [f32]) {
        let range = slot as usize * self.width..(slot as usize + 1) * self.width;
        let bytes = slot as usize * self.row_bytes..(slot as usize + 1) * self.row_bytes;
        match &self.rows {
            Rows::F32(v) => out.copy_from_slice(&v[range]),
            Rows::Bf16(v) => v[range].iter().zip(out).for_each(|(x, o)| *o = x.to_f32()),
            // Not the half crate's conversion: it asks for F16C in a call for every value.
            Rows::F16(v) => v[range].iter().zip(out).for_each(|(x, o)| *o = f16_to_f32(x.to_le_bytes())),
            Rows::Fp8(v) => read_fp8_row(&v[bytes], out),
            Rows::Int8(v) => {
                let (quants, scale) = int8_place(slot as usize);
                read_int8_key(&v[quants], f32_at(&v[scale]), out);
            }
            Rows::Cuda(..) => out.fill(f32::NAN), // Callers have asked `on_cpu`.
        }
    }
}

/// Where quants and scale of the key at a slot are.
fn int8_place(slot: usize) -> (Range<usize>, Range<usize>) {
    let (page, row) = (slot / PAGE_ROWS * PAGE_ROWS * (INT8_KEY + 4), slot % PAGE_ROWS);
    let (quants, scale) = (page + row * INT8_KEY, page + PAGE_ROWS * INT8_KEY + row * 4);
    (quants..quants + INT8_KEY, scale..scale + 4)
}

/// The first four bytes.
fn f32_at(bytes: &[u8]) -> f32 {
    bytes.first_chunk().map_or(f32::NAN, |b| f32::from_le_bytes(*b))
}

/// `slots * width`, if f32 values of that number can be addressed.
fn values_of_cache(slots: usize, width: usize) -> Option<usize> {
    slots.checked_mul(width).filter(|n| *n <= isize::MAX as usize / 4)
}

fn round<T>(x: &[f32], out: &mut [T], f: impl Fn(f32) -> T) {
    x.iter().zip(out).for_each(|(x, o)| *o = f(*x));
}
