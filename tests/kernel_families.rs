//! Every family of `cuda/instances.toml` is known wherever a family must be: forgetting a place fails here. The places are
//! those of "Adding a family" in `docs/kernels/README.md`.

use std::fs;
use std::path::Path;

use glm5_kernels::Table;
use glm5_kernels::table::Family;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_default()
}

/// The stems whose code chooses among the family's entries, and whether they are operations: of `src/ops/<stem>/config.rs`, or
/// `gemm.rs` where many tokens have kernels of their own, and `src/cuda/<stem>.rs`.
fn stems(family: &Family) -> Vec<(String, bool)> {
    let names = |folder: &str| {
        let files = fs::read_dir(root().join(folder)).unwrap();
        let mut names: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let ops = names("src/ops").into_iter().flat_map(|stem| {
        ["config", "gemm"].map(|file| (format!("src/ops/{stem}/{file}.rs"), stem.clone(), true))
    });
    let cuda = names("src/cuda").into_iter().filter_map(|file| {
        let stem = file.strip_suffix(".rs")?;
        Some((format!("src/cuda/{file}"), stem.to_owned(), false))
    });
    let uses = [format!("kernels::{}::INSTANCES", family.name), format!("kernels::{}::find", family.name)];
    let mut stems: Vec<_> = ops
        .chain(cuda)
        .filter(|(path, ..)| uses.iter().any(|used| read(path).contains(used)))
        .map(|(_, stem, is_op)| (stem, is_op))
        .collect();
    stems.dedup();
    stems
}

/// What is missing, one line each.
fn missing(family: &Family) -> Vec<String> {
    let Family { name, params, .. } = family;
    let mut wanted = vec![
        ("src/sys/params.rs".to_owned(), format!("pub struct {params} ")),
        ("cuda/host/tests/test_kernels.cpp".to_owned(), format!("{{\"{name}\", ")),
    ];
    let stems = stems(family);
    for (stem, is_op) in &stems {
        let tested = format!("suites::{stem}::{stem}_properties!");
        wanted.extend([
            (format!("tests/suites/{stem}.rs"), format!("macro_rules! {stem}_properties")),
            ("tests/suites/mod.rs".into(), format!("\npub mod {stem};")),
            ("tests/device.rs".into(), tested.clone()),
            ("cuda/host/tests/emu.rs".into(), tested.clone()),
            ("src/cuda/mod.rs".into(), format!(" mod {stem};")),
            (format!("benches/kernels/{stem}.rs"), "fn benches(".into()),
            ("benches/kernels/main.rs".into(), format!("\nmod {stem};")),
            ("benches/kernels/main.rs".into(), format!("{stem}::benches(")),
        ]);
        if *is_op {
            wanted.extend([
                ("src/ops/mod.rs".into(), format!("\npub mod {stem};")),
                ("src/ops/mod.rs".into(), format!("[`{stem}`]")),
                (format!("src/ops/{stem}/reference.rs"), "pub fn ".into()),
                ("tests/cpu.rs".into(), tested),
            ]);
        }
    }
    let lacking = wanted.into_iter().filter(|(path, text)| !read(path).contains(text.as_str()));
    let mut missing: Vec<_> = lacking.map(|(path, text)| format!("{path}: no `{}`", text.trim())).collect();
    if stems.is_empty() {
        missing.push(format!("no config of src/ops and no file of src/cuda uses kernels::{name}"));
    }
    let page = read("docs/kernels/README.md");
    let rows =
        page.split_once("## Families").map_or("", |(_, rest)| rest.split("\n## ").next().unwrap_or(""));
    match rows.lines().find(|row| row.contains(&format!("`{name}`"))) {
        None => missing.push("docs/kernels/README.md: no row under Families".into()),
        Some(row) => {
            let linked = row.split_once("](").and_then(|(_, rest)| rest.split(')').next());
            if let Some(linked) = linked.filter(|linked| read(&format!("docs/kernels/{linked}")).is_empty()) {
                missing.push(format!("docs/kernels/README.md: there is no {linked}"));
            }
        }
    }
    missing.into_iter().map(|what| format!("[{name}] {what}")).collect()
}

#[test]
fn every_family_is_known_everywhere() {
    let table = Table::load(&root().join("cuda")).unwrap();
    let missing: Vec<_> = table.families.iter().flat_map(missing).collect();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(table.families.len() >= 10);
}
