//! Fixtures: golden files, the small model's tokenizer, and a tiny one made by hand.

use std::path::PathBuf;
use std::sync::LazyLock;

use glm5::gguf::Gguf;
use glm5::text::{Tokenizer, TokenizerData};
use serde_json::Value;

/// A file of the repository.
pub fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// A golden file of `tests/data/tokenizer/`.
pub fn golden(file: &str) -> Value {
    let path = path("tests/data/tokenizer").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// The ids of a JSON list.
pub fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

/// The tokenizer of the default model.
pub static NANO: LazyLock<Tokenizer> = LazyLock::new(|| from_file("models/nano-q4_k_m.gguf"));

/// The tokenizer of a file of the repository.
pub fn from_file(file: &str) -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::open(path(file)).unwrap()).unwrap()
}

/// 256 bytes, `ab`, `Ġab`; `<end>` (control, 258), `<mark>` (user-defined, 259), `<mark>s` (control, 260), `[PAD]` (unused, 261).
pub fn tiny() -> TokenizerData {
    let prints = |b: &u8| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let (plain, moved): (Vec<u8>, Vec<u8>) = (0..=255).partition(prints);
    let mut tokens: Vec<String> = plain.iter().map(|&b| char::from(b).to_string()).collect();
    tokens.extend((0x100..).take(moved.len()).map(|c| char::from_u32(c).unwrap().to_string()));
    tokens.extend(["ab", "Ġab", "<end>", "<mark>", "<mark>s", "[PAD]"].map(String::from));
    let mut token_types = vec![1; 258];
    token_types.extend([3, 4, 3, 5]);
    let merges = ["a b", "Ġ ab"].map(String::from).to_vec();
    let (file, model, pre) = ("tiny.gguf".into(), "gpt2".into(), "glm4".into());
    TokenizerData { file, model, pre, tokens, token_types, merges, eos: Some(258), ..Default::default() }
}
