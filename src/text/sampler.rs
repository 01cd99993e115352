//! Draws the next token from logits.

use std::cmp::Ordering;
use std::collections::VecDeque;

use super::rng::Rng;
use super::sampling_params::SamplingParams;
use crate::error::{Error, Result};

/// A logit with its token.
type Candidate = (f32, u32);

/// Best first; of equals, the lower id.
pub(super) fn descending(a: &Candidate, b: &Candidate) -> Ordering {
    // There are no NaNs, and -0 equals 0.
    b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1))
}

/// The best candidate of logits that are a distribution.
pub(super) fn best(logits: &[f32]) -> Result<Candidate> {
    let refuse = |got: String| Err(Error::argument("logits", "numbers, at least one above -inf", got));
    let mut best = (f32::NEG_INFINITY, 0);
    for (id, &x) in (0..).zip(logits) {
        if x > best.0 || x.is_nan() {
            if x.is_nan() || x == f32::INFINITY {
                return refuse(format!("{x} for token {id}"));
            }
            best = (x, id);
        }
    }
    if best.0 == f32::NEG_INFINITY {
        return refuse(if logits.is_empty() { "none".into() } else { "-inf for all tokens".into() });
    }
    Ok(best)
}

/// Chooses tokens. The steps, in the order of llama.cpp: penalties, top-k, top-p, min-p, temperature, draw; top-p and
/// min-p so look at probabilities before temperature.
///
/// The same seed, parameters and logits give the same tokens on every platform. Of equal logits the lower id counts
/// as the better one. A draw allocates nothing once buffers have grown.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    rng: Rng,
    /// The last `penalty_last_n` tokens.
    recent: VecDeque<u32>,
    /// Those in ascending order, for counting.
    sorted: Vec<u32>,
    candidates: Vec<Candidate>,
    /// Weights of the candidates, not normalized.
    weights: Vec<f64>,
}

impl Sampler {
    /// A sampler at the beginning of its random numbers, without recent tokens.
    ///
    /// # Errors
    /// [`Error::Argument`] for a value out of range, see [`SamplingParams`].
    pub fn new(params: SamplingParams) -> Result<Self> {
        params.check()?;
        let rng = Rng::new(params.seed);
        let (recent, sorted) = (VecDeque::new(), Vec::new());
        Ok(Sampler { params, rng, recent, sorted, candidates: Vec::new(), weights: Vec::new() })
    }

    /// The parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Notes a token of the text, of the prompt or chosen, for the penalties.
    pub fn accept(&mut self, token: u32) {
        if self.params.penalty_last_n == 0 {
            return;
        }
        if self.recent.len() == self.params.penalty_last_n {
            self.recent.pop_front();
        }
        self.recent.push_back(token);
    }

    /// The next token for `logits` `[vocabulary]`. It is not noted as recent; [`Sampler::accept`] does that.
    ///
    /// # Errors
    /// [`Error::Argument`] if a logit is NaN or infinite, as a broken model makes them, or all are -inf (-inf for
    /// single tokens forbids them); if a recent token is outside the vocabulary.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        self.prepare(logits)?;
        if let [(_, only)] = self.candidates[..] {
            return Ok(only);
        }
        let mut left = self.rng.uniform() * self.weights.iter().sum::<f64>();
        for (candidate, weight) in self.candidates.iter().zip(&self.weights) {
            left -= weight;
            if left < 0.0 {
                return Ok(candidate.1);
            }
        }
        // Rounding can leave a little: the last that can be drawn at all.
        let last = self.candidates.iter().zip(&self.weights).rev().find(|(_, w)| **w > 0.0);
        Ok(last.map_or(0, |(candidate, _)| candidate.1))
    }

    /// The distribution from which [`Sampler::sample`] would draw: tokens with their probabilities, in no order.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn distribution(&mut self, logits: &[f32]) -> Result<Vec<(u32, f64)>> {
        self.prepare(logits)?;
        let total: f64 = self.weights.iter().sum();
        Ok(self.candidates.iter().zip(&self.weights).map(|(c, w)| (c.1, w / total)).collect())
    }

    /// Leaves the candidates and their weights.
    fn prepare(&mut self, logits: &[f32]) -> Result<()> {
        let best = best(logits)?;
        let greedy = self.params.temperature == 0.0;
        self.candidates.clear();
        if greedy && !self.penalizes() {
            self.candidates.push(best);
        } else {
            self.candidates.extend(logits.iter().copied().zip(0..));
            if self.penalizes() {
                self.penalize()?;
            }
            if greedy {
                let best = self.candidates.iter().copied().min_by(descending);
                self.candidates.clear();
                self.candidates.extend(best);
            } else {
                let sorted = self.top_k();
                let sorted = self.top_p(sorted);
                self.min_p(sorted);
            }
        }
        let max = self.max();
        // For the greedy choice any number does.
        let temperature = if self.candidates.len() == 1 { 1.0 } else { f64::from(self.params.temperature) };
        self.weights.clear();
        self.weights.extend(self.candidates.iter().map(|c| libm::exp((f64::from(c.0) - max) / temperature)));
        Ok(())
    }

    fn penalizes(&self) -> bool {
        let p = &self.params;
        (p.repeat_penalty, p.frequency_penalty, p.presence_penalty) != (1.0, 0.0, 0.0)
    }

    /// Every recent token loses once for having occurred and once per occurrence.
    fn penalize(&mut self) -> Result<()> {
        let SamplingParams { repeat_penalty, frequency_penalty, presence_penalty, .. } = self.params;
        self.sorted.clear();
        self.sorted.extend(&self.recent);
        self.sorted.sort_unstable();
        let vocabulary = self.candidates.len();
        for run in self.sorted.chunk_by(|a, b| a == b) {
            let Some((logit, _)) = self.candidates.get_mut(run[0] as usize) else {
                return Err(Error::argument("token id", format!("an id below {vocabulary}"), run[0]));
            };
            if *logit == f32::NEG_INFINITY {
                continue;
            }
            // In f64 absurd penalties make no infinities, which the softmax could not take.
            let (x, repeat) = (f64::from(*logit), f64::from(repeat_penalty));
            let x = if x > 0.0 { x / repeat } else { x * repeat };
            let x = x - run.len() as f64 * f64::from(frequency_penalty) - f64::from(presence_penalty);
            *logit = x.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32;
        }
        Ok(())
    }

    /// Puts the best `n` first, in order.
    fn sort_best(&mut self, n: usize) {
        if n < self.candidates.len() {
            self.candidates.select_nth_unstable_by(n, descending);
        }
        let n = n.min(self.candidates.len());
        self.candidates[..n].sort_unstable_by(descending);
    }

    /// Returns how many of the best are in order at the front.
    fn top_k(&mut self) -> usize {
        match self.params.top_k {
            0 => 0,
            k => {
                self.sort_best(k);
                self.candidates.truncate(k);
                self.candidates.len()
            }
        }
    }

    fn max(&self) -> f64 {
        self.candidates.iter().fold(f64::NEG_INFINITY, |max, c| max.max(f64::from(c.0)))
    }

    /// Keeps the shortest row of the best that reaches `top_p` of the total. Sorting a whole vocabulary for the few
    /// that it keeps would be most of the work, so more and more are put in order.
    fn top_p(&mut self, mut sorted: usize) -> usize {
        let top_p = f64::from(self.params.top_p);
        if top_p >= 1.0 {
            return sorted;
        }
        let max = self.max();
        let weight = |c: &Candidate| libm::exp(f64::from(c.0) - max);
        let wanted = top_p * self.candidates.iter().map(weight).sum::<f64>();
        let (mut kept, mut sum) = (0, 0.0);
        while kept < self.candidates.len() {
            if kept == sorted {
                sorted = (4 * sorted).max(64).min(self.candidates.len());
                self.sort_best(sorted);
            }
            sum += weight(&self.candidates[kept]);
            kept += 1;
            if sum >= wanted {
                break;
            }
        }
        self.candidates.truncate(kept);
        kept
    }

    fn min_p(&mut self, sorted: usize) {
        let min_p = f64::from(self.params.min_p);
        if min_p == 0.0 {
            return;
        }
        let max = self.max();
        let keep = |c: &Candidate| libm::exp(f64::from(c.0) - max) >= min_p;
        match sorted == self.candidates.len() {
            true => self.candidates.truncate(self.candidates.iter().take_while(|c| keep(c)).count()),
            false => self.candidates.retain(keep),
        }
    }
}
