//! Sampling: sets against plain definitions, frequencies against probabilities, refusals; log-probabilities.

use glm5::gguf::{Gguf, Writer};
use glm5::quant::SharedBytes;
use glm5::text::{Sampler, SamplingParams, log_probs};
use proptest::prelude::*;

fn params() -> SamplingParams {
    SamplingParams { temperature: 1.0, ..Default::default() }
}

/// The distribution by plain definitions, in f64, sorting everything: (token, probability), best first.
fn plain(logits: &[f32], p: &SamplingParams, recent: &[u32]) -> Vec<(u32, f64)> {
    let recent = &recent[recent.len().saturating_sub(p.penalty_last_n)..];
    let mut all: Vec<(f32, u32)> = Vec::new();
    for (id, &x) in (0u32..).zip(logits) {
        let count = recent.iter().filter(|&&r| r == id).count();
        let mut x = f64::from(x);
        if count > 0 {
            x = if x > 0.0 { x / f64::from(p.repeat_penalty) } else { x * f64::from(p.repeat_penalty) };
            x -= count as f64 * f64::from(p.frequency_penalty);
            x -= f64::from(p.presence_penalty);
        }
        all.push((x as f32, id));
    }
    all.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap().then(a.1.cmp(&b.1)));
    if p.temperature == 0.0 {
        return vec![(all[0].1, 1.0)];
    }
    if p.top_k > 0 {
        all.truncate(p.top_k);
    }
    let best = f64::from(all[0].0);
    let weight = |x: f32| (f64::from(x) - best).exp();
    let total: f64 = all.iter().map(|c| weight(c.0)).sum();
    let mut sum = 0.0;
    let reaches = |c: &(f32, u32)| {
        sum += weight(c.0);
        sum >= f64::from(p.top_p) * total
    };
    if p.top_p < 1.0
        && let Some(last) = all.iter().position(reaches)
    {
        all.truncate(last + 1);
    }
    all.retain(|c| weight(c.0) >= f64::from(p.min_p));
    let tempered = |x: f32| ((f64::from(x) - best) / f64::from(p.temperature)).exp();
    let total: f64 = all.iter().map(|c| tempered(c.0)).sum();
    all.iter().map(|c| (c.1, tempered(c.0) / total)).collect()
}

/// Logits with ties, gaps and forbidden tokens; the first is always allowed.
fn logits() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        4 => -8.0f32..8.0,
        2 => (-3i8..4).prop_map(f32::from),
        1 => Just(f32::NEG_INFINITY),
        1 => Just(-0.0f32),
    ];
    // Beyond 64 candidates top-p sorts in steps.
    let n = prop_oneof![1usize..12, 60usize..70, 250usize..400];
    n.prop_flat_map(move |n| prop::collection::vec(logit.clone(), n)).prop_map(|mut logits| {
        logits[0] = logits[0].max(-9.0);
        logits
    })
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    let cuts = (
        prop_oneof![Just(0usize), 1usize..5, 1usize..500],
        prop_oneof![Just(1.0f32), 0.01f32..1.0, Just(0.5)],
        prop_oneof![Just(0.0f32), 0.0f32..0.5, Just(1.0)],
        prop_oneof![Just(0.0f32), Just(1.0), 0.05f32..3.0],
    );
    let penalties = (
        prop_oneof![Just(1.0f32), 0.5f32..2.0],
        prop_oneof![Just(0.0f32), -1.0f32..1.0],
        prop_oneof![Just(0.0f32), -1.0f32..1.0],
        0usize..8,
    );
    (cuts, penalties, any::<u64>()).prop_map(|((top_k, top_p, min_p, temperature), penalties, seed)| {
        let (repeat_penalty, frequency_penalty, presence_penalty, penalty_last_n) = penalties;
        SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            repeat_penalty,
            frequency_penalty,
            presence_penalty,
            penalty_last_n,
            seed,
        }
    })
}

proptest! {
    #[test]
    fn distribution_as_defined(logits in logits(), p in any_params(), recent in prop::collection::vec(any::<prop::sample::Index>(), 0..20)) {
        let recent: Vec<u32> = recent.iter().map(|i| i.index(logits.len()) as u32).collect();
        let mut sampler = Sampler::new(p.clone()).unwrap();
        recent.iter().for_each(|&id| sampler.accept(id));
        let mut got = sampler.distribution(&logits).unwrap();
        let mut want = plain(&logits, &p, &recent);
        got.sort_by_key(|c| c.0);
        want.sort_by_key(|c| c.0);
        prop_assert_eq!(got.iter().map(|c| c.0).collect::<Vec<_>>(), want.iter().map(|c| c.0).collect::<Vec<_>>());
        for (g, w) in got.iter().zip(&want) {
            prop_assert!((g.1 - w.1).abs() <= 1e-12, "{g:?} {w:?}");
        }
        // What is drawn can be drawn, and the same seed draws the same.
        let mut again = sampler.clone();
        for _ in 0..20 {
            let id = sampler.sample(&logits).unwrap();
            prop_assert!(got.iter().any(|c| c.0 == id && c.1 > 0.0));
            prop_assert_eq!(again.sample(&logits).unwrap(), id);
        }
    }
}

#[test]
fn frequencies_follow_probabilities() {
    let logits: Vec<f32> = (0..12).map(|i| ((i * 7 % 12) as f32) / 4.0).collect();
    let cases = [
        params(),
        SamplingParams { temperature: 0.7, ..params() },
        SamplingParams { temperature: 2.5, top_k: 8, ..params() },
        SamplingParams { top_p: 0.9, ..params() },
        SamplingParams { min_p: 0.1, repeat_penalty: 1.3, ..params() },
    ];
    for (seed, case) in (1..).zip(cases) {
        let mut sampler = Sampler::new(SamplingParams { seed, ..case }).unwrap();
        sampler.accept(5);
        let expected = sampler.distribution(&logits).unwrap();
        let draws = 20_000;
        let mut counts = [0u32; 12];
        for _ in 0..draws {
            counts[sampler.sample(&logits).unwrap() as usize] += 1;
        }
        let terms = expected.iter().map(|&(id, p)| {
            let want = p * f64::from(draws);
            (f64::from(counts[id as usize]) - want).powi(2) / want
        });
        let chi_square: f64 = terms.sum();
        // Exceeded by chance once in a thousand with 11 degrees of freedom, less often with fewer.
        assert!(chi_square < 31.3, "{chi_square} {counts:?}");
        assert_eq!(counts.iter().filter(|&&c| c > 0).count(), expected.len());
    }
}

/// What a seed gives, as a second implementation (in Python) gives it: no library, compiler or platform may change it.
#[test]
fn draws_of_a_seed() {
    let logits: Vec<f32> = (0..50).map(|i| ((i * 37 % 50) as f32) * 0.1).collect();
    let draw = |seed| {
        let mut sampler = Sampler::new(SamplingParams { seed, top_p: 0.95, ..params() }).unwrap();
        (0..10).map(|_| sampler.sample(&logits).unwrap()).collect::<Vec<u32>>()
    };
    let want = [5, 8, 29, 47, 28, 43, 4, 43, 31, 44];
    assert_eq!(draw(42), want);
    assert_ne!(draw(43), want);
}

#[test]
fn greedy_takes_the_best_and_of_equals_the_first() {
    let mut greedy = Sampler::new(SamplingParams::default()).unwrap();
    assert_eq!(greedy.sample(&[1.0, 3.0, 3.0, -1.0]).unwrap(), 1);
    assert_eq!(greedy.sample(&[f32::NEG_INFINITY, -5.0]).unwrap(), 1);
    assert_eq!(greedy.sample(&[-0.0, 0.0]).unwrap(), 0);
    let mut penalized = Sampler::new(SamplingParams { repeat_penalty: 2.0, ..Default::default() }).unwrap();
    penalized.accept(1);
    assert_eq!(penalized.sample(&[1.0, 1.9, 0.9]).unwrap(), 0);
    // A penalty makes a negative logit more negative.
    assert_eq!(penalized.sample(&[-1.5, -1.0, -3.0]).unwrap(), 0);
}

#[test]
fn cuts_among_equals() {
    let kept = |p: SamplingParams| -> Vec<u32> {
        let mut sampler = Sampler::new(p).unwrap();
        let mut kept: Vec<u32> =
            sampler.distribution(&[0.0, 1.0, 1.0, 1.0, 1.0]).unwrap().iter().map(|c| c.0).collect();
        kept.sort_unstable();
        kept
    };
    // Of four equals (and a fifth cut off by top-k) half the probability is exactly two: no third is needed.
    assert_eq!(kept(SamplingParams { top_k: 4, top_p: 0.5, ..params() }), [1, 2]);
    assert_eq!(kept(SamplingParams { top_k: 4, top_p: 0.51, ..params() }), [1, 2, 3]);
    assert_eq!(kept(SamplingParams { top_k: 3, ..params() }), [1, 2, 3]);
    assert_eq!(kept(SamplingParams { min_p: 1.0, ..params() }), [1, 2, 3, 4]);
    assert_eq!(kept(SamplingParams { top_p: 1e-6, ..params() }), [1]);
    assert_eq!(kept(SamplingParams { min_p: 0.36, ..params() }), [0, 1, 2, 3, 4]);
    assert_eq!(kept(SamplingParams { min_p: 0.37, ..params() }), [1, 2, 3, 4]);
}

#[test]
fn only_recent_tokens_are_penalized() {
    let mut sampler =
        Sampler::new(SamplingParams { presence_penalty: 5.0, penalty_last_n: 2, ..Default::default() })
            .unwrap();
    let logits = [3.0, 2.0, 1.0];
    let mut chosen = Vec::new();
    for _ in 0..6 {
        let id = sampler.sample(&logits).unwrap();
        sampler.accept(id);
        chosen.push(id);
    }
    assert_eq!(chosen, [0, 1, 2, 0, 1, 2]);
    // An absurd penalty still leaves a choice, and forbidden tokens stay forbidden.
    let absurd = SamplingParams { repeat_penalty: 1e-40, frequency_penalty: f32::MAX, ..params() };
    let mut sampler = Sampler::new(absurd).unwrap();
    [0, 0, 1, 1, 2].into_iter().for_each(|id| sampler.accept(id));
    assert!(sampler.sample(&[1.0, 1.0, f32::NEG_INFINITY]).unwrap() < 2);
}

#[test]
fn broken_logits_are_refused() {
    for temperature in [0.0, 1.0] {
        let mut sampler = Sampler::new(SamplingParams { temperature, ..Default::default() }).unwrap();
        let cases: [(&[f32], &str); 5] = [
            (&[0.0, f32::NAN], "NaN for token 1"),
            (&[0.0, -f32::NAN], "NaN for token 1"),
            (&[f32::INFINITY, 0.0], "inf for token 0"),
            (&[f32::NEG_INFINITY; 3], "-inf for all tokens"),
            (&[], "none"),
        ];
        for (logits, got) in cases {
            let want = format!("logits: expected numbers, at least one above -inf, got {got}");
            assert_eq!(sampler.sample(logits).unwrap_err().to_string(), want);
            assert_eq!(log_probs(logits, 0, 1).unwrap_err().to_string(), want);
        }
    }
    let mut sampler = Sampler::new(SamplingParams { presence_penalty: 1.0, ..params() }).unwrap();
    sampler.accept(3);
    assert_eq!(sampler.sample(&[0.0; 3]).unwrap_err().to_string(), "token id: expected an id below 3, got 3");
}

#[test]
fn absurd_parameters_are_refused() {
    type Change = fn(&mut SamplingParams, f32);
    let cases: [(Change, &[f32], &str); 6] = [
        (|p, x| p.temperature = x, &[-0.1], "temperature: expected a number of 0 or more, got "),
        (|p, x| p.top_p = x, &[0.0, -1.0, 1.1], "top_p: expected a number above 0 and up to 1, got "),
        (|p, x| p.min_p = x, &[-0.1, 1.1], "min_p: expected a number from 0 to 1, got "),
        (|p, x| p.repeat_penalty = x, &[0.0, -1.0], "repeat_penalty: expected a number above 0, got "),
        (|p, x| p.frequency_penalty = x, &[], "frequency_penalty: expected a number, got "),
        (|p, x| p.presence_penalty = x, &[], "presence_penalty: expected a number, got "),
    ];
    for (change, values, want) in cases {
        for &x in values.iter().chain(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]) {
            let mut p = params();
            change(&mut p, x);
            assert_eq!(Sampler::new(p).unwrap_err().to_string(), format!("{want}{x}"));
        }
    }
}

#[test]
fn advice_of_the_file() {
    let read = |keys: &[(&str, glm5::gguf::Value)]| {
        let mut writer = Writer::new();
        keys.iter().for_each(|(k, v)| writer.key(format!("general.sampling.{k}"), v.clone()));
        let bytes = SharedBytes::from(writer.to_bytes().unwrap());
        SamplingParams::from_metadata(Gguf::from_bytes("x.gguf", bytes).unwrap().metadata())
    };
    assert_eq!(read(&[]).unwrap(), SamplingParams { temperature: 1.0, top_p: 0.95, ..Default::default() });
    let keys = [
        ("temp", 0.6f32.into()),
        ("top_p", 0.5f32.into()),
        ("top_k", 20i32.into()),
        ("min_p", 0.01f32.into()),
        ("penalty_repeat", 1.1f32.into()),
        ("penalty_last_n", (-1i32).into()),
    ];
    let want = SamplingParams {
        temperature: 0.6,
        top_p: 0.5,
        top_k: 20,
        min_p: 0.01,
        repeat_penalty: 1.1,
        penalty_last_n: usize::MAX,
        ..Default::default()
    };
    assert_eq!(read(&keys).unwrap(), want);
    let bad = [
        ("temp", f32::NAN, "a number of 0 or more, got NaN"),
        ("top_p", 2.0, "a number above 0 and up to 1, got 2"),
        ("min_p", -1.0, "a number from 0 to 1, got -1"),
        ("penalty_repeat", 0.0, "a number above 0, got 0"),
    ];
    for (key, value, want) in bad {
        let error = read(&[(key, value.into())]).unwrap_err().to_string();
        assert_eq!(error, format!("x.gguf: key general.sampling.{key}: expected {want}"));
    }
    let error = read(&[("temp", "hot".into())]).unwrap_err().to_string();
    assert!(error.starts_with("x.gguf: key general.sampling.temp: expected a float"), "{error}");
}

#[test]
fn draws_allocate_nothing() {
    let logits: Vec<f32> = (0..4096).map(|i| ((i * 2654435761u64 % 4096) as f32) / 300.0).collect();
    for (top_k, top_p, min_p) in [(0, 1.0, 0.0), (0, 0.95, 0.0), (40, 0.95, 0.05), (0, 1.0, 0.1)] {
        let p = SamplingParams { top_k, top_p, min_p, repeat_penalty: 1.1, ..params() };
        let mut sampler = Sampler::new(p).unwrap();
        let mut step = || {
            let id = sampler.sample(&logits).unwrap();
            sampler.accept(id);
        };
        (0..100).for_each(|_| step());
        let info = allocation_counter::measure(|| (0..100).for_each(|_| step()));
        assert_eq!(info.count_total, 0);
    }
}

proptest! {
    #[test]
    fn log_probs_are_log_softmax(logits in logits(), token in any::<prop::sample::Index>(), n in 0usize..8) {
        let token = token.index(logits.len()) as u32;
        let got = log_probs(&logits, token, n).unwrap();
        let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let want = |id: u32| (f64::from(logits[id as usize]).exp() / total).ln();
        let close = |a: f64, b: f64| a == b || (a - b).abs() < 1e-9;
        prop_assert_eq!(got.token, token);
        prop_assert!(close(got.logprob, want(token)), "{} {}", got.logprob, want(token));
        let mut best: Vec<u32> = (0..logits.len() as u32).collect();
        best.sort_by(|&a, &b| logits[b as usize].partial_cmp(&logits[a as usize]).unwrap().then(a.cmp(&b)));
        best.truncate(n);
        prop_assert_eq!(got.top.iter().map(|t| t.0).collect::<Vec<_>>(), best);
        for &(id, logprob) in &got.top {
            prop_assert!(close(logprob, want(id)));
        }
    }
}

#[test]
fn log_probs_of_large_logits() {
    // The plain formula would overflow here.
    let got = log_probs(&[1000.0, 1000.0, 0.0], 2, 2).unwrap();
    assert!((got.logprob + 1000.0 + 2f64.ln()).abs() < 1e-9);
    assert!(got.top.iter().all(|t| (t.1 + 2f64.ln()).abs() < 1e-12));
    assert_eq!(
        log_probs(&[0.0; 2], 2, 0).unwrap_err().to_string(),
        "token id: expected an id below 2, got 2"
    );
}
