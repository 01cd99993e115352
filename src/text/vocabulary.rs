//! What a GGUF file says about its tokenizer, and the checks that make it usable.

use std::collections::HashMap;
use std::path::PathBuf;

use tokenizers::models::bpe::{BPE, Merges, Vocab};

use super::byte_level;
use crate::error::{Error, Result};
use crate::gguf::{Metadata, StrArray};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const EOT: &str = "tokenizer.ggml.eot_token_id";
const EOM: &str = "tokenizer.ggml.eom_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const PADDING: &str = "tokenizer.ggml.padding_token_id";
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

/// The longest token, in bytes. GLM's longest are runs of spaces of some hundred; what finds marks in a text takes time
/// and memory in proportion to their sizes, seconds for each megabyte.
const MAX_TOKEN: usize = 1024;

/// The tokenizer's metadata of a GGUF file, as it stands there. The keys named here begin with `tokenizer.ggml.`
#[derive(Debug, Clone, Default)]
pub struct TokenizerData {
    /// The file, for error texts.
    pub file: PathBuf,
    /// `model`: the algorithm; `gpt2` is byte-level BPE.
    pub model: String,
    /// `pre`: the pre-tokenizer, by name.
    pub pre: String,
    /// `tokens`: normal tokens in the byte-level alphabet (`Ġ` for a space), others as plain text. The index is the id.
    pub tokens: Vec<String>,
    /// `token_type`: a [`TokenType`] per token.
    pub token_types: Vec<i64>,
    /// `merges`: `left right`, best first.
    pub merges: Vec<String>,
    /// `bos_token_id`. GLM's is `[gMASK]`, which is not put before a text unasked.
    pub bos: Option<u32>,
    /// `eos_token_id`: ends a text.
    pub eos: Option<u32>,
    /// `eot_token_id`: ends a turn.
    pub eot: Option<u32>,
    /// `eom_token_id`: ends a message that awaits a tool's answer.
    pub eom: Option<u32>,
    /// `unknown_token_id`. Byte-level BPE never makes it.
    pub unk: Option<u32>,
    /// `padding_token_id`.
    pub pad: Option<u32>,
    /// The Jinja source under `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

/// Kinds of tokens, numbered as in `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum TokenType {
    /// Text, made by merges.
    Normal = 1,
    /// Stands for what cannot be encoded; treated as [`TokenType::Control`].
    Unknown = 2,
    /// A mark that is not part of the text, such as `<|user|>`.
    Control = 3,
    /// Text that is always one token, such as `<think>`.
    UserDefined = 4,
    /// Fills the vocabulary up; never made from text.
    Unused = 5,
}

impl TokenType {
    /// Whether it is a mark rather than text, so that readers need not see it.
    pub fn is_special(self) -> bool {
        matches!(self, TokenType::Control | TokenType::Unknown | TokenType::Unused)
    }

    fn from_number(number: i64) -> Option<Self> {
        Some(match number {
            1 => TokenType::Normal,
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            _ => return None,
        })
    }
}

impl TokenizerData {
    /// Reads the tokenizer's keys.
    ///
    /// # Errors
    /// [`Error::File`], naming the key, if one is missing or has another type.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        let strings = |key| -> Result<Vec<String>> {
            Ok(metadata.require::<&StrArray>(key)?.iter().map(String::from).collect())
        };
        Ok(TokenizerData {
            file: metadata.file().into(),
            model: metadata.require::<&str>(MODEL)?.into(),
            pre: metadata.require::<&str>(PRE)?.into(),
            tokens: strings(TOKENS)?,
            token_types: metadata.require(TOKEN_TYPE)?,
            merges: strings(MERGES)?,
            bos: metadata.get(BOS)?,
            eos: Some(metadata.require(EOS)?),
            eot: metadata.get(EOT)?,
            eom: metadata.get(EOM)?,
            unk: metadata.get(UNKNOWN)?,
            pad: metadata.get(PADDING)?,
            chat_template: metadata.get::<&str>(CHAT_TEMPLATE)?.map(String::from),
        })
    }

    fn bad(&self, key: &str, message: impl Into<String>) -> Error {
        Error::key(&self.file, key, message)
    }

    /// Refuses what is not the byte-level BPE of GLM.
    pub(super) fn check_kind(&self) -> Result<()> {
        if self.model != "gpt2" {
            let reason = "GLM-5 uses byte-level BPE, tokenizer.ggml.model = gpt2";
            return Err(Error::unsupported(format!("tokenizer model {:?}", self.model), reason));
        }
        // llama.cpp knows both names for the same regular expression with ignore_merges.
        if !matches!(self.pre.as_str(), "glm4" | "glm5") {
            let reason =
                "GLM-5 uses tokenizer.ggml.pre = glm4 (or glm5); another one would cut text differently";
            return Err(Error::unsupported(format!("pre-tokenizer {:?}", self.pre), reason));
        }
        Ok(())
    }

    /// The types, one per token.
    pub(super) fn types(&self) -> Result<Vec<TokenType>> {
        let (n, n_types) = (self.tokens.len(), self.token_types.len());
        if n == 0 || u32::try_from(n).is_err() {
            return Err(self.bad(TOKENS, format!("expected 1 to {} tokens, got {n}", u32::MAX)));
        }
        if n_types != n {
            return Err(self.bad(TOKEN_TYPE, format!("expected {n} entries, one per token, got {n_types}")));
        }
        let types = self.token_types.iter().enumerate().map(|(id, &number)| {
            // 6, a single byte, belongs to SentencePiece vocabularies.
            let message = || format!("expected types 1 to 5, got {number} for token {id}");
            TokenType::from_number(number).ok_or_else(|| self.bad(TOKEN_TYPE, message()))
        });
        types.collect()
    }

    /// Checks that ids lie in the vocabulary and that there is a token to end with.
    pub(super) fn check_ids(&self) -> Result<()> {
        let ids = [
            (BOS, self.bos),
            (EOS, self.eos),
            (EOT, self.eot),
            (EOM, self.eom),
            (UNKNOWN, self.unk),
            (PADDING, self.pad),
        ];
        for (key, id) in ids {
            if let Some(id) = id.filter(|&id| id as usize >= self.tokens.len()) {
                return Err(self.bad(key, format!("expected an id below {}, got {id}", self.tokens.len())));
            }
        }
        match self.eos {
            Some(_) => Ok(()),
            None => Err(self.bad(EOS, "missing, expected an id")),
        }
    }

    /// The bytes that each token prints, and the BPE model over the normal tokens.
    pub(super) fn build(&self, types: &[TokenType]) -> Result<(TokenBytes, BPE)> {
        let mut bytes = TokenBytes::default();
        let mut ids: HashMap<&str, usize> = HashMap::with_capacity(self.tokens.len());
        let mut vocab = Vocab::with_capacity(self.tokens.len());
        for (id, (token, &ty)) in self.tokens.iter().zip(types).enumerate() {
            if token.is_empty() {
                return Err(self.bad(TOKENS, format!("token {id} is empty")));
            }
            if token.len() > MAX_TOKEN {
                let message = format!("token {id}: expected at most {MAX_TOKEN} bytes, got {}", token.len());
                return Err(self.bad(TOKENS, message));
            }
            if let Some(first) = ids.insert(token, id) {
                return Err(self.bad(TOKENS, format!("tokens {first} and {id} are both {token:?}")));
            }
            if ty == TokenType::Normal {
                let outside = token.chars().find(|&c| byte_level::byte_of(c).is_none());
                if let Some(c) = outside {
                    let message = format!("token {id}, {token:?}: {c:?} is not in the byte-level alphabet");
                    return Err(self.bad(TOKENS, message));
                }
                bytes.push(token.chars().filter_map(byte_level::byte_of));
                vocab.insert(token.clone(), id as u32);
            } else {
                bytes.push(token.bytes());
            }
        }
        // Without one of them the model would drop that byte of a text without a word.
        let lacking =
            (0..=255).find(|&b| !vocab.contains_key(byte_level::char_of(b).encode_utf8(&mut [0; 4])));
        if let Some(byte) = lacking {
            return Err(self.bad(TOKENS, format!("byte 0x{byte:02X} has no token of type 1")));
        }
        let merges = self.merges(&vocab)?;
        let bpe = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(true).build();
        Ok((bytes, bpe.map_err(|e| self.bad(MERGES, e.to_string()))?))
    }

    fn merges(&self, vocab: &Vocab) -> Result<Merges> {
        let mut result: HashMap<(&str, &str), usize> = HashMap::with_capacity(self.merges.len());
        let mut merges = Merges::with_capacity(self.merges.len());
        let mut joined = String::new();
        for (rank, merge) in self.merges.iter().enumerate() {
            // A token of the greatest size and a space: what is longer is no merge, and no text for an error.
            if merge.len() > MAX_TOKEN + 1 {
                let message =
                    format!("entry {rank}: expected at most {} bytes, got {}", MAX_TOKEN + 1, merge.len());
                return Err(self.bad(MERGES, message));
            }
            let (left, right) = merge
                .split_once(' ')
                .filter(|(l, r)| !l.is_empty() && !r.is_empty() && !r.contains(' '))
                .ok_or_else(|| {
                    self.bad(MERGES, format!("entry {rank}: expected \"left right\", got {merge:?}"))
                })?;
            joined.clear();
            joined.extend([left, right]);
            for token in [left, right, &joined] {
                if !vocab.contains_key(token) {
                    let message = format!("entry {rank}, {merge:?}: {token:?} is not a token of type 1");
                    return Err(self.bad(MERGES, message));
                }
            }
            if let Some(first) = result.insert((left, right), rank) {
                return Err(self.bad(MERGES, format!("entries {first} and {rank} are both {merge:?}")));
            }
            merges.push((left.to_owned(), right.to_owned()));
        }
        Ok(merges)
    }
}

/// The bytes of all tokens, end to end.
#[derive(Debug, Default)]
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl TokenBytes {
    fn push(&mut self, bytes: impl Iterator<Item = u8>) {
        self.bytes.extend(bytes);
        self.ends.push(self.bytes.len());
    }

    /// The bytes of token `id`, if there is one.
    pub(super) fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)?;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        Some(&self.bytes[start..end])
    }
}
