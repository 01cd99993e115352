//! Token ids against the goldens of an independent implementation; refusals; properties.

use glm5::Error;
use glm5::gguf::{Gguf, Writer};
use glm5::quant::SharedBytes;
use glm5::text::{Specials, TokenType, Tokenizer, TokenizerData};
use proptest::prelude::*;

use crate::common::{NANO, from_file, golden, ids, path, tiny};

#[test]
fn encode_goldens() {
    let golden = golden("encode.json");
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 87);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        for (specials, key) in [
            (Specials::Parse, "ids"),
            (Specials::Text, "ids_as_text"),
            (Specials::UserDefined, "ids_control_as_text"),
        ] {
            // The file leaves out what is the same.
            let want = ids(case.get(key).unwrap_or(&case["ids"]));
            let got = NANO.encode(text, specials).unwrap();
            assert_eq!(got, want, "{text:?} {specials:?}");
            assert_eq!(NANO.decode(&got, false).unwrap(), text, "{text:?} {specials:?}");
        }
    }
}

#[test]
fn a_piece_that_is_a_token_is_not_merged() {
    let tokenizer = from_file("tests/data/tokenizer/ignore_merges.gguf");
    let golden = golden("ignore_merges.json");
    let cases = golden["cases"].as_array().unwrap();
    let differ = cases.iter().filter(|c| c["ids"] != c["ids_without_ignore_merges"]).count();
    assert!(differ >= 5);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, Specials::Parse).unwrap(), ids(&case["ids"]), "{text:?}");
    }
}

#[test]
fn both_models_have_the_same_tokenizer() {
    let other = from_file("models/nano-shared-ud.gguf");
    let text = "[gMASK]<sop>Towards thee I roll, thou all-destroying but unconquering whale;";
    assert_eq!(other.encode(text, Specials::Parse).unwrap(), NANO.encode(text, Specials::Parse).unwrap());
    assert_eq!(other.end_tokens(), NANO.end_tokens());
}

#[test]
fn marks_of_the_file() {
    assert_eq!(NANO.vocab_size(), 4096);
    assert_eq!(NANO.end_tokens(), [4077, 4084, 4086]);
    assert_eq!(NANO.prefix(), Some([4079, 4081]));
    assert_eq!(NANO.id_of("<think>"), Some(4087));
    assert_eq!(NANO.id_of("\n"), Some(198));
    assert_eq!(NANO.id_of("<tool_response>"), None);
    assert_eq!(NANO.token_type(4087).unwrap(), TokenType::UserDefined);
    assert_eq!(NANO.token_type(4084).unwrap(), TokenType::Control);
    assert_eq!(NANO.token_bytes(220).unwrap(), b" ");
    assert_eq!(NANO.token_bytes(4084).unwrap(), b"<|user|>");
    assert!(NANO.chat_template().unwrap().starts_with("[gMASK]<sop>"));
}

#[test]
fn decode_hides_marks_on_request() {
    let ids = NANO.encode("[gMASK]<sop><|user|>Hi<|assistant|><think> a</think>", Specials::Parse).unwrap();
    assert_eq!(NANO.decode(&ids, true).unwrap(), "Hi<think> a</think>");
    assert_eq!(NANO.decode(&[172, 253, 238], true).unwrap(), "\u{FFFD}");
    let error = NANO.decode(&[4096], true).unwrap_err();
    assert_eq!(error.to_string(), "token id: expected an id below 4096, got 4096");
    assert!(NANO.token_bytes(4096).is_err() && NANO.token_type(u32::MAX).is_err());
}

#[test]
fn longest_mark_first() {
    let tokenizer = Tokenizer::new(tiny()).unwrap();
    let encode = |text, specials| tokenizer.encode(text, specials).unwrap();
    assert_eq!(encode("<mark>s<mark>", Specials::Parse), [260, 259]);
    // The control token is text here, the user-defined one that begins it is not.
    assert_eq!(encode("<mark>s<mark>", Specials::UserDefined), [259, 82, 259]);
    assert_eq!(encode("<mark>", Specials::Text), b"<mark>".map(|b| u32::from(b) - 0x21));
    // Unused tokens are never made from text, and not shown.
    assert_eq!(encode("[PAD]", Specials::Parse), b"[PAD]".map(|b| u32::from(b) - 0x21));
    assert_eq!(tokenizer.decode(&[261, 256, 257], true).unwrap(), "ab ab");
}

#[test]
fn long_runs_are_cut_right() {
    // A run of spaces before a word leaves the last one to the word, however long the run is.
    let text = format!("{}ab", " ".repeat(100_000));
    let tokenizer = Tokenizer::new(tiny()).unwrap();
    let got = tokenizer.encode(&text, Specials::Parse).unwrap();
    assert_eq!(got.len(), 100_000);
    assert_eq!(got.last(), Some(&257));
    // Beyond the matcher's limit: an error, not a wrong cut.
    match tokenizer.encode(&format!("{}ab", " ".repeat(3_000_000)), Specials::Parse) {
        Ok(got) => assert_eq!((got.len(), got.last()), (3_000_000, Some(&257))),
        Err(e) => assert!(e.to_string().starts_with("tokenizer: cannot cut the text after byte 0 of")),
    }
}

/// Each change of sound metadata, and what the error says.
#[test]
fn bad_metadata_is_refused_by_key() {
    type Change = fn(&mut TokenizerData);
    let cases: [(Change, &str); 23] = [
        (
            |d| d.model = "llama".into(),
            "tokenizer model \"llama\" is not supported: GLM-5 uses byte-level BPE",
        ),
        (|d| d.model.clear(), "tokenizer model \"\" is not supported"),
        (
            |d| d.pre = "qwen2".into(),
            "pre-tokenizer \"qwen2\" is not supported: GLM-5 uses tokenizer.ggml.pre = glm4",
        ),
        (
            |d| d.tokens.clear(),
            "tiny.gguf: key tokenizer.ggml.tokens: expected 1 to 4294967295 tokens, got 0",
        ),
        (
            |d| d.token_types.truncate(261),
            "tiny.gguf: key tokenizer.ggml.token_type: expected 262 entries, one per token, got 261",
        ),
        (
            |d| d.token_types.push(1),
            "tokenizer.ggml.token_type: expected 262 entries, one per token, got 263",
        ),
        (|d| d.token_types[7] = 0, "tokenizer.ggml.token_type: expected types 1 to 5, got 0 for token 7"),
        (|d| d.token_types[7] = -1, "tokenizer.ggml.token_type: expected types 1 to 5, got -1 for token 7"),
        (|d| d.token_types[7] = 6, "tokenizer.ggml.token_type: expected types 1 to 5, got 6 for token 7"),
        (|d| d.tokens[257] = "ab".into(), "tokenizer.ggml.tokens: tokens 256 and 257 are both \"ab\""),
        (|d| d.tokens[259] = "<end>".into(), "tokenizer.ggml.tokens: tokens 258 and 259 are both \"<end>\""),
        (|d| d.tokens[259].clear(), "tokenizer.ggml.tokens: token 259 is empty"),
        (
            |d| d.tokens[259] = "x".repeat(1025),
            "tiny.gguf: key tokenizer.ggml.tokens: token 259: expected at most 1024 bytes, got 1025",
        ),
        (
            |d| d.merges[1] = "a".repeat(1026),
            "tiny.gguf: key tokenizer.ggml.merges: entry 1: expected at most 1025 bytes, got 1026",
        ),
        (
            |d| d.tokens[257] = " ab".into(),
            "tokenizer.ggml.tokens: token 257, \" ab\": ' ' is not in the byte-level alphabet",
        ),
        (|d| d.token_types[0] = 3, "tokenizer.ggml.tokens: byte 0x21 has no token of type 1"),
        (
            |d| d.merges[0] = "ab".into(),
            "tokenizer.ggml.merges: entry 0: expected \"left right\", got \"ab\"",
        ),
        (
            |d| d.merges[0] = "a b c".into(),
            "tokenizer.ggml.merges: entry 0: expected \"left right\", got \"a b c\"",
        ),
        (
            |d| d.merges[1] = "x ab".into(),
            "tokenizer.ggml.merges: entry 1, \"x ab\": \"xab\" is not a token of type 1",
        ),
        (
            |d| d.merges[1] = "Ġ aab".into(),
            "tokenizer.ggml.merges: entry 1, \"Ġ aab\": \"aab\" is not a token of type 1",
        ),
        (|d| d.merges.push("a b".into()), "tokenizer.ggml.merges: entries 0 and 2 are both \"a b\""),
        (|d| d.eos = None, "tokenizer.ggml.eos_token_id: missing, expected an id"),
        (|d| d.eot = Some(262), "tokenizer.ggml.eot_token_id: expected an id below 262, got 262"),
    ];
    for (change, want) in cases {
        let mut data = tiny();
        change(&mut data);
        let error = Tokenizer::new(data).unwrap_err();
        assert!(matches!(error, Error::File { .. } | Error::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains(want), "{error}\nexpected {want}");
    }
    let mut longest = tiny();
    longest.tokens[259] = "x".repeat(1024);
    assert!(Tokenizer::new(longest).is_ok());
    let ids: [Change; 5] = [
        |d| d.bos = Some(u32::MAX),
        |d| d.eos = Some(u32::MAX),
        |d| d.eom = Some(u32::MAX),
        |d| d.unk = Some(u32::MAX),
        |d| d.pad = Some(u32::MAX),
    ];
    for change in ids {
        let mut data = tiny();
        change(&mut data);
        let error = Tokenizer::new(data).unwrap_err().to_string();
        assert!(error.contains("_token_id: expected an id below 262, got 4294967295"), "{error}");
    }
}

#[test]
fn without_the_prefix_tokens() {
    let tokenizer = Tokenizer::new(tiny()).unwrap();
    assert_eq!(tokenizer.prefix(), None);
    assert_eq!(tokenizer.chat_template(), None);
    assert_eq!(tokenizer.end_tokens(), [258]);
    // glm5 is the other name of the same pre-tokenizer.
    assert!(Tokenizer::new(TokenizerData { pre: "glm5".into(), ..tiny() }).is_ok());
}

/// Text of the kinds that meet in the pre-tokenizer: letters, digits, spaces, line ends, marks, emoji.
fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => "[a-zA-Z]{1,8}",
        2 => "[0-9]{1,5}",
        3 => "[ \t\r\n\u{a0}\u{3000}]{1,4}",
        2 => "['.,!<>|\\[\\]/_-]{1,3}",
        2 => "\\PC{1,3}",
        1 => any::<char>().prop_map(String::from),
        2 => prop::sample::select(vec!["<|user|>", "<think>", "</think>", "[gMASK]", "<|endoftext|>", "<|user", "/nothink"])
            .prop_map(String::from),
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    /// Nothing is lost or added: encoding and decoding any text gives it back.
    #[test]
    fn round_trip(text in text()) {
        for specials in [Specials::Parse, Specials::UserDefined, Specials::Text] {
            let ids = NANO.encode(&text, specials).unwrap();
            prop_assert_eq!(NANO.decode(&ids, false).unwrap(), text.clone());
        }
    }

    /// Text that is taken as text cannot make a mark.
    #[test]
    fn text_makes_no_marks(text in text()) {
        for id in NANO.encode(&text, Specials::Text).unwrap() {
            prop_assert_eq!(NANO.token_type(id).unwrap(), TokenType::Normal);
        }
        for id in NANO.encode(&text, Specials::UserDefined).unwrap() {
            prop_assert_ne!(NANO.token_type(id).unwrap(), TokenType::Control);
        }
    }

    /// A mark cuts: what stands before and after it is encoded as if alone.
    #[test]
    fn marks_separate(left in text(), right in text()) {
        let encode = |text: &str| NANO.encode(text, Specials::Parse).unwrap();
        let mut want = encode(&left);
        want.push(4084);
        want.extend(encode(&right));
        prop_assert_eq!(encode(&format!("{left}<|user|>{right}")), want);
    }

    /// Damaged metadata: an error or a working tokenizer, never a panic.
    #[test]
    fn damage_never_panics(at in 0usize..262, to in "\\PC{0,3}", ty in -2i64..8, merge in "[abĠ ]{0,5}", eos in any::<Option<u16>>()) {
        let mut data = tiny();
        data.tokens[at] = to;
        data.token_types[261 - at] = ty;
        data.merges.push(merge);
        data.eos = eos.map(u32::from);
        if let Ok(tokenizer) = Tokenizer::new(data) {
            let text = "ab <mark>s [PAD] ü";
            let ids = tokenizer.encode(text, Specials::Parse).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
        }
    }
}

/// A file without one of the keys, or with it of another type, is refused by that key.
#[test]
fn keys_of_the_file() {
    let file = Gguf::open(path("tests/data/tokenizer/ignore_merges.gguf")).unwrap();
    let required = ["model", "pre", "tokens", "token_type", "merges", "eos_token_id"];
    let optional = ["bos_token_id", "eot_token_id", "eom_token_id"];
    for key in required.into_iter().chain(optional).map(|k| format!("tokenizer.ggml.{k}")) {
        for wrong_type in [false, true] {
            let mut writer = Writer::new();
            for (k, value) in file.metadata().iter().filter(|(k, _)| *k != key) {
                writer.key(k, value.clone());
            }
            if wrong_type {
                writer.key(&*key, 1.5f32);
            }
            let bytes = SharedBytes::from(writer.to_bytes().unwrap());
            let result = Tokenizer::from_gguf(&Gguf::from_bytes("x.gguf", bytes).unwrap());
            if !wrong_type && optional.iter().any(|o| key.ends_with(o)) {
                assert!(result.is_ok(), "{key}");
                continue;
            }
            let error = result.unwrap_err().to_string();
            let want = if wrong_type { "expected" } else { "missing, expected" };
            assert!(error.starts_with(&format!("x.gguf: key {key}: {want}")), "{error}");
        }
    }
}
