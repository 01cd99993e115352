//! Headers of full-size GLM-5 files: all tensors with their real names, extents and types, and the metadata. The data is
//! a hole, so that 435 GiB take a few megabytes of disk.
#![allow(dead_code)] // each test that includes this module uses its own part

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use glm5::gguf::{Array, StrArray, Value, Writer};
use glm5::quant::GgmlType::{self, F32, Q4_K, Q5_K, Q6_K, Q8_0};

/// The three kinds of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// GLM-5 and 5.1: an indexer in every block. 1809 tensors.
    Glm5,
    /// GLM-5.2 and 5.3: indexers in the 21 full layers and block 78 only, the pattern as `attention.indexer.types`.
    /// 1524 tensors.
    Glm52Straight,
    /// GLM-5.2 and 5.3 with copied indexers in the 57 shared layers and no pattern in the file. 1809 tensors.
    Glm52Copies,
}

pub const STYLES: [Style; 3] = [Style::Glm5, Style::Glm52Straight, Style::Glm52Copies];

pub const N_BLOCKS: usize = 79;
pub const N_TRUNK: usize = 78;
pub const N_DENSE: usize = 3;
pub const N_TOKENS: usize = 154_880;
pub const N_MERGES: usize = 321_649;

/// A tensor of a file to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub ty: GgmlType,
    pub ne: Vec<u64>,
}

impl Entry {
    pub fn bytes(&self) -> u64 {
        self.ty.row_bytes(self.ne[0]).unwrap() * self.ne[1..].iter().product::<u64>()
    }
}

/// Whether trunk layer `i` of GLM-5.2 selects keys itself: 0, 1, 2, 6, 10, ..., 74.
pub fn is_full_52(i: usize) -> bool {
    i < 3 || (i - 2).is_multiple_of(4)
}

/// All tensors in file order, with the mix of types of UD-Q4_K_XL. How many tensors have each type is known of the
/// published files; *which* blocks have the few better expert types is chosen here.
pub fn tensors(style: Style) -> Vec<Entry> {
    let mut all = Vec::new();
    let mut add = |name: String, ty, ne: &[u64]| all.push(Entry { name, ty, ne: ne.to_vec() });
    add("token_embd.weight".into(), Q8_0, &[6144, 154_880]);
    for i in 0..N_BLOCKS {
        let mut add = |name: &str, ty, ne: &[u64]| add(format!("blk.{i}.{name}"), ty, ne);
        add("attn_norm.weight", F32, &[6144]);
        add("attn_q_a.weight", Q8_0, &[6144, 2048]);
        add("attn_q_a_norm.weight", F32, &[2048]);
        add("attn_q_b.weight", Q8_0, &[2048, 16384]);
        add("attn_kv_a_mqa.weight", Q8_0, &[6144, 576]);
        add("attn_kv_a_norm.weight", F32, &[512]);
        add("attn_k_b.weight", Q8_0, &[192, 512, 64]);
        add("attn_v_b.weight", Q8_0, &[512, 256, 64]);
        add("attn_output.weight", Q8_0, &[16384, 6144]);
        if style != Style::Glm52Straight || i >= N_TRUNK || is_full_52(i) {
            add("indexer.attn_q_b.weight", Q8_0, &[2048, 4096]);
            add("indexer.attn_k.weight", Q8_0, &[6144, 128]);
            add("indexer.k_norm.weight", F32, &[128]);
            add("indexer.k_norm.bias", F32, &[128]);
            add("indexer.proj.weight", F32, &[6144, 32]);
        }
        add("ffn_norm.weight", F32, &[6144]);
        if i < N_DENSE {
            add("ffn_gate.weight", Q8_0, &[6144, 12288]);
            add("ffn_up.weight", Q8_0, &[6144, 12288]);
            add("ffn_down.weight", Q8_0, &[12288, 6144]);
        } else {
            let gate_up = if i == 77 { Q5_K } else { Q4_K };
            let down = if i < 7 { Q6_K } else { Q5_K };
            add("ffn_gate_inp.weight", F32, &[6144, 256]);
            add("exp_probs_b.bias", F32, &[256]);
            add("ffn_gate_exps.weight", gate_up, &[6144, 2048, 256]);
            add("ffn_up_exps.weight", gate_up, &[6144, 2048, 256]);
            add("ffn_down_exps.weight", down, &[2048, 6144, 256]);
            add("ffn_gate_shexp.weight", Q8_0, &[6144, 2048]);
            add("ffn_up_shexp.weight", Q8_0, &[6144, 2048]);
            add("ffn_down_shexp.weight", Q8_0, &[2048, 6144]);
        }
        if i >= N_TRUNK {
            add("nextn.eh_proj.weight", Q8_0, &[12288, 6144]);
            add("nextn.enorm.weight", F32, &[6144]);
            add("nextn.hnorm.weight", F32, &[6144]);
            add("nextn.shared_head_norm.weight", F32, &[6144]);
        }
    }
    add("output_norm.weight".into(), F32, &[6144]);
    add("output.weight".into(), Q8_0, &[6144, 154_880]);
    all
}

/// The hyperparameters, with the types that llama.cpp's converter writes.
pub fn keys(style: Style) -> Vec<(String, Value)> {
    let mut keys: Vec<(String, Value)> = vec![("general.architecture".into(), "glm-dsa".into())];
    let (theta, context) = match style {
        Style::Glm5 => (1e6f32, 202_752u32),
        _ => (8e6, 1_048_576),
    };
    let mut key = |name: &str, value: Value| keys.push((format!("glm-dsa.{name}"), value));
    for (name, value) in [
        ("block_count", N_BLOCKS as u32),
        ("nextn_predict_layers", 1),
        ("context_length", context),
        ("embedding_length", 6144),
        ("vocab_size", N_TOKENS as u32),
        ("feed_forward_length", 12288),
        ("leading_dense_block_count", N_DENSE as u32),
        ("expert_feed_forward_length", 2048),
        ("expert_count", 256),
        ("expert_used_count", 8),
        ("expert_shared_count", 1),
        ("expert_group_count", 1),
        ("expert_group_used_count", 1),
        ("expert_gating_func", 2),
        ("attention.head_count", 64),
        ("attention.head_count_kv", 1),
        ("attention.q_lora_rank", 2048),
        ("attention.kv_lora_rank", 512),
        ("attention.key_length", 576),
        ("attention.value_length", 512),
        ("attention.key_length_mla", 256),
        ("attention.value_length_mla", 256),
        ("rope.dimension_count", 64),
        ("attention.indexer.head_count", 32),
        ("attention.indexer.key_length", 128),
        ("attention.indexer.top_k", 2048),
    ] {
        key(name, value.into());
    }
    key("expert_weights_norm", true.into());
    key("expert_weights_scale", 2.5f32.into());
    key("attention.layer_norm_rms_epsilon", 1e-5f32.into());
    key("rope.freq_base", theta.into());
    if style == Style::Glm52Straight {
        let full = (0..N_TRUNK).map(is_full_52).collect();
        key("attention.indexer.types", Array::Bool(full).into());
    }
    keys.push(("general.file_type".into(), 15u32.into()));
    keys.push(("general.quantization_version".into(), 2u32.into()));
    keys
}

/// A vocabulary of full size and the real special ids, with invented entries.
pub fn tokenizer_keys() -> Vec<(String, Value)> {
    let tokens: StrArray = (0..N_TOKENS).map(|i| format!("token{i}")).collect();
    let merges: StrArray = (0..N_MERGES).map(|i| format!("left{i} right{i}")).collect();
    let types = (0..N_TOKENS).map(|i| if (154_820..154_856).contains(&i) { 3 } else { 1 }).collect();
    let mut keys: Vec<(&str, Value)> = vec![
        ("model", "gpt2".into()),
        ("pre", "glm4".into()),
        ("tokens", Array::Str(tokens).into()),
        ("token_type", Array::I32(types).into()),
        ("merges", Array::Str(merges).into()),
    ];
    for (name, id) in [("bos", 154_822u32), ("eos", 154_820), ("eot", 154_827), ("eom", 154_829)] {
        keys.push((name, id.into()));
    }
    let name = |k: &str| match k.len() {
        3 if k != "pre" => format!("tokenizer.ggml.{k}_token_id"),
        _ => format!("tokenizer.ggml.{k}"),
    };
    keys.into_iter().map(|(k, v)| (name(k), v)).collect()
}

/// A file with these keys and tensors, all of them holes.
pub fn writer(keys: Vec<(String, Value)>, tensors: &[Entry]) -> Writer {
    let mut writer = Writer::new();
    keys.into_iter().for_each(|(k, v)| writer.key(k, v));
    tensors.iter().for_each(|t| writer.hole(&t.name, t.ty, &t.ne).unwrap());
    writer
}

/// Tensors per shard: none in the first of several, the others of about equal size.
pub fn plan(tensors: &[Entry], shards: usize) -> Vec<usize> {
    let mut counts = vec![0; shards];
    let total: u64 = tensors.iter().map(Entry::bytes).sum();
    let mut before = 0;
    for tensor in tensors {
        match shards {
            1 => counts[0] += 1,
            n => counts[1 + (u128::from(before) * (n as u128 - 1) / u128::from(total)) as usize] += 1,
        }
        before += tensor.bytes();
    }
    counts
}

/// Writes a full-size file, or a split set, of this style into `dir`. Gives the paths in order.
pub fn write(dir: &Path, style: Style, shards: usize) -> Vec<PathBuf> {
    let tensors = tensors(style);
    let writer = writer([keys(style), tokenizer_keys()].concat(), &tensors);
    if shards == 1 {
        let path = dir.join(format!("{style:?}.gguf"));
        writer.write(&path).unwrap();
        return vec![path];
    }
    writer.write_split(dir.join(format!("{style:?}")), &plan(&tensors, shards)).unwrap()
}

/// Bytes in memory of all maps of files in `dir`. The headers, with a vocabulary of full size, have 13 MB.
#[cfg(target_os = "linux")]
pub fn resident(dir: &Path) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut inside, mut maps, mut bytes) = (false, 0, 0);
    for line in smaps.lines() {
        // A map begins with its address range; lines of figures follow it.
        if line.split(' ').next().is_some_and(|first| first.contains('-')) {
            inside = line.contains(dir.to_str().unwrap());
            maps += u64::from(inside);
        } else if let Some(kib) = line.strip_prefix("Rss:").filter(|_| inside) {
            bytes += 1024 * kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
        }
    }
    assert!(maps > 0, "no maps of {dir:?} among the process's");
    bytes
}

/// A new directory under the build's own, removed at the end of the test.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&dir).unwrap();
        TempDir(dir)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}
