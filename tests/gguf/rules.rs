//! Rules of the format that the damaged files do not cover: types by id, names, flags, extents, lengths.

use glm5::gguf::{Array, Gguf, Value, ValueType, Writer};
use glm5::quant::GgmlType;

/// Opens the file of `writer` after the one occurrence of `from` became `to`, and gives the error.
fn patched(writer: &Writer, from: &[u8], to: &[u8]) -> Result<Gguf, String> {
    let mut bytes = writer.to_bytes().unwrap();
    let at: Vec<_> = (0..bytes.len()).filter(|&i| bytes[i..].starts_with(from)).collect();
    assert_eq!(at.len(), 1, "{from:?} must occur once");
    bytes.splice(at[0]..at[0] + from.len(), to.iter().copied());
    Gguf::from_bytes("file", bytes.into()).map_err(|e| e.to_string())
}

fn assert_refused(result: Result<Gguf, String>, parts: &[&str]) {
    let text = result.expect_err("a refusal");
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

/// One tensor of 64 values whose type can be found by its extent and offset.
fn with_type(id: i32) -> Result<Gguf, String> {
    let mut writer = Writer::new();
    writer.hole("t", GgmlType::I32, &[64, 1]).unwrap();
    let info = |id: i32| [&1u64.to_le_bytes()[..], &id.to_le_bytes(), &0u64.to_le_bytes()].concat();
    patched(&writer, &info(26), &info(id))
}

#[test]
fn every_type_id_is_known_removed_foreign_or_unknown() {
    for id in -2..400 {
        let result = with_type(id);
        let known = u32::try_from(id).ok().and_then(GgmlType::from_id);
        match (known, id) {
            (Some(ty), _) if ty.row_bytes(64).is_some() => match result {
                // The hole has room for 4 bytes per value; an F64 needs more.
                Ok(gguf) => assert_eq!(gguf.tensors()[0].ty, ty),
                Err(text) => {
                    assert!(ty.row_bytes(64).unwrap() > 256 && text.contains("past the end"), "{text}")
                }
            },
            (Some(ty), _) => assert_refused(result, &["tensor t", "ne0 = 64", ty.name()]),
            (None, 4 | 5 | 31..=33 | 36..=38) => {
                assert_refused(result, &[&format!("type {id} ("), "was removed"])
            }
            (None, 97..) => assert_refused(result, &["tensor t", &format!("type {id} is"), "ik_llama.cpp"]),
            (None, _) => assert_refused(result, &["tensor t", &format!("type {id} is unknown")]),
        }
    }
}

/// The block sizes of ggml-common.h in bits per value, written down a second time.
#[test]
fn types_have_the_documented_sizes() {
    use GgmlType::*;
    let expected: &[(GgmlType, f64)] = &[
        (F64, 64.0),
        (F32, 32.0),
        (F16, 16.0),
        (BF16, 16.0),
        (I8, 8.0),
        (I16, 16.0),
        (I32, 32.0),
        (I64, 64.0),
        (Q4_0, 4.5),
        (Q4_1, 5.0),
        (Q5_0, 5.5),
        (Q5_1, 6.0),
        (Q8_0, 8.5),
        (Q8_1, 9.0),
        (Q2_K, 2.625),
        (Q3_K, 3.4375),
        (Q4_K, 4.5),
        (Q5_K, 5.5),
        (Q6_K, 6.5625),
        (Q8_K, 9.125),
        (IQ1_S, 1.5625),
        (IQ1_M, 1.75),
        (IQ2_XXS, 2.0625),
        (IQ2_XS, 2.3125),
        (IQ2_S, 2.5625),
        (IQ3_XXS, 3.0625),
        (IQ3_S, 3.4375),
        (IQ4_NL, 4.5),
        (IQ4_XS, 4.25),
        (TQ1_0, 1.6875),
        (TQ2_0, 2.0625),
        (MXFP4, 4.25),
        (NVFP4, 4.5),
        (Q1_0, 1.125),
        (Q2_0, 2.25),
    ];
    assert_eq!(expected.len(), GgmlType::ALL.len());
    for &(ty, bits) in expected {
        assert_eq!(ty.block_bytes() as f64 * 8.0 / ty.block_elems() as f64, bits, "{ty}");
    }
}

#[test]
fn names_with_control_characters_and_empty_keys_are_refused() {
    let mut writer = Writer::new();
    writer.key("some.key", 1u8);
    writer.hole("some.tensor", GgmlType::F32, &[1]).unwrap();
    assert!(patched(&writer, b"some.key", "söme.ke".as_bytes()).is_ok());
    for bad in [b"so\ne.key", b"so\x1be.key", b"so\0e.key"] {
        assert_refused(patched(&writer, b"some.key", bad), &["header: key 1 of 1", "control character"]);
    }
    let bad = b"some\x07tensor";
    assert_refused(patched(&writer, b"some.tensor", bad), &["header: tensor 1 of 1", "control character"]);
    assert_refused(patched(&writer, b"some.tensor", b"some\xfftensor"), &["tensor 1 of 1", "not UTF-8"]);
    let key = |s: &str| [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat();
    assert_refused(patched(&writer, &key("some.key"), &key("")), &["key 1 of 1", "a key of 0 bytes"]);
    let long = "x".repeat(1 << 16);
    assert_refused(patched(&writer, &key("some.key"), &key(&long)), &["key 1 of 1", "a key of 65536 bytes"]);
}

#[test]
fn flags_are_zero_or_one() {
    let mut writer = Writer::new();
    writer.key("flag", true);
    writer.key("flags", Array::Bool(vec![true; 3]));
    assert_refused(
        patched(&writer, b"flag\x07\0\0\0\x01", b"flag\x07\0\0\0\x02"),
        &["key flag: bool byte 2"],
    );
    assert_refused(patched(&writer, &[1, 1, 1], &[1, 1, 255]), &["key flags: bool byte 255"]);
    let json = |gguf: Gguf| serde_json::to_string(gguf.metadata()).unwrap();
    assert_eq!(
        json(patched(&writer, &[1, 1, 1], &[1, 0, 1]).unwrap()),
        r#"{"flag":true,"flags":[true,false,true]}"#
    );
}

#[test]
fn a_zero_extent_hides_no_overflow() {
    let mut writer = Writer::new();
    writer.hole("t", GgmlType::F32, &[0, 7, 7, 7]).unwrap();
    let dims = |d: [u64; 4]| d.map(u64::to_le_bytes).concat();
    let patch = |d| patched(&writer, &dims([0, 7, 7, 7]), &dims(d));
    assert_eq!(patch([0, 1 << 30, 1 << 32, 1]).unwrap().tensors()[0].bytes, 0);
    assert_refused(patch([0, 1 << 40, 1 << 40, 1]), &["tensor t", "overflows 64 bits"]);
    assert_refused(patch([1 << 63, 0, 1, 1]), &["tensor t", "ne0 is -9223372036854775808"]);
    // 2^62 values fit 63 bits, their bytes do not fit 64.
    assert_refused(patch([1 << 62, 1, 1, 1]), &["tensor t", "the size of F32", "overflows 64 bits"]);
}

#[test]
fn integers_of_any_type_give_the_alignment() {
    for value in
        [Value::U8(64), Value::I16(64), Value::U32(64), Value::I32(64), Value::U64(64), Value::I64(64)]
    {
        let mut writer = Writer::new();
        writer.key("general.alignment", value);
        assert_eq!(
            Gguf::from_bytes("f", writer.to_bytes().unwrap().into()).unwrap().shards()[0].alignment(),
            64
        );
    }
    let mut writer = Writer::new();
    writer.key("general.alignment", 1u64 << 32);
    assert!(Gguf::from_bytes("f", writer.to_bytes().unwrap().into()).is_err());
}

#[test]
fn value_types_have_the_ids_of_the_format() {
    assert_eq!(ValueType::ALL.iter().map(|t| t.id()).collect::<Vec<_>>(), (0..13).collect::<Vec<_>>());
    let names: Vec<_> = (0..13).map(|i| ValueType::from_id(i).unwrap().name()).collect();
    let expected = "u8 i8 u16 i16 u32 i32 f32 bool string array u64 i64 f64";
    assert_eq!(names.join(" "), expected);
    assert_eq!(ValueType::from_id(13), None);
}
