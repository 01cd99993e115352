//! The host's C++ compiler on every file of the emulator whose contents changed ([`crate::cache`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::{self, Files};
use crate::{Result, toolkit};

/// A C++ file.
#[derive(Debug)]
pub struct Source {
    /// In the folder of kernels, or generated.
    pub path: PathBuf,
    /// What it is told beyond the flags of all, such as those of a sanitizer.
    pub flags: &'static [&'static str],
}

/// Where and how to compile.
#[derive(Debug)]
pub struct Options<C> {
    /// The folder `cuda`.
    pub cuda: PathBuf,
    /// Keeps objects from run to run; may be shared by builds.
    pub cache: PathBuf,
    /// Compilers at a time.
    pub jobs: usize,
    /// A compiler with the flags of all, ready to be told what to compile.
    pub compiler: C,
}

/// Objects of these files, in their order.
///
/// # Errors
/// What the compiler says about the first file that fails; files that cannot be read or written.
pub fn objects<C: Fn() -> Command + Sync>(sources: &[Source], options: &Options<C>) -> Result<Vec<PathBuf>> {
    let Options { cuda, cache, jobs, compiler } = options;
    fs::create_dir_all(cache).map_err(|e| format!("{}: {e}", cache.display()))?;
    let version = toolkit::run(Command::new(compiler().get_program()).arg("--version"))?;
    cache::in_parallel(*jobs, sources, |source| object(source, cuda, cache, &version, compiler()))
}

fn object(
    source: &Source,
    cuda: &Path,
    cache: &Path,
    version: &str,
    mut compiler: Command,
) -> Result<PathBuf> {
    let Source { path, flags } = source;
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let dir = match path.parent().and_then(|dir| dir.strip_prefix(cuda).ok()) {
        Some(dir) => format!("{}/", dir.display()),
        None => String::new(), // generated: it includes along the include path only
    };
    compiler.args(*flags);
    // Paths do not count: neither where the project lies nor where units are generated.
    let root = cuda.display().to_string();
    let told: Vec<_> = compiler.get_args().map(|arg| arg.to_string_lossy().replace(&root, "")).collect();
    let key = cache::key(&Files { root: cuda, without: None }, &dir, &text, (told, version))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let kept = cache.join(format!("{name}-{key:016x}.o"));
    if !kept.is_file() {
        compiler.arg("-c").arg(path);
        cache::run(compiler, path, &kept)?;
    }
    Ok(kept)
}
