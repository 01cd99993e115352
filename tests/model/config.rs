//! Hyperparameters: every key missing, of another type, zero or absurd is an error that names it; what may be absent is
//! assumed and said; other architectures are refused by name and reason.

use glm5::Error;
use glm5::gguf::{Array, Gguf, Value, Writer};
use glm5::model::{Config, IndexerKind, LoadReport};
use glm5::ops::router::Gating;

use crate::common::{self, MODELS};
use crate::synthetic::{self, N_TRUNK, STYLES, Style, is_full_52};

/// A file with the metadata of a full-size GLM-5 and no tensors.
fn with(edit: impl FnOnce(&mut Vec<(String, Value)>)) -> Gguf {
    let mut keys = synthetic::keys(Style::Glm5);
    edit(&mut keys);
    let mut writer = Writer::new();
    keys.into_iter().for_each(|(k, v)| writer.key(k, v));
    Gguf::from_bytes("m.gguf", writer.to_bytes().unwrap().into()).unwrap()
}

fn key(name: &str) -> String {
    if name.contains(':') { name.replace(':', ".") } else { format!("glm-dsa.{name}") }
}

fn without(name: &str) -> Gguf {
    with(|keys| keys.retain(|(k, _)| *k != key(name)))
}

fn set(name: &str, value: impl Into<Value>) -> Gguf {
    let value = value.into();
    with(|keys| {
        keys.retain(|(k, _)| *k != key(name));
        keys.push((key(name), value));
    })
}

/// The complaint about key `name`.
fn complaint(gguf: &Gguf, name: &str) -> String {
    match Config::from_gguf(gguf) {
        Err(error @ Error::File { .. }) => {
            let text = error.to_string();
            assert!(text.starts_with(&format!("m.gguf: key {}: ", key(name))), "{name}: {text}");
            assert!(!text.contains('\n'));
            text
        }
        Err(other) => panic!("{name}: {other}"),
        Ok(_) => panic!("{name}: no error"),
    }
}

/// Extents that must be there, and the least legal value.
const EXTENTS: [(&str, u64); 18] = [
    ("block_count", 2), // one of them is MTP
    ("context_length", 1),
    ("embedding_length", 1),
    ("feed_forward_length", 1),
    ("leading_dense_block_count", 0),
    ("expert_feed_forward_length", 1),
    ("expert_count", 8), // no fewer than are used
    ("expert_used_count", 1),
    ("attention.head_count", 1),
    ("attention.q_lora_rank", 1),
    ("attention.kv_lora_rank", 512), // the key below must fit
    ("attention.key_length_mla", 65),
    ("attention.value_length_mla", 1),
    ("rope.dimension_count", 2),
    ("attention.indexer.head_count", 1),
    ("attention.indexer.key_length", 64),
    ("attention.indexer.top_k", 1),
    ("vocab_size", 1),
];

const FLOATS: [&str; 3] = ["attention.layer_norm_rms_epsilon", "rope.freq_base", "expert_weights_scale"];

#[test]
fn what_must_be_there() {
    let all = EXTENTS.iter().map(|(name, _)| *name).chain(FLOATS);
    let all = all.chain(["expert_shared_count", "expert_weights_norm"]);
    for name in all.filter(|n| *n != "vocab_size") {
        assert!(complaint(&without(name), name).contains("missing, expected"));
    }
    assert!(complaint(&without("general:architecture"), "general:architecture").contains("missing"));
    // Without `vocab_size` the vocabulary itself is counted; it is not there either.
    let text = Config::from_gguf(&without("vocab_size")).unwrap_err().to_string();
    assert!(text.contains("key tokenizer.ggml.tokens: missing"), "{text}");
}

#[test]
fn wrong_types() {
    for name in EXTENTS.iter().map(|(name, _)| *name).chain(FLOATS) {
        assert!(complaint(&set(name, "many"), name).contains("found string"), "{name}");
        assert!(complaint(&set(name, true), name).contains("found bool"), "{name}");
    }
    for (name, _) in EXTENTS {
        assert!(complaint(&set(name, 2.0f32), name).contains("expected an integer"), "{name}");
        assert!(complaint(&set(name, -1i32), name).contains("found i32 -1"), "{name}");
        let array = Array::U32(vec![4; 78]);
        match name {
            // One width per block is what some writers write.
            "expert_feed_forward_length" => _ = Config::from_gguf(&set(name, array)).unwrap(),
            _ => assert!(complaint(&set(name, array), name).contains("found array"), "{name}"),
        }
    }
    for name in FLOATS {
        assert!(complaint(&set(name, 1u32), name).contains("expected a float"), "{name}");
    }
    assert!(complaint(&set("general:architecture", 5u32), "general:architecture").contains("a string"));
    assert!(complaint(&set("general:name", 5u32), "general:name").contains("a string"));
    assert!(complaint(&set("expert_weights_norm", 1u32), "expert_weights_norm").contains("a bool"));
    assert!(complaint(&set("expert_gating_func", "sigmoid"), "expert_gating_func").contains("an integer"));
}

#[test]
fn zero_and_absurd() {
    for (name, least) in EXTENTS {
        if least > 0 {
            assert!(complaint(&set(name, 0u32), name).contains("found 0"), "{name}");
        }
        for absurd in [1 << 32, u64::MAX / 4, u64::MAX] {
            let error = Config::from_gguf(&set(name, absurd)).expect_err(name).to_string();
            // An absurd width may be found out by the key that must agree with it.
            assert!(error.starts_with("m.gguf: key glm-dsa."), "{name}: {error}");
        }
    }
    for name in FLOATS {
        for bad in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(complaint(&set(name, bad), name).contains("a positive number"), "{name} {bad}");
        }
    }
}

/// The least legal values are legal; one less is not.
#[test]
fn least_values() {
    for (name, least) in EXTENTS.into_iter().filter(|(n, _)| *n != "attention.kv_lora_rank") {
        // GLM-5's rope width bounds two of them.
        if name == "rope.dimension_count" {
            continue;
        }
        let result = Config::from_gguf(&set(name, least));
        assert!(result.is_ok(), "{name} = {least}: {result:?}");
        if least > 0 {
            assert!(Config::from_gguf(&set(name, least - 1)).is_err(), "{name} = {}", least - 1);
        }
    }
    assert!(complaint(&set("rope.dimension_count", 63u32), "rope.dimension_count").contains("even"));
}

#[test]
fn keys_that_contradict_each_other() {
    for (name, value, why) in [
        ("nextn_predict_layers", 79u32, "fewer than the 79 blocks"),
        ("nextn_predict_layers", u32::MAX, "expected 0 to"),
        ("expert_used_count", 257, "expected 1 to 256, found 257"),
        ("attention.key_length_mla", 64, "expected 65 to"),
        ("attention.indexer.key_length", 63, "expected 64 to"),
        ("attention.head_count_kv", 64, "expected 1 (absorbed attention has one latent head), found 64"),
        ("attention.key_length", 256, "expected 576"),
        ("attention.value_length", 256, "expected 512"),
        ("attention.kv_lora_rank", 256, ""),
        ("expert_group_count", 7, "expected a divisor of the 256 experts, found 7"),
        ("expert_group_count", 257, "expected a divisor of the 256 experts, found 257"),
        ("expert_group_used_count", 4, "expected 1, as there are no groups, found 4"),
        ("expert_gating_func", 3, "expected 1 (softmax) or 2 (sigmoid), found 3"),
        ("expert_gating_func", 0, "found 0"),
    ] {
        let blamed = if name == "attention.kv_lora_rank" { "attention.key_length" } else { name };
        let text = complaint(&set(name, value), blamed);
        assert!(text.contains(why), "{name}: {why:?} in {text}");
    }
    let widths = |v: Vec<u32>| set("expert_feed_forward_length", Array::U32(v));
    for bad in [vec![], vec![0; 79], [vec![0; 3], vec![2048; 40], vec![1024; 36]].concat()] {
        assert!(complaint(&widths(bad), "expert_feed_forward_length").contains("expected one width"));
    }
    let config = Config::from_gguf(&widths([vec![0; 3], vec![2048; 76]].concat())).unwrap();
    assert_eq!(config.moe_intermediate_size, 2048);
}

/// No key, 0 and 1 are all no groups. With groups, it must be said how many are used, and those must have enough experts.
#[test]
fn groups_of_experts() {
    let groups = |count: Option<u32>, used: Option<u32>| {
        with(|keys| {
            for (name, value) in [("expert_group_count", count), ("expert_group_used_count", used)] {
                keys.retain(|(k, _)| *k != key(name));
                keys.extend(value.map(|v| (key(name), v.into())));
            }
        })
    };
    for count in [None, Some(0), Some(1)] {
        for used in [None, Some(0), Some(1)] {
            let c = Config::from_gguf(&groups(count, used)).unwrap();
            assert_eq!((c.router.n_groups, c.router.n_groups_used), (1, 1), "{count:?}, {used:?}");
        }
        let text = complaint(&groups(count, Some(2)), "expert_group_used_count");
        assert!(text.contains("expected 1, as there are no groups, found 2"), "{text}");
    }
    // Eight of 256 experts.
    for (count, used) in [(8, 4), (8, 8), (256, 8), (32, 1), (2, 1)] {
        let c = Config::from_gguf(&groups(Some(count), Some(used))).unwrap();
        assert_eq!((c.router.n_groups, c.router.n_groups_used), (count as usize, used as usize));
    }
    for (count, used, name, why) in [
        (8, None, "expert_group_used_count", "missing, expected"),
        (8, Some(0), "expert_group_used_count", "expected 1 to 8, found 0"),
        (8, Some(9), "expert_group_used_count", "expected 1 to 8, found 9"),
        (64, Some(1), "expert_used_count", "expected 1 to 4, the experts of 1 of 64 groups, found 8"),
        (u32::MAX, Some(1), "expert_group_count", "a divisor of the 256 experts"),
    ] {
        let text = complaint(&groups(Some(count), used), name);
        assert!(text.contains(why), "{count}, {used:?}: {why:?} in {text}");
    }
    for name in ["expert_group_count", "expert_group_used_count"] {
        assert!(complaint(&set(name, "many"), name).contains("found string"));
        assert!(complaint(&set(name, -1i32), name).contains("found i32 -1"));
    }
}

#[test]
fn every_value_reaches_the_config() {
    let c = Config::from_gguf(&with(|_| {})).unwrap();
    assert_eq!((c.n_layers, c.n_nextn_layers, c.first_k_dense_replace), (78, 1, 3));
    assert_eq!((c.context_length, c.vocab_size, c.hidden_size), (202_752, 154_880, 6144));
    assert_eq!((c.intermediate_size, c.moe_intermediate_size), (12288, 2048));
    assert_eq!((c.n_routed_experts, c.n_shared_experts, c.router.n_experts_per_tok), (256, 1, 8));
    assert_eq!((c.router.gating, c.router.norm_topk_prob), (Gating::Sigmoid, true));
    assert_eq!((c.router.routed_scaling_factor, c.rms_norm_eps, c.rope_theta), (2.5, 1e-5, 1e6));
    assert_eq!((c.n_heads, c.q_lora_rank, c.kv_lora_rank), (64, 2048, 512));
    assert_eq!((c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim), (192, 64, 256));
    assert_eq!((c.index_n_heads, c.index_head_dim, c.index_topk), (32, 128, 2048));
    assert_eq!((c.sm_scale(), c.index_scale()), (1.0 / 16.0, 1.0 / 64.0));
    assert_eq!((c.latent_width(), c.qk_head_dim()), (576, 256));
    let full = Config::from_gguf(&set("attention.indexer.types", true)).unwrap();
    assert_eq!(full.cache_bytes_per_token(2), 109_824);
    let base = Config::from_gguf(&set("rope.freq_base", 8e6f64)).unwrap().rope_theta;
    assert_eq!(base, 8e6, "the rope base comes from the file");
}

#[test]
fn what_is_assumed_is_said() {
    let assumed = |gguf: &Gguf| Config::from_gguf(gguf).unwrap().assumptions;
    let types = "glm-dsa.attention.indexer.types is absent: context length 202752 is below 1 M: all full";
    // The file has no tensors at all, so layers after the first cannot be full.
    let shared = "77 of these layers have no indexer tensors and can only be shared";
    assert_eq!(assumed(&with(|_| {})), [types, shared]);
    for (name, sentence) in [
        ("nextn_predict_layers", "glm-dsa.nextn_predict_layers is absent: 0"),
        ("expert_gating_func", "glm-dsa.expert_gating_func is absent: sigmoid"),
    ] {
        assert!(assumed(&without(name)).contains(&sentence.to_owned()), "{sentence}");
    }
    for name in
        ["attention.head_count_kv", "attention.key_length", "expert_group_count", "expert_group_used_count"]
    {
        assert_eq!(assumed(&without(name)), [types, shared], "{name} follows from the architecture");
    }
    let report = LoadReport::new(&common::gguf(MODELS[0])).unwrap();
    assert_eq!(report.config.assumptions, [types.replace("202752", "4096")]);
    assert!(report.to_string().contains("assumed: glm-dsa.attention.indexer.types is absent"));
    assert_eq!(LoadReport::new(&common::gguf(MODELS[1])).unwrap().config.assumptions, [""; 0]);
}

#[test]
fn vocab_size_may_be_counted() {
    let gguf = with(|keys| {
        keys.retain(|(k, _)| k != "glm-dsa.vocab_size");
        keys.push(("tokenizer.ggml.tokens".into(), Array::Str(["a", "b"].into_iter().collect()).into()));
    });
    let config = Config::from_gguf(&gguf).unwrap();
    assert_eq!(config.vocab_size, 2);
    assert!(config.assumptions[0].contains("vocab_size is absent: 2"));
}

#[test]
fn every_token_needs_a_row() {
    let gguf = with(|keys| {
        keys.retain(|(k, _)| k != "glm-dsa.vocab_size");
        keys.push(("glm-dsa.vocab_size".into(), 2u32.into()));
        let tokens = ["a", "b", "c"].into_iter().collect();
        keys.push(("tokenizer.ggml.tokens".into(), Array::Str(tokens).into()));
    });
    let text = Config::from_gguf(&gguf).unwrap_err().to_string();
    assert!(text.contains("vocab_size: expected at least the 3 tokens"), "{text}");
}

#[test]
fn nothing_of_the_file_reaches_a_terminal_raw() {
    let text = Config::from_gguf(&set("general:architecture", "x\u{1b}[31m\ny")).unwrap_err().to_string();
    assert!(text.contains("x\\u{1b}[31m\\ny"), "{text:?}");
}

fn pattern(config: &Config) -> String {
    config.indexers.iter().map(|k| if *k == IndexerKind::Full { 'F' } else { 'S' }).collect()
}

#[test]
fn indexer_types_in_all_forms() {
    let types = |value: Value| set("attention.indexer.types", value);
    let full: Vec<bool> = (0..N_TRUNK).map(is_full_52).collect();
    let ints = |one: i32| full.iter().map(|f| i32::from(*f) * one).collect::<Vec<_>>();
    let want: String = full.iter().map(|f| if *f { 'F' } else { 'S' }).collect();
    for value in
        [Array::Bool(full.clone()), Array::I32(ints(1)), Array::U8(full.iter().map(|f| *f as u8).collect())]
    {
        assert_eq!(pattern(&Config::from_gguf(&types(value.into())).unwrap()), want);
    }
    for value in [Value::Bool(true), Value::U32(1), Value::I64(1)] {
        assert_eq!(pattern(&Config::from_gguf(&types(value)).unwrap()), "F".repeat(78));
    }
    let name = "attention.indexer.types";
    for (value, why) in [
        (Value::Bool(false), "layer 0"),
        (Array::Bool([&[false], &full[1..]].concat()).into(), "layer 0"),
        (Array::Bool(full[..77].to_vec()).into(), "each of 78 trunk layers, found 77"),
        (Array::Bool([&full[..], &[true]].concat()).into(), "found 79"),
        (Array::Bool(vec![]).into(), "found 0"),
        (Array::I32(ints(2)).into(), "a bool (or 0 or 1)"),
        (Array::F32(vec![1.0; 78]).into(), "a bool (or 0 or 1)"),
        (Value::Str("full".into()), "found string"),
        (Value::F32(1.0), "found f32"),
    ] {
        let text = complaint(&types(value), name);
        assert!(text.contains(why), "{why:?} in {text}");
    }
}

/// Without the key: all full below 1 M tokens of context, from there on GLM-5.2's 21 layers, and never a layer without
/// tensors of its own.
#[test]
fn indexer_types_that_are_absent() {
    let full = |style: Style, context: u32, key: bool| {
        let mut keys = synthetic::keys(style);
        keys.retain(|(k, _)| {
            k != "glm-dsa.context_length" && (key || k != "glm-dsa.attention.indexer.types")
        });
        keys.push(("glm-dsa.context_length".into(), context.into()));
        let list = synthetic::tensors(style);
        let names: Vec<_> = list.into_iter().filter(|t| t.name.ends_with("indexer.attn_k.weight")).collect();
        let names: Vec<_> = names.into_iter().map(|t| synthetic::Entry { ne: vec![256], ..t }).collect();
        let bytes = synthetic::writer(keys, &names).to_bytes().unwrap();
        let config = Config::from_gguf(&Gguf::from_bytes("m.gguf", bytes.into()).unwrap()).unwrap();
        let full = config.indexers.iter().enumerate().filter(|(_, k)| **k == IndexerKind::Full);
        full.map(|(i, _)| i).collect::<Vec<_>>()
    };
    let all: Vec<usize> = (0..78).collect();
    let some = [0, 1, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62, 66, 70, 74];
    assert_eq!(full(Style::Glm5, 202_752, false), all);
    assert_eq!(full(Style::Glm52Copies, (1 << 20) - 1, false), all);
    assert_eq!(full(Style::Glm52Copies, 1 << 20, false), some);
    assert_eq!(full(Style::Glm52Straight, 1 << 20, false), some);
    assert_eq!(full(Style::Glm52Straight, 1 << 20, true), some);
    // Copies do not make a layer full, and missing tensors make it shared.
    assert_eq!(full(Style::Glm52Straight, 202_752, false), some);
    assert_eq!(full(Style::Glm52Straight, 202_752, true), some);
    assert_eq!(STYLES.len(), 3);
}

#[test]
fn rope_scaling_is_refused() {
    for (name, value) in [
        ("rope.scaling.type", Value::from("yarn")),
        ("rope.scaling.type", "linear".into()),
        ("rope.scaling.factor", 4.0f32.into()),
        ("rope.scaling.original_context_length", 4096u32.into()),
        ("rope.scaling.yarn_log_multiplier", 0.1f32.into()),
    ] {
        match Config::from_gguf(&set(name, value)) {
            Err(Error::Unsupported { what, reason }) => {
                assert!(
                    what.starts_with(&key(name)) && reason.contains("no rope scaling"),
                    "{what}: {reason}"
                );
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    // What says that there is none is harmless, and does not hide what follows.
    let none = |more: &[(&str, f32)]| {
        with(|keys| {
            keys.push((key("rope.scaling.type"), "none".into()));
            keys.extend(more.iter().map(|(k, v)| (key(k), (*v).into())));
        })
    };
    assert!(Config::from_gguf(&none(&[])).is_ok());
    assert!(Config::from_gguf(&none(&[("rope.scaling.factor", 1.0)])).is_ok());
    assert!(Config::from_gguf(&none(&[("rope.scaling.factor", 8.0)])).is_err());
}

#[test]
fn other_architectures_are_refused_by_name_and_reason() {
    for (name, reason) in [
        ("glm5-next", "GLM-5.3-Flash is another model"),
        ("glm5next", "GLM-5.3-Flash is another model"),
        ("deepseek2", "no indexer"),
        ("deepseek32", "rotates its indexer differently"),
        ("llama", "this crate runs GLM-5"),
        ("", "this crate runs GLM-5"),
        ("GLM-DSA", "this crate runs GLM-5"),
    ] {
        match Config::from_gguf(&set("general:architecture", name)) {
            Err(Error::Unsupported { what, reason: why }) => {
                assert_eq!(what, format!("architecture {name}"));
                assert!(why.contains(reason), "{why}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// Valid containers that are no models.
#[test]
fn damaged_files_at_the_level_of_the_model() {
    for (file, parts) in [
        ("no-architecture", &["key general.architecture: missing"][..]),
        ("other-architecture", &["architecture llama is not supported"]),
        ("glm5-next", &["architecture glm5-next is not supported", "another model"]),
        ("missing-hyperparameter", &["missing-hyperparameter.gguf: key glm-dsa.block_count: missing"]),
        ("ok-tiny", &["ok-tiny.gguf: key glm-dsa.", "missing"]),
        ("ok-v2", &["ok-v2.gguf: key glm-dsa.", "missing"]),
        ("split-ok-00002-of-00002", &["split-ok-00001-of-00002.gguf: key glm-dsa.", "missing"]),
    ] {
        let path = format!("{}/tests/data/broken/{file}.gguf", env!("CARGO_MANIFEST_DIR"));
        let gguf = Gguf::open(&path).unwrap();
        let errors =
            [LoadReport::new(&gguf).map(|_| ()).unwrap_err(), common::load(&gguf).map(|_| ()).unwrap_err()];
        for error in errors.map(|e| e.to_string()) {
            assert!(parts.iter().all(|p| error.contains(p)), "{file}: expected {parts:?} in {error}");
            assert!(!error.contains('\n'));
        }
    }
}
