//! `generate`: the book word for word, JSON that agrees with it, every switch, pipes and Ctrl-C.

use std::fs;
use std::io::Read;
use std::process::Stdio;
use std::sync::LazyLock;

use serde_json::Value;

use crate::process::{example, run, run_with};
use crate::repository;
use crate::synthetic::TempDir;

/// Greedy continuations by an independent implementation: 64 tokens of three prompts.
static GOLDEN: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let text = fs::read_to_string(repository("models/goldens/nano-q4_k_m.generation.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    golden["greedy"].as_array().unwrap().clone()
});

/// What follows `Call me Ishmael.`
fn book() -> &'static str {
    GOLDEN[0]["text"].as_str().unwrap()
}

fn json(args: &[&str]) -> Value {
    run("generate", &[&["--json"], args].concat()).json()
}

#[test]
fn without_arguments_it_continues_the_book() {
    let run = run("generate", &[]);
    assert!(run.stdout.starts_with(&format!("Call me Ishmael.{}", book())), "{}", run.stdout);
    assert!(run.stdout.ends_with('\n'));
    for part in
        ["load", "prompt       10 tokens", "decode      127 tokens", "tokens/s", "full-sparse", "exact"]
    {
        assert!(run.stderr.contains(part), "no {part:?} in {}", run.stderr);
    }
    assert_eq!(run.code, Some(0));
}

#[test]
fn text_is_the_books_to_the_byte() {
    assert_eq!(run("generate", &["-n", "64"]).ok(), format!("Call me Ishmael.{}\n", book()));
    assert_eq!(run("generate", &["-n", "64", "--no-echo"]).ok(), format!("{}\n", book()));
    // None of these changes what the model is sure of.
    for switch in [
        &["--device", "cpu"][..],
        &["--dense"],
        &["--threads", "1"],
        &["--threads", "3"],
        &["--cache-type", "bf16"],
        &["--cache-type", "f16"],
        &["--cache-type", "fp8"],
        &["--precision", "fast"],
        &["--context", "300"],
        &["--top-k", "1", "--temperature", "2"],
    ] {
        let text = run("generate", &[&["-n", "64", "--no-echo"], switch].concat()).ok();
        assert_eq!(text, format!("{}\n", book()), "{switch:?}");
    }
}

#[test]
fn json_agrees_with_the_goldens() {
    for golden in GOLDEN.iter() {
        let prompt = golden["prompt"].as_str().unwrap();
        let (text, flag) = match prompt.strip_prefix("[gMASK]<sop>") {
            Some(text) => (text, "--json"),
            None => (prompt, "--no-prefix"),
        };
        let args = ["-n", "64", "--json", "--file", "-", "--logprobs", "2"];
        let args = if flag == "--json" { args.to_vec() } else { [&args[..], &[flag]].concat() };
        // The line end that `echo` adds is not part of the prompt.
        let told = run_with("generate", &args, format!("{text}\n").as_bytes()).json();
        assert_eq!(told["prompt"], text);
        assert_eq!(told["prompt_tokens"], golden["prompt_ids"]);
        assert_eq!(told["tokens"], golden["ids"]);
        assert_eq!(told["text"], golden["text"]);
        assert_eq!(told["finish"], "max_tokens");

        let logprobs = told["logprobs"].as_array().unwrap();
        assert_eq!(logprobs.len(), 64);
        let margins = golden["margins"].as_array().unwrap();
        for ((l, token), margin) in logprobs.iter().zip(told["tokens"].as_array().unwrap()).zip(margins) {
            assert_eq!(&l["token"], token);
            assert_eq!(&l["top"][0]["token"], token);
            assert_eq!(l["top"][0]["logprob"], l["logprob"]);
            let [first, second] = [0, 1].map(|i| l["top"][i]["logprob"].as_f64().unwrap());
            assert!(first <= 0.0 && (first - second - margin.as_f64().unwrap()).abs() < 1e-3, "{l}");
        }
        let joined: String = logprobs.iter().map(|l| l["text"].as_str().unwrap()).collect();
        // Tokens that are parts of a character cannot be joined so.
        assert!(joined.contains('\u{FFFD}') || joined == golden["text"].as_str().unwrap());
    }
}

#[test]
fn json_tells_what_ran() {
    let sparse = json(&["-n", "100"]);
    assert!(sparse.get("logprobs").is_none());
    let figures = &sparse["figures"];
    assert_eq!(figures["prompt"]["tokens"], 10);
    assert_eq!(figures["decode"]["tokens"], 99);
    assert_eq!(figures["ran"]["precision"], "exact");
    assert_eq!(figures["ran"]["attention"], "sparse");
    assert_eq!(figures["ran"]["cache_type"], "f32");
    assert_eq!(figures["ran"]["context"], 109);
    assert_eq!(figures["counters"]["tokens"], 109);
    for figure in ["load_seconds", "reused_tokens"] {
        assert!(figures[figure].as_f64().unwrap() >= 0.0);
    }
    for rate in ["prompt", "decode"] {
        let [n, s, rate] =
            ["tokens", "seconds", "tokens_per_second"].map(|k| figures[rate][k].as_f64().unwrap());
        assert!((n / s / rate - 1.0).abs() < 1e-9);
    }
    // Top 64: of 109 tokens the first 64 see no more than that; the others attend to 64 keys each.
    for layer in figures["counters"]["layers"].as_array().unwrap() {
        assert_eq!(
            (&layer["dense"], &layer["full_sparse"], &layer["shared_sparse"]),
            (&64.into(), &45.into(), &0.into())
        );
        assert_eq!(
            (&layer["keys"], &layer["visible"]),
            (&(64 * 65 / 2 + 45 * 64).into(), &(109 * 110 / 2).into())
        );
    }
    assert_eq!(sparse["load_report"]["config"]["index_topk"], 64);
    assert_eq!(sparse["options"]["sampling"]["temperature"], 0.0);

    let dense = json(&["-n", "100", "--dense", "--precision", "fast", "--cache-type", "bf16"]);
    let figures = &dense["figures"];
    for (key, value) in [("precision", "fast"), ("attention", "dense"), ("cache_type", "bf16")] {
        assert_eq!(figures["ran"][key], value);
    }
    for layer in figures["counters"]["layers"].as_array().unwrap() {
        assert_eq!((&layer["dense"], &layer["full_sparse"]), (&109.into(), &0.into()));
        assert_eq!(layer["keys"], layer["visible"]);
    }
}

#[test]
fn answers_end_for_a_reason() {
    let stopped = json(&["--stop", "no such words", "--stop", " purse"]);
    assert_eq!(stopped["finish"], "stop_string");
    assert_eq!(stopped["text"], book().split(" purse").next().unwrap());

    let full = json(&["--context", "20"]);
    assert_eq!(full["finish"], "context");
    // The last token need not be stored.
    assert_eq!(full["tokens"].as_array().unwrap().len(), 11);
    assert!(book().starts_with(full["text"].as_str().unwrap()));

    let one = json(&["-n", "1", "--context", "10"]);
    assert_eq!((&one["finish"], one["tokens"].as_array().unwrap().len()), (&"max_tokens".into(), 1));
    assert_eq!(one["figures"]["decode"]["tokens"], 0);
}

#[test]
fn the_seed_decides_what_is_drawn() {
    let drawn = |seed: &str| json(&["-n", "24", "--temperature", "5", "--seed", seed])["tokens"].clone();
    assert_eq!(drawn("1"), drawn("1"));
    assert_ne!(drawn("1"), drawn("2"));
    // Whatever has occurred is as good as forbidden, so nothing comes twice.
    let told = json(&["-n", "64", "--presence-penalty", "1000", "--penalty-last-n", "1000"]);
    let mut seen: Vec<u64> = [&told["prompt_tokens"], &told["tokens"]]
        .iter()
        .flat_map(|list| list.as_array().unwrap().iter().map(|t| t.as_u64().unwrap()))
        .collect();
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), all);
}

#[test]
fn chats_use_the_files_template_and_advice() {
    let golden = fs::read_to_string(repository("tests/data/tokenizer/chat.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let case = golden["cases"].as_array().unwrap().iter().find(|c| c["name"] == "one user turn").unwrap();
    let told = json(&["--chat", "-n", "8", "--prompt", "Hello"]);
    assert_eq!(told["prompt_tokens"], case["ids"]);
    let sampling = &told["options"]["sampling"];
    assert_eq!(
        (&sampling["temperature"], sampling["top_p"].as_f64()),
        (&1.0.into(), Some(f64::from(0.95f32)))
    );
    let told = json(&["--chat", "-n", "8", "--prompt", "Hello", "--temperature", "0", "--top-p", "0.5"]);
    let sampling = &told["options"]["sampling"];
    assert_eq!((&sampling["temperature"], &sampling["top_p"]), (&0.0.into(), &0.5.into()));
    // The answer alone.
    let text = run("generate", &["--chat", "-n", "8", "--prompt", "Hello", "--temperature", "0"]).ok();
    assert_eq!(text.trim_end_matches('\n'), {
        let told = json(&["--chat", "-n", "8", "--prompt", "Hello", "--temperature", "0"]);
        told["text"].as_str().unwrap().trim_end_matches('\n').to_owned()
    });
}

#[test]
fn prompts_come_from_files() {
    let dir = TempDir::new();
    let path = dir.path().join("prompt.txt");
    let path = path.to_str().unwrap();
    for end in ["", "\n", "\r\n"] {
        fs::write(path, format!("Call me Ishmael.{end}")).unwrap();
        assert_eq!(run("generate", &["-n", "64", "-f", path]).ok(), format!("Call me Ishmael.{}\n", book()));
    }
    // One line end only.
    fs::write(path, "Call me Ishmael.\n\n").unwrap();
    assert_eq!(json(&["-n", "1", "-f", path])["prompt"], "Call me Ishmael.\n");
}

#[test]
fn the_device_is_said_unless_it_was_asked_for() {
    let auto = run("generate", &["-n", "1", "--precision", "exact"]);
    assert!(auto.stderr.starts_with("device "), "{}", auto.stderr);
    let (what, why) = auto.stderr.lines().next().unwrap().split_once("): ").unwrap();
    assert!(what.contains("cpu (") || what.contains("sm_"), "{what}");
    assert!(why.contains("GPU") && why.contains("precision exact, cache "), "{why}");
    let cpu = run("generate", &["-n", "1", "--device", "cpu"]);
    assert!(!cpu.stderr.contains("device ") && cpu.stderr.contains("ran on    cpu ("), "{}", cpu.stderr);
}

#[test]
fn plans_are_told_without_a_gpu() {
    let told = run("generate", &["--plan-only", "--gpu", "h200", "--context", "1000"]).ok();
    for part in [
        "plan for NVIDIA H200 (sm_90)",
        "for 1000 tokens in bf16",
        "fits",
        "largest context that fits: 4096 tokens",
        "launches",
    ] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    let flags = ["--plan-only", "--gpu", "rtx-pro-6000", "--gpus", "1", "--cache-type", "fp8", "--json"];
    let plan = run("generate", &flags).json();
    assert_eq!((&plan["gpus"], &plan["cache_type"]), (&1.into(), &"fp8".into()));
    assert!(
        plan["needed"].as_u64() < plan["memory"].as_u64() && plan["launches"]["full"].as_u64() > Some(10),
        "{plan}"
    );
    let told =
        run("generate", &["--plan-only", "--gpu", "h200", "--layers", "1..3", "--no-head", "--no-embedding"])
            .ok();
    assert!(
        told.contains("layers     1..3 without embedding and head") && told.contains("for 4096 tokens"),
        "{told}"
    );
    let flags = ["--plan-only", "--gpu", "h200", "--gpus", "8", "--synthetic", "glm-5.2", "--json"];
    let plan = run("generate", &flags).json();
    let gib = plan["weights"].as_u64().unwrap() >> 30;
    assert!((50..60).contains(&gib) && plan["context"] == 4096, "{plan}");
    assert!(plan["launches"]["dense"].is_u64() && plan["launches"]["shared"].is_u64(), "{plan}");
}

/// Fewer layers write another text, and say which they are.
#[test]
fn slices_write_texts() {
    let run = run("generate", &["-n", "4", "-v", "--layers", "3"]);
    assert!(
        run.stderr.contains("of these layers 0..3") && run.stderr.contains("not in the slice 0..3"),
        "{run:?}"
    );
    assert!(run.code == Some(0) && run.stdout.starts_with("Call me Ishmael."), "{run:?}");
}

#[test]
fn verbose_and_logprobs_go_to_standard_error() {
    let run = run("generate", &["-n", "3", "-v", "--logprobs", "2"]);
    assert_eq!(run.stdout, "Call me Ishmael. Some years ago\n");
    for part in ["4 trunk + 1 nextn layers", "MTP block", "\" Some\"", "\" years\"", "\" ago\""] {
        assert!(run.stderr.contains(part), "no {part:?} in {}", run.stderr);
    }
}

/// `generate | head -c 20`
#[test]
fn a_reader_that_leaves_ends_it_quietly() {
    let mut command = example("generate", &["--device", "cpu", "-n", "4000"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut begin = [0; 20];
    child.stdout.take().unwrap().read_exact(&mut begin).unwrap();
    assert_eq!(begin, *b"Call me Ishmael. Som");
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_with_the_figures() {
    let mut running = crate::process::Running::start("generate", &["-n", "4000"]);
    running.wait_for_stdout(|text| text.len() > 40);
    running.interrupt();
    let run = running.finish();
    assert_eq!(run.code, Some(130), "{run:?}");
    assert!(run.stdout.starts_with("Call me Ishmael. Some years") && run.stdout.ends_with('\n'));
    assert!(run.stderr.contains("decode") && run.stderr.contains("tokens/s"), "{}", run.stderr);
    assert!(!run.stderr.contains("error"), "{}", run.stderr);

    let mut running = crate::process::Running::start("generate", &["-n", "4000", "--json", "-v"]);
    running.wait_for_stderr(|text| text.contains("trunk"));
    running.interrupt();
    let run = running.finish();
    assert_eq!(run.code, Some(130), "{run:?}");
    let told: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(told["finish"], "interrupted");
    assert!(told["tokens"].as_array().unwrap().len() < 4000);
}
