//! Where a text ends: stop strings, wherever tokens cut them, and the end tokens of the file.

use super::detokenizer::Detokenizer;
use super::tokenizer::Tokenizer;
use crate::error::{Error, Result};

/// Finds stop strings in a text that comes in pieces. Text that may be the beginning of one is held back.
///
/// The first stop string to be complete ends the text; of several that are complete at the same place, the longest.
/// So the end does not depend on how the text is cut.
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// What was shown last, then what is held back.
    text: String,
    shown: usize,
    found: Option<usize>,
}

impl StopMatcher {
    /// Looks for any of `stops`; with none, everything is shown at once.
    ///
    /// # Errors
    /// [`Error::Argument`] if one is empty.
    pub fn new(stops: &[impl AsRef<str>]) -> Result<Self> {
        let stops: Vec<String> = stops.iter().map(|s| s.as_ref().to_owned()).collect();
        if stops.iter().any(String::is_empty) {
            return Err(Error::argument("stop", "texts of at least one character", "an empty one"));
        }
        Ok(StopMatcher { stops, ..Default::default() })
    }

    /// Takes the next piece; gives the text that can be shown now. After a stop string there is no more.
    pub fn push(&mut self, piece: &str) -> &str {
        self.text.drain(..self.shown);
        self.shown = 0;
        if self.found.is_some() {
            return "";
        }
        self.text.push_str(piece);
        // The first place of a string is also where it is complete first.
        let places = self.stops.iter().enumerate().filter_map(|(i, s)| self.text.find(s).map(|at| (at, i)));
        if let Some((at, i)) = places.min_by_key(|&(at, i)| (at + self.stops[i].len(), at)) {
            self.found = Some(i);
            self.text.truncate(at);
            self.shown = at;
        } else {
            self.shown = self.text.len() - self.held_back();
        }
        &self.text[..self.shown]
    }

    /// The number of bytes at the end that may begin a stop string.
    fn held_back(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let starts = self.text.len().saturating_sub(longest)..self.text.len();
        let begins = |at: &usize| {
            let rest = self.text.get(*at..);
            rest.is_some_and(|rest| self.stops.iter().any(|stop| stop.starts_with(rest)))
        };
        self.text.len() - starts.into_iter().find(begins).unwrap_or(self.text.len())
    }

    /// Ends the text: what was held back, as no stop string came of it.
    pub fn flush(&mut self) -> &str {
        self.text.drain(..self.shown);
        self.shown = self.text.len();
        &self.text
    }

    /// The index of the stop string that was found.
    pub fn found(&self) -> Option<usize> {
        self.found
    }
}

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model made this end token of the file.
    EndToken(u32),
    /// The stop string of this index came.
    StopString(usize),
}

/// Tokens of an answer to the text to show: [`Detokenizer`] and [`StopMatcher`], up to the end.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    detokenizer: Detokenizer<'a>,
    stop: StopMatcher,
    ended: Option<u32>,
    text: String,
}

impl<'a> TextStream<'a> {
    /// Begins an answer that ends with any of `stops` or an end token. Marks are not shown.
    ///
    /// # Errors
    /// [`Error::Argument`] if a stop string is empty.
    pub fn new(tokenizer: &'a Tokenizer, stops: &[impl AsRef<str>]) -> Result<Self> {
        let detokenizer = Detokenizer::new(tokenizer, true);
        Ok(TextStream {
            tokenizer,
            detokenizer,
            stop: StopMatcher::new(stops)?,
            ended: None,
            text: String::new(),
        })
    }

    /// Takes the next token; gives the text that can be shown now. With the token that ends the answer comes the
    /// rest of the text, and then nothing more.
    ///
    /// # Errors
    /// [`Error::Argument`] for an id outside the vocabulary.
    pub fn push(&mut self, id: u32) -> Result<&str> {
        self.text.clear();
        if self.finish().is_some() {
            return Ok("");
        }
        if self.tokenizer.end_tokens().contains(&id) {
            self.flush();
            // The rest of the bytes may have been the end of a stop string.
            if self.stop.found().is_none() {
                self.ended = Some(id);
            }
        } else {
            self.text.push_str(self.stop.push(self.detokenizer.push(id)?));
        }
        Ok(&self.text)
    }

    /// Ends the answer where the caller wants it: gives the text that was held back.
    pub fn flush(&mut self) -> &str {
        self.text.clear();
        self.text.push_str(self.stop.push(self.detokenizer.flush()));
        self.text.push_str(self.stop.flush());
        &self.text
    }

    /// Why the answer ended, once it has.
    pub fn finish(&self) -> Option<Finish> {
        let stop = self.stop.found().map(Finish::StopString);
        stop.or(self.ended.map(Finish::EndToken))
    }
}
