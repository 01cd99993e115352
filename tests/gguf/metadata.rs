//! Typed access to metadata: what widens, what is refused, and how the refusal reads.

use glm5::Error;
use glm5::gguf::{Array, FromValue, Gguf, OneOrMany, StrArray, Value, Writer};

fn open(keys: Vec<(&str, Value)>) -> Gguf {
    let mut writer = Writer::new();
    keys.into_iter().for_each(|(k, v)| writer.key(k, v));
    Gguf::from_bytes("model.gguf", writer.to_bytes().unwrap().into()).unwrap()
}

fn get<T: for<'a> FromValue<'a>>(value: Value) -> Option<T> {
    open(vec![("k", value)]).metadata().get("k").ok().flatten()
}

#[test]
fn integers_of_every_declared_type_widen() {
    let sevens: [Value; 8] = [
        7u8.into(),
        7i8.into(),
        7u16.into(),
        7i16.into(),
        7u32.into(),
        7i32.into(),
        7u64.into(),
        7i64.into(),
    ];
    for value in sevens {
        assert_eq!(get::<u64>(value.clone()), Some(7));
        assert_eq!(get::<u32>(value.clone()), Some(7));
        assert_eq!(get::<usize>(value.clone()), Some(7));
        assert_eq!(get::<i64>(value.clone()), Some(7));
        assert_eq!(get::<OneOrMany<u64>>(value.clone()), Some(OneOrMany::One(7)));
        assert_eq!(get::<f32>(value.clone()), None);
        assert_eq!(get::<bool>(value), None);
    }
    assert_eq!(get::<u64>(u64::MAX.into()), Some(u64::MAX));
    assert_eq!(get::<i64>(u64::MAX.into()), None);
    assert_eq!(get::<i64>(i64::MIN.into()), Some(i64::MIN));
    assert_eq!(get::<u64>((-1i8).into()), None);
    assert_eq!(get::<u32>((1u64 << 32).into()), None);
    assert_eq!(get::<u64>(true.into()), None);
    assert_eq!(get::<u64>(7.0f32.into()), None);
}

#[test]
fn floats_bools_and_arrays() {
    assert_eq!(get::<f32>(2.5f32.into()), Some(2.5));
    assert_eq!(get::<f32>(1e-5f64.into()), Some(1e-5));
    assert_eq!(get::<bool>(true.into()), Some(true));
    assert_eq!(get::<bool>(1u8.into()), None);
    assert_eq!(get::<Vec<i64>>(Array::U32(vec![1, u32::MAX]).into()), Some(vec![1, u32::MAX.into()]));
    assert_eq!(get::<Vec<i64>>(Array::I8(vec![-1, 2]).into()), Some(vec![-1, 2]));
    assert_eq!(get::<Vec<i64>>(Array::U64(vec![u64::MAX]).into()), None);
    assert_eq!(get::<Vec<i64>>(Array::F32(vec![1.0]).into()), None);
    assert_eq!(get::<Vec<i64>>(1u32.into()), None);
}

/// `attention.indexer.types` occurs as bools and integers, as array and scalar.
#[test]
fn flags_for_all_layers_or_for_each() {
    let flags = |value| get::<OneOrMany<bool>>(value);
    let many = |v: &[bool]| Some(OneOrMany::Many(v.to_vec()));
    assert_eq!(flags(true.into()), Some(OneOrMany::One(true)));
    assert_eq!(flags(0i32.into()), Some(OneOrMany::One(false)));
    assert_eq!(flags(Array::Bool(vec![true, false]).into()), many(&[true, false]));
    assert_eq!(flags(Array::I32(vec![0, 1, 1]).into()), many(&[false, true, true]));
    assert_eq!(flags(Array::U8(vec![]).into()), many(&[]));
    assert_eq!(flags(Array::I32(vec![0, 2]).into()), None);
    assert_eq!(flags(Array::F32(vec![1.0]).into()), None);
    assert_eq!(flags("true".into()), None);
    assert_eq!(get::<OneOrMany<u64>>(Array::U16(vec![5, 6]).into()).unwrap().at(1), Some(6));
    assert_eq!(get::<OneOrMany<u64>>(Array::U16(vec![5, 6]).into()).unwrap().at(2), None);
    assert_eq!(get::<OneOrMany<u64>>(5u16.into()).unwrap().at(77), Some(5));
    assert_eq!(get::<OneOrMany<u64>>(Array::I16(vec![5, -6]).into()), None);
}

#[test]
fn a_wrong_type_names_file_key_and_both_types() {
    let gguf = open(vec![
        ("a", "x".into()),
        ("b", Array::F64(vec![1.0; 3]).into()),
        ("c", (-1i32).into()),
        ("d", "y\n".repeat(100).into()),
    ]);
    let m = gguf.metadata();
    let text = |e: Error| e.to_string();
    assert_eq!(
        text(m.get::<u64>("a").unwrap_err()),
        "model.gguf: key a: expected an integer of 0 or more, found string \"x\""
    );
    assert_eq!(
        text(m.require::<&StrArray>("b").unwrap_err()),
        "model.gguf: key b: expected an array of strings, found array of 3 f64"
    );
    assert_eq!(
        text(m.require::<u32>("c").unwrap_err()),
        "model.gguf: key c: expected an integer from 0 to 2^32 - 1, found i32 -1"
    );
    let long = text(m.require::<bool>("d").unwrap_err());
    assert!(long.len() < 200 && !long.contains('\n'), "{long}");
    assert_eq!(text(m.require::<&str>("e").unwrap_err()), "model.gguf: key e: missing, expected a string");
    assert_eq!(m.get::<&str>("e").unwrap(), None);
    assert_eq!(m.require::<&str>("a").unwrap(), "x");
}

#[test]
fn order_is_kept_and_json_is_a_map() {
    let gguf = open(vec![
        ("z", 1u8.into()),
        ("a", Array::Str(["", "é", "x"].iter().collect()).into()),
        ("m", Array::Bool(vec![true]).into()),
    ]);
    let json = serde_json::to_string(gguf.metadata()).unwrap();
    assert_eq!(json, r#"{"z":1,"a":["","é","x"],"m":[true]}"#);
    let strings = gguf.metadata().require::<&StrArray>("a").unwrap();
    assert_eq!(strings.iter().collect::<Vec<_>>(), ["", "é", "x"]);
    assert_eq!((strings.get(0), strings.get(1), strings.get(3)), (Some(""), Some("é"), None));
}

#[test]
fn values_are_shown_in_one_short_line() {
    let show = |v: Value| v.to_string();
    assert_eq!(show(Array::U32((0..9).collect()).into()), "[0, 1, 2, 3, 4, 5, ... 9 u32]");
    assert_eq!(show(Array::Str(["a\n"].iter().collect()).into()), r#"["a\n"]"#);
    assert_eq!(show("é".repeat(61).into()), format!("\"{}\"... (122 bytes)", "é".repeat(60)));
}

/// Shards are compared key by key, and NaN differs from itself.
#[test]
fn not_a_number_is_a_value() {
    let gguf = open(vec![("x", f32::NAN.into()), ("y", Array::F64(vec![1.0, f64::NAN]).into())]);
    assert!(gguf.metadata().require::<f32>("x").unwrap().is_nan());
}
