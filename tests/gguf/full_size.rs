//! Full-size headers: the real counts and sizes, opened from any shard without touching the data.

use glm5::gguf::{Gguf, StrArray, TypeCount};
use glm5::quant::GgmlType::{F32, Q4_K, Q5_K, Q6_K, Q8_0};

use crate::synthetic::{self, N_MERGES, N_TOKENS, STYLES, Style, TempDir};

/// Counts of the architecture, and the published numbers of types and bytes of the UD-Q4_K_XL file of GLM-5.2: they are
/// what the list of names, extents and types is checked against.
#[test]
fn the_list_has_the_published_counts_and_bytes() {
    let counts = STYLES.map(|s| synthetic::tensors(s).len());
    assert_eq!(counts, [1809, 1524, 1809]);
    let all = synthetic::tensors(Style::Glm52Copies);
    let of = |ty| all.iter().filter(|t| t.ty == ty).count();
    assert_eq!([F32, Q8_0, Q4_K, Q5_K, Q6_K].map(of), [709, 872, 150, 74, 4]);
    let bytes: u64 = all.iter().map(|t| t.bytes()).sum();
    let published = 467_289_111_904u64;
    assert!(bytes < published && published - bytes < 16 << 20, "{bytes} bytes of tensors in {published}");
}

#[test]
fn a_set_of_435_gib_opens_from_any_shard() {
    let dir = TempDir::new();
    for (style, shards) in [(Style::Glm5, 11), (Style::Glm52Straight, 1)] {
        let paths = synthetic::write(dir.path(), style, shards);
        let expected = synthetic::tensors(style);
        for path in [&paths[0], &paths[shards / 2], &paths[shards - 1]] {
            let gguf = Gguf::open(path).unwrap();
            assert_eq!(gguf.shards().len(), shards);
            assert_eq!(gguf.shards()[0].n_tensors(), if shards == 1 { expected.len() } else { 0 });
            assert_eq!(gguf.tensors().len(), expected.len());
            for (t, e) in gguf.tensors().iter().zip(&expected) {
                assert_eq!((&t.name, t.ty, t.ne(), t.bytes), (&e.name, e.ty, &e.ne[..], e.bytes()));
            }
            let strings = |key: &str| gguf.metadata().require::<&StrArray>(key).unwrap();
            assert_eq!(strings("tokenizer.ggml.tokens").len(), N_TOKENS);
            assert_eq!(strings("tokenizer.ggml.merges").get(N_MERGES - 1), Some("left321648 right321648"));
            let total: u64 = gguf.types().iter().map(|TypeCount { bytes, .. }| bytes).sum();
            assert_eq!(total, gguf.tensor_bytes());
            assert!(total > 430 << 30 && gguf.file_bytes() > total);
        }
    }
}
