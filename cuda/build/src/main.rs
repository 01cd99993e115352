//! Compiles all kernels, checks them against the gates and writes `docs/kernels/resources.md`; with `--check` compares that
//! page instead. Needs nvcc and cuobjdump (`tools/get-nvcc.sh`), no GPU.
//!
//! With `--emulated DIR` writes what the emulator compiles into that folder, and lists it; that needs nothing.

use std::env;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use glm5_kernels::compile::{Arch, DEFAULT_ARCHS, Options, compile};
use glm5_kernels::gates::check_unit;
use glm5_kernels::generate::{self, units, write_files};
use glm5_kernels::inspect::inspect;
use glm5_kernels::report::resources_md;
use glm5_kernels::toolkit::version_of;
use glm5_kernels::{Result, Table, Toolkit, cache_folder};

fn main() -> ExitCode {
    let args: Vec<_> = env::args().skip(1).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        [] => run(&root, false),
        ["--check"] => run(&root, true),
        ["--emulated", dir] => emulated(&root, Path::new(dir)),
        _ => {
            eprintln!("usage: glm5-kernels [--check | --emulated DIR]");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn emulated(root: &Path, dir: &Path) -> Result<()> {
    let table = Table::load(&root.join("cuda"))?;
    fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let paths = write_files(dir, &generate::emulated(&table))?;
    paths.iter().for_each(|path| println!("{}", path.display()));
    Ok(())
}

fn run(root: &Path, check: bool) -> Result<()> {
    let options = Options {
        cuda: root.join("cuda"),
        // Of this checkout alone: the cache may be shared.
        out: root.join("target/kernel-images"),
        cache: cache_folder(root.join("target/kernels"))?,
        archs: Arch::parse_list(DEFAULT_ARCHS)?,
        jobs: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let toolkit = Toolkit::find()?;
    let table = Table::load(&options.cuda)?;

    let start = Instant::now();
    let images = compile(&table, &toolkit, &options)?;
    let compiled = images.iter().filter(|image| image.compiled).count();
    println!("{compiled} of {} units compiled in {:.1} s", images.len(), start.elapsed().as_secs_f64());
    images.iter().flat_map(|image| &image.warnings).for_each(|warning| println!("{warning}"));

    let (mut kernels, mut broken) = (Vec::new(), Vec::new());
    for (unit, image) in units(&table).iter().zip(&images).filter(|(_, image)| !image.archs.is_empty()) {
        let archs: Vec<_> = image.archs.iter().map(Arch::name).collect();
        let inspected = inspect(&toolkit, &options.out, &unit.name)?;
        broken.extend(check_unit(unit, &archs, &inspected));
        kernels.extend(inspected);
    }
    println!("{} kernels inspected, {} rules broken", kernels.len(), broken.len());
    let path = root.join("docs/kernels/resources.md");
    let made_with = format!(
        "nvcc {} and cuobjdump {} (`tools/get-nvcc.sh`)",
        version_of(&toolkit.nvcc)?,
        version_of(&toolkit.cuobjdump()?)?
    );
    let page = resources_md(&table, &kernels, &made_with);
    // With broken rules too: what a kernel takes is what helps then.
    if check {
        let there = fs::read_to_string(&path).unwrap_or_default();
        if there != page {
            let difference = first_difference(&there, &page);
            broken.push(format!("{difference}\nis not current: `cargo run -p glm5-kernels` writes it"));
        }
    } else {
        fs::create_dir_all(root.join("docs/kernels")).map_err(|e| e.to_string())?;
        fs::write(&path, page).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    if broken.is_empty() { Ok(()) } else { Err(broken.join("\n")) }
}

fn first_difference(there: &str, page: &str) -> String {
    let (mut there, mut page) = (there.lines(), page.lines());
    loop {
        match (there.next(), page.next()) {
            (None, None) => return "docs/kernels/resources.md: ends of lines".into(),
            (old, new) if old == new => {}
            (old, new) => {
                let shown = |line: Option<&str>| line.unwrap_or("(end)").to_owned();
                return format!("docs/kernels/resources.md\n- {}\n+ {}", shown(old), shown(new));
            }
        }
    }
}
