//! Talks with a model: `cargo run --release --example chat`.

mod common;

use std::io::{BufRead, IsTerminal, stdin};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;
use glm5::tensor::Device;
use glm5::text::{ChatOptions, ChatTemplate, Sampler, Specials, Tokenizer};
use serde_json::{Value, json};

use common::answer::{Answer, Finish, Request, answer};
use common::args::{self, DEFAULT_CONTEXT, ModelArgs, SamplingArgs};
use common::failure::{self, EXIT_CODES, Failure, Result, fail};
use common::figures::Figures;
use common::interrupt;
use common::load::Opened;
use common::session::Session;

const HELP: &str = "one line is one message; /reset forgets the conversation, /quit or end of input leaves; Ctrl-C stops an \
                    answer, twice it leaves";

/// Waiting for a line, where Ctrl-C has nothing to stop.
static AT_PROMPT: AtomicBool = AtomicBool::new(false);

/// A conversation over several turns, one message per line of standard input, answers on standard output.
///
/// Commands: /reset forgets the conversation, /help, /quit (or end of input). Ctrl-C stops the answer and keeps what came;
/// twice, it leaves. What the conversation has in common with the last turn stays in the cache and is not computed again.
/// The small default model knows a book, not conversation: it answers nonsense.
#[derive(Debug, Parser)]
#[command(name = "chat", version, allow_negative_numbers = true, after_help = format!(
    "Example: a conversation with a model of your own, without thoughts before the answers:\n  \
     cargo run --release --example chat -- --model GLM-5-Q4_K_M-00001-of-00010.gguf --no-thinking\n\n{EXIT_CODES}"
))]
struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Text of the system's message, before all others.
    #[arg(short, long, value_name = "TEXT")]
    system: Option<String>,

    /// Ask the template for answers without thoughts.
    #[arg(long)]
    no_thinking: bool,

    /// Tokens of one answer at most.
    #[arg(short = 'n', long, value_name = "N", value_parser = args::at_least(1), default_value_t = 1024)]
    max_tokens: usize,

    /// Tokens that the cache holds, the whole conversation [default: 4096, at most the model's context].
    #[arg(short, long, value_name = "N", value_parser = args::at_least(1))]
    context: Option<usize>,

    /// End answers before this string; may be given several times. End tokens of the file always end them.
    #[arg(long, value_name = "TEXT", value_parser = args::some_text)]
    stop: Vec<String>,

    #[command(flatten)]
    sampling: SamplingArgs,
}

fn main() -> ExitCode {
    failure::main(run)
}

fn run(args: Args) -> Result<()> {
    args.sampling.over_greedy()?;
    interrupt::install(|| {
        if AT_PROMPT.load(Ordering::SeqCst) {
            eprint!("\n(Ctrl-C again or Ctrl-D leaves) ");
        }
    })?;

    let opened = Opened::new(&args.model)?;
    let tokenizer = opened.tokenizer()?;
    let Some(source) = tokenizer.chat_template() else {
        return fail("the model has no chat template (tokenizer.chat_template)");
    };
    let template = ChatTemplate::new(source)?;
    let sampler = Sampler::new(args.sampling.over_file(opened.gguf.metadata())?)?;
    let context = args::context(args.context, DEFAULT_CONTEXT, opened.config.context_length)?;
    let on = args.model.run_on()?;
    let loaded = opened.load(&args.model, &on, context)?;
    let load_time = loaded.time;
    let mut chat = Chat {
        session: Session::new(loaded.model, context, on.cache_type)?,
        tokenizer,
        device: on.device,
        template,
        sampler,
        messages: Vec::new(),
        args: &args,
    };
    chat.reset();

    let terminal = stdin().is_terminal();
    if terminal {
        eprintln!("{HELP}");
    }
    while let Some(line) = read_line(terminal)? {
        match line.trim() {
            "" => {}
            "/quit" => break,
            "/help" => eprintln!("{HELP}"),
            "/reset" => {
                chat.reset();
                eprintln!("the conversation is forgotten");
            }
            command if command.starts_with('/') => eprintln!("unknown command {command}: {HELP}"),
            message => {
                if let Some((prompt_tokens, answer)) = chat.turn(message)?
                    && args.model.verbose
                {
                    eprintln!("{}", Figures::new(load_time, &chat.session, prompt_tokens, &answer));
                }
            }
        }
    }
    Ok(())
}

/// The next line, or nothing at the end of input.
fn read_line(terminal: bool) -> Result<Option<String>> {
    if terminal {
        common::show("> ")?;
    }
    interrupt::clear();
    AT_PROMPT.store(true, Ordering::SeqCst);
    let mut line = Vec::new();
    let read = stdin().lock().read_until(b'\n', &mut line);
    AT_PROMPT.store(false, Ordering::SeqCst);
    interrupt::clear();
    match read {
        Ok(0) if terminal => common::show("\n").map(|()| None).map_err(Failure::from),
        Ok(0) => Ok(None),
        Ok(_) => match String::from_utf8(line) {
            Ok(line) => Ok(Some(line)),
            Err(_) => fail("standard input: expected lines of UTF-8 text, this one is not"),
        },
        Err(e) => fail(format!("standard input: {e}")),
    }
}

struct Chat<'a> {
    session: Session,
    tokenizer: &'a Tokenizer,
    device: Device,
    template: ChatTemplate,
    sampler: Sampler,
    messages: Vec<Value>,
    args: &'a Args,
}

impl Chat<'_> {
    fn reset(&mut self) {
        self.messages.clear();
        self.messages.extend(self.args.system.iter().map(|text| json!({"role": "system", "content": text})));
    }

    /// Sends a message and shows the answer. Gives nothing if the conversation stays as it was.
    fn turn(&mut self, message: &str) -> Result<Option<(usize, Answer)>> {
        self.messages.push(json!({"role": "user", "content": message}));
        let enable_thinking = self.args.no_thinking.then_some(false);
        let options = ChatOptions { add_generation_prompt: true, enable_thinking, ..Default::default() };
        let rendered = self.template.render(&self.messages, &options)?;
        let prompt = self.tokenizer.encode(&rendered, Specials::Parse)?;
        let context = self.session.context();
        if prompt.len() > context {
            eprintln!(
                "the conversation needs {} tokens, the cache holds {context}: this message was not sent; say less, /reset, or \
                 start with a larger --context",
                prompt.len()
            );
            self.messages.pop();
            return Ok(None);
        }

        self.session.model.counters_mut().reset();
        // The mark is part of the prompt, but readers should see where thoughts begin.
        let thinks = rendered.trim_end().ends_with("<think>");
        let mut opening = thinks.then_some("<think>");
        let mut show =
            |piece: &str| opening.take().map_or(Ok(()), common::show).and_then(|()| common::show(piece));
        let request = Request {
            prompt: &prompt,
            stops: &self.args.stop,
            max_tokens: self.args.max_tokens,
            logprobs: None,
        };
        let (session, sampler) = (&mut self.session, &mut self.sampler);
        let answer =
            common::install(&self.device, || answer(session, self.tokenizer, sampler, &request, &mut show))?;
        if answer.tokens.is_empty() {
            self.messages.pop();
            eprintln!("(stopped before the answer began: this message was not sent)");
            return Ok(None);
        }
        common::show("\n")?;
        match answer.finish {
            Finish::Interrupted => eprintln!("(stopped)"),
            Finish::MaxTokens => eprintln!("(cut after {} tokens, --max-tokens)", answer.tokens.len()),
            Finish::Context => eprintln!("(cut: the cache of {context} tokens is full, --context)"),
            Finish::EndToken | Finish::StopString => {}
        }
        self.messages.push(as_message(&answer.text, thinks));
        Ok(Some((prompt.len(), answer)))
    }
}

/// The answer as templates take it back: thoughts apart, so that they can leave those of earlier turns out.
fn as_message(text: &str, thinks: bool) -> Value {
    let (thoughts, content) = match (text.split_once("</think>"), thinks) {
        (Some((thoughts, content)), _) => (thoughts, content),
        // Stopped before the answer proper.
        (None, true) => (text, ""),
        (None, false) => ("", text),
    };
    let thoughts = thoughts.trim_start_matches("<think>");
    json!({"role": "assistant", "reasoning_content": thoughts, "content": content})
}
