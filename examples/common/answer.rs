//! The loop of every text generator: sample, show, stop or feed the token back.

use std::io;
use std::time::{Duration, Instant};

use glm5::text::{Finish as TextFinish, LogProbs, Sampler, TextStream, Tokenizer, log_probs};
use serde::Serialize;

use super::failure::Result;
use super::session::Session;
use super::{interrupt, progress};

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model made an end token.
    EndToken,
    /// A stop string came.
    StopString,
    /// As many tokens as asked for.
    MaxTokens,
    /// The cache is full.
    Context,
    /// Ctrl-C.
    Interrupted,
}

/// What is asked for.
pub struct Request<'a> {
    pub prompt: &'a [u32],
    pub stops: &'a [String],
    pub max_tokens: usize,
    /// With how many alternatives log-probabilities are wanted, if they are.
    pub logprobs: Option<usize>,
}

/// What came of it.
pub struct Answer {
    /// All tokens that were sampled, the end token included.
    pub tokens: Vec<u32>,
    pub text: String,
    /// One per token, if asked for.
    pub logprobs: Vec<LogProbs>,
    pub finish: Finish,
    /// Prompt tokens that the cache held already.
    pub reused: usize,
    pub prompt_time: Duration,
    /// Tokens fed back; the last one is not.
    pub decode_steps: usize,
    pub decode_time: Duration,
}

/// Answers a prompt that fits into the session. `show` is given text as soon as it is certain, once per token.
pub fn answer(
    session: &mut Session,
    tokenizer: &Tokenizer,
    sampler: &mut Sampler,
    request: &Request<'_>,
    show: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<Answer> {
    let mut stream = TextStream::new(tokenizer, request.stops)?;
    request.prompt.iter().for_each(|&t| sampler.accept(t));
    let reused = session.reusable(request.prompt);
    let room = session.context() - request.prompt.len();
    let mut answer = Answer {
        tokens: Vec::with_capacity(request.max_tokens.min(room + 1)),
        text: String::new(),
        logprobs: Vec::new(),
        finish: Finish::Interrupted,
        reused,
        prompt_time: Duration::ZERO,
        decode_steps: 0,
        decode_time: Duration::ZERO,
    };

    let start = Instant::now();
    let bar = progress::bar("prompt", request.prompt.len() - reused, "tokens");
    let logits = session.prefill(request.prompt, &bar);
    bar.finish_and_clear();
    answer.prompt_time = start.elapsed();
    let Some(mut logits) = logits? else { return Ok(answer) };

    let start = Instant::now();
    loop {
        let token = sampler.sample(&logits)?;
        sampler.accept(token);
        if let Some(n) = request.logprobs {
            answer.logprobs.push(log_probs(&logits, token, n)?);
        }
        answer.tokens.push(token);
        let piece = stream.push(token)?;
        answer.text.push_str(piece);
        show(piece)?;
        let finish = match stream.finish() {
            Some(TextFinish::EndToken(_)) => Some(Finish::EndToken),
            Some(TextFinish::StopString(_)) => Some(Finish::StopString),
            None if answer.tokens.len() >= request.max_tokens => Some(Finish::MaxTokens),
            None if session.room() == 0 => Some(Finish::Context),
            None => interrupt::requested().then_some(Finish::Interrupted),
        };
        if let Some(finish) = finish {
            answer.finish = finish;
            break;
        }
        logits = session.decode(token)?;
        answer.decode_steps += 1;
    }
    answer.decode_time = start.elapsed();
    let rest = stream.flush();
    answer.text.push_str(rest);
    show(rest)?;
    Ok(answer)
}
