//! nvcc on every unit whose contents changed (`cache.rs`), and `images.rs`, the table of what came out.

use std::env;
use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::{self, Files};
use crate::generate::{Unit, units};
use crate::table::{Family, Table};
use crate::{Result, Toolkit};

/// Architectures when `GLM5_CUDA_ARCHS` is not set: the GPU we write for, the one we measure on, and PTX for others.
pub const DEFAULT_ARCHS: &str = "90a,120a,compute_90";

/// `-lineinfo` costs nothing at run time and names source lines in profilers and compute-sanitizer.
const FLAGS: &[&str] = &["-fatbin", "-std=c++17", "-O3", "-lineinfo", "-Xptxas=-v,--warn-on-spills"];

/// Variables through which nvcc takes further options.
pub const NVCC_VARIABLES: &[&str] = &["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN"];

/// A target of compilation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Arch {
    /// Machine code, `120a`: for GPUs of this compute capability only (without suffix: of this major version).
    Sass(String),
    /// PTX, `compute_90`: the driver compiles it for any GPU from this one on.
    Ptx(String),
}

impl Arch {
    /// `120a`, `90`, `compute_90`.
    ///
    /// # Errors
    /// Anything else.
    pub fn parse(text: &str) -> Result<Arch> {
        let (ptx, number) = match text.strip_prefix("compute_") {
            Some(number) => (true, number),
            None => (false, text),
        };
        let digits = number.trim_end_matches(['a', 'f']);
        let ok = matches!(digits.len(), 2 | 3)
            && number.len() - digits.len() <= 1
            && digits.bytes().all(|b| b.is_ascii_digit())
            && !digits.starts_with('0');
        match (ok, ptx) {
            (false, _) => Err(format!("`{text}` is no architecture such as 120a, 90a or compute_90")),
            (true, true) => Ok(Arch::Ptx(number.into())),
            (true, false) => Ok(Arch::Sass(number.into())),
        }
    }

    /// A comma-separated list.
    ///
    /// # Errors
    /// An empty list; an item that is none.
    pub fn parse_list(list: &str) -> Result<Vec<Arch>> {
        list.split(',').map(|item| Arch::parse(item.trim())).collect()
    }

    /// What `GLM5_CUDA_ARCHS` asks for; [`DEFAULT_ARCHS`] if it is not set.
    ///
    /// # Errors
    /// One line for the user: no such list.
    pub fn asked_for() -> Result<Vec<Arch>> {
        Arch::asked_by(env::var_os("GLM5_CUDA_ARCHS"))
    }

    fn asked_by(variable: Option<OsString>) -> Result<Vec<Arch>> {
        let Some(list) = variable else { return Arch::parse_list(DEFAULT_ARCHS) };
        let parsed = list.to_str().ok_or("not UTF-8".into()).and_then(Arch::parse_list);
        parsed.map_err(|e| format!("GLM5_CUDA_ARCHS={}: {e}", list.display()))
    }

    /// As in the table of images: `sm_120a`, `compute_90`.
    pub fn name(&self) -> String {
        match self {
            Arch::Sass(number) => format!("sm_{number}"),
            Arch::Ptx(number) => format!("compute_{number}"),
        }
    }

    fn flag(&self) -> String {
        let (Arch::Sass(number) | Arch::Ptx(number)) = self;
        format!("-gencode=arch=compute_{number},code={}", self.name())
    }

    fn suits(&self, family: &Family) -> bool {
        match self {
            Arch::Ptx(_) => !family.arch_specific && family.archs.is_empty(),
            Arch::Sass(number) => family.archs.is_empty() || family.archs.contains(number),
        }
    }
}

/// Where and for what to compile.
#[derive(Debug)]
pub struct Options {
    /// The folder `cuda`.
    pub cuda: PathBuf,
    /// Gets `<unit>.fatbin`, `<unit>.ptxas.txt` and the generated units.
    pub out: PathBuf,
    /// Keeps compiled units from run to run; may be shared by builds.
    pub cache: PathBuf,
    /// Targets.
    pub archs: Vec<Arch>,
    /// Compilers at a time.
    pub jobs: usize,
}

/// A compiled unit in [`Options::out`].
#[derive(Debug)]
pub struct Image {
    /// `<family>.<part>`.
    pub unit: String,
    /// Its targets; none if the family suits none of those asked for, and then there is no file.
    pub archs: Vec<Arch>,
    /// Whether nvcc had to run.
    pub compiled: bool,
    /// What nvcc had to say beyond the statistics.
    pub warnings: Vec<String>,
}

/// Compiles the units of the table, as many at a time as `options` says; the images in the order of [`units`].
///
/// # Errors
/// What nvcc says about the first unit that fails; refused compilers; files that cannot be read or written.
pub fn compile(table: &Table, toolkit: &Toolkit, options: &Options) -> Result<Vec<Image>> {
    table.families.iter().try_for_each(|family| toolkit.check_compiles(family))?;
    for dir in [&options.out, &options.cache] {
        fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    cache::in_parallel(options.jobs, &units(table), |unit| compile_unit(unit, toolkit, options))
}

fn compile_unit(unit: &Unit, toolkit: &Toolkit, options: &Options) -> Result<Image> {
    let archs: Vec<_> = options.archs.iter().filter(|arch| arch.suits(unit.family)).cloned().collect();
    let mut image = Image { unit: unit.name.clone(), archs, compiled: false, warnings: Vec::new() };
    if image.archs.is_empty() {
        return Ok(image);
    }
    let source = unit.source();
    // The emulator's files are no part of what nvcc reads, and they change often.
    let files = Files { root: &options.cuda, without: Some("host/") };
    let variables: Vec<_> = NVCC_VARIABLES.iter().map(env::var_os).collect();
    let key = cache::key(&files, "", &source, (&image.archs, &toolkit.version, FLAGS, variables))?;
    let kept = options.cache.join(format!("{}-{key:016x}.fatbin", unit.name));
    let report = kept.with_extension("ptxas.txt");
    let files = [kept.as_path(), report.as_path()];
    let contents = match cache::kept(files) {
        Some(contents) => contents,
        None => {
            let path = options.out.join(format!("{}.cu", unit.name));
            cache::write(&path, source.as_bytes())?;
            let said = cache::run(nvcc(&path, &image.archs, toolkit, options), &path, &kept)?;
            cache::write(&report, said.as_bytes())?;
            image.compiled = true;
            let code = fs::read(&kept).map_err(|e| format!("{}: {e}", kept.display()))?;
            let contents = [code, said.into_bytes()];
            cache::keep(files, &contents)?;
            contents
        }
    };
    let said = String::from_utf8_lossy(&contents[1]);
    image.warnings = said.lines().filter(|line| line.contains("warning")).map(str::to_owned).collect();
    // What was checked, not what may lie there now.
    for (contents, extension) in contents.iter().zip(["fatbin", "ptxas.txt"]) {
        cache::write(&options.out.join(format!("{}.{extension}", unit.name)), contents)?;
    }
    Ok(image)
}

fn nvcc(source: &Path, archs: &[Arch], toolkit: &Toolkit, options: &Options) -> Command {
    let mut nvcc = Command::new(&toolkit.nvcc);
    nvcc.args(FLAGS).args(archs.iter().map(Arch::flag));
    nvcc.arg("-I").arg(&options.cuda).arg("-I").arg(options.cuda.join("include")).arg(source);
    nvcc
}

/// `images.rs`, included by `src/kernels.rs`: a static table of one `Image` per unit, whose bytes lie beside it.
///
/// `nvcc` is the release that made them.
pub fn images_rs(images: &[Image], nvcc: Option<(u32, u32)>) -> String {
    let mut rows = String::new();
    for Image { unit, archs, .. } in images {
        let bytes = match archs.as_slice() {
            [] => "&[]".to_owned(),
            _ => {
                format!("&Aligned(*include_bytes!(concat!(env!(\"OUT_DIR\"), \"/kernels/{unit}.fatbin\"))).0")
            }
        };
        let archs: Vec<_> = archs.iter().map(Arch::name).collect();
        _ = writeln!(rows, "    Image {{ unit: {unit:?}, archs: &{archs:?}, bytes: {bytes} }},");
    }
    // `include_bytes!` aligns to 1; the driver reads words.
    let aligned = match images.iter().any(|image| !image.archs.is_empty()) {
        true => "#[repr(C, align(16))]\nstruct Aligned<T>(T);\n\n",
        false => "",
    };
    let nvcc = nvcc.map(|(major, minor)| format!("{major}.{minor}"));
    format!(
        "// Generated by cuda/build.\n{aligned}static IMAGES: &[Image] = &[\n{rows}];\n\n\
         const NVCC: Option<&str> = {nvcc:?};\n"
    )
}

#[cfg(test)]
mod tests;
