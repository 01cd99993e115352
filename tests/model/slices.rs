//! Slices of a model: what is loaded of a file, what is refused, what is planned. That they compute what the whole does: `tests/suites/slices.rs`.

use glm5::Error;
use glm5::cuda::Properties;
use glm5::gguf::{Gguf, LedgerReport, Shard};
use glm5::model::{
    Batch, Config, Event, LoadOptions, LoadReport, LogitRows, Model, Plan, PlanOptions, Slice, Synthetic,
};
use glm5::tensor::{CacheType, Device, Precision, Tensor};

use crate::common::{self, Edit, MODELS};

fn load(gguf: &Gguf, slice: Slice) -> glm5::Result<Model> {
    let options = LoadOptions { slice: Some(slice), ..LoadOptions::default() };
    Model::load(gguf, common::device(), &options, &mut |_, _| {})
}

fn report(gguf: &Gguf, slice: Slice) -> LoadReport {
    LoadReport::for_slice(gguf, Some(slice), Shard::WHOLE).unwrap()
}

/// Neither embedding nor head.
fn bare(first: usize, end: usize) -> Slice {
    Slice { first, end, embedding: false, head: false }
}

fn idle(ledger: &LedgerReport) -> Vec<(&str, usize)> {
    ledger.idle.iter().map(|group| (&*group.reason, group.count.tensors)).collect()
}

/// Layers, embedding and head are there or idle, and everything is accounted for.
#[test]
fn accounts_are_of_the_slice() {
    let gguf = common::gguf(MODELS[0]);
    let of_layer =
        |i: usize| gguf.tensors().iter().filter(|t| t.name.starts_with(&format!("blk.{i}."))).count();
    let (mtp, trunk): (_, usize) = (of_layer(4), (0..4).map(of_layer).sum());
    assert_eq!(gguf.tensors().len(), mtp + trunk + 3);
    for (first, end) in [(0, 1), (1, 3), (0, 4), (3, 4)] {
        for (embedding, head) in [(true, true), (true, false), (false, true), (false, false)] {
            let slice = Slice { first, end, embedding, head };
            let report = report(&gguf, slice);
            let own: usize = (first..end).map(of_layer).sum();
            assert_eq!(
                report.ledger.taken.tensors,
                own + usize::from(embedding) + 2 * usize::from(head),
                "{slice}"
            );
            let outside = format!("layers that are not in the slice {first}..{end}");
            let mut expected = vec![
                (&*outside, trunk - own),
                ("embedding, not in the slice", usize::from(!embedding)),
                ("head, not in the slice", 2 * usize::from(!head)),
                ("MTP block, not part of the trunk", mtp),
            ];
            expected.retain(|(_, n)| *n > 0);
            assert_eq!(idle(&report.ledger), expected, "{slice}");
            assert_eq!(
                (report.slice, report.file_layers, report.config.n_layers),
                (Some(slice), 4, end - first)
            );
            assert_eq!(report.config.first_k_dense_replace, usize::from(first == 0));
            assert!(report.to_string().contains(&format!("of these layers {slice}")), "{report}");

            let mut told = Vec::new();
            let options = LoadOptions { slice: Some(slice), ..LoadOptions::default() };
            let model =
                Model::load(&gguf, common::device(), &options, &mut |done, all| told.push((done, all)))
                    .unwrap();
            let bytes = report.ledger.taken.bytes;
            assert_eq!(told.last(), Some(&(bytes, bytes)));
            assert_eq!((model.config(), model.report().slice), (&report.config, Some(slice)));
            assert_eq!(model.counters().layers.len(), end - first);
        }
    }
    let whole = LoadReport::new(&gguf).unwrap();
    assert_eq!((whole.slice, whole.file_layers), (None, 4));
}

/// Of GLM-5.2 too, by headers: layers that share a selection have the one that they share, dense ones are counted from where the slice begins.
#[test]
fn configs_are_of_the_slice() {
    let whole = Synthetic::named("glm-5.2").unwrap().config;
    let slice = |first, end| whole.slice(Slice::layers(first..end)).unwrap();
    let pattern = |c: &Config| {
        let report = LoadReport::new(
            &Synthetic { config: c.clone(), ..Synthetic::named("glm-5.2").unwrap() }.gguf().unwrap(),
        );
        report.unwrap().indexer_pattern
    };
    for (first, end, dense, expected) in
        [(0, 4, 3, "FFFS"), (1, 3, 2, "FF"), (2, 7, 1, "FSSSF"), (6, 10, 0, "FSSS"), (74, 78, 0, "FSSS")]
    {
        let config = slice(first, end);
        assert_eq!(
            (config.n_layers, config.first_k_dense_replace, &*pattern(&config)),
            (end - first, dense, expected)
        );
        assert_eq!(
            Config { n_layers: 78, first_k_dense_replace: 3, indexers: whole.indexers.clone(), ..config },
            whole
        );
    }
    for (first, full) in [(3, 2), (5, 2), (7, 6), (77, 74)] {
        let Err(Error::Argument { what, expected, got }) = whole.slice(Slice::layers(first..78)) else {
            panic!("{first} begins with a layer that shares a selection");
        };
        assert_eq!(what, "layers");
        assert!(
            expected.contains(&format!("such as {full},")) && got.contains(&format!("layer {first} shares")),
            "{expected} {got}"
        );
    }
    #[allow(clippy::reversed_empty_ranges)]
    for layers in [0..0, 5..5, 6..2, 0..79, 78..79, 0..usize::MAX, usize::MAX..usize::MAX] {
        let refused = whole.slice(Slice::layers(layers.clone()));
        assert!(matches!(refused, Err(Error::Argument { .. })), "{layers:?}");
    }
    assert!(matches!(load(&common::gguf(MODELS[1]), Slice::layers(3..4)), Err(Error::Argument { .. })));
}

/// What is missing elsewhere is not missed, and what is missing in the slice is.
#[test]
fn only_its_own_weights_are_needed() {
    let gguf = common::gguf(MODELS[0]);
    let without = |names: &'static [&str]| {
        let edit = move |t: &glm5::gguf::TensorInfo| match names.contains(&&*t.name) {
            true => Edit::Drop,
            false => Edit::Keep,
        };
        common::rewrite(&gguf, |_| {}, edit, |_| {})
    };
    let partial =
        without(&["token_embd.weight", "output_norm.weight", "output.weight", "blk.0.attn_norm.weight"]);
    let text = LoadReport::new(&partial).unwrap_err().to_string();
    assert!(text.contains("token_embd.weight") && text.contains("blk.0.attn_norm.weight"), "{text}");
    load(&partial, bare(1, 4)).unwrap();
    for (slice, missing) in [
        (bare(0, 2), "blk.0.attn_norm.weight"),
        (Slice { embedding: true, ..bare(1, 2) }, "token_embd.weight"),
        (Slice { head: true, ..bare(1, 2) }, "output_norm.weight"),
    ] {
        let text = LoadReport::for_slice(&partial, Some(slice), Shard::WHOLE).unwrap_err().to_string();
        assert!(text.contains(&format!("missing: {missing}")), "{slice}: {text}");
    }
    // The embedding is the head where there is no other, also of a slice without an embedding.
    let tied = without(&["output.weight"]);
    let report = report(&tied, Slice { head: true, ..bare(3, 4) });
    assert!(!idle(&report.ledger).iter().any(|(reason, _)| reason.contains("embedding")));
    assert_eq!(chained(&tied, &[1, 2, 3]), common::one_shot(&mut common::load(&tied).unwrap(), &[1, 2, 3]));
}

/// Logits of layers up to the last, then of the last.
fn chained(gguf: &Gguf, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut front = load(gguf, Slice { head: false, ..Slice::layers(0..3) }).unwrap();
    let mut back = load(gguf, Slice { embedding: false, ..Slice::layers(3..4) }).unwrap();
    let mut cache = front.new_cache(100, CacheType::F32).unwrap();
    let seq = cache.new_sequence();
    let hidden =
        front.forward(&Batch::one(seq, tokens, LogitRows::ALL), &mut cache).unwrap().try_clone().unwrap();
    let mut cache = back.new_cache(100, CacheType::F32).unwrap();
    let seq = cache.new_sequence();
    common::rows(back.forward_hidden(&Batch::one(seq, tokens, LogitRows::ALL), &hidden, &mut cache).unwrap())
}

/// Rows come out as an observer sees them, those that are wanted; tokens and rows are not taken for one another, and what is refused changes nothing.
#[test]
fn rows_in_place_of_tokens_and_logits() {
    let gguf = common::gguf(MODELS[1]);
    let mut model = load(&gguf, bare(1, 3)).unwrap();
    let hidden = model.config().hidden_size;
    let rows = |n: usize, width: usize| {
        let values = (0..n * width).map(|i| ((i * 37 % 101) as f32 - 50.0) / 30.0).collect();
        Tensor::from_vec(common::device(), n, width, values).unwrap()
    };
    let mut cache = model.new_cache(64, CacheType::F32).unwrap();
    let seq = cache.new_sequence();
    // Tokens are counted and not looked at.
    let tokens = [u32::MAX; 5];
    let (mut last, mut layers, mut given) = (Vec::new(), Vec::new(), Vec::new());
    let mut see = |event: Event<'_>| match event {
        Event::Layer { layer, x } => {
            layers.push(layer);
            last = common::rows(x);
        }
        Event::Embedding(x) => given = common::rows(x),
        Event::Final(_) => panic!("there is no final norm"),
        _ => {}
    };
    let batch = Batch::one(seq, &tokens, LogitRows::From(2));
    let out = model.forward_hidden_observed(&batch, &rows(5, hidden), &mut cache, &mut see).unwrap();
    let out = common::rows(out);
    assert_eq!((layers, given), (vec![0, 1], common::rows(&rows(5, hidden))));
    assert_eq!(out, last[2..]);
    assert_eq!((model.counters().logits, model.counters().tokens, cache.len(seq).unwrap()), (0, 5, 5));
    assert!(cache.latent_row(seq, 1, 4).is_ok() && cache.latent_row(seq, 2, 4).is_err());

    let one = Batch::one(seq, &tokens[..1], LogitRows::Last);
    assert!(matches!(model.forward(&one, &mut cache), Err(Error::Argument { .. })));
    for wrong in [rows(2, hidden), rows(0, hidden), rows(1, hidden + 1)] {
        assert!(matches!(model.forward_hidden(&one, &wrong, &mut cache), Err(Error::Shape { .. })));
    }
    let empty = Batch::one(seq, &[], LogitRows::Last);
    assert!(matches!(
        model.forward_hidden(&empty, &rows(0, hidden), &mut cache),
        Err(Error::Argument { .. })
    ));
    let mut whole = common::open(MODELS[1]);
    let mut other = whole.new_cache(64, CacheType::F32).unwrap();
    let of_other = other.new_sequence();
    let batch = Batch::one(of_other, &[1], LogitRows::Last);
    assert!(matches!(
        whole.forward_hidden(&batch, &rows(1, hidden), &mut other),
        Err(Error::Argument { .. })
    ));
    assert!(
        matches!(whole.forward(&one, &mut cache), Err(Error::Argument { .. })),
        "a cache of other layers"
    );
    assert_eq!((cache.len(seq).unwrap(), other.len(of_other).unwrap(), model.counters().tokens), (5, 0, 5));
    // Nothing wanted, nothing out.
    let none = Batch::one(seq, &tokens[..1], LogitRows::None);
    assert_eq!(model.forward_hidden(&none, &rows(1, hidden), &mut cache).unwrap().shape(), [0, hidden]);
}

/// Parts of a model take what the whole takes together, each with its own layers; headers of any size do.
#[test]
fn plans_are_of_the_slice() {
    let gguf = Synthetic::named("glm-5.2:10").unwrap().gguf().unwrap();
    let plan = |slice| {
        let load = LoadOptions { precision: Precision::Fast, slice, ..LoadOptions::default() };
        let options = PlanOptions { load, cache_type: CacheType::Bf16, context: 8192, gpus: 1 };
        Plan::new(&gguf, &Properties::by_name("h200").unwrap(), &options).unwrap()
    };
    let whole = plan(None);
    let parts = [
        Slice { head: false, ..Slice::layers(0..2) },
        bare(2, 6),
        Slice { embedding: false, ..Slice::layers(6..10) },
    ];
    let plans = parts.map(|slice| plan(Some(slice)));
    let sum = |of: fn(&Plan) -> u64| plans.iter().map(of).sum::<u64>();
    let ones = 2 * 6144 * 4; // in place of the final norm
    // And some counters of each model, which the driver's label counts with vectors.
    assert!((0..100).contains(&(sum(|p| p.weights) - whole.weights - ones)));
    assert_eq!((sum(|p| p.cache), sum(|p| p.cache_per_token)), (whole.cache, whole.cache_per_token));
    let launches =
        |p: &Plan| (p.launches.dense.is_some(), p.launches.full.is_some(), p.launches.shared.is_some());
    // Of the first layer of a slice, as of a model, nothing is told.
    assert_eq!(
        plans.each_ref().map(launches),
        [(true, false, false), (false, false, true), (false, false, true)]
    );
    for (plan, slice) in plans.iter().zip(parts) {
        assert_eq!(plan.slice, Some(slice));
        assert!(plan.to_string().contains(&format!("layers     {slice}\n")), "{plan}");
        assert!(plan.needed < whole.needed && plan.fits());
    }
    assert!(!whole.to_string().contains("layers     "));
    let load = LoadOptions { slice: Some(Slice::layers(0..11)), ..LoadOptions::default() };
    let options = PlanOptions { load, cache_type: CacheType::Bf16, context: 8192, gpus: 1 };
    let refused = Plan::new(&gguf, &Properties::by_name("h200").unwrap(), &options);
    assert!(matches!(refused, Err(Error::Argument { .. })));
}

/// Slices of a model with invented weights need no more than their own layers to be made.
#[test]
fn slices_of_synthetic_models() {
    let model = Synthetic::named("glm-5.2/8").unwrap();
    let slice = Slice { embedding: false, head: false, ..Slice::layers(0..1) };
    let options = LoadOptions { slice: Some(slice), ..LoadOptions::default() };
    let device: &Device = common::device();
    let mut model = Model::load(&model.gguf().unwrap(), device, &options, &mut |_, _| {}).unwrap();
    assert!(model.report().ledger.taken.bytes < 200 << 20, "{}", model.report());
    let mut cache = model.new_cache(64, CacheType::F32).unwrap();
    let seq = cache.new_sequence();
    let rows = Tensor::from_vec(device, 2, 6144, (0..2 * 6144).map(|i| (i % 7) as f32 / 2.0 - 1.5).collect())
        .unwrap();
    let out = model.forward_hidden(&Batch::one(seq, &[0, 0], LogitRows::ALL), &rows, &mut cache).unwrap();
    let rms = (out.cpu().unwrap().iter().map(|v| v * v).sum::<f32>() / 12_288.0).sqrt();
    assert!((0.9..3.0).contains(&rms), "{rms}");
}
