//! What the tests of the model share: the two small models, texts, one-shot passes, distances, rewritten files.
#![allow(dead_code)] // each test that includes this module uses its own part

use std::path::PathBuf;
use std::sync::OnceLock;

use glm5::gguf::{Gguf, TensorInfo, Value, Writer};
use glm5::model::{Attention, Batch, Cache, LoadOptions, LogitRows, Model, SeqId};
use glm5::quant::{GgmlType, SharedBytes};
use glm5::tensor::{CacheType, Device, Tensor};
use proptest::prelude::ProptestConfig;
use proptest::test_runner::FileFailurePersistence;
use safetensors::SafeTensors;

pub const MODELS: [&str; 2] = ["nano-q4_k_m", "nano-shared-ud"];

/// `indexer.top_k` of both models.
pub const TOP_K: usize = 64;
pub const VOCAB: u32 = 4096;

/// `cases` cases, or as many as the environment variable `PROPTEST_CASES` says.
pub fn config(cases: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(cases);
    let persistence = FileFailurePersistence::WithSource("regressions");
    ProptestConfig { cases, failure_persistence: Some(Box::new(persistence)), ..ProptestConfig::default() }
}

pub fn path(file: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "models", file].iter().collect()
}

/// One pool for all tests, so that their number does not multiply the threads.
pub fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| Device::cpu(Some(2)).unwrap())
}

pub fn gguf(model: &str) -> Gguf {
    Gguf::open(path(&format!("{model}.gguf"))).unwrap()
}

pub fn open(model: &str) -> Model {
    open_with(model, &LoadOptions::default())
}

pub fn open_with(model: &str, options: &LoadOptions) -> Model {
    Model::open(path(&format!("{model}.gguf")), device(), options).unwrap()
}

pub fn dense() -> LoadOptions {
    LoadOptions { attention: Attention::Dense, ..LoadOptions::default() }
}

/// A model from a file in memory.
pub fn load(gguf: &Gguf) -> glm5::Result<Model> {
    Model::load(gguf, device(), &LoadOptions::default(), &mut |_, _| {})
}

/// Token ids of a golden prompt.
pub fn prompt(model: &str, name: &str) -> Vec<u32> {
    let bytes = std::fs::read(path(&format!("goldens/{model}.safetensors"))).unwrap();
    let all = SafeTensors::deserialize(&bytes).unwrap();
    let data = all.tensor(&format!("{name}.ids")).unwrap().data().to_vec();
    data.chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
}

pub fn rows(t: &Tensor) -> Vec<Vec<f32>> {
    t.cpu().unwrap().chunks(t.cols()).map(<[f32]>::to_vec).collect()
}

/// Logits of all tokens, in one pass over an empty cache.
pub fn one_shot(model: &mut Model, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut cache = model.new_cache(tokens.len(), CacheType::F32).unwrap();
    let seq = cache.new_sequence();
    append(model, &mut cache, seq, tokens)
}

/// Logits of all `tokens`, appended to a sequence.
pub fn append(model: &mut Model, cache: &mut Cache, seq: SeqId, tokens: &[u32]) -> Vec<Vec<f32>> {
    rows(model.forward(&Batch::one(seq, tokens, LogitRows::ALL), cache).unwrap())
}

/// Relative L2 distance.
pub fn distance(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |x: f64| x * x;
    let diff: f64 = got.iter().zip(want).map(|(g, w)| square(*g as f64 - *w as f64)).sum();
    let norm: f64 = want.iter().map(|w| square(*w as f64)).sum();
    let d = (diff / norm).sqrt();
    if d.is_nan() { f64::INFINITY } else { d }
}

/// The largest distance of corresponding rows.
pub fn worst(got: &[Vec<f32>], want: &[Vec<f32>]) -> f64 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(g, w)| distance(g, w)).fold(0.0, f64::max)
}

pub fn argmax(row: &[f32]) -> usize {
    (0..row.len()).reduce(|a, b| if row[b] > row[a] { b } else { a }).unwrap()
}

/// What to write in place of a tensor.
pub enum Edit {
    Keep,
    Drop,
    /// Other bytes of the same type and extents.
    Data(Vec<u8>),
    /// Another tensor of the same name.
    Other(GgmlType, Vec<u64>, Vec<u8>),
}

/// A copy of a file with other keys and tensors, and further tensors behind.
pub fn rewrite(
    gguf: &Gguf,
    keys: impl FnOnce(&mut Vec<(String, Value)>),
    mut edit: impl FnMut(&TensorInfo) -> Edit,
    more: impl FnOnce(&mut Writer),
) -> Gguf {
    let mut writer = Writer::new();
    let mut own: Vec<(String, Value)> =
        gguf.metadata().iter().map(|(k, v)| (k.to_owned(), v.clone())).collect();
    keys(&mut own);
    own.into_iter().for_each(|(k, v)| writer.key(k, v));
    for t in gguf.tensors() {
        let (ty, ne, data): (_, _, SharedBytes) = match edit(t) {
            Edit::Keep => (t.ty, t.ne().to_vec(), gguf.data(t).unwrap()),
            Edit::Drop => continue,
            Edit::Data(bytes) => (t.ty, t.ne().to_vec(), bytes.into()),
            Edit::Other(ty, ne, bytes) => (ty, ne, bytes.into()),
        };
        writer.tensor(&t.name, ty, &ne, data).unwrap();
    }
    more(&mut writer);
    Gguf::from_bytes("rewritten.gguf", writer.to_bytes().unwrap().into()).unwrap()
}

/// The f32 values of a tensor of any type.
pub fn values(gguf: &Gguf, name: &str) -> Vec<f32> {
    let t = gguf.tensor(name).unwrap_or_else(|| panic!("no {name}"));
    let mut out = vec![0.0; t.elements() as usize];
    glm5::quant::dequantize(t.ty, &gguf.data(t).unwrap(), &mut out).unwrap();
    out
}

pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
