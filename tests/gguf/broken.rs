//! Every damaged file gives the complaint that `tests/data/broken/README.md` promises, and the controls open.

use std::path::PathBuf;

use glm5::gguf::Gguf;
use glm5::quant::GgmlType;

pub fn file(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/data/broken", &format!("{name}.gguf")].iter().collect()
}

/// File and the parts that its one-line error must contain, apart from the file's own name.
const COMPLAINTS: &[(&str, &[&str])] = &[
    ("empty", &["header", "end of file", "0 left"]),
    ("magic-only", &["header", "end of file", "version"]),
    ("wrong-magic", &["not a GGUF file", "GGML"]),
    ("version-1", &["version 1 is not supported", "2 or 3"]),
    ("version-99", &["version 99 is not supported", "2 or 3"]),
    ("big-endian", &["byte order"]),
    ("truncated-header", &["header", "6 keys cannot fit", "truncated"]),
    ("truncated-tinfo", &["header", "4 tensors cannot fit", "truncated"]),
    ("truncated-data", &["tensor blk.0.ffn_down.weight", "ends past the end of the file", "5924"]),
    ("huge-n-tensors", &["header", "1152921504606846976 tensors cannot fit"]),
    ("negative-n-tensors", &["header", "number of tensors is -1"]),
    ("huge-n-kv", &["header", "1152921504606846976 keys cannot fit"]),
    ("string-length-overflow", &["key general.description", "18446744073709551608", "past the end"]),
    ("key-length-huge", &["header", "key 7 of 7", "1099511627776", "past the end"]),
    ("array-count-overflow", &["key x.array", "array of 2305843009213693953 elements"]),
    ("array-nested", &["key x.nested", "nested arrays"]),
    ("bad-value-type", &["key x.bad", "unknown value type 77"]),
    ("bad-utf8", &["key general.name", "not UTF-8"]),
    ("duplicate-key", &["key glm-dsa.block_count", "duplicate"]),
    ("bad-alignment", &["key general.alignment", "alignment 24", "power of two"]),
    ("zero-alignment", &["key general.alignment", "alignment 0", "power of two"]),
    ("alignment-wrong-type", &["key general.alignment", "expected an integer", "found string \"32\""]),
    ("offset-past-end", &["tensor output.weight", "1073741824", "past the end"]),
    ("offset-wraps", &["tensor output.weight", "overflows 64 bits"]),
    ("offset-misaligned", &["tensor output_norm.weight", "1153", "alignment 32"]),
    ("offset-overlap", &["tensor output.weight", "overlaps token_embd.weight"]),
    ("ne0-not-multiple", &["tensor blk.0.attn_k_b.weight", "ne0 = 192", "Q4_K", "256"]),
    ("unknown-type", &["tensor blk.0.x.weight", "type 200 is not supported"]),
    ("ik-type", &["tensor blk.0.x.weight", "type 137", "ik_llama.cpp"]),
    ("removed-type", &["tensor blk.0.x.weight", "type 4 (Q4_2) was removed"]),
    ("too-many-dims", &["tensor blk.0.x.weight", "5 dimensions, at most 4"]),
    ("dims-count-huge", &["tensor token_embd.weight", "2147483647 dimensions"]),
    ("dims-negative", &["tensor blk.0.x.weight", "ne1 is -4"]),
    ("dims-overflow", &["tensor blk.0.x.weight", "overflows 64 bits"]),
    ("duplicate-tensor", &["tensor output_norm.weight", "duplicate"]),
    ("name-too-long", &["header", "tensor 5 of 5", "64 bytes", "63"]),
    (
        "split-missing-shard-00001-of-00002",
        &["shard 2 of 2 is missing", "split-missing-shard-00002-of-00002.gguf"],
    ),
    ("split-name-mismatch-00001-of-00002", &["split.count is 3", "the file name says 2"]),
    ("split-name-mismatch-00002-of-00002", &["split.count is 3", "the file name says 2"]),
    ("split-tensor-count-00001-of-00002", &["split.tensors.count is 5", "hold 4"]),
    ("split-start-at-2-00002-of-00002", &["shard 1 of 2 is missing", "split-start-at-2-00001-of-00002.gguf"]),
];

/// Sets whose error is about the second shard, whichever was opened (where the opened one allows to find the other).
const SECOND: &[(&str, &[&str])] = &[
    ("split-no-mismatch-00001-of-00002", &["split.no is 0, expected 1"]),
    ("split-no-mismatch-00002-of-00002", &["split.no is 0, expected 1"]),
    ("split-count-mismatch-00001-of-00002", &["split.count is 3", "2 shards"]),
    ("split-count-mismatch-00002-of-00002", &["split.count is 3", "the file name says 2"]),
    ("split-duplicate-tensor-00001-of-00002", &["tensor output_norm.weight", "occurs", "00001-of-00002"]),
    ("split-duplicate-tensor-00002-of-00002", &["tensor output_norm.weight", "occurs", "00001-of-00002"]),
];

fn complains(name: &str, blamed: &str, parts: &[&str]) {
    let text = Gguf::open(file(name)).expect_err(name).to_string();
    assert!(text.contains(&format!("{blamed}.gguf: ")), "{name}: {text}");
    for part in parts {
        assert!(text.contains(part), "{name}: no {part:?} in {text}");
    }
    assert!(!text.contains('\n'), "{name}: one line expected: {text}");
}

#[test]
fn each_damaged_file_gives_its_complaint() {
    for (name, parts) in COMPLAINTS {
        complains(name, name, parts);
    }
    for (name, parts) in SECOND {
        complains(name, &name.replace("00001-of", "00002-of"), parts);
    }
}

/// Whether a model can be run is not the container's business.
const CONTAINERS: &[&str] = &[
    "ok-tiny",
    "ok-v2",
    "ok-align64",
    "no-architecture",
    "other-architecture",
    "glm5-next",
    "missing-hyperparameter",
    "split-ok-00001-of-00002",
    "split-ok-00002-of-00002",
];

#[test]
fn controls_open() {
    for name in CONTAINERS {
        let gguf = Gguf::open(file(name)).unwrap_or_else(|e| panic!("{e}"));
        let tensors: Vec<_> = gguf.tensors().iter().map(|t| (t.name.as_str(), t.ty, t.ne())).collect();
        assert_eq!(
            tensors,
            [
                ("token_embd.weight", GgmlType::Q4_K, &[256, 8][..]),
                ("output_norm.weight", GgmlType::F32, &[256]),
                ("output.weight", GgmlType::Q8_0, &[256, 8]),
                ("blk.0.ffn_down.weight", GgmlType::Q6_K, &[512, 4]),
            ],
            "{name}"
        );
    }
}

#[test]
fn every_file_is_named_in_a_table() {
    let tables = [COMPLAINTS, SECOND].concat();
    let named = |f: &str| CONTAINERS.contains(&f) || tables.iter().any(|(n, _)| *n == f);
    // The second shard of this set is a good one in itself; its set is tested from the first.
    let covered = ["split-tensor-count-00002-of-00002"];
    let mut files = 0;
    for entry in std::fs::read_dir(file("").parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "gguf") {
            let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
            assert!(named(&stem) || covered.contains(&stem.as_str()), "{stem} is tested nowhere");
            files += 1;
        }
    }
    assert_eq!(files, CONTAINERS.len() + tables.len() + covered.len());
}
