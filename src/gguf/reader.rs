//! `Gguf`: one file or one split set, opened; nothing but headers is read.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::map::map;
use super::metadata::Metadata;
use super::parse::{Header, parse, parse_front};
use super::split;
use super::tensor_info::{TensorInfo, TypeCount};
use super::writer::Data;
use crate::error::{Error, Result};
use crate::quant::{GgmlType, SharedBytes};

/// A model file or a whole split set. Tensor data stays where it is until somebody looks at it.
pub struct Gguf {
    shards: Vec<ShardFile>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    /// Of a file that is none, for each tensor.
    data: Vec<Data>,
}

/// One file of a set.
#[derive(Debug, Clone)]
pub struct ShardFile {
    path: PathBuf,
    version: u32,
    alignment: u64,
    n_tensors: usize,
    size: u64,
    bytes: SharedBytes,
}

impl ShardFile {
    /// Path, beside the one that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment of its tensors in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// How many tensors it holds.
    pub fn n_tensors(&self) -> usize {
        self.n_tensors
    }
}

impl Gguf {
    /// Opens a file, or the whole set if the file is one of its shards (any of them). The files are mapped, not read:
    /// only the pages of the headers are touched. They must not be changed while they are open.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be opened, [`Error::File`] if one breaks the format or does not belong to the set.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = map(path)?;
        let own = parse(path, &bytes, 0)?;
        let files = split::files(path, &own.metadata)?;
        if files.len() == 1 {
            return Gguf::assemble(vec![bytes], vec![own]);
        }
        let bytes = files.iter().map(|f| map(f)).collect::<Result<Vec<_>>>()?;
        Gguf::from_shards(files.into_iter().zip(bytes))
    }

    /// Reads a file that is already in memory; `name` stands for its path in error texts.
    ///
    /// # Errors
    /// [`Error::File`] if it breaks the format, or is a shard of a set of several.
    pub fn from_bytes(name: impl Into<PathBuf>, bytes: SharedBytes) -> Result<Self> {
        Gguf::from_shards([(name.into(), bytes)])
    }

    /// Reads a split set that is already in memory, all shards in order.
    ///
    /// # Errors
    /// [`Error::File`] if a file breaks the format or does not belong to the set; [`Error::Argument`] for no file.
    pub fn from_shards(files: impl IntoIterator<Item = (PathBuf, SharedBytes)>) -> Result<Self> {
        let (paths, bytes): (Vec<_>, Vec<_>) = files.into_iter().unzip();
        let headers = paths.iter().zip(&bytes).enumerate();
        let headers = headers.map(|(i, (path, b))| parse(path, b, i)).collect::<Result<Vec<_>>>()?;
        Gguf::assemble(bytes, headers)
    }

    fn assemble(bytes: Vec<SharedBytes>, headers: Vec<Header>) -> Result<Self> {
        if headers.is_empty() {
            return Err(Error::argument("shards", "at least one", "none"));
        }
        split::check(&headers)?;
        let (mut shards, mut tensors, mut metadata) = (Vec::new(), Vec::new(), None);
        for (bytes, header) in bytes.into_iter().zip(headers) {
            shards.push(ShardFile {
                path: header.metadata.file().to_owned(),
                version: header.version,
                alignment: header.alignment,
                n_tensors: header.tensors.len(),
                size: bytes.len() as u64,
                bytes,
            });
            tensors.extend(header.tensors);
            metadata.get_or_insert(header.metadata);
        }
        let metadata = metadata.unwrap_or_else(|| Metadata::new(Path::new("")));
        let by_name = tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(Gguf { shards, metadata, tensors, by_name, data: Vec::new() })
    }

    /// A file of `size` bytes that begins with `front` and has this data, tensor by tensor; it need not exist.
    pub(super) fn from_front(name: PathBuf, front: &[u8], size: u64, data: Vec<Data>) -> Result<Self> {
        let header = parse_front(&name, front, 0, size)?;
        let mut gguf = Gguf::assemble(vec![Vec::new().into()], vec![header])?;
        gguf.shards.iter_mut().for_each(|shard| shard.size = size);
        gguf.data = data;
        Ok(gguf)
    }

    /// The model's metadata: that of shard 0.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The files in order.
    pub fn shards(&self) -> &[ShardFile] {
        &self.shards
    }

    /// Path of the first file.
    pub fn path(&self) -> &Path {
        self.metadata.file()
    }

    /// Size of all files together in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(ShardFile::size).sum()
    }

    /// Size of all tensors together in bytes.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes).sum()
    }

    /// The types that occur, by id, with their numbers of tensors and bytes.
    pub fn types(&self) -> Vec<TypeCount> {
        let count = |&ty: &GgmlType| {
            let own = || self.tensors.iter().filter(|t| t.ty == ty);
            TypeCount { ty, tensors: own().count(), bytes: own().map(|t| t.bytes).sum() }
        };
        GgmlType::ALL.iter().map(count).filter(|c| c.tensors > 0).collect()
    }

    /// All tensors, shard after shard, in table order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index_of(name).map(|i| &self.tensors[i])
    }

    /// Place of a tensor in [`Gguf::tensors`].
    pub(super) fn index_of(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The bytes of a tensor of this file, shared with the map: nothing is copied or read. Of a file that is none
    /// ([`Writer::to_gguf`](super::Writer::to_gguf)) they are made when somebody looks at them.
    ///
    /// # Errors
    /// [`Error::Shape`] if the tensor is not one of [`Gguf::tensors`] and lies outside.
    pub fn data(&self, tensor: &TensorInfo) -> Result<SharedBytes> {
        let range = usize::try_from(tensor.offset).ok().zip(usize::try_from(tensor.bytes).ok());
        let range = range.and_then(|(start, n)| Some(start..start.checked_add(n)?));
        let made = self.index_of(&tensor.name).filter(|i| self.tensors[*i] == *tensor);
        match (self.shards.get(tensor.shard), range, made.and_then(|i| self.data.get(i))) {
            (_, Some(range), Some(data)) => Ok(data.bytes(range.len())),
            (Some(shard), Some(range), None) => shard.bytes.slice(range),
            _ => Err(Error::shape("tensor data", "a tensor of this file", &tensor.name)),
        }
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shards, keys, tensors) = (self.shards.len(), self.metadata.len(), self.tensors.len());
        write!(f, "Gguf({}, {shards} files, {keys} keys, {tensors} tensors)", self.path().display())
    }
}
