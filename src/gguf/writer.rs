//! `Writer`: GGUF files from keys and tensors, single or split, with or without the data.

use std::fmt;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::parse::{DEFAULT_ALIGNMENT, MAGIC, MAX_NAME};
use super::reader::Gguf;
use super::split;
use super::tensor_info::tensor_bytes;
use super::value::{Array, Value};
use crate::error::{Error, Result};
use crate::quant::{GgmlType, Make, SharedBytes};

/// Collects keys and tensors and writes them in the order given.
///
/// ```
/// use glm5::gguf::{Gguf, Writer};
/// use glm5::quant::GgmlType;
/// # fn main() -> glm5::Result<()> {
/// let mut writer = Writer::new();
/// writer.key("general.architecture", "glm-dsa");
/// writer.tensor("output_norm.weight", GgmlType::F32, &[2], vec![0; 8])?;
/// let gguf = Gguf::from_bytes("example", writer.to_bytes()?.into())?;
/// assert_eq!(gguf.tensors()[0].ne(), [2]);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Writer {
    version: u32,
    alignment: u64,
    keys: Vec<(String, Value)>,
    tensors: Vec<NewTensor>,
}

#[derive(Debug, Clone)]
struct NewTensor {
    name: String,
    ty: GgmlType,
    ne: Vec<u64>,
    bytes: u64,
    data: Data,
}

/// Where the bytes of a tensor come from.
#[derive(Clone)]
pub(super) enum Data {
    Hole,
    Given(SharedBytes),
    /// Made each time when they are needed.
    Made(Arc<Make>),
}

impl Data {
    /// All `len` bytes; what is not given lives as long as the result.
    pub(super) fn bytes(&self, len: usize) -> SharedBytes {
        match self {
            Data::Hole => SharedBytes::made(len, Arc::new(|_| {})),
            Data::Given(bytes) => bytes.clone(),
            Data::Made(make) => SharedBytes::made(len, make.clone()),
        }
    }

    /// The same, unless they are zeros.
    fn to_write(&self, len: u64) -> Option<SharedBytes> {
        let len = usize::try_from(len).ok()?;
        (!matches!(self, Data::Hole)).then(|| self.bytes(len))
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Data::Hole => f.write_str("Hole"),
            Data::Given(bytes) => bytes.fmt(f),
            Data::Made(_) => f.write_str("Made"),
        }
    }
}

impl Default for Writer {
    fn default() -> Self {
        Writer { version: 3, alignment: DEFAULT_ALIGNMENT, keys: Vec::new(), tensors: Vec::new() }
    }
}

impl Writer {
    /// An empty file of version 3 and alignment 32.
    pub fn new() -> Self {
        Writer::default()
    }

    /// Sets the version of the format: 2 or 3, they have the same layout.
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Sets the alignment of tensors; the key `general.alignment` is written unless it is the default.
    ///
    /// # Errors
    /// [`Error::Argument`] unless it is a power of two.
    pub fn alignment(mut self, alignment: u32) -> Result<Self> {
        if !alignment.is_power_of_two() {
            return Err(Error::argument("alignment", "a power of two", alignment));
        }
        self.alignment = alignment.into();
        Ok(self)
    }

    /// Appends a key. Keys are written as they are given, also those that no reader takes (used twice, empty): tests need
    /// such files.
    pub fn key(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        self.keys.push((key.into(), value.into()));
    }

    /// Appends a tensor of extents `ne` (`ne0` first).
    ///
    /// # Errors
    /// [`Error::Argument`] if the name is too long or used, the extents break the format's rules, or `data` has another
    /// size than they ask for.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        ty: GgmlType,
        ne: &[u64],
        data: impl Into<SharedBytes>,
    ) -> Result<()> {
        self.push(name.into(), ty, ne, Data::Given(data.into()))
    }

    /// Appends a tensor whose bytes `make` writes, into a slice of zeros, each time when they are needed. The same restriction holds as for
    /// [`SharedBytes::made`].
    ///
    /// # Errors
    /// As [`Writer::tensor`].
    pub fn made(
        &mut self,
        name: impl Into<String>,
        ty: GgmlType,
        ne: &[u64],
        make: impl Fn(&mut [u8]) + Send + Sync + 'static,
    ) -> Result<()> {
        self.push(name.into(), ty, ne, Data::Made(Arc::new(make)))
    }

    /// Appends a tensor without data: in files its place is a hole that takes no space on disk and reads as zeros.
    ///
    /// # Errors
    /// As [`Writer::tensor`].
    pub fn hole(&mut self, name: impl Into<String>, ty: GgmlType, ne: &[u64]) -> Result<()> {
        self.push(name.into(), ty, ne, Data::Hole)
    }

    fn push(&mut self, name: String, ty: GgmlType, ne: &[u64], data: Data) -> Result<()> {
        if name.len() > MAX_NAME || self.tensors.iter().any(|t| t.name == name) {
            return Err(Error::argument("tensor name", format!("{MAX_NAME} bytes at most, used once"), name));
        }
        let mut dims = [1; 4];
        let Some(own) = dims.get_mut(..ne.len()) else {
            return Err(Error::argument("extents", "4 at most", format!("{ne:?} of {name}")));
        };
        own.copy_from_slice(ne);
        let bytes = tensor_bytes(ty, dims)
            .map_err(|m| Error::argument("extents", "legal ones", format!("{ne:?} of {name}: {m}")))?;
        match &data {
            Data::Given(data) if data.len() as u64 != bytes => {
                let expected = format!("{bytes} bytes for {ty} {ne:?} of {name}");
                Err(Error::argument("tensor data", expected, format!("{} bytes", data.len())))
            }
            _ => {
                self.tensors.push(NewTensor { name, ty, ne: ne.to_vec(), bytes, data });
                Ok(())
            }
        }
    }

    /// The file as it would be read, without making it: data that was given is shared, other data is made when somebody looks at a tensor and
    /// given back with the last weight of it. `name` stands for a path in error texts.
    ///
    /// # Errors
    /// [`Error::File`] for keys that no reader takes.
    pub fn to_gguf(&self, name: impl Into<PathBuf>) -> Result<Gguf> {
        let (front, offsets) = self.part(self.all_keys(), &self.tensors).layout();
        let data = self.tensors.iter().map(|t| t.data.clone()).collect();
        Gguf::from_front(name.into(), &front, offsets[offsets.len() - 1], data)
    }

    /// The file in memory; holes are filled with zeros.
    ///
    /// # Errors
    /// [`Error::Capacity`] if it is larger than the address space.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.part(self.all_keys(), &self.tensors).to_bytes()
    }

    /// Writes one file.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        self.part(self.all_keys(), &self.tensors).write(path.as_ref())
    }

    /// Writes a split set `PREFIX-00001-of-0000N.gguf`, ... where shard `i` holds the next `tensors[i]` tensors (the
    /// first may hold none). Gives the paths.
    ///
    /// # Errors
    /// [`Error::Argument`] unless `tensors` adds up to the number of tensors; [`Error::Io`] if a file cannot be written.
    pub fn write_split(&self, prefix: impl AsRef<Path>, tensors: &[usize]) -> Result<Vec<PathBuf>> {
        let parts = self.parts(prefix.as_ref(), tensors)?;
        parts.into_iter().map(|(path, part)| part.write(&path).map(|()| path)).collect()
    }

    /// The files of [`Writer::write_split`] in memory.
    ///
    /// # Errors
    /// As [`Writer::write_split`] and [`Writer::to_bytes`].
    pub fn split_to_bytes(
        &self,
        prefix: impl AsRef<Path>,
        tensors: &[usize],
    ) -> Result<Vec<(PathBuf, SharedBytes)>> {
        let parts = self.parts(prefix.as_ref(), tensors)?;
        parts.into_iter().map(|(path, part)| Ok((path, part.to_bytes()?.into()))).collect()
    }

    fn part<'a>(&self, keys: Vec<(String, Value)>, tensors: &'a [NewTensor]) -> Part<'a> {
        Part { version: self.version, alignment: self.alignment, keys, tensors }
    }

    fn all_keys(&self) -> Vec<(String, Value)> {
        let mut keys = self.keys.clone();
        self.alignment_key(&mut keys);
        keys
    }

    fn alignment_key(&self, keys: &mut Vec<(String, Value)>) {
        if self.alignment != DEFAULT_ALIGNMENT {
            keys.push(("general.alignment".into(), Value::U32(self.alignment as u32)));
        }
    }

    /// Keys and tensors of every shard. The split keys have the types that llama.cpp's tool gives them.
    fn parts(&self, prefix: &Path, tensors: &[usize]) -> Result<Vec<(PathBuf, Part<'_>)>> {
        let total = tensors.iter().try_fold(0usize, |n, &t| n.checked_add(t));
        let (Ok(count), true) = (u16::try_from(tensors.len()), total == Some(self.tensors.len())) else {
            let expected = format!("at most 65535 shards that hold {} tensors together", self.tensors.len());
            return Err(Error::argument("tensors per shard", expected, format!("{tensors:?}")));
        };
        let name = prefix.file_name().unwrap_or_default().to_string_lossy();
        let mut rest = self.tensors.as_slice();
        let part = |(i, &n): (usize, &usize)| {
            let mut keys = if i == 0 { self.keys.clone() } else { Vec::new() };
            self.alignment_key(&mut keys);
            keys.push((split::NO.into(), Value::U16(i as u16)));
            keys.push((split::COUNT.into(), Value::U16(count)));
            keys.push((split::TENSORS.into(), Value::I32(self.tensors.len() as i32)));
            let (own, after) = rest.split_at(n);
            rest = after;
            let path = prefix.with_file_name(split::file_name(&name, i, tensors.len()));
            (path, self.part(keys, own))
        };
        Ok(tensors.iter().enumerate().map(part).collect())
    }
}

/// One file to be.
struct Part<'a> {
    version: u32,
    alignment: u64,
    keys: Vec<(String, Value)>,
    tensors: &'a [NewTensor],
}

impl Part<'_> {
    /// Everything before the data, padded, and where each tensor starts; the last entry is the size of the file.
    fn layout(&self) -> (Vec<u8>, Vec<u64>) {
        let mut out = Vec::new();
        out.extend(MAGIC);
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            put_str(&mut out, key);
            out.extend(value.value_type().id().to_le_bytes());
            put_value(&mut out, value);
        }
        let mut offsets = vec![0u64];
        for tensor in self.tensors {
            put_str(&mut out, &tensor.name);
            out.extend((tensor.ne.len() as u32).to_le_bytes());
            tensor.ne.iter().for_each(|ne| out.extend(ne.to_le_bytes()));
            out.extend(tensor.ty.id().to_le_bytes());
            let offset = offsets[offsets.len() - 1];
            out.extend(offset.to_le_bytes());
            // Saturates far above any file system's limit, which then reports it.
            let end = offset.saturating_add(tensor.bytes).min(i64::MAX as u64);
            offsets.push(end.next_multiple_of(self.alignment));
        }
        let base = (out.len() as u64).next_multiple_of(self.alignment);
        out.resize(base as usize, 0);
        (out, offsets.into_iter().map(|o| base.saturating_add(o)).collect())
    }

    fn to_bytes(&self) -> Result<Vec<u8>> {
        let (mut out, offsets) = self.layout();
        let total = offsets[offsets.len() - 1];
        let more = usize::try_from(total).unwrap_or(usize::MAX).saturating_sub(out.len());
        out.try_reserve_exact(more).map_err(|_| Error::Capacity {
            what: "bytes of memory for a GGUF file".into(),
            needed: total,
            available: isize::MAX as u64,
        })?;
        for (tensor, &start) in self.tensors.iter().zip(&offsets) {
            out.resize(start as usize, 0);
            if let Some(data) = tensor.data.to_write(tensor.bytes) {
                out.extend_from_slice(&data);
            }
        }
        out.resize(total as usize, 0);
        Ok(out)
    }

    fn write(&self, path: &Path) -> Result<()> {
        let (header, offsets) = self.layout();
        let write = || {
            let mut file = File::create(path)?;
            file.write_all(&header)?;
            for (tensor, &start) in self.tensors.iter().zip(&offsets) {
                if let Some(data) = tensor.data.to_write(tensor.bytes) {
                    file.seek(SeekFrom::Start(start))?;
                    file.write_all(&data)?;
                }
            }
            file.set_len(offsets[offsets.len() - 1])
        };
        write().map_err(|e| Error::io(path, e))
    }
}

fn put_str(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(x) => out.push(*x),
        Value::I8(x) => out.extend(x.to_le_bytes()),
        Value::U16(x) => out.extend(x.to_le_bytes()),
        Value::I16(x) => out.extend(x.to_le_bytes()),
        Value::U32(x) => out.extend(x.to_le_bytes()),
        Value::I32(x) => out.extend(x.to_le_bytes()),
        Value::F32(x) => out.extend(x.to_le_bytes()),
        Value::U64(x) => out.extend(x.to_le_bytes()),
        Value::I64(x) => out.extend(x.to_le_bytes()),
        Value::F64(x) => out.extend(x.to_le_bytes()),
        Value::Bool(x) => out.push((*x).into()),
        Value::Str(x) => put_str(out, x),
        Value::Array(array) => {
            out.extend(array.element_type().id().to_le_bytes());
            out.extend((array.len() as u64).to_le_bytes());
            match array {
                Array::U8(v) => out.extend(v),
                Array::I8(v) => v.iter().for_each(|x| out.extend(x.to_le_bytes())),
                Array::U16(v) => v.iter().for_each(|x| out.extend(x.to_le_bytes())),
                Array::I16(v) => v.iter().for_each(|x| out.extend(x.to_le_bytes())),
                Array::U32(v) => v.iter().for_each(|x| out.extend(x.to_le_bytes())),
                Array::I32(v) => v.iter().for_each(|x| out.extend(x.to_le_bytes())),
                Array::F32(v) => v.iter().for_each(|x| out.extend(x.to_le_bytes())),
                Array::U64(v) => v.iter().for_each(|x| out.extend(x.to_le_bytes())),
                Array::I64(v) => v.iter().for_each(|x| out.extend(x.to_le_bytes())),
                Array::F64(v) => v.iter().for_each(|x| out.extend(x.to_le_bytes())),
                Array::Bool(v) => out.extend(v.iter().map(|&x| u8::from(x))),
                Array::Str(v) => v.iter().for_each(|s| put_str(out, s)),
            }
        }
    }
}
