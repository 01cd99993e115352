//! The bytes of every tensor by two paths: through the reader and through the ledger's weights, and straight from the file
//! at the offsets of `models/manifest.json`, which another program wrote.

use std::io::{Read, Seek, SeekFrom};

use serde_json::Value;

use crate::common::{self, MODELS};

#[test]
fn every_tensor_has_the_bytes_of_the_manifest() {
    let manifest = std::fs::read(common::path("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    for name in MODELS {
        let gguf = common::gguf(name);
        let mut file = std::fs::File::open(common::path(&format!("{name}.gguf"))).unwrap();
        let table = manifest[name]["table"].as_array().unwrap();
        assert_eq!((table.len(), gguf.tensors().len()), (table.len(), table.len()));
        assert_eq!(manifest[name]["tensors"], table.len());
        for row in table {
            let [tensor, ty, ne, offset, bytes, crc] = &row.as_array().unwrap()[..] else { panic!("{row}") };
            let t = gguf.tensor(tensor.as_str().unwrap()).unwrap_or_else(|| panic!("no {tensor}"));
            assert_eq!(t.ty.name(), ty, "{tensor}");
            assert_eq!(serde_json::to_value(t.ne()).unwrap(), *ne, "{tensor}");
            let own = gguf.data(t).unwrap();
            let mut direct = vec![0; bytes.as_u64().unwrap() as usize];
            file.seek(SeekFrom::Start(offset.as_u64().unwrap())).unwrap();
            file.read_exact(&mut direct).unwrap();
            assert!(own[..] == direct[..], "{tensor}: other bytes");
            assert_eq!(format!("{:08x}", crc32fast::hash(&own)), crc.as_str().unwrap(), "{tensor}");
        }
        let types = manifest[name]["types"].as_object().unwrap();
        for t in gguf.types() {
            assert_eq!(types[t.ty.name()], t.tensors, "{}", t.ty);
        }
        assert_eq!(types.len(), gguf.types().len());
    }
}
