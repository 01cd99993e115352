//! The tokenizer: byte-level BPE with GLM's pre-tokenizer, built from a file's metadata alone.

use std::collections::HashMap;
use std::fmt;

use tokenizers::models::bpe::BPE;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::utils::SysRegex;
use tokenizers::{AddedToken, AddedVocabulary, Model, NormalizerWrapper, OffsetReferential, OffsetType};

use super::byte_level;
use super::vocabulary::{TokenBytes, TokenType, TokenizerData};
use crate::error::{Error, Result};
use crate::gguf::Gguf;

/// How text is cut before merging; no merge crosses a cut. Data of GLM's tokenizer, the same for GLM-4 and GLM-5.
const PRE_TOKENIZER: &str = concat!(
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])",
    r"|[^\r\n\p{L}\p{N}]?\p{L}+",
    r"|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+",
    r"|\s+(?!\S)",
    r"|\s+"
);

/// What to do with text that looks like a control token (`<|user|>`) or a user-defined one (`<think>`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Specials {
    /// Both become their tokens: for rendered chat templates and prompts of one's own.
    #[default]
    Parse,
    /// User-defined ones become their tokens, control tokens are ordinary text (`parse_special = false` of llama.cpp).
    UserDefined,
    /// All are ordinary text: for text from strangers, which must not speak as another role.
    Text,
}

/// Byte-level BPE: text to token ids and back.
///
/// Encoding cuts the text at control and user-defined tokens (leftmost first, then longest), cuts the rest by a
/// regular expression, and merges the bytes of each piece; a piece that is a token itself is not merged
/// (`ignore_merges`).
///
/// ```
/// use glm5::text::{Specials, Tokenizer, TokenizerData};
///
/// // The 256 bytes in the byte-level alphabet, two merges, and an end token.
/// let printable = |b: &u8| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
/// let (plain, moved): (Vec<u8>, Vec<u8>) = (0..=255).partition(printable);
/// let mut tokens: Vec<String> = plain.iter().map(|&b| char::from(b).to_string()).collect();
/// tokens.extend((0x100..).take(moved.len()).filter_map(char::from_u32).map(String::from));
/// tokens.extend(["he", "Ġhe", "<|endoftext|>"].map(String::from));
/// let mut token_types = vec![1; 258];
/// token_types.push(3);
/// let merges = ["h e", "Ġ he"].map(String::from).to_vec();
/// let tokenizer = Tokenizer::new(TokenizerData {
///     model: "gpt2".into(), pre: "glm4".into(), tokens, token_types, merges, eos: Some(258), ..Default::default()
/// })?;
///
/// let ids = tokenizer.encode("he he<|endoftext|>", Specials::Parse)?;
/// assert_eq!(ids, [256, 257, 258]);
/// assert_eq!(tokenizer.decode(&ids, true)?, "he he");
/// # Ok::<(), glm5::Error>(())
/// ```
pub struct Tokenizer {
    bpe: BPE,
    pre_tokenizer: SysRegex,
    /// Control and user-defined tokens.
    added: AddedVocabulary,
    /// User-defined tokens alone.
    user_defined: AddedVocabulary,
    types: Vec<TokenType>,
    bytes: TokenBytes,
    end_tokens: Vec<u32>,
    chat_template: Option<String>,
}

impl Tokenizer {
    /// The tokenizer of a model file.
    ///
    /// # Errors
    /// As [`TokenizerData::from_metadata`] and [`Tokenizer::new`].
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        Self::new(TokenizerData::from_metadata(gguf.metadata())?)
    }

    /// Builds the tokenizer.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it is not GLM's kind of tokenizer; [`Error::File`], naming the key, if the metadata
    /// contradicts itself.
    pub fn new(data: TokenizerData) -> Result<Self> {
        data.check_kind()?;
        let types = data.types()?;
        data.check_ids()?;
        let (bytes, bpe) = data.build(&types)?;

        let added_tokens = |wanted: &[TokenType]| {
            let all = data.tokens.iter().zip(&types).zip(0u32..);
            let chosen =
                all.filter(|((_, ty), _)| wanted.contains(ty)).map(|((text, _), id)| (text.clone(), id));
            added_vocabulary(chosen.collect())
        };
        let added = added_tokens(&[TokenType::Control, TokenType::Unknown, TokenType::UserDefined])?;
        let user_defined = added_tokens(&[TokenType::UserDefined])?;

        let mut end_tokens: Vec<u32> = [data.eos, data.eot, data.eom].into_iter().flatten().collect();
        end_tokens.sort_unstable();
        end_tokens.dedup();
        let pre_tokenizer = SysRegex::new(PRE_TOKENIZER).map_err(library)?;
        let chat_template = data.chat_template;
        Ok(Tokenizer { bpe, pre_tokenizer, added, user_defined, types, bytes, end_tokens, chat_template })
    }

    /// The token ids of `text`. Nothing is put before or after it.
    ///
    /// # Errors
    /// [`Error::Text`] if the pre-tokenizer gives up, which takes a run of some hundred thousand spaces.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>> {
        let vocabulary = match specials {
            Specials::Parse => &self.added,
            Specials::UserDefined => &self.user_defined,
            Specials::Text => {
                let mut ids = Vec::with_capacity(text.len() / 3);
                self.encode_ordinary(text, &mut ids)?;
                return Ok(ids);
            }
        };
        let mut ids = Vec::with_capacity(text.len() / 3);
        let cut = vocabulary.extract_and_normalize(None::<&NormalizerWrapper>, text);
        for (part, _, tokens) in cut.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            match tokens {
                Some(tokens) => ids.extend(tokens.iter().map(|t| t.id)),
                None => self.encode_ordinary(part, &mut ids)?,
            }
        }
        Ok(ids)
    }

    fn encode_ordinary(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        let mut piece = String::new();
        let mut done = 0;
        for (start, end) in self.pre_tokenizer.find_iter(text) {
            if start != done {
                break;
            }
            piece.clear();
            byte_level::escape(&text[start..end], &mut piece);
            ids.extend(self.bpe.tokenize(&piece).map_err(library)?.iter().map(|t| t.id));
            done = end;
        }
        // The expression matches every character, so a rest means that the matcher hit its limit of backtracking.
        if done != text.len() {
            return Err(library(format!("cannot cut the text after byte {done} of {}", text.len())));
        }
        Ok(())
    }

    /// The text of `ids`; bytes that are not UTF-8 become U+FFFD. With `skip_special`, marks (control, unknown and
    /// unused tokens) are left out; user-defined ones such as `<think>` always stay.
    ///
    /// # Errors
    /// [`Error::Argument`] for an id outside the vocabulary.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let mut bytes = Vec::with_capacity(4 * ids.len());
        for &id in ids {
            if !(skip_special && self.token_type(id)?.is_special()) {
                bytes.extend_from_slice(self.token_bytes(id)?);
            }
        }
        Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
    }

    /// The bytes that token `id` prints, perhaps a part of a UTF-8 character; of marks, their name.
    ///
    /// # Errors
    /// [`Error::Argument`] for an id outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8]> {
        self.bytes.get(id).ok_or_else(|| self.outside(id))
    }

    /// The type of token `id`.
    ///
    /// # Errors
    /// [`Error::Argument`] for an id outside the vocabulary.
    pub fn token_type(&self, id: u32) -> Result<TokenType> {
        self.types.get(id as usize).copied().ok_or_else(|| self.outside(id))
    }

    fn outside(&self, id: u32) -> Error {
        Error::argument("token id", format!("an id below {}", self.vocab_size()), id)
    }

    /// The token that prints exactly `text`: a control or user-defined one, else a normal one.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        let mut escaped = String::with_capacity(text.len());
        byte_level::escape(text, &mut escaped);
        self.added.get_vocab().get(text).copied().or_else(|| self.bpe.token_to_id(&escaped))
    }

    /// The number of tokens, unused ones included; the rows of the embedding.
    pub fn vocab_size(&self) -> usize {
        self.types.len()
    }

    /// The tokens that end an answer (end of text, of turn, of message), ascending.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// `[gMASK]<sop>`, with which the models' training texts begin. Chat templates hold it already; a plain prompt
    /// should be given it. `None` if the vocabulary lacks one of them.
    pub fn prefix(&self) -> Option<[u32; 2]> {
        Some([self.id_of("[gMASK]")?, self.id_of("<sop>")?])
    }

    /// The Jinja source of the file's chat template, if it has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokenizer({} tokens, ends {:?})", self.vocab_size(), self.end_tokens)
    }
}

/// A matcher of `tokens` as plain text, leftmost first, then longest.
fn added_vocabulary(tokens: HashMap<String, u32>) -> Result<AddedVocabulary> {
    let added: Vec<AddedToken> = tokens.keys().map(|t| AddedToken::from(t, true)).collect();
    // The library takes the ids from a model that knows the tokens by text.
    let ids = WordLevel::builder().vocab(tokens.into_iter().collect()).build().map_err(library)?;
    let mut vocabulary = AddedVocabulary::new();
    vocabulary.add_tokens(added, &ids, None::<&NormalizerWrapper>).map_err(library)?;
    Ok(vocabulary)
}

fn library(error: impl fmt::Display) -> Error {
    Error::Text { what: "tokenizer", message: error.to_string() }
}
