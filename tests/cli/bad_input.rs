//! Bad input of every kind: one clear line on standard error, exit code 2 (usage) or 1 (run), nothing on standard output.

use std::fs;

use crate::process::{example, run, run_with};
use crate::synthetic::TempDir;
use crate::{EXAMPLES, repository};

/// Checks exit code, silence on standard output, and one line on standard error with all `parts`.
fn refused(name: &str, args: &[&str], input: &[u8], code: i32, parts: &[&str]) {
    let run = run_with(name, args, input);
    let told = format!("{name} {args:?}: {run:?}");
    assert_eq!(run.code, Some(code), "{told}");
    assert_eq!(run.stdout, "", "{told}");
    assert_eq!(run.stderr.trim_end().lines().count(), 1, "{told}");
    assert!(run.stderr.starts_with("error: "), "{told}");
    for part in parts {
        assert!(run.stderr.contains(part), "no {part:?} in {told}");
    }
    assert_eq!(run.stderr.contains("see --help"), code == 2, "{told}");
}

fn usage(name: &str, args: &[&str], parts: &[&str]) {
    refused(name, args, b"", 2, parts);
}

fn failed(name: &str, args: &[&str], parts: &[&str]) {
    refused(name, args, b"", 1, parts);
}

/// Arguments without which an example says nothing else.
fn base(name: &str) -> Vec<&str> {
    // Any file that is there will do.
    if name == "perplexity" {
        vec!["--file", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]
    } else {
        vec![]
    }
}

#[test]
fn wrong_usage_of_every_example() {
    for name in EXAMPLES {
        let with = |more: &[&'static str]| [base(name), more.to_vec()].concat();
        usage(name, &with(&["--no-such-flag"]), &["unexpected argument '--no-such-flag'"]);
        usage(name, &with(&["stray"]), &["unexpected argument 'stray'"]);
        usage(name, &with(&["--model"]), &["--model"]);
        usage(name, &with(&["--jsn"]), &["--jsn"]);
        if name == "inspect" {
            continue;
        }
        for threads in ["0", "100000", "-1", "two", "18446744073709551616"] {
            usage(name, &with(&["--threads", threads]), &["--threads", threads, "from 1 to 1024"]);
        }
        for device in ["gpu", "cuda:", "cuda:-1", ""] {
            usage(name, &with(&["--device", device]), &["--device", "`auto`, `cpu`, `cuda` or `cuda:1`"]);
        }
        failed(name, &with(&["--device", "cuda:1000"]), &["no usable GPU"]);
        usage(name, &with(&["--precision", "half"]), &["--precision", "half", "exact, fast"]);
        usage(name, &with(&["--cache-type", "q8_0"]), &["--cache-type", "q8_0", "f32, bf16, f16"]);
    }
    usage("generate", &["--plan-only", "--gpu", "h100"], &["--gpu", "h100", "h200, rtx-pro-6000"]);
    usage("generate", &["--gpu", "h200"], &["--plan-only"]);
    usage("generate", &["--plan-only", "--gpu", "h200", "--gpus", "0"], &["--gpus", "from 1 to 64"]);
    failed("generate", &["--plan-only", "--gpu", "h200", "--gpus", "3"], &["cannot be cut into 3 parts"]);
    for layers in ["", "..", "1..", "..3", "x", "-1", "3..3", "4..2", "0", "1...3", "1..2..3", "1..1e3"] {
        usage("bench", &["--layers", layers], &["--layers", "A..B with A below B"]);
    }
    for layers in ["5", "0..5", "4..6", "0..18446744073709551615"] {
        usage("bench", &["--layers", layers], &["--layers", "up to 0..4", ".."]);
    }
    let shared = repository("models/nano-shared-ud.gguf");
    let begins_in = ["--model", &shared, "--layers", "3..4"];
    usage("bench", &begins_in, &["--layers", "such as 1,", "layer 3 shares the selection of layer 1"]);
    usage("generate", &["--no-head"], &["--layers"]);
    usage("bench", &["--no-embedding"], &["--layers"]);
    for name in ["generate", "chat", "perplexity"] {
        for flag in ["--no-head", "--no-embedding"] {
            usage(name, &[base(name), vec!["--layers", "1..3", flag]].concat(), &[flag, "--plan-only"]);
        }
    }
    for name in ["glm-6", "", "glm-5/3", "glm-5:0"] {
        usage("bench", &["--synthetic", name], &["--synthetic", "synthetic model"]);
    }
    usage(
        "bench",
        &["--synthetic", "glm-5", "--model", "x"],
        &["--synthetic", "cannot be used with", "--model"],
    );
    failed("bench", &["--synthetic", "glm-5/16:4"], &["blk.3.ffn_down_exps.weight", "block of 256"]);
    for name in ["generate", "chat", "perplexity"] {
        let with = [base(name), vec!["--synthetic", "glm-5"]].concat();
        usage(name, &with, &["--synthetic", "no tokenizer"]);
    }
    usage("generate", &["--modle", "x"], &["--modle", "a similar argument exists: '--model'"]);
}

#[test]
fn files_that_are_no_models() {
    let dir = TempDir::new();
    let empty = dir.path().join("empty.gguf");
    fs::write(&empty, "").unwrap();
    let text = repository("models/texts/held.txt");
    let (dir, empty) = (dir.path().to_str().unwrap(), empty.to_str().unwrap());
    for name in EXAMPLES {
        let with = |model: &'static str| [base(name), vec!["--model", model]].concat();
        failed(name, &with("/no/such/file.gguf"), &["/no/such/file.gguf", "No such file"]);
        for (model, reason) in [(dir, "is a directory"), (empty, "empty.gguf"), (&text, "held.txt")] {
            failed(name, &[base(name), vec!["--model", model]].concat(), &[model, reason]);
        }
        let broken = |file: &str| repository(&format!("tests/data/broken/{file}.gguf"));
        let model = broken("truncated-data");
        failed(
            name,
            &[base(name), vec!["--model", &model]].concat(),
            &["truncated-data.gguf", "past the end"],
        );
        // Sound containers, which `inspect` shows.
        if name != "inspect" {
            for (file, reason) in [
                ("glm5-next", "glm5-next is not supported"),
                ("other-architecture", "not supported"),
                ("no-architecture", "general.architecture"),
                ("missing-hyperparameter", "glm-dsa.block_count"),
            ] {
                failed(name, &[base(name), vec!["--model", &broken(file)]].concat(), &[reason]);
            }
        }
    }
}

#[test]
fn absurd_sampling_values() {
    for name in ["generate", "chat"] {
        for (flag, values) in [
            ("--temperature", &["-1", "NaN", "inf", "hot"][..]),
            ("--top-p", &["0", "7", "-0.5", "NaN"]),
            ("--min-p", &["1.5", "-0.1", "NaN"]),
            ("--top-k", &["-3", "1.5", "many"]),
            ("--repeat-penalty", &["0", "-1", "inf"]),
            ("--frequency-penalty", &["NaN", "inf"]),
            ("--presence-penalty", &["NaN", "inf"]),
            ("--penalty-last-n", &["-1"]),
            ("--seed", &["-1", "18446744073709551616", "x"]),
            ("--max-tokens", &["0", "-1"]),
            ("--context", &["0", "-1"]),
            ("--stop", &[""]),
        ] {
            values.iter().for_each(|value| usage(name, &[flag, value], &[flag, value]));
        }
        usage(name, &["--context", "4097"], &["--context 4097", "4096 tokens"]);
    }
    usage("generate", &["--logprobs", "-1"], &["--logprobs"]);
}

#[test]
fn prompts_that_cannot_be_taken() {
    let dir = TempDir::new();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let latin1 = file("latin1.txt", b"caf\xe9");
    let empty = file("empty.txt", b"\n");
    let directory = dir.path().to_str().unwrap();
    usage("generate", &["--prompt", ""], &["--prompt", "at least one character"]);
    usage("generate", &["--prompt", "a", "--file", "b"], &["--prompt", "cannot be used with", "--file"]);
    usage("generate", &["--chat", "--no-prefix"], &["--chat", "--no-prefix"]);
    usage("perplexity", &[], &["--file"]);
    for name in ["generate", "perplexity"] {
        failed(name, &["--file", &latin1], &["latin1.txt", "UTF-8", "byte 3"]);
        failed(name, &["--file", &empty], &["empty.txt", "empty"]);
        failed(name, &["--file", directory], &[directory, "directory"]);
        failed(name, &["--file", "/no/such/text"], &["/no/such/text", "No such file"]);
        refused(name, &["--file", "-"], b"ab\xff", 1, &["standard input", "UTF-8", "byte 2"]);
        refused(name, &["--file", "-"], b"", 1, &["standard input", "empty"]);
    }
    refused("chat", &["--device", "cpu"], b"\xff\xfe\n", 1, &["standard input", "UTF-8"]);
    failed("generate", &["--context", "9"], &["10 tokens", "holds 9", "--context"]);
    let long = "whale ".repeat(5000);
    refused("generate", &["--file", "-"], long.as_bytes(), 1, &["the prompt has", "the cache holds 4096"]);
    refused("perplexity", &["--file", "-"], b"Call me Ishmael.", 1, &["standard input: 8 tokens", "512"]);
    usage("perplexity", &["--file", &latin1, "--context", "2"], &["--context", "at least 3"]);
    usage("perplexity", &["--file", &latin1, "--chunks", "0"], &["--chunks", "at least 1"]);
    let held = repository("models/texts/held.txt");
    usage("perplexity", &["--file", &held, "--context", "5000"], &["--context 5000", "4096"]);
}

#[test]
fn benches_of_nothing_or_too_much() {
    usage("bench", &["-p", "0", "-n", "0"], &["nothing to measure"]);
    usage("bench", &["-p", "5000"], &["pp5000", "4096"]);
    usage("bench", &["-n", "100", "-d", "0,4000"], &["pp512 @ d4000", "4512", "4096"]);
    usage("bench", &["-d", "18446744073709551615"], &["4096"]);
    usage("bench", &["-p", "1,x"], &["--n-prompt", "'x'"]);
    usage("bench", &["--repetitions", "0"], &["--repetitions"]);
}

#[test]
fn help_teaches() {
    for name in EXAMPLES {
        let help = run(name, &["--help"]).ok();
        for part in
            ["Usage:", "--model", "--json", "Example:", "cargo run --release --example", "Exit codes:"]
        {
            assert!(help.contains(part) || (name, part) == ("chat", "--json"), "{name}: no {part} in {help}");
        }
        let short = run(name, &["-h"]).ok();
        assert!(short.len() < help.len() && short.contains("--model"), "{name}: {short}");
    }
}

/// A full disk is an error, and said so; a reader that has gone is none.
#[cfg(target_os = "linux")]
#[test]
fn standard_output_that_takes_nothing() {
    let text = repository("models/texts/held.txt");
    let runs: [(&str, &[&str]); 5] = [
        ("generate", &["--device", "cpu", "-n", "4"]),
        ("generate", &["--device", "cpu", "-n", "4", "--json"]),
        ("inspect", &[]),
        ("bench", &["--device", "cpu", "-p", "4", "-n", "0", "-r", "1"]),
        ("perplexity", &["--device", "cpu", "--file", &text, "--chunks", "1", "--context", "8"]),
    ];
    for (name, args) in runs {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = example(name, args).stdout(full).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}: {stderr}");
        assert!(stderr.starts_with("error: standard output: No space left"), "{name}: {stderr}");

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = example(name, args).stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{name}");
    }
}
