//! Finds the CUDA compiler and its disassembler. Asks nothing of the machine's GPU or driver.

use std::env;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::Result;

/// The oldest release that knows sm_120.
const OLDEST: (u32, u32) = (12, 8);

/// An installed nvcc.
#[derive(Debug)]
pub struct Toolkit {
    /// The executable.
    pub nvcc: PathBuf,
    /// What it says of itself, the build number included.
    pub version: String,
    /// Major and minor version.
    pub release: (u32, u32),
}

impl Toolkit {
    /// The nvcc that `NVCC` names, else the one under `CUDA_HOME`, else the first on `PATH`.
    ///
    /// # Errors
    /// One line for the user: nothing found, not executable, too old.
    pub fn find() -> Result<Toolkit> {
        let nvcc = locate(|name| env::var_os(name))?;
        let said = run(Command::new(&nvcc).arg("--version"))?;
        let release = parse_release(&said).ok_or(format!("{} --version names no release", nvcc.display()))?;
        if release < OLDEST {
            return Err(format!(
                "{} is release {}.{}; sm_120 needs {}.{} or newer (tools/get-nvcc.sh installs one)",
                nvcc.display(),
                release.0,
                release.1,
                OLDEST.0,
                OLDEST.1
            ));
        }
        Ok(Toolkit { nvcc, version: said, release })
    }

    /// Refuses releases that are known to compile this family wrongly.
    ///
    /// # Errors
    /// One line for the user.
    pub fn check_compiles(&self, family: &crate::table::Family) -> Result<()> {
        let release = format!("{}.{}", self.release.0, self.release.1);
        if family.miscompiled_by.contains(&release) {
            return Err(format!(
                "nvcc {release} compiles the kernels `{}` wrongly, so it is refused; take 13.0 (tools/get-nvcc.sh \
                 installs it) or another release",
                family.name
            ));
        }
        Ok(())
    }

    /// cuobjdump beside nvcc, else on `PATH`.
    ///
    /// # Errors
    /// One line for the user.
    pub fn cuobjdump(&self) -> Result<PathBuf> {
        let real = self.nvcc.canonicalize().unwrap_or_else(|_| self.nvcc.clone());
        let beside = real.parent().map(|bin| bin.join("cuobjdump")).filter(|p| p.is_file());
        beside.or_else(|| on_path(env::var_os("PATH"), "cuobjdump")).ok_or(format!(
            "no cuobjdump beside {} nor on PATH (tools/get-nvcc.sh installs one)",
            self.nvcc.display()
        ))
    }
}

/// The full version of a tool of the toolkit, such as `13.0.88`.
///
/// # Errors
/// A tool that does not run or does not tell.
pub fn version_of(tool: &Path) -> Result<String> {
    let said = run(Command::new(tool).arg("--version"))?;
    let version = said.split_once(", V").and_then(|(_, rest)| rest.lines().next());
    version.map(str::to_owned).ok_or(format!("{} --version names no version", tool.display()))
}

/// Runs a command to its end; its standard output.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("{name}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{name}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn locate(var: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let set = |name| var(name).filter(|value| !value.is_empty());
    // A variable that points nowhere is a mistake to report, not to pass over.
    if let Some(nvcc) = set("NVCC").map(PathBuf::from) {
        if nvcc.components().eq(nvcc.file_name().map(Component::Normal)) {
            // As a shell would take it.
            let found = on_path(var("PATH"), &nvcc);
            return found.ok_or_else(|| format!("NVCC={}: no such file on PATH", nvcc.display()));
        }
        return if nvcc.is_file() { Ok(nvcc) } else { Err(format!("NVCC={}: no such file", nvcc.display())) };
    }
    if let Some(home) = set("CUDA_HOME") {
        let nvcc = Path::new(&home).join("bin/nvcc");
        return if nvcc.is_file() { Ok(nvcc) } else { Err(format!("CUDA_HOME: no file {}", nvcc.display())) };
    }
    on_path(var("PATH"), "nvcc").ok_or_else(|| {
        "feature `cuda` needs nvcc 12.8 or newer; tried NVCC, CUDA_HOME and PATH. Without root, `eval \
         \"$(tools/get-nvcc.sh)\"` installs it; without the feature everything runs on the CPU"
            .into()
    })
}

fn on_path(path: Option<OsString>, name: impl AsRef<Path>) -> Option<PathBuf> {
    env::split_paths(&path?).map(|dir| dir.join(&name)).find(|file| file.is_file())
}

/// `Cuda compilation tools, release 13.0, V13.0.88`.
fn parse_release(version: &str) -> Option<(u32, u32)> {
    let (_, rest) = version.split_once("release ")?;
    let (release, _) = rest.split_once(',')?;
    let (major, minor) = release.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn release_is_read() {
        let said = "Copyright (c) 2005-2025\nCuda compilation tools, release 13.0, V13.0.88\nBuild cuda_13.0.r13.0/x";
        assert_eq!(parse_release(said), Some((13, 0)));
        assert_eq!(parse_release("gcc 12.2.0"), None);
    }

    #[test]
    fn nvcc_is_looked_for_in_order() {
        let dir = env::temp_dir().join(format!("glm5-toolkit-{}", std::process::id()));
        for at in ["a/nvcc", "b/bin/nvcc", "c/nvcc"] {
            fs::create_dir_all(dir.join(at).parent().unwrap()).unwrap();
            fs::write(dir.join(at), "").unwrap();
        }
        let found = |vars: &[(&str, &str)]| {
            locate(|name| vars.iter().find(|v| v.0 == name).map(|v| dir.join(v.1).into_os_string()))
        };
        let bare = |nvcc: &str| {
            locate(|name| match name {
                "NVCC" => Some(nvcc.into()),
                "PATH" => Some(dir.join("c").into_os_string()),
                _ => None,
            })
        };
        assert_eq!(bare("nvcc").unwrap(), dir.join("c/nvcc"));
        assert!(bare("nvcc-13").unwrap_err().contains("NVCC=nvcc-13: no such file on PATH"));
        assert!(bare("./nvcc").unwrap_err().contains("NVCC=./nvcc: no such file"));
        let path = ("PATH", "c");
        let home = ("CUDA_HOME", "b");
        assert_eq!(found(&[("NVCC", "a/nvcc"), home, path]).unwrap(), dir.join("a/nvcc"));
        assert_eq!(found(&[home, path]).unwrap(), dir.join("b/bin/nvcc"));
        assert_eq!(found(&[path]).unwrap(), dir.join("c/nvcc"));
        assert!(found(&[("NVCC", "none"), home, path]).unwrap_err().contains("NVCC="));
        assert!(found(&[("CUDA_HOME", "none"), path]).unwrap_err().contains("CUDA_HOME"));
        let nowhere = found(&[]).unwrap_err();
        for word in ["NVCC", "CUDA_HOME", "PATH", "tools/get-nvcc.sh", "without the feature"] {
            assert!(nowhere.contains(word) && !nowhere.contains('\n'), "{nowhere}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
