//! Text as it grows: bytes of tokens to text, without ever showing half a character.

use super::tokenizer::Tokenizer;
use crate::error::Result;

/// Bytes to text, piece by piece. A UTF-8 character that is not complete waits; bytes that cannot become one give
/// U+FFFD, as often as [`String::from_utf8_lossy`] gives it for all bytes at once.
#[derive(Debug, Default)]
struct Utf8Stream {
    pending: Vec<u8>,
}

impl Utf8Stream {
    fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.pending.extend_from_slice(bytes);
        let mut done = 0;
        // An invalid chunk at the very end may be the beginning of a character.
        for chunk in self.pending.utf8_chunks() {
            out.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            let may_go_on = done + invalid.len() == self.pending.len() && is_unfinished(invalid);
            if !invalid.is_empty() && !may_go_on {
                out.push(char::REPLACEMENT_CHARACTER);
                done += invalid.len();
            }
        }
        self.pending.drain(..done);
    }

    fn flush(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
    }
}

/// Whether more bytes could make a character of these.
fn is_unfinished(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
}

/// Tokens to text, one by one.
#[derive(Debug)]
pub struct Detokenizer<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    stream: Utf8Stream,
    text: String,
}

impl<'a> Detokenizer<'a> {
    /// Begins a text. With `skip_special`, marks are left out, as in [`Tokenizer::decode`].
    pub fn new(tokenizer: &'a Tokenizer, skip_special: bool) -> Self {
        Detokenizer { tokenizer, skip_special, stream: Utf8Stream::default(), text: String::new() }
    }

    /// Takes the next token; gives the text that is complete with it, perhaps none.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] for an id outside the vocabulary.
    pub fn push(&mut self, id: u32) -> Result<&str> {
        self.text.clear();
        if !(self.skip_special && self.tokenizer.token_type(id)?.is_special()) {
            self.stream.push(self.tokenizer.token_bytes(id)?, &mut self.text);
        }
        Ok(&self.text)
    }

    /// Ends the text: U+FFFD if a character is incomplete, else nothing.
    pub fn flush(&mut self) -> &str {
        self.text.clear();
        self.stream.flush(&mut self.text);
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes that often begin, continue or break characters.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let special = vec![
            0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xDF, 0xE0, 0xE4, 0xED, 0xEF, 0xF0,
            0xF1, 0xF4, 0xF5, 0xFF,
        ];
        prop::collection::vec(prop_oneof![3 => prop::sample::select(special), 1 => any::<u8>()], 0..40)
    }

    proptest! {
        #[test]
        fn equals_lossy_decoding(bytes in bytes(), cuts in prop::collection::vec(0usize..40, 0..10)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let (mut stream, mut text) = (Utf8Stream::default(), String::new());
            for cut in cuts.windows(2) {
                stream.push(&bytes[cut[0]..cut[1]], &mut text);
                prop_assert!(stream.pending.len() < 4);
                // What waits is less than a character, so nothing that is complete is held back.
                prop_assert!(stream.pending.is_empty() || is_unfinished(&stream.pending));
            }
            stream.flush(&mut text);
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
