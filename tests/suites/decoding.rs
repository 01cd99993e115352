//! Steps that decode one token of each sequence: recorded as graphs, replayed, padded, and step by step, with the same bits.

use glm5::model::{
    Batch, Cache, Event, LoadOptions, LogitRows, Model, Observer, Plan, PlanOptions, SeqId, Sequence,
};
use glm5::tensor::{CacheType, Device, Precision};

use super::goldens::{MODELS, files};

macro_rules! decoding_properties {
    ($devices:path) => {
        $crate::suites::properties! { decoding, $devices, 1; ;
        replayed_or_step_by_step, sequences_come_and_go, memory_may_move, caches_have_their_own,
        the_plan_is_what_is_taken }
    };
}
pub(crate) use decoding_properties;

fn open(d: &Device, model: usize, precision: Precision, graphs: bool) -> Model {
    let options = LoadOptions { precision, graphs, ..LoadOptions::default() };
    Model::open(files::path(&format!("{}.gguf", MODELS[model])), d, &options).unwrap()
}

fn tokens(n: usize, seed: u64) -> Vec<u32> {
    let mut rng = super::blocks::Rng(seed);
    (0..n).map(|_| rng.below(4096) as u32).collect()
}

/// Logits of a token of each sequence.
fn step(model: &mut Model, cache: &mut Cache, new: &[(SeqId, u32)]) -> Vec<f32> {
    let tokens: Vec<[u32; 1]> = new.iter().map(|(_, token)| [*token]).collect();
    let sequences = new.iter().zip(&tokens);
    let sequences =
        sequences.map(|((seq, _), tokens)| Sequence { seq: *seq, tokens, logits: LogitRows::Last }).collect();
    let logits = model.forward(&Batch::new(sequences), cache).unwrap();
    assert_eq!(logits.rows(), new.len());
    logits.to_vec().unwrap()
}

fn prompt(model: &mut Model, cache: &mut Cache, tokens: &[u32]) -> SeqId {
    let seq = cache.new_sequence();
    model.forward(&Batch::one(seq, tokens, LogitRows::None), cache).unwrap();
    seq
}

/// Whether a test is left to GPUs, of which it says so: each step takes the emulator seconds.
fn left_to_gpus(devices: &[Device]) -> bool {
    let emulated = devices[0].name().contains("emulator");
    if emulated {
        println!("skipped: so many steps of a model take the emulator minutes");
    }
    emulated
}

/// As many steps as it takes to go from fewer keys than are selected to more, and over the border of a page, one sequence and three.
pub fn replayed_or_step_by_step(devices: &[Device]) {
    if left_to_gpus(devices) {
        return;
    }
    let all = [
        (0, Precision::Exact, CacheType::F32),
        (1, Precision::Fast, CacheType::Bf16),
        (0, Precision::Fast, CacheType::Fp8),
    ];
    for (model, precision, ty) in all {
        let run = |graphs: bool| {
            let mut model = open(&devices[0], model, precision, graphs);
            let mut cache = model.new_cache(1000, ty).unwrap();
            let lens = [60usize, 3, 126];
            let sequences: Vec<SeqId> =
                lens.iter().map(|n| prompt(&mut model, &mut cache, &tokens(*n, *n as u64))).collect();
            model.counters_mut().reset();
            let mut logits = Vec::new();
            for i in 0..9 {
                let new: Vec<_> = sequences.iter().map(|seq| (*seq, tokens(1, 100 + i)[0])).collect();
                logits.push(step(&mut model, &mut cache, &new));
            }
            (logits, model.counters().clone())
        };
        let ((got, counted), (want, step_by_step)) = (run(true), run(false));
        assert!(counted.replayed >= 2, "{} of {} steps replayed", counted.replayed, counted.steps);
        assert_eq!((step_by_step.replayed, step_by_step.steps), (0, counted.steps));
        assert_eq!(counted.layers, step_by_step.layers);
        assert!(got == want, "{precision}, {ty}: other bits when replayed");
    }
}

/// Any number of sequences, joining, leaving, cut back and forked: each has the logits that it has alone, but for the rounding of other launches.
pub fn sequences_come_and_go(devices: &[Device]) {
    if left_to_gpus(devices) {
        return;
    }
    let mut model = open(&devices[0], 0, Precision::Exact, true);
    let mut alone = open(&devices[0], 0, Precision::Exact, false);
    let mut cache = model.new_cache(2000, CacheType::F32).unwrap();
    let mut rng = super::blocks::Rng(5);
    let mut there: Vec<(SeqId, Vec<u32>)> = Vec::new();
    for round in 0..60 {
        match rng.below(5) {
            0 | 1 if there.len() < 9 => {
                let text = tokens(1 + rng.below(140), round);
                there.push((prompt(&mut model, &mut cache, &text), text));
            }
            2 if there.len() > 1 => {
                let (seq, _) = there.swap_remove(rng.below(there.len()));
                cache.remove(seq).unwrap();
            }
            3 if !there.is_empty() && there.len() < 9 => {
                let (seq, text) = there[rng.below(there.len())].clone();
                there.push((cache.fork(seq).unwrap(), text));
            }
            4 if !there.is_empty() => {
                let i = rng.below(there.len());
                let keep = 1 + rng.below(there[i].1.len());
                cache.truncate(there[i].0, keep).unwrap();
                there[i].1.truncate(keep);
            }
            _ => {}
        }
        if there.is_empty() {
            continue;
        }
        let new: Vec<_> = there.iter().map(|(seq, _)| (*seq, rng.below(4096) as u32)).collect();
        let logits = step(&mut model, &mut cache, &new);
        for ((_, text), (_, token)) in there.iter_mut().zip(&new) {
            text.push(*token);
        }
        let i = rng.below(there.len());
        let mut other = alone.new_cache(300, CacheType::F32).unwrap();
        let seq = other.new_sequence();
        let text = &there[i].1;
        if text.len() > 300 {
            continue;
        }
        let want =
            alone.forward(&Batch::one(seq, text, LogitRows::Last), &mut other).unwrap().to_vec().unwrap();
        let got = &logits[i * 4096..][..4096];
        let (diff, norm) = got
            .iter()
            .zip(&want)
            .fold((0.0, 0.0), |(d, n), (g, w)| (d + f64::from(g - w).powi(2), n + f64::from(*w).powi(2)));
        assert!((diff / norm).sqrt() < 1e-4, "round {round}: {:.1e}", (diff / norm).sqrt());
    }
    assert!(model.counters().replayed > 10, "{} steps replayed", model.counters().replayed);
}

/// A prompt that makes the workspace grow between steps that were recorded; and events, for which nothing is replayed.
pub fn memory_may_move(devices: &[Device]) {
    struct Layers(usize);
    impl Observer for Layers {
        fn see(&mut self, event: Event<'_>) {
            self.0 += usize::from(matches!(event, Event::Layer { .. }));
        }
    }
    let emulated = devices[0].name().contains("emulator");
    let long = if emulated { 2 } else { 300 };
    let run = |graphs: bool| {
        let mut model = open(&devices[0], 1, Precision::Fast, graphs);
        let mut cache = model.new_cache(1000, CacheType::Bf16).unwrap();
        let seq = prompt(&mut model, &mut cache, &tokens(3, 1));
        let mut logits: Vec<_> = (0..3).map(|i| step(&mut model, &mut cache, &[(seq, i)])).collect();
        let other = prompt(&mut model, &mut cache, &tokens(long, 2));
        logits.extend((3..6).map(|i| step(&mut model, &mut cache, &[(seq, i)])));
        if !emulated {
            logits.push(step(&mut model, &mut cache, &[(seq, 7), (other, 8)]));
        }
        let mut layers = Layers(0);
        let replayed = model.counters().replayed;
        let batch = Batch::one(seq, &[9], LogitRows::Last);
        logits.push(model.forward_observed(&batch, &mut cache, &mut layers).unwrap().to_vec().unwrap());
        assert_eq!((layers.0, model.counters().replayed), (4, replayed), "events of a step");
        logits.push(step(&mut model, &mut cache, &[(seq, 10)]));
        (logits, model.counters().replayed)
    };
    let ((got, replayed), (want, none)) = (run(true), run(false));
    assert!(replayed >= 2 && none == 0, "{replayed} steps replayed");
    assert!(got == want, "other bits when replayed");
}

/// Graphs hold the addresses of one cache.
pub fn caches_have_their_own(devices: &[Device]) {
    if left_to_gpus(devices) {
        return;
    }
    let mut model = open(&devices[0], 1, Precision::Fast, true);
    let run = |model: &mut Model, cache: &mut Cache, seq: SeqId, i: u32| step(model, cache, &[(seq, i)]);
    let mut caches: Vec<(Cache, SeqId)> = (0..2)
        .map(|i| {
            let mut cache = model.new_cache(200, CacheType::Bf16).unwrap();
            let seq = prompt(&mut model, &mut cache, &tokens(3, i));
            (cache, seq)
        })
        .collect();
    let mut both: Vec<Vec<Vec<f32>>> = vec![Vec::new(); 2];
    for i in 0..4 {
        for ((cache, seq), logits) in caches.iter_mut().zip(&mut both) {
            logits.push(run(&mut model, cache, *seq, i));
        }
    }
    assert!(model.counters().replayed >= 2, "{} steps replayed", model.counters().replayed);
    drop(caches);
    let mut model = open(&devices[0], 1, Precision::Fast, false);
    for (i, want) in both.iter().enumerate() {
        let mut cache = model.new_cache(200, CacheType::Bf16).unwrap();
        let seq = prompt(&mut model, &mut cache, &tokens(3, i as u64));
        let got: Vec<_> = (0..4).map(|i| run(&mut model, &mut cache, seq, i)).collect();
        assert!(got == *want, "cache {i}");
    }
}

/// The plan of a run is that run on a GPU that only counts.
pub fn the_plan_is_what_is_taken(devices: &[Device]) {
    if left_to_gpus(devices) {
        return;
    }
    let gpu = devices[0].gpu().unwrap();
    for (precision, ty) in [(Precision::Fast, CacheType::Bf16), (Precision::Exact, CacheType::F32)] {
        let load = LoadOptions { precision, ..LoadOptions::default() };
        let path = files::path(&format!("{}.gguf", MODELS[1]));
        let gguf = glm5::gguf::Gguf::open(&path).unwrap();
        let plan =
            Plan::new(&gguf, gpu.properties(), &PlanOptions { load, cache_type: ty, context: 1000, gpus: 1 })
                .unwrap();
        let held = || gpu.held().iter().map(|(_, bytes)| bytes).sum::<u64>();
        let before = held();
        let mut model = Model::load(&gguf, &devices[0], &load, &mut |_, _| {}).unwrap();
        let mut cache = model.new_cache(1000, ty).unwrap();
        let seq = prompt(&mut model, &mut cache, &tokens(999, 3));
        for _ in 0..3 {
            step(&mut model, &mut cache, &[(seq, 5)]);
            cache.truncate(seq, 999).unwrap();
        }
        let (taken, planned) = (held() - before, plan.needed - plan.reserve);
        println!("{precision}: {taken} bytes taken, {planned} planned");
        assert!(
            taken <= planned && taken * 100 >= planned * 95,
            "{taken} bytes taken, {planned} planned\n{plan}"
        );
    }
}
