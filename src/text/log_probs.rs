//! Log-probabilities of tokens from the model's own logits.

use super::sampler::{best, descending};
use crate::error::{Error, Result};

/// How probable a token was, and what was more so. Natural logarithms.
#[derive(Debug, Clone, PartialEq)]
pub struct LogProbs {
    /// The token.
    pub token: u32,
    /// Its log-probability.
    pub logprob: f64,
    /// The most probable tokens with theirs, best first; of equals, the lower id.
    pub top: Vec<(u32, f64)>,
}

/// The log-probability of `token` under `logits` `[vocabulary]` and those of the `n_top` best tokens:
/// `x - max - ln(sum exp(x' - max))` in f64. Penalties, temperature and cuts of a sampler do not enter.
///
/// # Errors
/// [`Error::Argument`] if `token` is outside, or the logits are no distribution (as [`super::Sampler::sample`]).
pub fn log_probs(logits: &[f32], token: u32, n_top: usize) -> Result<LogProbs> {
    let max = f64::from(best(logits)?.0);
    let Some(&chosen) = logits.get(token as usize) else {
        return Err(Error::argument("token id", format!("an id below {}", logits.len()), token));
    };
    let sum: f64 = logits.iter().map(|&x| libm::exp(f64::from(x) - max)).sum();
    let log_sum = libm::log(sum);
    let logprob = |x: f32| f64::from(x) - max - log_sum;

    let n_top = n_top.min(logits.len());
    // Scoring a text asks for none, and then the vocabulary need not be copied.
    let candidates = if n_top == 0 { &[] } else { logits };
    let mut top: Vec<(f32, u32)> = candidates.iter().copied().zip(0..).collect();
    if n_top > 0 && n_top < top.len() {
        top.select_nth_unstable_by(n_top - 1, descending);
    }
    top.truncate(n_top);
    top.sort_unstable_by(descending);
    Ok(LogProbs {
        token,
        logprob: logprob(chosen),
        top: top.into_iter().map(|(x, id)| (id, logprob(x))).collect(),
    })
}
