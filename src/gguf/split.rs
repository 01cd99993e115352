//! Split sets: names of shards, and the rules that the shards of one set keep.
//!
//! Shards are named `PREFIX-%05d-of-%05d.gguf`, counted from 1 in the name and from 0 in `split.no`. Shard 0 holds the
//! model's metadata, the others only the split keys; each holds its own tensors (shard 0 may hold none).

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::metadata::Metadata;
use super::parse::Header;
use super::value::Value;
use crate::error::{Error, Result};

pub(super) const NO: &str = "split.no";
pub(super) const COUNT: &str = "split.count";
pub(super) const TENSORS: &str = "split.tensors.count";

/// The parts of a shard's file name. `number` counts from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShardName {
    prefix: String,
    pub number: u64,
    pub count: u64,
}

impl ShardName {
    /// Reads `PREFIX-00001-of-00003.gguf`; `None` for other names.
    pub fn parse(path: &Path) -> Option<Self> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (stem, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = stem.rsplit_once('-')?;
        let five_digits = |s: &str| match s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit()) {
            true => s.parse().ok(),
            false => None,
        };
        Some(ShardName {
            prefix: prefix.to_owned(),
            number: five_digits(number)?,
            count: five_digits(count)?,
        })
    }

    /// The path of shard `i` (from 0) beside `path`.
    pub fn sibling(&self, path: &Path, i: usize) -> PathBuf {
        path.with_file_name(file_name(&self.prefix, i, self.count as usize))
    }
}

/// File name of shard `i` (from 0) of `count`.
pub(super) fn file_name(prefix: &str, i: usize, count: usize) -> String {
    format!("{prefix}{}", suffix(i as u64, count as u64))
}

fn suffix(i: u64, count: u64) -> String {
    format!("-{:05}-of-{count:05}.gguf", i.saturating_add(1))
}

/// The files of the set that `path`, one of them, belongs to, in order. `metadata` is that file's own.
pub(super) fn files(path: &Path, metadata: &Metadata) -> Result<Vec<PathBuf>> {
    let count = metadata.get::<u64>(COUNT)?.unwrap_or(1);
    let name = ShardName::parse(path);
    match name {
        // Zero is what some writers put into files that were never split.
        None if count <= 1 => Ok(vec![path.to_owned()]),
        None => {
            let no = metadata.require::<u64>(NO)?;
            Err(Error::split(
                path,
                format!(
                    "{NO} is {no} and {COUNT} is {count}, so the name must end in {}: the other shards are found by \
                     their names",
                    suffix(no, count)
                ),
            ))
        }
        Some(name) if name.count != count => {
            let says = match metadata.value(COUNT) {
                Some(_) => format!("{COUNT} is {count}"),
                None => format!("there is no {COUNT}"),
            };
            Err(Error::split(path, format!("{says}, but the file name says {} shards", name.count)))
        }
        Some(name) if name.number == 0 || name.number > count => {
            Err(Error::split(path, format!("the file name says shard {} of {count}", name.number)))
        }
        Some(name) => {
            let files: Vec<_> = (0..count as usize).map(|i| name.sibling(path, i)).collect();
            match files.iter().position(|f| !f.exists()) {
                Some(i) => {
                    let missing = files[i].display();
                    Err(Error::split(
                        path,
                        format!("shard {} of {count} is missing: no file {missing}", i + 1),
                    ))
                }
                None => Ok(files),
            }
        }
    }
}

/// Checks that the parsed files, in order, are the shards of one set.
pub(super) fn check(headers: &[Header]) -> Result<()> {
    let first = &headers[0].metadata;
    let count = headers.len() as u64;
    let total = match count {
        1 => first.get::<u64>(TENSORS)?,
        _ => Some(first.require::<u64>(TENSORS)?),
    };
    for (i, header) in headers.iter().enumerate() {
        let shard = &header.metadata;
        let file = shard.file();
        let wrong = |message| Err(Error::split(file, message));
        match shard.get::<u64>(COUNT)? {
            None if count > 1 => {
                return wrong(format!("not a shard: there is no {COUNT}, expected {count}"));
            }
            // A lone file may say 0 or 1.
            Some(n) if n.max(1) != count => {
                return wrong(format!("{COUNT} is {n}, but the set has {count} shards"));
            }
            _ => {}
        }
        match shard.get::<u64>(NO)? {
            None if count > 1 => return wrong(format!("not a shard: there is no {NO}, expected {i}")),
            Some(no) if no != i as u64 => {
                return wrong(format!("{NO} is {no}, expected {i} for shard {} of {count}", i + 1));
            }
            _ => {}
        }
        if let (Some(total), Some(own)) = (total, shard.get::<u64>(TENSORS)?)
            && own != total
        {
            return wrong(format!("{TENSORS} is {own}, but {total} in {}", first.file().display()));
        }
        same_model(first, shard)?;
    }
    let held: usize = headers.iter().map(|h| h.tensors.len()).sum();
    if let Some(total) = total
        && total != held as u64
    {
        let s = if count == 1 { "file holds" } else { "shards hold" };
        return Err(Error::split(first.file(), format!("{TENSORS} is {total}, but the {s} {held} tensors")));
    }
    unique_tensors(headers)
}

/// A shard of another model shows when it repeats a key of shard 0 with another value.
fn same_model(first: &Metadata, shard: &Metadata) -> Result<()> {
    // The alignment holds for its own file only; the split keys have checks of their own.
    let own = |key: &str| matches!(key, "general.alignment" | NO | COUNT | TENSORS);
    // A NaN equals nothing, but is written as another is.
    let differ = |a: &Value, b: &Value| a != b && format!("{a:?}") != format!("{b:?}");
    for (key, value) in shard.iter().filter(|(key, _)| !own(key)) {
        match first.value(key) {
            Some(expected) if differ(expected, value) => {
                return Err(Error::split(
                    shard.file(),
                    format!(
                        "a shard of another model: {key} is {value}, but {expected} in {}",
                        first.file().display()
                    ),
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

fn unique_tensors(headers: &[Header]) -> Result<()> {
    let mut seen = HashMap::new();
    for header in headers {
        let file = header.metadata.file();
        for tensor in &header.tensors {
            if let Some(other) = seen.insert(tensor.name.as_str(), file) {
                let message = format!("occurs in this shard and in {}", other.display());
                return Err(Error::tensor(file, &tensor.name, message));
            }
        }
    }
    Ok(())
}
