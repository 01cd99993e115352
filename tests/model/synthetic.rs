//! Synthetic models: the shapes of the family, blocks that are sound, a stream that neither dies nor explodes, experts that are loaded unevenly
//! as those of trained models are; and made only when they are looked at.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use glm5::Error;
use glm5::cuda::Properties;
use glm5::gguf::{Gguf, Writer};
use glm5::model::{
    Attention, Batch, Config, Event, IndexerKind, LoadOptions, LoadReport, LogitRows, Plan, PlanOptions,
    Synthetic, Types,
};
use glm5::quant::GgmlType::{self, F16, F32, IQ4_XS, Q4_K, Q5_K, Q6_K, Q8_0};
use glm5::tensor::{CacheType, Precision};

use crate::common::{self, MODELS};
use crate::synthetic::{self as headers, N_TRUNK, Style, TempDir};

/// The family's head dimensions, everything else small.
fn small() -> Synthetic {
    let named = Synthetic::named("glm-5.2:6").unwrap();
    let config = Config {
        hidden_size: 512,
        vocab_size: 500,
        intermediate_size: 512,
        moe_intermediate_size: 256,
        n_routed_experts: 32,
        n_heads: 4,
        q_lora_rank: 256,
        index_n_heads: 4,
        index_topk: 64,
        first_k_dense_replace: 1,
        context_length: 4096,
        indexers: "FFSSFS"
            .chars()
            .map(|c| if c == 'F' { IndexerKind::Full } else { IndexerKind::Shared })
            .collect(),
        ..named.config
    };
    Synthetic { config, ..named }
}

/// All names of all sizes: what is written is what is read. The tensors of whole models are those of the published files.
#[test]
fn shapes_are_those_of_the_family() {
    for (name, style) in [
        ("glm-5", Style::Glm5),
        ("glm-5.1", Style::Glm5),
        ("glm-5.2", Style::Glm52Straight),
        ("glm-5.3", Style::Glm52Straight),
    ] {
        let model = Synthetic::named(name).unwrap();
        let gguf = model.gguf().unwrap();
        let expected: HashMap<_, _> =
            headers::tensors(style).into_iter().map(|t| (t.name, (t.ne, t.ty == F32))).collect();
        let trunk = |name: &str| !name.starts_with(&format!("blk.{N_TRUNK}."));
        let got: HashMap<_, _> =
            gguf.tensors().iter().map(|t| (t.name.clone(), (t.ne().to_vec(), t.ty == F32))).collect();
        assert_eq!(got.len(), gguf.tensors().len());
        assert_eq!(got, expected.into_iter().filter(|(name, _)| trunk(name)).collect());
        let published = headers::keys(style).into_iter().collect::<HashMap<_, _>>();
        for key in ["glm-dsa.context_length", "glm-dsa.rope.freq_base", "glm-dsa.attention.indexer.top_k"] {
            assert_eq!(gguf.metadata().value(key).unwrap().to_string(), published[key].to_string(), "{key}");
        }
        for suffix in ["", "/2", "/4", "/8", ":1", ":3", "/8:100"] {
            let model = Synthetic::named(&format!("{name}{suffix}")).unwrap();
            let report = LoadReport::new(&model.gguf().unwrap()).unwrap();
            assert_eq!(report.config, model.config, "{name}{suffix}");
            assert_eq!(
                report.config.name.as_deref(),
                Some(&*format!("synthetic {name}{}", suffix.split(':').next().unwrap()))
            );
            assert_eq!(report.ledger.total, report.ledger.taken);
        }
    }
    let part = Synthetic::named("glm-5/8:4").unwrap().gguf().unwrap();
    let tensor = |name: &str| (part.tensor(name).unwrap().ty, part.tensor(name).unwrap().ne().to_vec());
    assert_eq!(tensor("blk.3.ffn_down_exps.weight"), (Q5_K, vec![256, 6144, 256]));
    assert_eq!(tensor("blk.3.ffn_gate_exps.weight"), (Q4_K, vec![6144, 256, 256]));
    assert_eq!(tensor("blk.3.ffn_up_shexp.weight"), (Q8_0, vec![6144, 256]));
    assert_eq!(tensor("blk.0.ffn_down.weight"), (Q8_0, vec![1536, 6144]));
    assert_eq!(tensor("blk.3.attn_output.weight"), (Q8_0, vec![2048, 6144]));
    assert_eq!(tensor("blk.3.indexer.attn_q_b.weight"), (Q8_0, vec![2048, 4096]));
    assert_eq!(tensor("output.weight"), (Q6_K, vec![6144, 19_360]));
}

#[test]
fn what_cannot_be_made_is_refused() {
    for name in [
        "",
        "glm",
        "glm-6",
        "glm-5/",
        "glm-5/0",
        "glm-5/3",
        "glm-5/-1",
        "glm-5:",
        "glm-5:0",
        "glm-5:1025",
        "glm-5:2/8",
        "glm-5/8/8",
        "GLM-5",
    ] {
        assert!(matches!(Synthetic::named(name), Err(Error::Argument { .. })), "{name}");
    }
    // 128 columns are no block of 256.
    assert!(matches!(Synthetic::named("glm-5/16").unwrap().gguf(), Err(Error::Argument { .. })));
    let no_quantizer = Synthetic { types: Types { down: IQ4_XS, ..Types::default() }, ..small() };
    assert!(matches!(no_quantizer.gguf(), Err(Error::Unsupported { .. })));
}

/// Weights of a standard deviation of one over the root of their inputs, norms of ones, biases of the router as measured; the same bytes for the
/// same seed, and no others.
#[test]
fn values_are_sane_and_follow_the_seed() {
    let types = Types { embedding: F16, ..Types::default() };
    let [one, same, other] = [0, 0, 1].map(|seed| Synthetic { types, seed, ..small() }.gguf().unwrap());
    let mut kinds = HashMap::<GgmlType, usize>::new();
    for t in one.tensors() {
        let bytes = one.data(t).unwrap();
        assert_eq!(bytes[..], same.data(t).unwrap()[..], "{}", t.name);
        let values = common::values(&one, &t.name);
        let n = values.len() as f64;
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
        let sd = (values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n).sqrt();
        let most = values.iter().fold(0f32, |a, v| a.max(v.abs()));
        let inputs = if t.name.ends_with("attn_k_b.weight") { t.dims[1] } else { t.dims[0] } as f64;
        let near = |got: f64, want: f64| (got - want).abs() <= want * (0.03 + 4.0 / n.sqrt());
        if t.name.ends_with("norm.weight") {
            assert!(values.iter().all(|v| *v == 1.0), "{}", t.name);
            continue;
        }
        *kinds.entry(t.ty).or_default() += 1;
        assert_ne!(bytes[..], other.data(t).unwrap()[..], "{}", t.name);
        if t.name.ends_with("exp_probs_b.bias") {
            assert!(values.iter().all(|v| (6.82..7.06).contains(v)) && sd > 0.01, "{mean} {sd}");
        } else if t.name.ends_with("k_norm.bias") {
            assert!(most < 0.4 && sd > 0.05, "{most} {sd}");
        } else if t.name == "token_embd.weight" {
            assert!(near(sd, 1.0), "{sd}");
        } else {
            assert!(near(sd, 1.0 / inputs.sqrt()) && mean.abs() < 0.05 * sd, "{}: {mean} {sd}", t.name);
            assert!(f64::from(most) < 4.0 * sd, "{}: {most} {sd}", t.name);
        }
    }
    assert!([F32, F16, Q8_0, Q4_K, Q5_K, Q6_K].iter().all(|ty| kinds.contains_key(ty)), "{kinds:?}");
    // Tensors of one pool, and experts of one tensor, are not the same.
    let of = |name: &str| common::values(&one, name);
    assert_ne!(of("blk.1.ffn_gate_exps.weight"), of("blk.1.ffn_up_exps.weight"));
    assert_ne!(of("blk.1.ffn_gate_exps.weight"), of("blk.2.ffn_gate_exps.weight"));
    let experts = of("blk.1.ffn_gate_exps.weight");
    let experts: Vec<&[f32]> = experts.chunks(512 * 256).collect();
    assert!((1..experts.len()).all(|i| experts[..i].iter().all(|e| *e != experts[i])));
}

/// A prompt and a few tokens behind it, past what is selected: no value dies or explodes, and all experts have some of the work, none all of it.
#[test]
fn runs_like_a_model() {
    let model = Synthetic { config: Config { n_routed_experts: 256, ..small().config }, ..small() };
    let mut model = common::load(&model.gguf().unwrap()).unwrap();
    let tokens: Vec<u32> = (0..520).map(|i| i * 7919 % 500).collect();
    let mut cache = model.new_cache(tokens.len(), CacheType::F32).unwrap();
    let seq = cache.new_sequence();
    let (mut sds, mut loads) = (Vec::new(), HashMap::<usize, Vec<usize>>::new());
    let mut see = |event: Event<'_>| match event {
        Event::Layer { x, .. } => {
            let x = x.cpu().unwrap();
            sds.push((x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32).sqrt());
        }
        Event::Routing { layer, routing } => {
            let load = loads.entry(layer).or_insert_with(|| vec![0; 256]);
            routing.ids.cpu().unwrap().iter().for_each(|id| load[*id as usize] += 1);
        }
        _ => {}
    };
    let logits =
        model.forward_observed(&Batch::one(seq, &tokens, LogitRows::ALL), &mut cache, &mut see).unwrap();
    let logits = logits.cpu().unwrap();
    let sd = (logits.iter().map(|v| v * v).sum::<f32>() / logits.len() as f32).sqrt();
    assert!((0.5..2.0).contains(&sd), "logits {sd}");
    println!("{sds:?}");
    assert!(sds.iter().all(|sd| (0.8..4.0).contains(sd)), "{sds:?}");
    assert_eq!(loads.len(), 5);
    for (layer, mut load) in loads {
        load.sort_unstable();
        let mean = load.iter().sum::<usize>() as f64 / 256.0;
        let share = |i: usize| load[i] as f64 / mean;
        println!(
            "layer {layer}: {:.2} {:.2} {:.2} {:.2} {:.2}",
            share(0),
            share(25),
            share(128),
            share(230),
            share(255)
        );
        assert_eq!(mean, 520.0 * 8.0 / 256.0);
        assert!(
            (1.3..3.0).contains(&share(230)) && (0.1..0.7).contains(&share(25)),
            "layer {layer}: {load:?}"
        );
        assert!(share(255) < 8.0 && share(128) > 0.5, "layer {layer}: {load:?}");
    }
}

/// The same model from a file: written tensor by tensor, with the same bytes and logits.
#[test]
fn a_written_file_is_the_same_model() {
    let dir = TempDir::new();
    let path = dir.path().join("synthetic.gguf");
    let model = small();
    model.writer().unwrap().write(&path).unwrap();
    let (made, written) = (model.gguf().unwrap(), Gguf::open(&path).unwrap());
    assert_eq!(made.tensors(), written.tensors());
    assert_eq!(
        (made.file_bytes(), made.shards()[0].n_tensors()),
        (written.file_bytes(), written.tensors().len())
    );
    let logits =
        [made, written].map(|gguf| common::one_shot(&mut common::load(&gguf).unwrap(), &[1, 2, 3, 499]));
    assert_eq!(logits[0], logits[1]);
}

/// A copy of a small model whose tensors are made, and how many times.
fn counted(name: &str) -> (Gguf, Arc<AtomicUsize>) {
    let gguf = Arc::new(common::gguf(name));
    let made = Arc::new(AtomicUsize::new(0));
    let mut writer = Writer::new();
    gguf.metadata().iter().for_each(|(k, v)| writer.key(k, v.clone()));
    for t in gguf.tensors() {
        let (data, made) = (gguf.data(t).unwrap(), made.clone());
        let make = move |bytes: &mut [u8]| {
            made.fetch_add(1, Ordering::Relaxed);
            bytes.copy_from_slice(&data);
        };
        writer.made(&t.name, t.ty, t.ne(), make).unwrap();
    }
    (writer.to_gguf("made").unwrap(), made)
}

/// While a model is loaded each tensor is made once, and none afterwards; headers need none, and plans only the vectors.
#[test]
fn tensors_are_made_when_they_are_needed() {
    for name in MODELS {
        let (gguf, made) = counted(name);
        let report = LoadReport::new(&gguf).unwrap();
        assert_eq!(made.load(Ordering::Relaxed), 0);

        let load = LoadOptions {
            precision: Precision::Fast,
            attention: Attention::Sparse,
            ..LoadOptions::default()
        };
        let options = PlanOptions { load, cache_type: CacheType::Bf16, context: 1000, gpus: 1 };
        let gpu = Properties::by_name("h200").unwrap();
        let plan = Plan::new(&gguf, &gpu, &options).unwrap();
        let idle: Vec<&String> = report.ledger.idle.iter().flat_map(|group| &group.names).collect();
        let vectors = gguf.tensors().iter().filter(|t| t.n_dims == 1 && !idle.contains(&&t.name)).count();
        assert_eq!(made.swap(0, Ordering::Relaxed), vectors);
        let of_file = Plan::new(&common::gguf(name), &gpu, &options).unwrap();
        assert_eq!(serde_json::to_value(&plan).unwrap(), serde_json::to_value(&of_file).unwrap());

        let mut model = common::load(&gguf).unwrap();
        assert_eq!(made.load(Ordering::Relaxed), report.ledger.taken.tensors);
        let tokens = common::prompt(name, "p1");
        assert_eq!(common::one_shot(&mut model, &tokens), common::one_shot(&mut common::open(name), &tokens));
        assert_eq!(made.load(Ordering::Relaxed), report.ledger.taken.tensors);

        // A weight keeps its bytes, others of the same tensor have their own.
        made.store(0, Ordering::Relaxed);
        let [one, two] = [(); 2].map(|()| gguf.data(&gguf.tensors()[0]).unwrap());
        let (clone, part) = (one.clone(), one.slice(4..12).unwrap());
        assert_eq!((one.len(), part.len(), made.load(Ordering::Relaxed)), (two.len(), 8, 0));
        assert_eq!((&one[4..12], &clone[4..12]), (&part[..], &part[..]));
        assert_eq!(made.load(Ordering::Relaxed), 1);
        assert_eq!(one[..], two[..]);
        assert_eq!(made.load(Ordering::Relaxed), 2);
    }
}
