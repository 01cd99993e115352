//! The example binaries as their users meet them: output, JSON, pipes, Ctrl-C, bad input.
//!
//! Plain `cargo test` builds them; before `cargo test --test cli` run `cargo build --examples`.

#[path = "cli/bad_input.rs"]
mod bad_input;
#[path = "cli/bench.rs"]
mod bench;
#[path = "cli/chat.rs"]
mod chat;
#[path = "cli/generate.rs"]
mod generate;
#[path = "cli/inspect.rs"]
mod inspect;
#[path = "cli/perplexity.rs"]
mod perplexity;
#[path = "cli/process.rs"]
mod process;
#[path = "suites/synthetic.rs"]
mod synthetic;

/// The examples.
const EXAMPLES: [&str; 5] = ["generate", "chat", "bench", "perplexity", "inspect"];

/// A path inside the repository.
fn repository(path: &str) -> String {
    format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))
}
