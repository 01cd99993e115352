//! How tokens are drawn: the parameters, their legal ranges, and those that a file advises.

use serde::Serialize;

use crate::error::{Error, Result};
use crate::gguf::Metadata;

/// Parameters of a [`super::Sampler`]. The default draws nothing: it takes the best token, without penalties.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the best token (greedy).
    pub temperature: f32,
    /// Only the `top_k` best tokens; 0 for all.
    pub top_k: usize,
    /// Only the fewest best tokens whose probabilities sum to `top_p`; 1 for all. In (0, 1].
    pub top_p: f32,
    /// Only tokens at least `min_p` times as probable as the best; 0 for all. In [0, 1].
    pub min_p: f32,
    /// Divides positive logits of recent tokens and multiplies negative ones; 1 for none. Above 0.
    pub repeat_penalty: f32,
    /// Subtracted from a logit for every time the token is among the recent ones; 0 for none.
    pub frequency_penalty: f32,
    /// Subtracted from a logit once if the token is among the recent ones; 0 for none.
    pub presence_penalty: f32,
    /// How many tokens are recent; 0 turns the penalties off.
    pub penalty_last_n: usize,
    /// Where the random numbers begin.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_last_n: 64,
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// What the file advises (`general.sampling.*`), else temperature 1 and top-p 0.95, as GLM-5 is published with.
    ///
    /// # Errors
    /// [`Error::File`], naming the key, if it has another type or its value is out of range.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        let float = |name| metadata.get::<f32>(&format!("general.sampling.{name}"));
        let count = |name| metadata.get::<i64>(&format!("general.sampling.{name}"));
        let default = SamplingParams { temperature: 1.0, top_p: 0.95, ..Default::default() };
        let params = SamplingParams {
            temperature: float("temp")?.unwrap_or(default.temperature),
            // Files write 0 or less for all tokens.
            top_k: count("top_k")?.map_or(default.top_k, |k| usize::try_from(k).unwrap_or(0)),
            top_p: float("top_p")?.unwrap_or(default.top_p),
            min_p: float("min_p")?.unwrap_or(default.min_p),
            repeat_penalty: float("penalty_repeat")?.unwrap_or(default.repeat_penalty),
            // Less than 0 is the whole context.
            penalty_last_n: count("penalty_last_n")?
                .map_or(default.penalty_last_n, |n| usize::try_from(n).unwrap_or(usize::MAX)),
            ..default
        };
        params.check().map_err(|error| match error {
            Error::Argument { what, expected, got } => {
                let name = match what {
                    "temperature" => "temp",
                    "repeat_penalty" => "penalty_repeat",
                    other => other,
                };
                let key = format!("general.sampling.{name}");
                Error::key(metadata.file(), &key, format!("expected {expected}, got {got}"))
            }
            other => other,
        })?;
        Ok(params)
    }

    /// Whether all values are legal.
    ///
    /// # Errors
    /// [`Error::Argument`] naming the first that is not, and its range.
    pub fn check(&self) -> Result<()> {
        let in_range = |what, value: f32, legal: bool, expected: &str| {
            if legal { Ok(()) } else { Err(Error::argument(what, expected, value)) }
        };
        let Self { temperature, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty, .. } =
            *self;
        let at_least_0 = |x: f32| x >= 0.0 && x.is_finite();
        in_range("temperature", temperature, at_least_0(temperature), "a number of 0 or more")?;
        in_range("top_p", top_p, top_p > 0.0 && top_p <= 1.0, "a number above 0 and up to 1")?;
        in_range("min_p", min_p, (0.0..=1.0).contains(&min_p), "a number from 0 to 1")?;
        let legal = at_least_0(repeat_penalty) && repeat_penalty > 0.0;
        in_range("repeat_penalty", repeat_penalty, legal, "a number above 0")?;
        in_range("frequency_penalty", frequency_penalty, frequency_penalty.is_finite(), "a number")?;
        in_range("presence_penalty", presence_penalty, presence_penalty.is_finite(), "a number")
    }
}
