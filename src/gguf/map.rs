//! Read-only memory maps of files: the one place of `gguf` with `unsafe`.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::quant::SharedBytes;

/// Maps a whole regular file. Nothing is read until a page is touched.
pub(super) fn map(path: &Path) -> Result<SharedBytes> {
    // Asked before opening: a pipe would block in `open`.
    let meta = fs::metadata(path).map_err(|e| Error::io(path, e))?;
    if meta.is_dir() {
        let e = io::Error::new(io::ErrorKind::IsADirectory, "is a directory, expected a GGUF file");
        return Err(Error::io(path, e));
    }
    if !meta.is_file() {
        let e = io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file, expected a GGUF file");
        return Err(Error::io(path, e));
    }
    let file = File::open(path).map_err(|e| Error::io(path, e))?;
    // SAFETY: the map is read-only and private to this process. What no program can rule out is another process that
    // writes or truncates the file meanwhile; as with every engine that maps its weights, the file must be left alone
    // while it is open (`Gguf::open` says so). All bit patterns are valid `u8`.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| Error::io(path, e))?;
    Ok(SharedBytes::new(Arc::new(map)))
}
