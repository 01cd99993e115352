//! Whatever the writer writes, the reader reads back: all value types, all tensor types, any alignment, any split.

use glm5::Error;
use glm5::gguf::{Array, Gguf, StrArray, Value, Writer};
use glm5::quant::GgmlType;
use proptest::collection::vec;
use proptest::prelude::*;

pub fn any_value() -> impl Strategy<Value = Value> {
    macro_rules! both {
        ($($t:ty => $v:ident),*) => { prop_oneof![
            $(any::<$t>().prop_map(Value::$v), vec(any::<$t>(), 0..5).prop_map(|v| Value::Array(Array::$v(v)))),*,
            ".{0,8}".prop_map(Value::Str),
            vec(".{0,4}", 0..5).prop_map(|v| Value::Array(Array::Str(v.iter().collect::<StrArray>()))),
        ] };
    }
    // Two halves: a strategy has at most ten alternatives.
    prop_oneof![
        both!(u8 => U8, i8 => I8, u16 => U16, i16 => I16),
        both!(u32 => U32, i32 => I32, f32 => F32, bool => Bool),
        both!(u64 => U64, i64 => I64, f64 => F64),
    ]
}

#[derive(Debug, Clone)]
pub struct Tensor {
    pub ty: GgmlType,
    pub ne: Vec<u64>,
    pub data: Vec<u8>,
}

pub fn any_tensor() -> impl Strategy<Value = Tensor> {
    let ty = prop::sample::select(GgmlType::ALL);
    (ty, 0u64..3, vec(0u64..4, 0..4), any::<u8>()).prop_map(|(ty, blocks, rest, seed)| {
        let ne = [vec![blocks * ty.block_elems() as u64], rest].concat();
        let rows: u64 = ne[1..].iter().product();
        let bytes = ty.row_bytes(ne[0]).unwrap() * rows;
        let data = (0..bytes).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect();
        Tensor { ty, ne, data }
    })
}

/// A valid file with distinct names.
pub fn any_writer() -> impl Strategy<Value = (Writer, Vec<Value>, Vec<Tensor>)> {
    let alignment = prop::sample::select(vec![1u32, 8, 32, 64, 4096]);
    (2u32..4, alignment, vec(any_value(), 0..8), vec(any_tensor(), 0..6)).prop_map(
        |(version, align, values, tensors)| {
            let mut writer = Writer::new().version(version).alignment(align).unwrap();
            values.iter().enumerate().for_each(|(i, v)| writer.key(format!("key.{i}"), v.clone()));
            for (i, t) in tensors.iter().enumerate() {
                let (name, data) = (format!("tensor.{i}"), t.data.clone());
                match i % 2 {
                    0 => writer.tensor(name, t.ty, &t.ne, data).unwrap(),
                    _ => writer.made(name, t.ty, &t.ne, move |bytes| bytes.copy_from_slice(&data)).unwrap(),
                }
            }
            (writer, values, tensors)
        },
    )
}

/// Equal with NaN equal to itself: compared as written.
fn same(a: &Value, b: &Value) -> bool {
    format!("{a:?}") == format!("{b:?}")
}

fn check(gguf: &Gguf, values: &[Value], tensors: &[Tensor]) -> Result<(), TestCaseError> {
    for (i, value) in values.iter().enumerate() {
        let read = gguf.metadata().value(&format!("key.{i}")).unwrap();
        prop_assert!(same(read, value), "{read:?} for {value:?}");
    }
    prop_assert_eq!(gguf.tensors().len(), tensors.len());
    for (i, (info, t)) in gguf.tensors().iter().zip(tensors).enumerate() {
        prop_assert_eq!(&info.name, &format!("tensor.{i}"));
        prop_assert_eq!((info.ty, info.ne(), info.bytes), (t.ty, &t.ne[..], t.data.len() as u64));
        prop_assert_eq!(&*gguf.data(info).unwrap(), &t.data[..]);
        prop_assert!(info.offset.is_multiple_of(gguf.shards()[info.shard].alignment()));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_written_is_read((writer, values, tensors) in any_writer()) {
        let gguf = Gguf::from_bytes("memory", writer.to_bytes().unwrap().into()).unwrap();
        check(&gguf, &values, &tensors)?;
    }

    #[test]
    fn a_file_need_not_exist((writer, values, tensors) in any_writer()) {
        let read = Gguf::from_bytes("memory", writer.to_bytes().unwrap().into()).unwrap();
        let gguf = writer.to_gguf("memory").unwrap();
        check(&gguf, &values, &tensors)?;
        prop_assert_eq!(gguf.tensors(), read.tensors());
        prop_assert_eq!((gguf.file_bytes(), gguf.tensor_bytes(), gguf.path()), (read.file_bytes(), read.tensor_bytes(), read.path()));
        let of = |gguf: &Gguf| (gguf.shards()[0].version(), gguf.shards()[0].alignment(), gguf.shards()[0].n_tensors());
        prop_assert_eq!(of(&gguf), of(&read));
    }

    #[test]
    fn a_split_changes_nothing((writer, values, tensors) in any_writer(), cuts in vec(0usize..6, 0..4)) {
        let mut ends: Vec<_> = cuts.iter().map(|c| c % (tensors.len() + 1)).collect();
        ends.push(tensors.len());
        ends.sort_unstable();
        let starts = [&[0], &ends[..ends.len() - 1]].concat();
        let plan: Vec<_> = ends.iter().zip(starts).map(|(end, start)| end - start).collect();
        let gguf = Gguf::from_shards(writer.split_to_bytes("dir/set", &plan).unwrap()).unwrap();
        check(&gguf, &values, &tensors)?;
        prop_assert_eq!(gguf.shards().len(), plan.len());
    }
}

#[test]
fn a_hole_reads_as_zeros_in_memory_and_on_disk() {
    let dir = crate::synthetic::TempDir::new();
    let mut writer = Writer::new();
    writer.tensor("a", GgmlType::I8, &[3], vec![1, 2, 3]).unwrap();
    writer.hole("b", GgmlType::Q8_0, &[64, 2]).unwrap();
    writer.tensor("c", GgmlType::I8, &[1], vec![9]).unwrap();
    let bytes = writer.to_bytes().unwrap();
    let path = dir.path().join("holes.gguf");
    writer.write(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    let gguf = Gguf::open(path).unwrap();
    let data = |name| gguf.data(gguf.tensor(name).unwrap()).unwrap().to_vec();
    assert_eq!((data("a"), data("b"), data("c")), (vec![1, 2, 3], vec![0; 136], vec![9]));
    let never_written = writer.to_gguf("holes").unwrap();
    assert_eq!(never_written.data(&never_written.tensors()[1]).unwrap()[..], [0; 136]);
    // A tensor of another file is none of this one.
    assert!(
        never_written
            .data(&glm5::gguf::TensorInfo { offset: u64::MAX, ..gguf.tensors()[0].clone() })
            .is_err()
    );
}

#[test]
fn the_writer_refuses_tensors_that_no_reader_takes() {
    let refused = |result: glm5::Result<()>, part: &str| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(part), "no {part:?} in {text}");
    };
    let mut w = Writer::new();
    refused(w.tensor("t", GgmlType::F32, &[2], vec![0; 7]), "8 bytes for F32 [2] of t, got 7 bytes");
    refused(w.hole("t", GgmlType::Q4_K, &[192]), "ne0 = 192 is not a multiple");
    refused(w.hole("t", GgmlType::F32, &[1, 1, 1, 1, 1]), "4 at most");
    refused(w.hole("t", GgmlType::F32, &[1 << 40, 1 << 40]), "overflows");
    refused(w.hole("x".repeat(64), GgmlType::F32, &[1]), "63 bytes at most");
    w.hole("t", GgmlType::F32, &[1]).unwrap();
    refused(w.hole("t", GgmlType::F32, &[1]), "used once");
    refused(w.split_to_bytes("s", &[2]).map(|_| ()), "hold 1 tensors");
    refused(w.split_to_bytes("s", &[]).map(|_| ()), "hold 1 tensors");
    assert!(matches!(Writer::new().alignment(24), Err(Error::Argument { .. })));
    w.key("", 1u32);
    assert!(matches!(w.to_gguf("x"), Err(Error::File { .. })));
    assert!(matches!(w.write("no/such/directory/x.gguf"), Err(Error::Io { .. })));
}
