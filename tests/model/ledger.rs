//! The accounts of whole models: full-size headers, idle tensors, legacy forms, and everything that does not match.

use std::time::Instant;

use glm5::Error;
use glm5::gguf::{Gguf, Shard, TensorInfo, Writer};
use glm5::model::LoadReport;
use glm5::quant::GgmlType::{self, F32, Q8_0, TQ1_0};

use crate::common::{self, Edit, MODELS, bytes_of, load, one_shot, rewrite, values};
use crate::synthetic::{self, N_TRUNK, STYLES, Style, TempDir};
use crate::texts::Texts;

const MTP: &str = "MTP block, not part of the trunk";
const COPIED: &str = "indexer copied into a layer that shares one";

#[test]
fn full_size_headers() {
    for style in STYLES {
        let dir = TempDir::new();
        let shards = if style == Style::Glm52Copies { 11 } else { 1 };
        let paths = synthetic::write(dir.path(), style, shards);
        for path in [&paths[0], &paths[shards / 2], &paths[shards - 1]] {
            let start = Instant::now();
            let gguf = Gguf::open(path).unwrap();
            let report = LoadReport::new(&gguf).unwrap();
            println!("{style:?}: opened and accounted for in {:.3} s", start.elapsed().as_secs_f64());
            #[cfg(target_os = "linux")]
            assert!(synthetic::resident(dir.path()) < 20 << 20, "data was touched");
            check_full_size(style, &report, shards);
        }
    }
}

fn check_full_size(style: Style, report: &LoadReport, shards: usize) {
    let total = if style == Style::Glm52Straight { 1524 } else { 1809 };
    let copies = if style == Style::Glm52Copies { 57 * 5 } else { 0 };
    let l = &report.ledger;
    assert_eq!((l.total.tensors, l.taken.tensors), (total, total - 27 - copies));
    let idle: Vec<_> = l.idle.iter().map(|g| (g.reason.as_str(), g.count.tensors, g.names.len())).collect();
    let mut want = vec![(MTP, 27, 27), (COPIED, copies, copies)];
    want.retain(|w| w.1 > 0);
    assert_eq!(idle, want);
    assert!(l.idle[0].names.iter().all(|n| n.starts_with("blk.78.")), "the MTP block is never a trunk layer");
    assert_eq!((report.files, l.shards.len()), (shards, shards));
    assert_eq!(l.taken.bytes + l.idle.iter().map(|g| g.count.bytes).sum::<u64>(), l.total.bytes);
    assert!(report.file_bytes > 430 << 30);
    let c = &report.config;
    assert_eq!((c.n_layers, c.n_nextn_layers, c.index_topk), (N_TRUNK, 1, 2048));
    let (pattern, variant) = match style {
        Style::Glm5 => ("F".repeat(78), "GLM-5 or 5.1"),
        _ => (format!("FFF{}SSS", "SSSF".repeat(18)), "GLM-5.2 or 5.3"),
    };
    assert_eq!((report.indexer_pattern.as_str(), report.variant.as_str()), (&pattern[..], variant));
    let bytes = if style == Style::Glm5 { 109_824 } else { 95_232 };
    assert_eq!((report.cache_bytes_per_token.bf16, report.cache_bytes_per_token.f32), (bytes, 2 * bytes));
    if style == Style::Glm52Copies {
        let types: Vec<_> = l.types.iter().map(|t| (t.tensors, t.ty.name())).collect();
        let want = [(709, "F32"), (872, "Q8_0"), (150, "Q4_K"), (74, "Q5_K"), (4, "Q6_K")];
        assert_eq!(want.iter().filter(|w| types.contains(w)).count(), 5, "{types:?}");
    }
    let text = report.to_string();
    assert!(text.contains("78 trunk + 1 nextn layers"), "{text}");
    assert!(text.contains(&format!("{total} tensors: 709 F32")) || total == 1524 || style == Style::Glm5);
    let json = serde_json::to_value(report).unwrap();
    assert_eq!(json["ledger"]["idle"][0]["tensors"], 27);
}

/// The cuts of the tensor-parallel plan, for every weight of a whole model.
#[test]
fn ranks_of_a_full_size_model() {
    let dir = TempDir::new();
    let gguf = Gguf::open(&synthetic::write(dir.path(), Style::Glm52Straight, 2)[0]).unwrap();
    let report = |rank, size| LoadReport::for_shard(&gguf, Shard { rank, size });
    for size in [1, 2, 4, 8] {
        for rank in [0, size - 1] {
            assert_eq!(report(rank, size).unwrap().ledger.taken.tensors, 1524 - 27);
        }
    }
    let why = "tensor blk.3.ffn_down_exps.weight: [2048, 6144, 256]: 2048 columns of Q6_K cannot be cut into 16 parts: 128 \
               columns are not whole blocks of 256, and blocks are never cut";
    let text = report(0, 16).unwrap_err().to_string();
    assert!(text.ends_with(why), "{text}");
    let text = report(0, 3).unwrap_err().to_string();
    assert!(
        text.contains("tensor output.weight") && text.contains("154880 is not a multiple of 3"),
        "{text}"
    );
    let text = report(0, 128).unwrap_err().to_string();
    assert!(
        text.contains("attn_q_b.weight") && text.contains("parts must be multiples of 256 rows"),
        "{text}"
    );
    assert!(matches!(report(8, 8), Err(Error::Argument { .. })));
    #[cfg(target_os = "linux")]
    assert!(synthetic::resident(dir.path()) < 20 << 20, "data was touched");
}

#[test]
fn ranks_of_the_small_models() {
    for (name, culprit) in MODELS.into_iter().zip(["blk.0.ffn_down.weight", "blk.1.ffn_down_exps.weight"]) {
        let error = LoadReport::for_shard(&common::gguf(name), Shard { rank: 1, size: 2 }).unwrap_err();
        assert!(matches!(error, Error::File { .. }));
        let text = error.to_string();
        assert!(text.contains(&format!("{name}.gguf: tensor {culprit}")), "{text}");
        assert!(text.contains("into 2 parts") && text.contains("blocks are never cut"), "{text}");
    }
}

/// The first 200 tokens of a text, sparse from 64 on.
fn logits(gguf: &Gguf) -> Vec<Vec<f32>> {
    one_shot(&mut load(gguf).unwrap(), &Texts::of(1).tokens[0][..200])
}

/// GLM-5.2 files in which shared layers carry indexers: the same bits, whatever the copies say.
#[test]
fn copied_indexers_are_idle() {
    let straight = common::gguf(MODELS[1]);
    let copy = |w: &mut Writer, from: usize, to: usize| {
        for t in straight.tensors().iter().filter(|t| t.name.starts_with(&format!("blk.{from}.indexer."))) {
            let name = t.name.replace(&format!("blk.{from}."), &format!("blk.{to}."));
            w.tensor(name, t.ty, t.ne(), straight.data(t).unwrap()).unwrap();
        }
    };
    // The indexers of another layer and of the MTP block: a layer that used its own would select other keys.
    let copies = rewrite(
        &straight,
        |_| {},
        |_| Edit::Keep,
        |w| {
            copy(w, 0, 2);
            copy(w, 4, 3);
        },
    );
    assert_eq!((straight.tensors().len(), copies.tensors().len()), (107, 117));
    let report = LoadReport::new(&copies).unwrap();
    assert_eq!(report.indexer_pattern, "FFSS");
    let idle: Vec<_> = report.ledger.idle.iter().map(|g| (g.reason.as_str(), g.count.tensors)).collect();
    assert_eq!(idle, [(MTP, 27), (COPIED, 10)]);
    assert!(logits(&straight) == logits(&copies), "copied indexers were used");
}

/// The same by the pattern that a context of 1 M tokens implies: layer 3 of 4 is shared.
#[test]
fn the_pattern_of_the_context_length_computes_the_same() {
    let long = |keys: &mut Vec<(String, glm5::gguf::Value)>| {
        keys.iter_mut()
            .filter(|(k, _)| k == "glm-dsa.context_length")
            .for_each(|(_, v)| *v = (1u32 << 20).into());
    };
    let nano = common::gguf(MODELS[0]);
    let copies = rewrite(&nano, long, |_| Edit::Keep, |_| {});
    let own = |t: &TensorInfo| if t.name.starts_with("blk.3.indexer.") { Edit::Drop } else { Edit::Keep };
    let straight = rewrite(&nano, long, own, |_| {});
    for (gguf, idle) in [(&copies, 27 + 5), (&straight, 27)] {
        let report = LoadReport::new(gguf).unwrap();
        assert_eq!(report.indexer_pattern, "FFFS");
        assert_eq!(report.ledger.taken.tensors + idle, gguf.tensors().len());
    }
    let [a, b, all_full] = [&copies, &straight, &nano].map(logits);
    assert!(a == b);
    assert!(a[..64] == all_full[..64] && a[150] != all_full[150]);
}

/// Files without the MTP block are whole.
#[test]
fn trunk_only() {
    let all = common::gguf(MODELS[1]);
    let trunk = |t: &TensorInfo| if t.name.starts_with("blk.4.") { Edit::Drop } else { Edit::Keep };
    let without = rewrite(&all, |_| {}, trunk, |_| {});
    let report = LoadReport::new(&without).unwrap();
    assert_eq!((report.ledger.taken.tensors, report.ledger.idle.len()), (80, 0));
    assert!(logits(&all) == logits(&without));
}

/// `k_b` `[heads, rank, nope]` and `v_b` `[heads, v, rank]` of a block, and `kv_b` `[heads (nope + v), rank]` from them by
/// the index formulas.
fn kv_b(gguf: &Gguf, block: usize) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let (heads, nope, v, rank) = (4, 192, 256, 512);
    let k_b = values(gguf, &format!("blk.{block}.attn_k_b.weight"));
    let v_b = values(gguf, &format!("blk.{block}.attn_v_b.weight"));
    let mut kv_b = vec![0.0; heads * (nope + v) * rank];
    for h in 0..heads {
        for r in 0..rank {
            (0..nope).for_each(|d| kv_b[(h * 448 + d) * rank + r] = k_b[d + nope * (r + rank * h)]);
            (0..v).for_each(|j| kv_b[(h * 448 + nope + j) * rank + r] = v_b[r + rank * (j + v * h)]);
        }
    }
    (k_b, v_b, kv_b)
}

fn is_kv_b(t: &TensorInfo) -> bool {
    t.name.contains("attn_k_b") || t.name.contains("attn_v_b")
}

#[test]
fn the_legacy_unsplit_form() {
    let split = common::gguf(MODELS[1]);
    let legacy = |ty: GgmlType| {
        let edit = |t: &TensorInfo| if is_kv_b(t) { Edit::Drop } else { Edit::Keep };
        rewrite(
            &split,
            |_| {},
            edit,
            |w| {
                for i in 0..4 {
                    let bytes = glm5::quant::quantize(ty, &kv_b(&split, i).2).unwrap();
                    w.tensor(format!("blk.{i}.attn_kv_b.weight"), ty, &[512, 1792], bytes).unwrap();
                }
            },
        )
    };
    let report = LoadReport::new(&legacy(F32)).unwrap();
    assert_eq!(report.ledger.taken.tensors, 80 - 4);
    let want = logits(&split);
    let worst = common::worst(&logits(&legacy(F32)), &want);
    assert!(worst <= 1e-5, "{worst:e}");

    // Blocks of Q8_0 run along the rank, so v's are those of whole rows; k's values are those of the blocks, turned.
    let quantized = legacy(Q8_0);
    let turned = rewrite(
        &split,
        |_| {},
        |t| match is_kv_b(t) && t.name.contains("k_b") && !t.name.starts_with("blk.4.") {
            false => Edit::Keep,
            true => {
                let i: usize = t.name[4..5].parse().unwrap();
                let all = values(&quantized, &format!("blk.{i}.attn_kv_b.weight"));
                let k = (0..4 * 512 * 192).map(|e| {
                    let (d, r, h) = (e % 192, e / 192 % 512, e / 192 / 512);
                    all[(h * 448 + d) * 512 + r]
                });
                Edit::Other(F32, vec![192, 512, 4], bytes_of(&k.collect::<Vec<_>>()))
            }
        },
        |_| {},
    );
    assert!(logits(&quantized) == logits(&turned));
}

/// Both forms: the split one is used, whatever the other holds.
#[test]
fn both_forms() {
    let split = common::gguf(MODELS[1]);
    let both = rewrite(
        &split,
        |_| {},
        |_| Edit::Keep,
        |w| {
            (0..4).for_each(|i| {
                w.tensor(format!("blk.{i}.attn_kv_b.weight"), Q8_0, &[512, 1792], vec![7; 1792 * 544])
                    .unwrap();
            });
        },
    );
    let report = LoadReport::new(&both).unwrap();
    let group =
        report.ledger.idle.iter().find(|g| g.names.contains(&"blk.3.attn_kv_b.weight".to_owned())).unwrap();
    assert_eq!(
        (group.reason.as_str(), group.count.tensors),
        ("attn_k_b and attn_v_b hold the same weights", 4)
    );
    assert!(logits(&both) == logits(&split));
}

/// Without `output.weight` the embedding is the output head.
#[test]
fn tied_embedding() {
    let gguf = common::gguf(MODELS[1]);
    let embedding = gguf.tensor("token_embd.weight").unwrap();
    let tied =
        rewrite(&gguf, |_| {}, |t| if t.name == "output.weight" { Edit::Drop } else { Edit::Keep }, |_| {});
    let explicit = |t: &TensorInfo| match t.name.as_str() {
        "output.weight" => {
            Edit::Other(embedding.ty, embedding.ne().to_vec(), gguf.data(embedding).unwrap().to_vec())
        }
        _ => Edit::Keep,
    };
    assert!(logits(&tied) == logits(&rewrite(&gguf, |_| {}, explicit, |_| {})));
}

/// The complaint of the ledger about a changed small model.
fn complaint(edit: impl FnMut(&TensorInfo) -> Edit, more: impl FnOnce(&mut Writer)) -> String {
    let gguf = rewrite(&common::gguf(MODELS[1]), |_| {}, edit, more);
    let text = |e: Error| match e {
        Error::Ledger(text) => text,
        other => panic!("{other}"),
    };
    let report = text(LoadReport::new(&gguf).map(|_| ()).unwrap_err());
    assert_eq!(report, text(load(&gguf).map(|_| ()).unwrap_err()), "the report and loading agree");
    report
}

fn drops(names: &[&str]) -> impl FnMut(&TensorInfo) -> Edit {
    let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
    move |t| if names.contains(&t.name) { Edit::Drop } else { Edit::Keep }
}

#[test]
fn halves_of_pairs() {
    for (there, gone) in [("attn_k_b", "attn_v_b"), ("attn_v_b", "attn_k_b")] {
        let gone = format!("blk.2.{gone}.weight");
        let text = complaint(drops(&[&gone]), |_| {});
        assert!(
            text.contains(&format!("missing: {gone}: blk.2.{there}.weight is there without it")),
            "{text}"
        );
    }
    let text = complaint(drops(&["blk.2.attn_k_b.weight", "blk.2.attn_v_b.weight"]), |_| {});
    assert!(text.contains("missing: blk.2.attn_k_b.weight, expected [192, 512, 4]"), "{text}");
    assert!(text.contains("missing: blk.2.attn_v_b.weight, expected [512, 256, 4]"), "{text}");
    // The legacy form does not replace one half.
    let text = complaint(drops(&["blk.1.attn_v_b.weight"]), |w| {
        w.tensor("blk.1.attn_kv_b.weight", F32, &[512, 1792], vec![0; 512 * 1792 * 4]).unwrap();
    });
    assert!(
        text.contains("missing: blk.1.attn_v_b.weight")
            && text.contains("unknown to the model: blk.1.attn_kv_b")
    );
}

#[test]
fn fused_experts_are_refused_by_name() {
    let text = complaint(drops(&["blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight"]), |w| {
        w.tensor("blk.1.ffn_gate_up_exps.weight", F32, &[256, 512, 8], vec![0; 256 * 512 * 8 * 4]).unwrap();
    });
    assert!(
        text.contains("blk.1.ffn_gate_up_exps.weight is there: fused gate and up are not supported"),
        "{text}"
    );
}

#[test]
fn everything_wrong_is_in_one_error() {
    let text = complaint(
        |t| match t.name.as_str() {
            "output_norm.weight" | "blk.1.exp_probs_b.bias" | "blk.0.indexer.k_norm.bias" => Edit::Drop,
            "blk.3.attn_norm.weight" => Edit::Other(F32, vec![255], vec![0; 255 * 4]),
            _ => Edit::Keep,
        },
        |w| {
            w.tensor("blk.0.attn_q.weight", F32, &[8], vec![0; 32]).unwrap();
            w.tensor("blk.1.ffn_gate_exps.scale", F32, &[8], vec![0; 32]).unwrap();
            // Factors on the angles, which this architecture does not have: ignoring them would be wrong.
            w.tensor("rope_freqs.weight", F32, &[32], vec![0; 128]).unwrap();
        },
    );
    let mut lines = text.lines();
    let first = lines.next().unwrap();
    assert!(first.ends_with("3 missing, 1 of another shape, 3 unknown to the model"), "{first}");
    for want in [
        "  missing: output_norm.weight, expected [256]",
        "  missing: blk.1.exp_probs_b.bias, expected [8]",
        "  missing: blk.0.indexer.k_norm.bias, expected [128]",
        "  of another shape: blk.3.attn_norm.weight, expected [256], found [255] in rewritten.gguf",
        "  unknown to the model: blk.0.attn_q.weight, F32 [8] in rewritten.gguf",
        "  unknown to the model: blk.1.ffn_gate_exps.scale, F32 [8] in rewritten.gguf",
        "  unknown to the model: rope_freqs.weight, F32 [32] in rewritten.gguf",
    ] {
        assert!(text.lines().any(|l| l == want), "no {want:?} in {text}");
    }
    assert!(text.ends_with("rewritten.gguf: 107 tensors, 77 taken, 27 idle, 3 unknown"), "{text}");
}

/// Every tensor of the trunk is needed: without any one of them the error names it.
#[test]
fn every_tensor_is_needed() {
    for model in MODELS {
        let gguf = common::gguf(model);
        let trunk = |t: &&TensorInfo| !t.name.starts_with("blk.4.") && t.name != "output.weight";
        for gone in gguf.tensors().iter().filter(trunk) {
            let mut w = Writer::new();
            gguf.metadata().iter().for_each(|(k, v)| {
                // Vocabularies take longer to copy than everything else here.
                if !k.starts_with("tokenizer.") {
                    w.key(k, v.clone());
                }
            });
            // A layer without an indexer key is a shared one by design; here the pattern is given.
            if model == MODELS[0] {
                w.key("glm-dsa.attention.indexer.types", true);
            }
            gguf.tensors().iter().filter(|t| *t != gone).for_each(|t| w.hole(&t.name, t.ty, t.ne()).unwrap());
            let file = Gguf::from_bytes("m.gguf", w.to_bytes().unwrap().into()).unwrap();
            let text = LoadReport::new(&file).map(|_| ()).expect_err(&gone.name).to_string();
            assert!(text.contains(&format!("missing: {}", gone.name)), "{}: {text}", gone.name);
        }
    }
}

/// Extents in the other order are found wherever they differ; square ones are left to tests of values.
#[test]
fn turned_shapes() {
    let gguf = common::gguf(MODELS[1]);
    let mut turned = Vec::new();
    let legal = |t: &TensorInfo| t.n_dims >= 2 && t.dims[0] != t.dims[1] && !t.name.starts_with("blk.4.");
    let text = complaint(
        |t| {
            let mut ne = t.ne().to_vec();
            if !legal(t) || t.ty.row_bytes(t.dims[1]).is_none() {
                return Edit::Keep;
            }
            turned.push(t.name.clone());
            ne.swap(0, 1);
            let bytes = gguf.data(t).unwrap().len();
            Edit::Other(t.ty, ne, vec![0; bytes])
        },
        |_| {},
    );
    // Per block q_b, kv_a, k_b, v_b, output; indexers 3 x 2 (the types do not permit all); router; dense layers.
    assert!(turned.len() > 30, "{turned:?}");
    let expected = format!("{} of another shape", turned.len());
    assert!(text.lines().next().unwrap().ends_with(&expected), "{expected}: {text}");
}

/// Types that can be stored but not computed with.
#[test]
fn unsupported_types_are_refused_by_tensor_and_type() {
    let edit = |t: &TensorInfo| match t.name.as_str() {
        "blk.2.attn_q_a.weight" => Edit::Other(TQ1_0, vec![256, 256], vec![0; 256 * 54]),
        _ => Edit::Keep,
    };
    let gguf = rewrite(&common::gguf(MODELS[1]), |_| {}, edit, |_| {});
    for error in [LoadReport::new(&gguf).map(|_| ()), load(&gguf).map(|_| ())] {
        let text = error.unwrap_err().to_string();
        assert!(text.contains("tensor blk.2.attn_q_a.weight: type TQ1_0 is not supported"), "{text}");
    }
    // In the idle MTP block they do no harm.
    let edit = |t: &TensorInfo| match t.name.as_str() {
        "blk.4.attn_q_a.weight" => Edit::Other(TQ1_0, vec![256, 256], vec![0; 256 * 54]),
        _ => Edit::Keep,
    };
    assert!(load(&rewrite(&common::gguf(MODELS[1]), |_| {}, edit, |_| {})).is_ok());
}
