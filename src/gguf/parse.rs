//! The header of one GGUF file: magic, counts, metadata, tensor table. Every length is checked before it is used.
//!
//! ```text
//! file   := "GGUF"  version:u32  n_tensors:i64  n_kv:i64  kv[n_kv]  tinfo[n_tensors]  pad to alignment  data
//! kv     := key:string  type:i32  value            (array: elem_type:i32  count:u64  elems)
//! string := len:u64  bytes[len]
//! tinfo  := name:string  n_dims:u32  dims:i64[n_dims] (ne0 first)  type:i32  offset:u64
//! ```
//! All little-endian, without padding between fields. `offset` counts from the start of `data` of the same file.

use std::collections::HashSet;
use std::path::Path;

use super::metadata::Metadata;
use super::tensor_info::{TensorInfo, tensor_bytes, type_from_id};
use super::value::{Array, StrArray, Value, ValueType};
use crate::error::{Error, Result};

pub(super) const MAGIC: &[u8; 4] = b"GGUF";
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_DIMS: u32 = 4;
/// ggml keeps names in 64 bytes with a terminator.
pub(super) const MAX_NAME: usize = 63;
const MAX_STRING: u64 = 1 << 30;
const MAX_ARRAY: u64 = 1 << 30;
/// Smallest key/value: one byte of key, one byte of value.
const MIN_KV: u64 = 8 + 1 + 4 + 1;
/// Smallest tensor info: no name, no extents.
const MIN_TENSOR: u64 = 8 + 4 + 4 + 8;

/// All that a file says before its data.
pub(super) struct Header {
    pub version: u32,
    pub alignment: u64,
    pub metadata: Metadata,
    /// In table order, placed and checked against the length of the file.
    pub tensors: Vec<TensorInfo>,
}

/// Reads the header of `bytes`, the whole of `file`, which is number `shard` of its set. Touches no tensor data.
pub(super) fn parse(file: &Path, bytes: &[u8], shard: usize) -> Result<Header> {
    parse_front(file, bytes, shard, bytes.len() as u64)
}

/// The same of the front of a file of `len` bytes, all that lies before its data.
pub(super) fn parse_front(file: &Path, bytes: &[u8], shard: usize, len: u64) -> Result<Header> {
    let mut cursor = Cursor { bytes, pos: 0 };
    let (version, n_tensors, n_kv) = counts(&mut cursor).map_err(|m| Error::header(file, m))?;

    let mut metadata = Metadata::new(file);
    for i in 1..=n_kv {
        let key = key(&mut cursor).map_err(|m| Error::header(file, format!("key {i} of {n_kv}: {m}")))?;
        let value = value(&mut cursor).map_err(|m| Error::key(file, &key, m))?;
        metadata.insert(key, value)?;
    }
    let alignment = alignment(&metadata)?;

    cursor.fits(n_tensors, MIN_TENSOR, "tensors").map_err(|m| Error::header(file, m))?;
    let mut tensors = Vec::with_capacity(n_tensors as usize);
    let mut names = HashSet::with_capacity(n_tensors as usize);
    for i in 1..=n_tensors {
        let name =
            name(&mut cursor).map_err(|m| Error::header(file, format!("tensor {i} of {n_tensors}: {m}")))?;
        let info = tensor(&mut cursor, &name, shard).map_err(|m| Error::tensor(file, &name, m))?;
        if !names.insert(name) {
            return Err(Error::tensor(file, &info.name, "duplicate tensor name"));
        }
        tensors.push(info);
    }
    place(file, &mut tensors, cursor.pos as u64, alignment, len)?;
    Ok(Header { version, alignment, metadata, tensors })
}

/// Version, number of tensors, number of keys.
fn counts(cursor: &mut Cursor) -> Result<(u32, u64, u64), String> {
    let magic = cursor.take(4, "the magic")?;
    if magic != MAGIC {
        return Err(format!(
            "not a GGUF file: it starts with {:?}, expected \"GGUF\"",
            magic.escape_ascii().to_string()
        ));
    }
    let version = cursor.u32("the version")?;
    match version {
        2 | 3 => {}
        v if v & 0xffff == 0 => {
            return Err(format!(
                "version {v:#010x} has the opposite byte order: big-endian files are not supported"
            ));
        }
        v => return Err(format!("version {v} is not supported, expected 2 or 3")),
    }
    let count = |n: u64, what| match i64::try_from(n) {
        Ok(_) => Ok(n),
        Err(_) => Err(format!("number of {what} is {}, expected 0 or more", n as i64)),
    };
    let n_tensors = count(cursor.u64("the number of tensors")?, "tensors")?;
    let n_kv = count(cursor.u64("the number of keys")?, "keys")?;
    cursor.fits(n_kv, MIN_KV, "keys")?;
    Ok((version, n_tensors, n_kv))
}

fn key(cursor: &mut Cursor) -> Result<String, String> {
    let key = cursor.string("the key")?;
    printable(key)?;
    if key.is_empty() || key.len() > u16::MAX as usize {
        return Err(format!("a key of {} bytes, expected 1 to {}", key.len(), u16::MAX));
    }
    Ok(key.to_owned())
}

fn name(cursor: &mut Cursor) -> Result<String, String> {
    let name = cursor.string("the name")?;
    if name.len() > MAX_NAME {
        let start: String = name.chars().take(16).collect();
        return Err(format!("a name of {} bytes ({start:?}...), at most {MAX_NAME}", name.len()));
    }
    printable(name)?;
    Ok(name.to_owned())
}

/// Names go into one-line reports and onto terminals.
fn printable(name: &str) -> Result<(), String> {
    match name.chars().find(|c| c.is_control()) {
        None => Ok(()),
        Some(c) => Err(format!("control character {c:?} in a name")),
    }
}

fn value(cursor: &mut Cursor) -> Result<Value, String> {
    let ty = value_type(cursor, "value")?;
    Ok(match ty {
        ValueType::Array => Value::Array(array(cursor)?),
        ValueType::Str => Value::Str(cursor.string("a string")?.to_owned()),
        ValueType::Bool => Value::Bool(flag(cursor.take(1, "a bool")?[0])?),
        ValueType::U8 => Value::U8(u8::from_le_bytes(cursor.scalar("a u8")?)),
        ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.scalar("an i8")?)),
        ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.scalar("a u16")?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.scalar("an i16")?)),
        ValueType::U32 => Value::U32(u32::from_le_bytes(cursor.scalar("a u32")?)),
        ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.scalar("an i32")?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.scalar("an f32")?)),
        ValueType::U64 => Value::U64(u64::from_le_bytes(cursor.scalar("a u64")?)),
        ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.scalar("an i64")?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.scalar("an f64")?)),
    })
}

fn value_type(cursor: &mut Cursor, what: &str) -> Result<ValueType, String> {
    let id = cursor.u32("the type")?;
    ValueType::from_id(id).ok_or_else(|| format!("unknown {what} type {}, expected 0 to 12", id as i32))
}

fn array(cursor: &mut Cursor) -> Result<Array, String> {
    let ty = value_type(cursor, "element")?;
    let n = cursor.u64("the array length")?;
    if n > MAX_ARRAY {
        return Err(format!("array of {n} elements, at most 2^30"));
    }
    Ok(match ty {
        ValueType::Array => return Err("nested arrays are not supported".into()),
        ValueType::Str => {
            cursor.fits(n, 8, "strings")?;
            let mut strings = StrArray::with_capacity(n as usize);
            for i in 0..n {
                strings.push(cursor.string("a string").map_err(|m| format!("element {i} of {n}: {m}"))?);
            }
            Array::Str(strings)
        }
        ValueType::Bool => {
            Array::Bool(cursor.take(n, "bools")?.iter().map(|&b| flag(b)).collect::<Result<_, _>>()?)
        }
        ValueType::U8 => Array::U8(cursor.scalars(n, u8::from_le_bytes)?),
        ValueType::I8 => Array::I8(cursor.scalars(n, i8::from_le_bytes)?),
        ValueType::U16 => Array::U16(cursor.scalars(n, u16::from_le_bytes)?),
        ValueType::I16 => Array::I16(cursor.scalars(n, i16::from_le_bytes)?),
        ValueType::U32 => Array::U32(cursor.scalars(n, u32::from_le_bytes)?),
        ValueType::I32 => Array::I32(cursor.scalars(n, i32::from_le_bytes)?),
        ValueType::F32 => Array::F32(cursor.scalars(n, f32::from_le_bytes)?),
        ValueType::U64 => Array::U64(cursor.scalars(n, u64::from_le_bytes)?),
        ValueType::I64 => Array::I64(cursor.scalars(n, i64::from_le_bytes)?),
        ValueType::F64 => Array::F64(cursor.scalars(n, f64::from_le_bytes)?),
    })
}

fn flag(byte: u8) -> Result<bool, String> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        b => Err(format!("bool byte {b}, expected 0 or 1")),
    }
}

fn alignment(metadata: &Metadata) -> Result<u64> {
    const KEY: &str = "general.alignment";
    match metadata.get::<u64>(KEY)? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(a) if a.is_power_of_two() && a <= u32::MAX.into() => Ok(a),
        Some(a) => Err(Error::key(
            metadata.file(),
            KEY,
            format!("alignment {a}, expected a power of two of 32 bits"),
        )),
    }
}

/// A tensor info after its name. `offset` still counts from the start of the data.
fn tensor(cursor: &mut Cursor, name: &str, shard: usize) -> Result<TensorInfo, String> {
    let n_dims = cursor.u32("the number of dimensions")?;
    if n_dims > MAX_DIMS {
        return Err(format!("{n_dims} dimensions, at most {MAX_DIMS}"));
    }
    let mut dims = [1; MAX_DIMS as usize];
    for (i, d) in dims.iter_mut().enumerate().take(n_dims as usize) {
        let ne = i64::from_le_bytes(cursor.scalar("an extent")?);
        *d = u64::try_from(ne).map_err(|_| format!("ne{i} is {ne}, expected 0 or more"))?;
    }
    let ty = type_from_id(i32::from_le_bytes(cursor.scalar("the type")?))?;
    let offset = cursor.u64("the offset")?;
    let bytes = tensor_bytes(ty, dims)?;
    Ok(TensorInfo { name: name.to_owned(), ty, dims, n_dims: n_dims as usize, shard, offset, bytes })
}

/// Makes offsets absolute. Tensors must be aligned, inside the file, and follow one another in table order.
fn place(file: &Path, tensors: &mut [TensorInfo], header: u64, alignment: u64, len: u64) -> Result<()> {
    // Both fit: the header is within a file and the alignment has 32 bits.
    let base = header.next_multiple_of(alignment);
    let mut expected = 0u64;
    for i in 0..tensors.len() {
        let TensorInfo { offset, bytes, .. } = tensors[i];
        let wrong = |message| Err(Error::tensor(file, &tensors[i].name, message));
        let Some((start, end)) = base.checked_add(offset).and_then(|s| Some((s, s.checked_add(bytes)?)))
        else {
            return wrong(format!("data start {base} + offset {offset} + size {bytes} overflows 64 bits"));
        };
        if !offset.is_multiple_of(alignment) {
            return wrong(format!("offset {offset} is not a multiple of the alignment {alignment}"));
        }
        if start > len {
            return wrong(format!("offset {offset} lies past the end of the file: byte {start} of {len}"));
        }
        if end > len {
            return wrong(format!("ends past the end of the file: {end} bytes needed, the file has {len}"));
        }
        if offset != expected {
            let overlapped = tensors[..i].iter().find(|t| (t.offset..t.offset + t.bytes).contains(&start));
            let overlap = overlapped.map_or(String::new(), |t| format!(", it overlaps {}", t.name));
            return wrong(format!(
                "offset {offset}, expected {expected}, the padded end of the tensor before{overlap}"
            ));
        }
        // Cannot wrap: within the file, plus an alignment of 32 bits.
        expected = (offset + bytes).next_multiple_of(alignment);
        tensors[i].offset = start;
    }
    Ok(())
}

/// A position in a file. Reading past the end gives a message, never a panic.
struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> u64 {
        (self.bytes.len() - self.pos) as u64
    }

    fn take(&mut self, n: u64, what: &str) -> Result<&'a [u8], String> {
        let left = self.left();
        if n > left {
            let at = self.pos;
            return Err(format!("end of file inside {what}: {n} bytes needed at byte {at}, {left} left"));
        }
        let start = self.pos;
        self.pos += n as usize;
        Ok(&self.bytes[start..self.pos])
    }

    /// Whether `n` items of at least `size` bytes can be in what is left: asked before any allocation.
    fn fits(&self, n: u64, size: u64, what: &str) -> Result<(), String> {
        match n.checked_mul(size) {
            Some(bytes) if bytes <= self.left() => Ok(()),
            _ => Err(format!(
                "{n} {what} cannot fit in the file (truncated, or a wrong count): at least {size} bytes each, {} left \
                 at byte {}",
                self.left(),
                self.pos
            )),
        }
    }

    fn scalar<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        let mut x = [0; N];
        x.copy_from_slice(self.take(N as u64, what)?);
        Ok(x)
    }

    fn scalars<const N: usize, T>(
        &mut self,
        n: u64,
        decode: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, String> {
        // `n` is an array length of at most 2^30: the product is small.
        let bytes = self.take(n * N as u64, "an array")?;
        let (elements, _) = bytes.as_chunks::<N>();
        Ok(elements.iter().map(|&e| decode(e)).collect())
    }

    fn u32(&mut self, what: &str) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.scalar(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.scalar(what)?))
    }

    fn string(&mut self, what: &str) -> Result<&'a str, String> {
        let n = self.u64(what)?;
        let left = self.left();
        if n > left {
            let at = self.pos;
            return Err(format!(
                "length {n} of {what} goes past the end of the file: {left} bytes left at byte {at}"
            ));
        }
        if n > MAX_STRING {
            return Err(format!("{what} of {n} bytes, at most 1 GiB"));
        }
        let bytes = self.take(n, what)?;
        std::str::from_utf8(bytes).map_err(|e| format!("{what} is not UTF-8: {e}"))
    }
}
