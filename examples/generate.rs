//! Continues a text: `cargo run --release --example generate`.

mod common;

use std::borrow::Cow;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use glm5::text::{ChatOptions, ChatTemplate, LogProbs, Sampler, SamplingParams, Specials, Tokenizer};
use serde_json::{Value, json};

use common::answer::{Answer, Finish, Request, answer};
use common::args::{self, DEFAULT_CONTEXT, ModelArgs, SamplingArgs};
use common::failure::{self, EXIT_CODES, Failure, Result, fail};
use common::figures::Figures;
use common::load::Opened;
use common::plan::PlanArgs;
use common::session::Session;
use common::{interrupt, prompt};

/// Continues a text, token by token, on standard output; ends with the figures on standard error.
///
/// Plain prompts are put behind `[gMASK]<sop>`, as the models were trained, and continued greedily. With --chat the prompt
/// is a user's message in the file's own chat template, and the file says how tokens are drawn. Ctrl-C ends the text, and
/// the figures still come.
#[derive(Debug, Parser)]
#[command(name = "generate", version, allow_negative_numbers = true, after_help = format!(
    "Example: the book that the small model knows, five alternatives for every token:\n  \
     cargo run --release --example generate -- --prompt 'Call me Ishmael.' --max-tokens 32 --logprobs 5\n\n{EXIT_CODES}"
))]
struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Text to continue, or with --chat the user's message.
    #[arg(short, long, value_name = "TEXT", value_parser = args::some_text, default_value = "Call me Ishmael.", conflicts_with = "file")]
    prompt: String,

    /// Take the prompt from a UTF-8 file, `-` for standard input; one final line end is dropped.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Render the prompt with the file's chat template, and sample as the file advises.
    #[arg(long)]
    chat: bool,

    /// Do not put `[gMASK]<sop>` before a plain prompt.
    #[arg(long, conflicts_with = "chat")]
    no_prefix: bool,

    /// Print the continuation alone, without a plain prompt before it.
    #[arg(long)]
    no_echo: bool,

    /// Tokens to make at most.
    #[arg(short = 'n', long, value_name = "N", value_parser = args::at_least(1), default_value_t = 128)]
    max_tokens: usize,

    /// Tokens that the cache holds, prompt and answer together [default: what they need, at most the model's context].
    #[arg(short, long, value_name = "N", value_parser = args::at_least(1))]
    context: Option<usize>,

    /// End the text before this string; may be given several times. End tokens of the file always end it.
    #[arg(long, value_name = "TEXT", value_parser = args::some_text)]
    stop: Vec<String>,

    /// Tell every token's log-probability (natural logarithm) and those of the N best tokens there.
    #[arg(long, value_name = "N", value_parser = args::at_least(0))]
    logprobs: Option<usize>,

    /// Print one JSON object at the end (prompt, tokens, text, log-probabilities, figures, load report), nothing else.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    sampling: SamplingArgs,

    #[command(flatten)]
    plan: PlanArgs,
}

fn main() -> ExitCode {
    failure::main(run)
}

fn run(args: Args) -> Result<()> {
    args.sampling.over_greedy()?;
    let text = match &args.file {
        Some(file) => prompt::read(file)?,
        None => args.prompt.clone(),
    };
    interrupt::install(|| {})?;

    let opened = Opened::new(&args.model)?;
    let params = match args.chat {
        true => args.sampling.over_file(opened.gguf.metadata())?,
        false => args.sampling.over_greedy()?,
    };
    let limit = opened.config.context_length;
    if args.plan.plan_only && opened.tokenizer().is_err() {
        // There is no prompt to go by.
        return plan_only(&args, &opened, args::context(args.context, DEFAULT_CONTEXT, limit)?);
    }
    let tokenizer = opened.tokenizer()?;
    let prompt = prompt_tokens(&args, &text, tokenizer)?;
    // The last token of an answer is not fed back.
    let needed = (prompt.len() - 1).saturating_add(args.max_tokens);
    let context = args::context(args.context, needed, limit)?;
    if prompt.len() > context {
        return fail(format!(
            "the prompt has {} tokens, the cache holds {context} (--context)",
            prompt.len()
        ));
    }
    if args.plan.plan_only {
        return plan_only(&args, &opened, context);
    }

    let on = args.model.run_on()?;
    let loaded = opened.load(&args.model, &on, context)?;
    let mut session = Session::new(loaded.model, context, on.cache_type)?;
    let mut sampler = Sampler::new(params.clone())?;
    let request =
        Request { prompt: &prompt, stops: &args.stop, max_tokens: args.max_tokens, logprobs: args.logprobs };
    // Comes with the first token, so that an error before it leaves nothing half-printed.
    let mut echo = (!args.chat && !args.no_echo).then_some(text.as_str());
    let mut show = |piece: &str| match args.json {
        true => Ok(()),
        false => echo.take().map_or(Ok(()), common::show).and_then(|()| common::show(piece)),
    };
    let answer =
        common::install(&on.device, || answer(&mut session, tokenizer, &mut sampler, &request, &mut show))?;

    let figures = Figures::new(loaded.time, &session, prompt.len(), &answer);
    if args.json {
        let mut object = to_json(&args, &text, &prompt, &params, &answer, tokenizer);
        object["figures"] = json!(figures);
        object["load_report"] = json!(session.model.report());
        common::show_json(&object)?;
    } else {
        if !answer.tokens.is_empty() && !answer.text.ends_with('\n') {
            common::show("\n")?;
        }
        print_logprobs(&answer.logprobs, tokenizer);
        eprintln!("\n{figures}");
    }
    if answer.finish == Finish::Interrupted { Err(Failure::Interrupted) } else { Ok(()) }
}

/// Tells what a run with so many tokens would take.
fn plan_only(args: &Args, opened: &Opened, context: usize) -> Result<()> {
    let on = args.model.run_on_or_plan(args.plan.for_a_gpu())?;
    let plan = args.plan.plan(&opened.gguf, &on, context)?;
    match args.json {
        true => Ok(common::show_json(&json!(plan))?),
        false => Ok(common::show(&format!("{plan}\n"))?),
    }
}

/// The tokens of the prompt, marks such as `<|user|>` in it included.
fn prompt_tokens(args: &Args, text: &str, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    if args.chat {
        let Some(source) = tokenizer.chat_template() else {
            return fail("the model has no chat template (tokenizer.chat_template); run without --chat");
        };
        let options = ChatOptions { add_generation_prompt: true, ..Default::default() };
        let message = json!({"role": "user", "content": text});
        let rendered = ChatTemplate::new(source)?.render(&[message], &options)?;
        return Ok(tokenizer.encode(&rendered, Specials::Parse)?);
    }
    let mut tokens = match tokenizer.prefix() {
        Some(prefix) if !args.no_prefix => prefix.to_vec(),
        _ => Vec::new(),
    };
    tokens.extend(tokenizer.encode(text, Specials::Parse)?);
    Ok(tokens)
}

/// What a token prints, for tables and JSON; half characters show as U+FFFD.
fn token_text(tokenizer: &Tokenizer, token: u32) -> Cow<'_, str> {
    tokenizer.token_bytes(token).map(String::from_utf8_lossy).unwrap_or_default()
}

fn print_logprobs(logprobs: &[LogProbs], tokenizer: &Tokenizer) {
    for (i, l) in logprobs.iter().enumerate() {
        let text = |token| format!("{:?}", token_text(tokenizer, token));
        let top: Vec<String> = l.top.iter().map(|(t, p)| format!("{} {p:.3}", text(*t))).collect();
        eprintln!("{i:5} {:20} {:8.3}   {}", text(l.token), l.logprob, top.join("  "));
    }
}

/// What is told of an answer besides figures and load report.
fn to_json(
    args: &Args,
    text: &str,
    prompt: &[u32],
    params: &SamplingParams,
    answer: &Answer,
    tokenizer: &Tokenizer,
) -> Value {
    let entry = |token: u32, logprob: f64| json!({"token": token, "text": token_text(tokenizer, token), "logprob": logprob});
    let with_top = |l: &LogProbs| {
        let mut told = entry(l.token, l.logprob);
        told["top"] = l.top.iter().map(|&(token, logprob)| entry(token, logprob)).collect();
        told
    };
    let mut object = json!({
        "prompt": text,
        "prompt_tokens": prompt,
        "tokens": answer.tokens,
        "text": answer.text,
        "finish": answer.finish,
        "options": {"chat": args.chat, "max_tokens": args.max_tokens, "stop": args.stop, "sampling": params},
    });
    if args.logprobs.is_some() {
        object["logprobs"] = answer.logprobs.iter().map(with_top).collect();
    }
    object
}
