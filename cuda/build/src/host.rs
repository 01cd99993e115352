//! The host's C++ compiler on every file of the emulator whose contents changed (`cache.rs`).

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
    let mut asked = compiler();
    let version = toolkit::run(asked.arg("--version"))?;
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
    if cache::kept([kept.as_path()]).is_none() {
        compiler.arg("-c").arg(path);
        cache::run(compiler, path, &kept)?;
        let code = fs::read(&kept).map_err(|e| format!("{}: {e}", kept.display()))?;
        cache::keep([kept.as_path()], &[code])?;
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    /// A kernel whose unit is generated, and an emulator; a shell stands in for the compiler.
    struct Project(PathBuf);

    impl Project {
        fn new(name: &str) -> Project {
            let project = Project(env::temp_dir().join(format!("glm5-host-{name}-{}", std::process::id())));
            _ = fs::remove_dir_all(&project.0);
            project.file("cuda/add.cu", "#include \"common/intrin.cuh\"\n");
            project.file("cuda/common/intrin.cuh", "#include \"../host/emu.hpp\"\n");
            project.file("cuda/host/emu.hpp", "");
            project.file("cuda/host/emu.cpp", "#include \"emu.hpp\"\n");
            project.file("cuda/host/fiber.cpp", "");
            project.file("out/add.0.cpp", "#include \"add.cu\"\n");
            project
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// How many of the three files were compiled.
        fn compiled(&self, define: &str, flags: &'static [&'static str]) -> usize {
            _ = fs::remove_file(self.0.join("log"));
            let paths = ["cuda/host/emu.cpp", "cuda/host/fiber.cpp", "out/add.0.cpp"];
            let sources = paths.map(|path| Source { path: self.0.join(path), flags });
            let compiler = || {
                // Writes what it was told, if it was told where.
                let mut sh = Command::new("sh");
                let script =
                    "for a; do [ \"$last\" = -o ] && echo \"$@\" >$a && echo $a >>\"$LOG\"; last=$a; done; :";
                sh.env("LOG", self.0.join("log"));
                sh.args(["-c", script, "sh", define, "-I"]).arg(self.0.join("cuda"));
                sh
            };
            let options =
                Options { cuda: self.0.join("cuda"), cache: self.0.join("cache"), jobs: 2, compiler };
            let made = super::objects(&sources, &options).unwrap();
            assert!(made.len() == 3 && made.iter().all(|path| path.is_file()), "{made:?}");
            fs::read_to_string(self.0.join("log")).unwrap_or_default().lines().count()
        }
    }

    impl Drop for Project {
        fn drop(&mut self) {
            _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_what_changed_is_compiled() {
        let project = Project::new("changes");
        assert_eq!(project.compiled("-DA", &[]), 3);
        assert_eq!(project.compiled("-DA", &[]), 0);
        project.file("cuda/add.cu", "#include \"common/intrin.cuh\"\n// other\n");
        assert_eq!(project.compiled("-DA", &[]), 1);
        project.file("cuda/host/emu.hpp", "// read by the emulator and by kernels\n");
        assert_eq!(project.compiled("-DA", &[]), 2);
        project.file("cuda/host/fiber.cpp", "// other\n");
        assert_eq!(project.compiled("-DA", &[]), 1);
        project.file("cuda/host/emu.hpp", "");
        assert_eq!(project.compiled("-DA", &[]), 0, "the objects of before are kept");
        assert_eq!(project.compiled("-DB", &[]), 3);
        assert_eq!(project.compiled("-DA", &["-fsanitize=thread"]), 3);
    }

    #[test]
    fn damaged_objects_are_compiled_again() {
        let project = Project::new("damaged");
        project.compiled("-DA", &[]);
        let files = fs::read_dir(project.0.join("cache")).unwrap().map(|file| file.unwrap().path());
        let object = files.into_iter().find(|path| path.to_string_lossy().ends_with(".o")).unwrap();
        let whole = fs::read(&object).unwrap();
        for part in [0, whole.len() / 2] {
            fs::write(&object, &whole[..part]).unwrap();
            assert_eq!(project.compiled("-DA", &[]), 1);
            assert_eq!(project.compiled("-DA", &[]), 0);
        }
    }

    #[test]
    fn paths_do_not_count() {
        let names = |project: &Project| {
            project.compiled("-DA", &[]);
            let files = fs::read_dir(project.0.join("cache")).unwrap();
            let mut names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&Project::new("here")), names(&Project::new("there")));
    }
}
