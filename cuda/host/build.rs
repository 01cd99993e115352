//! Compiles the emulator and every kernel for the host, and writes the table of entry points. Needs g++ or clang++.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use glm5_kernels::generate::units;
use glm5_kernels::{Result, Table};

fn main() {
    if let Err(message) = run() {
        message.lines().for_each(|line| println!("cargo::error={line}"));
    }
}

fn run() -> Result<()> {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(|e| e.to_string())?);
    let out = PathBuf::from(env::var("OUT_DIR").map_err(|e| e.to_string())?);
    let cuda = here.parent().ok_or("no folder above the manifest")?;
    for what in ["common", "include", "instances.toml"] {
        println!("cargo::rerun-if-changed={}", cuda.join(what).display());
    }
    let table = Table::load(cuda)?;
    let mut sources = sources(&here, "cpp")?;
    for header in self::sources(&here, "hpp")?.into_iter().chain(self::sources(&here, "h")?) {
        println!("cargo::rerun-if-changed={}", header.display());
    }
    sources.iter().for_each(|source| println!("cargo::rerun-if-changed={}", source.display()));
    compiler(cuda, &here).files(&sources).try_compile("glm5_emu").map_err(|e| e.to_string())?;

    sources.clear();
    for unit in units(&table) {
        println!("cargo::rerun-if-changed={}", cuda.join(&unit.family.source).display());
        let path = out.join(format!("{}.cpp", unit.name));
        write(&path, &unit.source())?;
        sources.push(path);
    }
    // The hooks before memory accesses, which the emulator answers: it finds races in shared memory and misaligned
    // accesses. The sanitizer's own runtime is not linked.
    let mut kernels = compiler(cuda, &here);
    kernels.flag("-fsanitize=thread").files(&sources);
    kernels.try_compile("glm5_emu_kernels").map_err(|e| e.to_string())?;
    let layout = out.join("layout.cpp");
    write(&layout, LAYOUT)?;
    compiler(cuda, &here).file(&layout).try_compile("glm5_emu_layout").map_err(|e| e.to_string())?;
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-link-lib=dl"); // dladdr; in libc itself on newer systems
    }
    write(&out.join("functions.rs"), &functions_rs(&table))
}

/// For a test that compares the Rust side of `emu.h`.
const LAYOUT: &str = "\
#include <cstddef>
#include \"emu.h\"
extern \"C\" const uint64_t EMU_LAYOUT[6] = {
    sizeof(emu_launch), offsetof(emu_launch, seed), offsetof(emu_launch, buffers), offsetof(emu_launch, report_bytes),
    sizeof(emu_buffer), offsetof(emu_buffer, writable),
};
";

/// Optimized in every profile, for kernels run thousands of times; `-g1` so that reports and debuggers know lines.
fn compiler(cuda: &Path, host: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .debug(false)
        .flag("-g1")
        .include(cuda)
        .include(cuda.join("include"));
    // Kernels are full of loops that a host compiler does not know how to unroll.
    build.include(host).flag_if_supported("-Wno-unknown-pragmas");
    build.flag("-ffp-contract=off"); // a * b + c is two roundings on every host
    build
}

fn sources(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let files = fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut paths: Vec<_> = files
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    paths.sort();
    Ok(paths)
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

fn write(path: &Path, text: &str) -> Result<()> {
    // Unchanged files keep their time, so that nothing is compiled for them.
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}
