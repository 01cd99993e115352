//! Writes `entries.rs` (which kernels exist) and `images.rs` (their code). All work is in `cuda/build`.
//!
//! Without the feature `cuda`, and on docs.rs, no toolkit is needed and the table of images is empty.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use glm5_kernels::compile::{Arch, NVCC_VARIABLES, Options, compile, images_rs};
use glm5_kernels::generate::entries_rs;
use glm5_kernels::{Result, Table, Toolkit, cache_folder};

fn main() {
    if let Err(message) = run() {
        message.lines().for_each(|line| println!("cargo::error={line}"));
    }
}

fn run() -> Result<()> {
    let cuda = Path::new(&var("CARGO_MANIFEST_DIR")?).join("cuda");
    let out = PathBuf::from(var("OUT_DIR")?);
    println!("cargo::rerun-if-changed=cuda/instances.toml");
    #[cfg(feature = "regen-bindings")]
    regenerate_bindings()?; // before the table, which may not be written yet
    let table = Table::load(&cuda)?;
    write(&out.join("entries.rs"), &entries_rs(&table))?;

    println!("cargo::rerun-if-env-changed=DOCS_RS");
    let with_kernels = env::var_os("CARGO_FEATURE_CUDA").is_some() && env::var_os("DOCS_RS").is_none();
    let images = if with_kernels { kernels(&table, cuda, &out)? } else { images_rs(&[], None) };
    write(&out.join("images.rs"), &images)
}

/// Compiles the kernels; the table of their images.
fn kernels(table: &Table, cuda: PathBuf, out: &Path) -> Result<String> {
    println!("cargo::rerun-if-changed=cuda"); // all that lies in it
    for name in ["NVCC", "CUDA_HOME", "GLM5_CUDA_ARCHS", "GLM5_KERNEL_CACHE"].iter().chain(NVCC_VARIABLES) {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let options = Options {
        cuda,
        out: out.join("kernels"),
        cache: cache_folder(out.join("cache"))?,
        archs: Arch::asked_for()?,
        jobs: var("NUM_JOBS")?.parse().unwrap_or(1),
    };
    let toolkit = Toolkit::find()?;
    let images = compile(table, &toolkit, &options)?;
    images.iter().flat_map(|image| &image.warnings).for_each(|warning| println!("cargo::warning={warning}"));
    Ok(images_rs(&images, Some(toolkit.release)))
}

fn var(name: &str) -> Result<String> {
    env::var(name).map_err(|e| format!("{name}: {e}"))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Writes the Rust side of `cuda/include/params.h`: params structs for everyone, block structs for a test to compare with
/// those of `quant::block`.
#[cfg(feature = "regen-bindings")]
fn regenerate_bindings() -> Result<()> {
    println!("cargo::rerun-if-changed=cuda/include");
    println!("cargo::rerun-if-changed=src/sys"); // what was written by hand there does not stay
    let builder = || {
        bindgen::Builder::default()
            .header("cuda/include/params.h")
            .disable_header_comment()
            .prepend_enum_name(false)
            .raw_line("// Generated from cuda/include/params.h by `tools/regen-bindings.sh`. Do not edit.")
            .rustfmt_configuration_file(Some(PathBuf::from("rustfmt.toml")))
            .use_core()
    };
    for (file, builder) in [
        ("src/sys/params.rs", builder().allowlist_type(".*_params|ragged_rows").blocklist_type("block_.*")),
        ("src/sys/blocks.rs", builder().allowlist_type("block_.*").generate_comments(false)),
    ] {
        let bindings = builder.generate().map_err(|e| e.to_string())?;
        bindings.write_to_file(file).map_err(|e| format!("{file}: {e}"))?;
    }
    Ok(())
}
