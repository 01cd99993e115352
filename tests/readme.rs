//! The README tells the truth: files it names exist, its quick start is what it says.

use std::path::Path;

const README: &str = include_str!("../README.md");

#[test]
fn every_file_named_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = 0;
    for name in README.split('`').skip(1).step_by(2) {
        let path = name.split_whitespace().next().unwrap_or_default();
        let known = ["src/", "docs/", "models/", "tests/", "examples/", "cuda/", "tools/", "LICENSE"];
        if known.iter().any(|dir| path.starts_with(dir)) {
            assert!(root.join(path).exists(), "README.md names {path}, which is not there");
            named += 1;
        }
    }
    assert!(named >= 5, "only {named} files named: is this test still looking at the right marks?");
}

#[test]
fn every_example_is_listed() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "rs") {
            let stem = path.file_stem().unwrap().to_str().unwrap();
            assert!(README.contains(&format!("| `{stem}` |")), "README.md does not list the example {stem}");
        }
    }
}
