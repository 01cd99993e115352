//! `inspect`: the default model, split sets, and files that hold no model.

use std::fs;

use glm5::gguf::{Gguf, Writer};
use glm5::quant::GgmlType;
use serde_json::Value;

use crate::process::run;
use crate::repository;
use crate::synthetic::TempDir;

fn json(model: &str) -> Value {
    run("inspect", &["--json", "--model", model]).json()
}

/// All of a file for writing it again; `ty` may change a tensor's type, and then its data is left out.
fn rewritten(model: &str, ty: impl Fn(&str) -> Option<GgmlType>) -> Writer {
    let gguf = Gguf::open(repository(model)).unwrap();
    let mut writer = Writer::new();
    gguf.metadata().iter().for_each(|(k, v)| writer.key(k, v.clone()));
    for t in gguf.tensors() {
        match ty(&t.name) {
            Some(ty) => writer.hole(&t.name, ty, t.ne()).unwrap(),
            None => writer.tensor(&t.name, t.ty, t.ne(), gguf.data(t).unwrap()).unwrap(),
        }
    }
    writer
}

#[test]
fn the_default_model() {
    let told = run("inspect", &["--json"]).json();
    let gguf = Gguf::open(repository("models/nano-q4_k_m.gguf")).unwrap();
    assert_eq!(told["files"][0]["bytes"], 15_930_976);
    assert_eq!((&told["files"][0]["version"], &told["files"][0]["tensors"]), (&3.into(), &117.into()));
    assert_eq!(told["metadata"].as_object().unwrap().len(), gguf.metadata().len());
    assert_eq!(told["metadata"]["glm-dsa.block_count"], 5);
    let tokens = &told["metadata"]["tokenizer.ggml.tokens"];
    assert_eq!((&tokens["array_of"], &tokens["length"]), (&"string".into(), &4096.into()));
    assert_eq!(told["tensors"], serde_json::to_value(gguf.tensors()).unwrap());
    assert_eq!((&told["runnable"], &told["not_runnable"]), (&true.into(), &Value::Null));
    let ledger = &told["load_report"]["ledger"];
    assert_eq!((&ledger["taken"]["tensors"], &ledger["idle"][0]["tensors"]), (&90.into(), &27.into()));

    let full = run("inspect", &["--json", "--full"]).json();
    assert_eq!(full["metadata"]["tokenizer.ggml.tokens"].as_array().unwrap().len(), 4096);

    let text = run("inspect", &[]).ok();
    for part in [
        "version 3, 15930976 bytes, 117 tensors aligned to 32",
        "4096 string]",
        "blk.2.indexer.attn_q_b.weight",
        "4 trunk + 1 nextn layers",
        "nano-q4_k_m.gguf: 117 tensors, 90 used",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    assert!(!text.contains("not runnable"));
    let row = text.lines().find(|l| l.trim_start().starts_with("blk.0.attn_k_b.weight")).unwrap();
    let info = gguf.tensor("blk.0.attn_k_b.weight").unwrap();
    for part in ["Q5_0", "[192, 512, 4]", &info.offset.to_string(), &info.bytes.to_string()] {
        assert!(row.contains(part), "no {part:?} in {row}");
    }
    let full = run("inspect", &["--full"]).ok();
    assert_eq!(full.matches("idle: blk.4.").count(), 27);
    assert!(full.len() > 2 * text.len());
}

/// Whatever the machine and the build have, there is an answer: GPUs, or the reason why there are none.
#[test]
fn the_machine() {
    let told = run("inspect", &["--gpus", "--json"]).json();
    let found = glm5::cuda::Environment::look();
    assert_eq!(told, serde_json::to_value(&found).unwrap());
    assert_eq!(told["trouble"].is_null(), !found.gpus.is_empty());
    let text = run("inspect", &["--gpus"]).ok();
    assert_eq!(text, found.to_string());
    assert!(text.contains("GPU"), "{text}");
    let both = run("inspect", &["--gpus", "--model", "x.gguf"]);
    assert_eq!((both.code, both.stdout.as_str()), (Some(2), ""));
}

/// The set is shown whole from any of its shards, and runs from any of them.
#[test]
fn a_split_set() {
    let dir = TempDir::new();
    let writer = rewritten("models/nano-q4_k_m.gguf", |_| None);
    let paths = writer.write_split(dir.path().join("nano"), &[0, 60, 57]).unwrap();
    let whole = run("inspect", &["--json"]).json();
    for path in &paths {
        let told = json(path.to_str().unwrap());
        let counts: Vec<u64> =
            told["files"].as_array().unwrap().iter().map(|f| f["tensors"].as_u64().unwrap()).collect();
        assert_eq!(counts, [0, 60, 57]);
        assert_eq!(told["runnable"], true);
        assert_eq!(told["types"], whole["types"]);
        let shards = told["load_report"]["ledger"]["shards"].as_array().unwrap();
        let taken: u64 = shards.iter().map(|s| s["taken"]["tensors"].as_u64().unwrap()).sum();
        assert_eq!((shards.len(), taken), (3, 90));
        assert_eq!(shards[2]["file"], "nano-00003-of-00003.gguf");
        assert_eq!((&told["tensors"][0]["shard"], &told["tensors"][116]["shard"]), (&1.into(), &2.into()));
    }
    let text = run("inspect", &["--model", paths[1].to_str().unwrap()]).ok();
    assert!(text.contains("file 2: ") && text.contains("nano-00003-of-00003.gguf: 57 tensors"), "{text}");
    let words = run("generate", &["-n", "8", "--model", paths[2].to_str().unwrap()]).ok();
    assert_eq!(words, run("generate", &["-n", "8"]).ok());
    fs::remove_file(&paths[1]).unwrap();
    let missing = run("inspect", &["--model", paths[2].to_str().unwrap()]);
    assert_eq!((missing.code, missing.stdout.as_str()), (Some(1), ""));
    assert!(missing.stderr.contains("shard 2 of 3 is missing"), "{}", missing.stderr);
}

#[test]
fn indexer_sharing() {
    let told = json(&repository("models/nano-shared-ud.gguf"));
    assert_eq!((&told["load_report"]["indexer_pattern"], &told["runnable"]), (&"FFSS".into(), &true.into()));
}

#[test]
fn containers_without_a_model_are_shown_with_the_reason() {
    let dir = TempDir::new();
    let typed = dir.path().join("typed.gguf");
    rewritten("models/nano-q4_k_m.gguf", |name| (name == "token_embd.weight").then_some(GgmlType::TQ1_0))
        .write(&typed)
        .unwrap();
    let broken = |file: &str| repository(&format!("tests/data/broken/{file}.gguf"));
    for (file, reason) in [
        (broken("ok-tiny"), "glm-dsa.rope.dimension_count: missing"),
        (broken("glm5-next"), "glm5-next is not supported"),
        (broken("other-architecture"), "is not supported"),
        (broken("no-architecture"), "general.architecture: missing"),
        (repository("tests/data/tokenizer/ignore_merges.gguf"), "missing"),
        (typed.to_str().unwrap().to_owned(), "TQ1_0"),
    ] {
        let told = json(&file);
        assert_eq!((&told["runnable"], &told["load_report"]), (&false.into(), &Value::Null), "{file}");
        assert!(told["not_runnable"].as_str().unwrap().contains(reason), "{file}: {}", told["not_runnable"]);
        let text = run("inspect", &["--model", &file]).ok();
        let last = text.split("not runnable: ").nth(1).unwrap_or_else(|| panic!("{text}"));
        assert!(last.contains(reason), "{text}");
        assert!(
            text.contains("file 0: ") && text.contains(" keys\n") && text.contains(" tensors, "),
            "{text}"
        );
    }
}

#[test]
fn damaged_files_of_all_kinds() {
    let mut shown = 0;
    let mut refused = 0;
    for entry in fs::read_dir(repository("tests/data/broken")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "gguf") {
            continue;
        }
        let run = run("inspect", &["--model", path.to_str().unwrap()]);
        match run.code {
            Some(0) => shown += 1,
            _ => {
                assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{run:?}");
                assert_eq!(run.stderr.trim_end().lines().count(), 1, "{run:?}");
                refused += 1;
            }
        }
    }
    assert!(shown >= 7 && refused >= 40, "{shown} shown, {refused} refused");
}
