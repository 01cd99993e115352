//! Compiled units, kept under a hash of what they were made from: their text, the files that they include, the compiler
//! and what it was told.
//!
//! Neither times nor paths count, so checking out another branch and back compiles nothing, and touching one kernel
//! compiles that kernel. Used for nvcc ([`crate::compile`]) and for the host's compiler ([`crate::host`]).
//!
//! Beside what is kept lies a sum of its contents: a file cut short by a full disk or a lost machine is compiled again.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Result;

/// The files that units may include.
#[derive(Debug)]
pub(crate) struct Files<'a> {
    /// Includes are looked for here and in its folder `include`.
    pub(crate) root: &'a Path,
    /// Files whose path within `root` begins so do not count.
    pub(crate) without: Option<&'a str>,
}

/// Hash of all that decides what comes out: a text that lies in the folder `dir` (empty, or with a slash at its end), what
/// it includes, and `told`. A hasher of another Rust release may differ, which costs one compilation.
pub(crate) fn key(files: &Files, dir: &str, text: &str, told: impl Hash) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    (text, told).hash(&mut hasher);
    files.included_by(dir, text)?.hash(&mut hasher);
    Ok(hasher.finish())
}

/// The folder where compiled units are kept: `GLM5_KERNEL_CACHE`, or `otherwise` if that is not set.
///
/// # Errors
/// A relative path, which would be another folder for each program that asks.
pub fn folder(otherwise: PathBuf) -> Result<PathBuf> {
    folder_of(env::var_os("GLM5_KERNEL_CACHE"), otherwise)
}

fn folder_of(set: Option<OsString>, otherwise: PathBuf) -> Result<PathBuf> {
    match set.filter(|set| !set.is_empty()).map(PathBuf::from) {
        None => Ok(otherwise),
        Some(path) if path.is_absolute() => Ok(path),
        Some(path) => Err(format!("GLM5_KERNEL_CACHE={}: an absolute path is needed", path.display())),
    }
}

/// The contents of files that were [`keep`]t together, if they are all there and whole.
pub(crate) fn kept<const N: usize>(files: [&Path; N]) -> Option<[Vec<u8>; N]> {
    let mut contents = [const { Vec::new() }; N];
    for (file, contents) in files.iter().zip(&mut contents) {
        *contents = fs::read(file).ok()?;
    }
    let there = fs::read_to_string(sum_beside(files[0])).ok()?;
    (there == sum(&contents)).then_some(contents)
}

/// Writes what is known of the contents of files that lie there, so that [`kept`] finds them.
pub(crate) fn keep<const N: usize>(files: [&Path; N], contents: &[Vec<u8>; N]) -> Result<()> {
    write(&sum_beside(files[0]), sum(contents).as_bytes())
}

fn sum_beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".sum");
    name.into()
}

fn sum<const N: usize>(contents: &[Vec<u8>; N]) -> String {
    let mut hasher = DefaultHasher::new();
    contents.hash(&mut hasher);
    format!("{:016x}\n", hasher.finish())
}

/// Writes a file that appears whole or not at all, whoever else writes it.
pub(crate) fn write(path: &Path, contents: &[u8]) -> Result<()> {
    let unfinished = unfinished(path);
    fs::write(&unfinished, contents).map_err(|e| format!("{}: {e}", unfinished.display()))?;
    fs::rename(&unfinished, path).map_err(|e| format!("{}: {e}", path.display()))
}

fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    name.into()
}

/// Runs a compiler, told where to write; `to` appears whole or not at all. Returns what it said.
pub(crate) fn run(mut compiler: Command, source: &Path, to: &Path) -> Result<String> {
    let unfinished = unfinished(to);
    let name = compiler.get_program().to_string_lossy().into_owned();
    let output = compiler.arg("-o").arg(&unfinished).output().map_err(|e| format!("{name}: {e}"))?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        _ = fs::remove_file(&unfinished);
        return Err(format!("{name} failed on {} ({})\n{said}", source.display(), output.status));
    }
    if !fs::metadata(&unfinished).is_ok_and(|file| file.len() > 0) {
        _ = fs::remove_file(&unfinished);
        return Err(format!("{name} reports success on {}, but wrote no file\n{said}", source.display()));
    }
    fs::rename(&unfinished, to).map_err(|e| format!("{}: {e}", to.display()))?;
    Ok(said.into_owned())
}

/// `work` on every item, as many at a time as `jobs` says; the results in the order of the items.
///
/// # Errors
/// The first one; what was not begun then is left.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    jobs: usize,
    items: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, items.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(i) else { break };
                    let result = work(item);
                    if result.is_err() {
                        next.store(items.len(), Ordering::Relaxed); // the others would only bury the message
                    }
                    if let Ok(mut results) = results.lock() {
                        results.insert(i, result);
                    }
                }
            });
        }
    });
    let results = results.into_inner().map_err(|_| "a compiling thread panicked")?;
    results.into_values().collect()
}

impl Files<'_> {
    /// Files that `text` in the folder `dir` includes, directly or not, by path within the root.
    ///
    /// Conditions are not evaluated: a file too many costs a compilation, one too few would miss a change.
    fn included_by(&self, dir: &str, text: &str) -> Result<BTreeMap<String, String>> {
        let mut found = BTreeMap::new();
        let mut open = vec![(dir.to_owned(), text.to_owned())];
        while let Some((dir, text)) = open.pop() {
            for name in text.lines().filter_map(included) {
                // As the compiler looks: beside the file, then along the include path.
                let candidates = [format!("{dir}{name}"), name.to_owned(), format!("include/{name}")];
                let there = candidates.iter().map(|c| normal(c)).find(|c| self.root.join(c).is_file());
                let counts = |path: &String| !self.without.is_some_and(|start| path.starts_with(start));
                let Some(path) = there.filter(|path| counts(path) && !found.contains_key(path)) else {
                    continue;
                };
                let full = self.root.join(&path);
                let text = fs::read_to_string(&full).map_err(|e| format!("{}: {e}", full.display()))?;
                let dir = path.rfind('/').map_or("", |slash| &path[..=slash]).to_owned();
                found.insert(path, text.clone());
                open.push((dir, text));
            }
        }
        Ok(found)
    }
}

/// The file that a line `#include "..."` names.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    rest.trim_start().strip_prefix('"')?.split_once('"').map(|(name, _)| name)
}

/// `a/../b` as `b`, so that a file has one name.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_the_same_for_all() {
        let folder = |set: Option<&str>| folder_of(set.map(OsString::from), "/otherwise".into());
        assert_eq!(folder(None), Ok("/otherwise".into()));
        assert_eq!(folder(Some("")), Ok("/otherwise".into()));
        assert_eq!(folder(Some("/kernels")), Ok("/kernels".into()));
        assert_eq!(
            folder(Some("kernels")),
            Err("GLM5_KERNEL_CACHE=kernels: an absolute path is needed".into())
        );
    }
}
