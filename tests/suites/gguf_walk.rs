//! Looks at everything that an opened file offers. Driven by property tests and by the fuzz target.

use std::fmt::Write;
use std::hint::black_box;
use std::path::PathBuf;

use glm5::Result;
use glm5::gguf::{Cut, Dims, Gguf, Ledger, Shard, Value};

/// Opens the shards of a set and visits every value, every byte of every tensor and every legal cut. Whatever the bytes
/// are, this may fail to open but must not panic.
pub fn walk(shards: &[&[u8]]) -> Result<()> {
    let named = |(i, bytes): (usize, &&[u8])| (PathBuf::from(format!("shard {i}")), bytes.to_vec().into());
    let gguf = Gguf::from_shards(shards.iter().enumerate().map(named))?;
    let mut text = String::new();
    for (key, value) in gguf.metadata().iter() {
        assert_eq!(gguf.metadata().value(key).map(Value::value_type), Some(value.value_type()));
        write!(text, "{key} {value}").unwrap();
        if let Value::Array(array) = value {
            (0..array.len()).for_each(|i| _ = black_box(array.get(i).expect("within the array")));
            assert_eq!(array.get(array.len()), None);
        }
    }
    for tensor in gguf.tensors() {
        let data = gguf.data(tensor).expect("checked when it was opened");
        assert_eq!(data.len() as u64, tensor.bytes);
        assert!(tensor.offset + tensor.bytes <= gguf.shards()[tensor.shard].size());
        black_box(data.iter().fold(0u8, |x, b| x ^ b));
        assert_eq!(gguf.tensor(&tensor.name), Some(tensor));
        write!(text, "{} {} {:?}", tensor.name, tensor.ty, tensor.ne()).unwrap();
    }
    black_box(text);
    for cut in [Cut::None, Cut::Rows { unit: 1 }, Cut::Cols { unit: 1 }, Cut::Slabs] {
        let mut ledger = Ledger::new(&gguf);
        ledger.idle_where("four extents", |t| t.dims[3] != 1);
        for t in gguf.tensors().iter().filter(|t| t.dims[3] == 1) {
            let [cols, rows, slabs, _] = t.dims.map(|d| d as usize);
            // An illegal cut is an error of its own; the tensor counts as taken.
            _ = black_box(ledger.take(&t.name, Dims { slabs, rows, cols }, cut, Shard::new(1, 2)?));
        }
        ledger.finish()?;
    }
    Ok(())
}
