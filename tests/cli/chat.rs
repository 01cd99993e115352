//! `chat` through a pipe: turns, the cache between them, commands, a full context, Ctrl-C.

use glm5::gguf::Gguf;
use glm5::text::{ChatOptions, ChatTemplate, Tokenizer};
use serde_json::json;

use crate::process::{Finished, run_with};
use crate::repository;

/// The same answers every time.
const GREEDY: [&str; 3] = ["--temperature", "0", "--no-thinking"];

fn chat(more: &[&str], input: &str) -> Finished {
    run_with("chat", &[&GREEDY[..], &["--max-tokens", "12"], more].concat(), input.as_bytes())
}

/// The second answer comes from a cache that was cut back to the common beginning; it must be that of a fresh run on the
/// whole conversation.
#[test]
fn turns_are_those_of_the_rendered_conversation() {
    let gguf = Gguf::open(repository("models/nano-q4_k_m.gguf")).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let template = ChatTemplate::new(tokenizer.chat_template().unwrap()).unwrap();
    let user = |text: &str| json!({"role": "user", "content": text});
    let mut messages = vec![json!({"role": "system", "content": "Speak of whales."})];
    let mut expected = String::new();
    for message in ["Call me Ishmael.", "Where is the whale?", "And the ship?"] {
        messages.push(user(message));
        let options =
            ChatOptions { add_generation_prompt: true, enable_thinking: Some(false), ..Default::default() };
        let prompt = template.render(&messages, &options).unwrap();
        let args = ["--no-prefix", "--max-tokens", "12", "--json", "--prompt", &prompt];
        let told = crate::process::run("generate", &args).json();
        let text = told["text"].as_str().unwrap();
        messages.push(json!({"role": "assistant", "content": text}));
        expected += &format!("{text}\n");
    }
    let run = chat(
        &["--system", "Speak of whales.", "-v"],
        "Call me Ishmael.\nWhere is the whale?\n\nAnd the ship?\n",
    );
    assert!(run.stderr.matches("more were in the cache").count() == 2, "{}", run.stderr);
    assert!(run.stderr.contains("4 trunk + 1 nextn layers"), "{}", run.stderr);
    assert_eq!(run.ok(), expected);
}

#[test]
fn a_reset_conversation_begins_anew() {
    let one = chat(&[], "Call me Ishmael.\n").ok();
    assert!(one.len() > 1);
    // Also without a line end at the end of input, and with one of the other kind.
    assert_eq!(chat(&[], "Call me Ishmael.").ok(), one);
    assert_eq!(chat(&[], "Call me Ishmael.\r\n").ok(), one);
    let run = chat(&[], "Call me Ishmael.\nWhere is the whale?\n/reset\nCall me Ishmael.\n");
    assert!(run.stderr.contains("forgotten"), "{}", run.stderr);
    let all = run.ok();
    assert!(all.starts_with(&one) && all.ends_with(&one) && all.len() > 2 * one.len(), "{all:?}");
}

#[test]
fn commands() {
    let run = chat(&[], "/help\n/what\n   \n/quit\nnever read\n");
    assert!(run.stderr.contains("/reset forgets"), "{}", run.stderr);
    assert!(run.stderr.contains("unknown command /what"), "{}", run.stderr);
    assert_eq!(run.ok(), "");
    assert_eq!(chat(&[], "").ok(), "");
}

#[test]
fn thoughts_begin_with_their_mark() {
    let told = run_with("chat", &["--temperature", "0", "--max-tokens", "4"], b"Hello\n");
    assert!(told.stderr.contains("(cut after 4 tokens, --max-tokens)"), "{told:?}");
    assert!(told.ok().starts_with("<think>"));
}

#[test]
fn a_full_context_loses_nothing() {
    let one = chat(&["--context", "64"], "Call me Ishmael.\n").ok();
    let long = "whale ".repeat(60);
    let run = chat(&["--context", "64"], &format!("{long}\nCall me Ishmael.\n"));
    assert!(run.stderr.contains("the cache holds 64: this message was not sent"), "{}", run.stderr);
    assert_eq!(run.ok(), one);
    // In the middle of an answer.
    let run = chat(&["--context", "20"], "Call me Ishmael.\n");
    assert!(run.stderr.contains("the cache of 20 tokens is full"), "{}", run.stderr);
    assert!(run.ok().starts_with(one.trim_end().get(..8).unwrap()));
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_the_answer_and_not_the_program() {
    use crate::process::Running;

    let mut running = Running::start("chat", &[&GREEDY[..], &["--max-tokens", "4000"]].concat());
    running.write(b"Call me Ishmael.\n");
    running.wait_for_stdout(|text| text.len() > 20);
    running.interrupt();
    running.wait_for_stderr(|text| text.contains("(stopped)"));
    running.write(b"/help\n");
    running.wait_for_stderr(|text| text.contains("/reset forgets"));
    let run = running.finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.stdout.ends_with('\n'));
}

#[cfg(unix)]
#[test]
fn ctrl_c_twice_at_the_prompt_leaves() {
    use std::time::Duration;

    let mut running = crate::process::Running::start("chat", &[]);
    running.write(b"/help\n");
    running.wait_for_stderr(|text| text.contains("/reset forgets"));
    // One that comes before it waits again is forgotten.
    while running.is_running() {
        running.interrupt();
        std::thread::sleep(Duration::from_millis(20));
    }
    let run = running.finish();
    assert_eq!(run.code, Some(130), "{run:?}");
    assert!(run.stderr.contains("Ctrl-C again"), "{run:?}");
}
