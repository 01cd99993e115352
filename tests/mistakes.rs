//! Classic mistakes of implementations of this model, each made visible by construction: by weights scaled by powers of
//! two, by unit vectors, by marked bytes. `docs/testing.md` lists all mistakes and which tests catch them.

#[path = "model/common.rs"]
mod common;
#[path = "suites/synthetic.rs"]
mod synthetic;

use std::collections::BTreeSet;
use std::io::{Seek, SeekFrom, Write};

use glm5::gguf::{Cut, Dims, Gguf, Ledger, Shard, TensorInfo, Value, Writer};
use glm5::model::{Batch, Event, LogitRows};
use glm5::ops::linear::head_linear;
use glm5::ops::router::reference;
use glm5::quant::GgmlType::{BF16, F32};
use glm5::quant::Weight;
use glm5::tensor::{CacheType, Heads, Matrix, Precision, Tensor};

use common::{Edit, MODELS, bytes_of, rewrite, values};
use synthetic::TempDir;

/// A prompt of which most tokens attend to a selection.
fn prompt() -> Vec<u32> {
    common::prompt(MODELS[1], "p2")[..150].to_vec()
}

/// Mistake 5 (and 1 to 4): the rope base comes from the file. The keys of the first layer, turned back by the angles of one
/// base and on by those of the other, are the keys of a file with the other base; what is not rotated keeps its bits.
#[test]
fn the_rope_base_of_the_file_turns_adjacent_pairs_of_64() {
    for name in MODELS {
        let gguf = common::gguf(name);
        let other = rewrite(
            &gguf,
            |keys| {
                let base = keys.iter_mut().find(|(k, _)| k == "glm-dsa.rope.freq_base").unwrap();
                assert_eq!(base.1, 1e6f32.into());
                base.1 = 8e6f32.into();
            },
            |_| Edit::Keep,
            |_| {},
        );
        let tokens = &prompt()[..100];
        let keys = [&gguf, &other].map(|file| {
            let mut model = common::load(file).unwrap();
            let mut cache = model.new_cache(128, CacheType::F32).unwrap();
            let seq = cache.new_sequence();
            model.forward(&Batch::one(seq, tokens, LogitRows::None), &mut cache).unwrap();
            let row = |p| (cache.latent_row(seq, 0, p).unwrap(), cache.index_row(seq, 0, p).unwrap());
            (0..tokens.len()).map(row).collect::<Vec<_>>()
        });
        for (p, ((latent, index), (latent8, index8))) in keys[0].iter().zip(&keys[1]).enumerate() {
            assert!(latent[..512] == latent8[..512] && index[64..] == index8[64..], "position {p}");
            for (a, b) in [(&latent[512..], &latent8[512..]), (&index[..64], &index8[..64])] {
                let mut want = Vec::new();
                for (i, z) in a.chunks(2).enumerate() {
                    let angle = |base: f64| p as f64 * base.powf(-2.0 * i as f64 / 64.0);
                    let (sin, cos) = (angle(8e6) - angle(1e6)).sin_cos();
                    let (re, im) = (z[0] as f64, z[1] as f64);
                    want.extend([(re * cos - im * sin) as f32, (re * sin + im * cos) as f32]);
                }
                let d = common::distance(b, &want);
                assert!(d <= 1e-6, "{name}, position {p}: {d:e}");
                assert!(p < 2 || common::distance(b, a) > 1e-3, "the base makes no difference");
            }
        }
    }
}

/// Mistake 8: a unit vector as query without rotation brings out a column of `k_b[h]`, as latent a column of `v_b[h]`, by
/// the index formulas of the file.
#[test]
fn k_b_is_stored_turned_and_v_b_is_not() {
    let (device, gguf) = (common::device(), common::gguf(MODELS[0]));
    for (part, cols, rows) in [("k_b", 192, 512), ("v_b", 512, 256)] {
        let name = format!("blk.1.attn_{part}.weight");
        let mut ledger = Ledger::new(&gguf);
        let weight = ledger.take(&name, Dims::stack(4, rows, cols), Cut::None, Shard::WHOLE).unwrap();
        ledger.idle_where("not probed", |_| true);
        ledger.finish().unwrap();
        let (file, matrix) = (values(&gguf, &name), Matrix::new(device, weight).unwrap());
        for at in [0, 1, 63, cols - 1] {
            let mut x = vec![0.0; 4 * cols];
            (0..4).for_each(|h| x[h * cols + at] = 1.0);
            let x = Tensor::from_vec(device, 1, 4 * cols, x).unwrap();
            let mut y = Tensor::zeros(device, 1, 4 * rows).unwrap();
            let heads = |len| Heads { n: 4, stride: len, offset: 0, len };
            head_linear(&matrix, &x, heads(cols), &mut y, heads(rows), Precision::Exact).unwrap();
            for (e, got) in y.cpu().unwrap().iter().enumerate() {
                let (h, r) = (e / rows, e % rows);
                assert_eq!(*got, file[at + cols * (r + rows * h)], "{part}, column {at}, head {h}, row {r}");
            }
        }
    }
}

/// The tensors whose name has one of `parts`, in f32, each value changed by `f(index in the tensor, value)`.
fn in_f32<'a>(
    gguf: &'a Gguf,
    parts: &'a [&str],
    f: impl Fn(&TensorInfo, usize, f32) -> f32 + 'a,
) -> impl FnMut(&TensorInfo) -> Edit + 'a {
    move |t| {
        let named = parts.iter().any(|p| t.name == *p || t.name.contains(&format!(".{p}.")));
        if !named || t.name.starts_with("blk.4.") {
            return Edit::Keep;
        }
        let new = values(gguf, &t.name).into_iter().enumerate().map(|(i, x)| f(t, i, x));
        Edit::Other(F32, t.ne().to_vec(), bytes_of(&new.collect::<Vec<_>>()))
    }
}

/// Mistake 10: absorbed queries beyond the range of f16. A power of two moved from the latent into `k_b` and `v_b` changes
/// no bit of the logits, unless something between them is kept in fewer bits of exponent.
#[test]
fn absorbed_queries_have_the_range_of_f32() {
    let gguf = common::gguf(MODELS[1]);
    let parts = ["attn_k_b", "attn_v_b", "attn_kv_a_norm"];
    let by = |s: f32| {
        let edit = in_f32(&gguf, &parts, |t, _, x| if t.name.contains("norm") { x / s } else { x * s });
        let mut model = common::load(&rewrite(&gguf, |_| {}, edit, |_| {})).unwrap();
        one_by_one_and_at_once(&mut model)
    };
    let s = (1u64 << 40) as f32;
    // Whatever the queries are (they are of order 1), with k_b of order 0.1 this is beyond 65504 by far.
    let largest = values(&gguf, "blk.1.attn_k_b.weight").into_iter().fold(0f32, |m, x| m.max(x.abs()));
    assert!(largest * s > 1e9);
    assert!(by(1.0) == by(s));

    // Queries a thousand times as large pick single keys, and stay numbers.
    let edit = in_f32(&gguf, &["attn_q_b"], |_, _, x| x * 1e3);
    let mut model = common::load(&rewrite(&gguf, |_| {}, edit, |_| {})).unwrap();
    let logits = one_by_one_and_at_once(&mut model);
    assert!(logits.iter().flatten().flatten().all(|x| x.is_finite()));
}

/// Mistake 33: a residual stream beyond the range of f16. With everything that writes to the stream (and to the other
/// inputs of a norm) larger by a power of two, and the norms' epsilon by its square, no norm's output changes a bit.
#[test]
fn the_residual_stream_has_the_range_of_f32() {
    let gguf = common::gguf(MODELS[1]);
    let parts = [
        "token_embd.weight",
        "attn_output",
        "ffn_down",
        "ffn_down_exps",
        "ffn_down_shexp",
        "attn_q_a",
        "attn_kv_a_mqa",
    ];
    let by = |s: f32| {
        let scale = move |t: &TensorInfo, i: usize, x: f32| {
            // The rope part of the latent row meets no norm.
            let rope = t.name.contains("kv_a_mqa") && i / 256 >= 512;
            if rope { x } else { x * s }
        };
        let eps = |keys: &mut Vec<(String, glm5::gguf::Value)>| {
            let eps = keys.iter_mut().find(|(k, _)| k.ends_with("layer_norm_rms_epsilon")).unwrap();
            eps.1 = (1e-5f32 * s * s).into();
        };
        let mut model = common::load(&rewrite(&gguf, eps, in_f32(&gguf, &parts, scale), |_| {})).unwrap();
        one_by_one_and_at_once(&mut model)
    };
    let s = (1u64 << 24) as f32;
    assert!(largest_residual(&gguf) * s > 1e6);
    assert!(by(1.0) == by(s));
}

fn largest_residual(gguf: &Gguf) -> f32 {
    let mut largest = 0f32;
    let mut model = common::load(gguf).unwrap();
    let mut cache = model.new_cache(256, CacheType::F32).unwrap();
    let (seq, tokens) = (cache.new_sequence(), prompt());
    let mut see = |event: Event<'_>| {
        if let Event::Layer { x, .. } = event {
            largest = x.cpu().unwrap().iter().fold(largest, |m, x| m.max(x.abs()));
        }
    };
    model.forward_observed(&Batch::one(seq, &tokens, LogitRows::None), &mut cache, &mut see).unwrap();
    largest
}

/// Logits of a prompt in one pass and of its first tokens one at a time.
fn one_by_one_and_at_once(model: &mut glm5::model::Model) -> [Vec<Vec<f32>>; 2] {
    let tokens = prompt();
    let mut cache = model.new_cache(256, CacheType::F32).unwrap();
    let seq = cache.new_sequence();
    let single =
        tokens[..80].iter().map(|t| common::append(model, &mut cache, seq, &[*t]).remove(0)).collect();
    [common::one_shot(model, &tokens), single]
}

/// Mistakes 11 and 13: whatever the path (one token, two, many), the weights of a token add up to the scale, 2.5, and its
/// experts are distinct; a bias left in the weights would not cancel.
#[test]
fn routed_weights_add_up_on_every_path() {
    for name in MODELS {
        let mut model = common::open(name);
        let k = model.config().router.n_experts_per_tok;
        let tokens = prompt();
        for n in [1, 2, 3, 70] {
            let mut cache = model.new_cache(256, CacheType::F32).unwrap();
            let seq = cache.new_sequence();
            let mut seen = 0;
            for piece in tokens[..70].chunks(n) {
                let mut see = |event: Event<'_>| {
                    if let Event::Routing { routing, .. } = event {
                        let (ids, weights) = (routing.ids.cpu().unwrap(), routing.weights.cpu().unwrap());
                        let scores = routing.logits.cpu().unwrap().iter().map(|l| 1.0 / (1.0 + (-l).exp()));
                        let scores: Vec<f32> = scores.collect();
                        for (t, (ids, weights)) in ids.chunks(k).zip(weights.chunks(k)).enumerate() {
                            let own = |id: &u32| scores[t * routing.logits.cols() + *id as usize];
                            assert!((weights.iter().sum::<f32>() - 2.5).abs() <= 1e-5, "{name}: {weights:?}");
                            assert!(ids.iter().enumerate().all(|(i, id)| !ids[..i].contains(id)), "{ids:?}");
                            let sum: f32 = ids.iter().map(own).sum();
                            for (id, w) in ids.iter().zip(weights) {
                                assert!((w - 2.5 * own(id) / sum).abs() <= 1e-5, "{name}: weight {w}");
                            }
                            seen += 1;
                        }
                    }
                };
                let batch = Batch::one(seq, piece, LogitRows::None);
                model.forward_observed(&batch, &mut cache, &mut see).unwrap();
            }
            assert_eq!(seen, 3 * 70);
        }
    }
}

/// Groups of experts in a file's metadata limit the choice, on every path; all groups used are as good as none.
#[test]
fn groups_of_the_file_limit_the_choice() {
    let gguf = common::gguf(MODELS[0]); // 4 of 16 experts
    let routed = |groups: u32, used: u32, n: usize| {
        let keys = |keys: &mut Vec<(String, Value)>| {
            for (name, value) in [("expert_group_count", groups), ("expert_group_used_count", used)] {
                let name = format!("glm-dsa.{name}");
                keys.retain(|(k, _)| *k != name);
                keys.push((name, value.into()));
            }
        };
        let mut model = common::load(&rewrite(&gguf, keys, |_| Edit::Keep, |_| {})).unwrap();
        let config = model.config().router;
        assert_eq!((config.n_groups, config.n_groups_used), (groups as usize, used as usize));
        let mut cache = model.new_cache(256, CacheType::F32).unwrap();
        let seq = cache.new_sequence();
        let mut all = Vec::new();
        let mut see = |event: Event<'_>| {
            if let Event::Routing { layer, routing } = event {
                let bias = values(&gguf, &format!("blk.{layer}.exp_probs_b.bias"));
                let want = reference::route(routing.logits.cpu().unwrap(), &bias, &config).unwrap();
                assert_eq!(routing.ids.cpu().unwrap(), want.ids, "layer {layer}, {used} of {groups} groups");
                all.extend(want.ids);
            }
        };
        for piece in prompt()[..60].chunks(n) {
            model.forward_observed(&Batch::one(seq, piece, LogitRows::None), &mut cache, &mut see).unwrap();
        }
        assert_eq!(all.len(), 3 * 60 * 4);
        all
    };
    for n in [1, 60] {
        let free = routed(1, 1, n);
        assert_eq!(routed(4, 4, n), free);
        for (groups, used) in [(4, 2), (2, 1), (8, 2), (16, 5)] {
            let size = 16 / groups;
            let few =
                |ids: &[u32]| ids.iter().map(|e| e / size).collect::<BTreeSet<_>>().len() <= used as usize;
            let limited = routed(groups, used, n);
            assert!(limited.chunks(4).all(few) && (groups == 16) == (limited == free));
        }
    }
}

/// Mistake 32: what the output head gets has, weights of the norm taken out, a mean square of 1.
#[test]
fn the_final_norm_is_applied_with_its_own_weights() {
    for name in MODELS {
        let weights = values(&common::gguf(name), "output_norm.weight");
        let mut model = common::open(name);
        let mut cache = model.new_cache(256, CacheType::F32).unwrap();
        let (seq, tokens) = (cache.new_sequence(), prompt());
        let mut seen = 0;
        let mut see = |event: Event<'_>| {
            if let Event::Final(y) = event {
                for row in common::rows(y) {
                    let squares = row.iter().zip(&weights).map(|(y, w)| (*y as f64 / *w as f64).powi(2));
                    let mean = squares.sum::<f64>() / row.len() as f64;
                    assert!((mean - 1.0).abs() < 1e-3, "{name}: mean square {mean}");
                    seen += 1;
                }
            }
        };
        model.forward_observed(&Batch::one(seq, &tokens, LogitRows::None), &mut cache, &mut see).unwrap();
        assert_eq!(seen, tokens.len());
    }
}

/// Mistake 14: bytes of the first, a middle and the last expert of a stack of full size, beyond 2^32 bytes, whole and cut.
#[test]
fn experts_of_a_full_size_stack() {
    let dir = TempDir::new();
    let path = dir.path().join("stack.gguf");
    let mut writer = Writer::new();
    writer.hole("exps", BF16, &[2048, 6144, 256]).unwrap();
    writer.write(&path).unwrap();
    let offset = Gguf::open(&path).unwrap().tensors()[0].offset;
    let mark = |e: usize| -> Vec<u8> { (0..4096).map(|i| (e * 31 + i * 7 + i / 256) as u8).collect() };
    let (experts, row) = ([0, 100, 255], 6143);
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for e in experts {
        file.seek(SeekFrom::Start(offset + 4096 * (6144 * e as u64 + row as u64))).unwrap();
        file.write_all(&mark(e)).unwrap();
    }
    let gguf = Gguf::open(&path).unwrap();
    let take = |rank, size| -> Weight {
        let mut ledger = Ledger::new(&gguf);
        let shard = Shard { rank, size };
        let weight = ledger.take("exps", Dims::stack(256, 6144, 2048), Cut::Slabs, shard).unwrap();
        ledger.finish().unwrap();
        weight
    };
    let whole = take(0, 1);
    assert!(whole.bytes().len() > 1 << 32);
    for e in experts {
        assert!(whole.rows_bytes(e, row..row + 1) == mark(e), "expert {e}");
        assert!(whole.rows_bytes(e, row - 1..row).iter().all(|b| *b == 0), "expert {e}");
        let part = take(e / 32, 8);
        assert!(part.rows_bytes(e % 32, row..row + 1) == mark(e), "expert {e} on its rank");
    }
    let last = whole.dequantize(255, row..row + 1).unwrap();
    let want: Vec<f32> = mark(255)
        .chunks(2)
        .map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16))
        .collect();
    assert!(last.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()));
}
