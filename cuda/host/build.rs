//! Compiles the emulator, every kernel and the tests in C++ for the host, and writes the table of entry points. Needs g++
//! or clang++.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use glm5_kernels::generate::{emulated, write_files};
use glm5_kernels::host::{Options, Source, objects};
use glm5_kernels::{Result, Table, cache_folder};

/// The hooks before memory accesses, which the emulator answers: it finds races in shared memory and misaligned accesses.
/// The sanitizer's own runtime is not linked. A `.cu` file is C++ here.
const KERNELS: &[&str] = &["-fsanitize=thread", "-x", "c++"];

/// For a test that compares the Rust side of `emu.h`.
const LAYOUT: &str = "\
#include <cstddef>
#include \"host/emu.h\"
extern \"C\" const uint64_t EMU_LAYOUT[6] = {
    sizeof(emu_launch), offsetof(emu_launch, seed), offsetof(emu_launch, buffers), offsetof(emu_launch, report_bytes),
    sizeof(emu_buffer), offsetof(emu_buffer, writable),
};
";

fn main() {
    if let Err(message) = run() {
        message.lines().for_each(|line| println!("cargo::error={line}"));
    }
}

fn run() -> Result<()> {
    let here = PathBuf::from(var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(var("OUT_DIR")?);
    let cuda = here.parent().ok_or("no folder above the manifest")?;
    println!("cargo::rerun-if-changed={}", cuda.display()); // all that lies in it
    println!("cargo::rerun-if-env-changed=GLM5_KERNEL_CACHE");

    let tool = compiler(cuda)?;
    let options = Options {
        cuda: cuda.to_owned(),
        cache: cache_folder(out.join("cache"))?.join("host"),
        jobs: var("NUM_JOBS")?.parse().unwrap_or(1),
        compiler: || tool.to_command(),
    };
    let table = Table::load(cuda)?;
    let mut library = sources(&here, "cpp", &[])?;
    let mut files = write_files(&out, &emulated(&table))?;
    let entries = files.pop().ok_or("no table of entries")?;
    library.extend(files.into_iter().map(|path| Source { path, flags: KERNELS }));
    let layout = write_files(&out, &[("layout.cpp".into(), LAYOUT.into())])?;
    library.extend(layout.into_iter().map(|path| Source { path, flags: &[] }));
    let library = objects(&library, &options)?;
    let mut archive = cc::Build::new();
    archive.cpp(true).objects(&library).try_compile("glm5_emu").map_err(|e| e.to_string())?;
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-link-lib=dl"); // dladdr; in libc itself on newer systems
    }
    write_files(&out, &[("functions.rs".into(), functions_rs(&table))])?;

    // The tests in C++, a program that a test of this crate runs.
    let folder = here.join("tests");
    let mut tests = sources(&folder, "cpp", &[])?;
    tests.retain(|test| !test.path.ends_with("twins_gpu.cpp")); // a program of its own, for machines with a GPU
    tests.extend(sources(&folder, "cu", KERNELS)?);
    tests.push(Source { path: entries, flags: &[] });
    let program = out.join("emu-tests");
    let mut link = tool.to_command();
    link.args(objects(&tests, &options)?).args(&library).arg("-ldl").arg("-o").arg(&program);
    let output = link.output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        // Not the command: it would be printed with its environment.
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "{}: linking {} ({})\n{said}",
            tool.path().display(),
            program.display(),
            output.status
        ));
    }
    println!("cargo::rustc-env=EMU_TESTS={}", program.display());
    Ok(())
}

/// Optimized in every profile, for kernels run thousands of times; `-g1` so that reports and debuggers know lines.
fn compiler(cuda: &Path) -> Result<cc::Tool> {
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").opt_level(2).debug(false).flag("-g1");
    build.include(cuda).include(cuda.join("include"));
    build.flag("-ffp-contract=off"); // a * b + c is two roundings on every host
    // Kernels are full of loops that a host compiler does not know how to unroll.
    build.flag_if_supported("-Wno-unknown-pragmas");
    // Objects are kept under their contents, so they must not tell where the project lay.
    build.flag_if_supported(format!("-ffile-prefix-map={}=cuda", cuda.display()));
    build.try_get_compiler().map_err(|e| e.to_string())
}

fn sources(dir: &Path, extension: &str, flags: &'static [&'static str]) -> Result<Vec<Source>> {
    let files = fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut paths: Vec<_> = files
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    paths.sort();
    Ok(paths.into_iter().map(|path| Source { path, flags }).collect())
}

/// `functions.rs`: the entry points in the order of `Entry::ALL`.
fn functions_rs(table: &Table) -> String {
    let (mut declared, mut rows) = (String::new(), String::new());
    for (_, entry) in table.entries() {
        let name = &entry.name;
        _ = writeln!(
            declared,
            "    fn emu_{name}(params: *const c_void, launch: *const EmuLaunch) -> c_int;"
        );
        _ = writeln!(rows, "    ({name:?}, emu_{name}),");
    }
    format!(
        "// Generated from cuda/instances.toml.\n\nunsafe extern \"C\" {{\n    #[cfg(test)]\n    static EMU_LAYOUT: [u64; 6];\n{declared}}}\n\n\
         static FUNCTIONS: &[(&str, EmuKernel)] = &[\n{rows}];\n"
    )
}

fn var(name: &str) -> Result<String> {
    env::var(name).map_err(|e| format!("{name}: {e}"))
}
