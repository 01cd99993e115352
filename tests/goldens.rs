//! Golden values of independent implementations: every trunk entry of `models/goldens/*.safetensors`, with f32 activations.

use std::collections::HashMap;

use glm5::model::{Batch, Event, LoadOptions, LogitRows, Model, Observer};
use glm5::ops::dsa_indexer::indexer_scores;
use glm5::tensor::{CacheType, Device, Precision, Tensor};
use safetensors::SafeTensors;

const MODELS: [&str; 2] = ["nano-q4_k_m", "nano-shared-ud"];

/// Relative L2 distance that every entry must keep.
const BOUND: f64 = 1e-4;

/// Entries compared and the largest distance seen, so that a test that compared nothing fails.
#[derive(Default)]
struct Tally {
    entries: usize,
    worst: f64,
}

struct Goldens {
    bytes: Vec<u8>,
}

impl Goldens {
    fn open(model: &str) -> Self {
        let path = format!("{}/models/goldens/{model}.safetensors", env!("CARGO_MANIFEST_DIR"));
        Goldens { bytes: std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}")) }
    }

    fn get<T: bytemuck::AnyBitPattern>(&self, name: &str) -> Option<(Vec<usize>, Vec<T>)> {
        let all = SafeTensors::deserialize(&self.bytes).unwrap();
        let t = all.tensor(name).ok()?;
        Some((t.shape().to_vec(), t.data().chunks(4).map(bytemuck::pod_read_unaligned).collect()))
    }

    fn ints(&self, name: &str) -> Vec<i32> {
        self.get(name).unwrap_or_else(|| panic!("no golden {name}")).1
    }

    fn tokens(&self, name: &str) -> Vec<u32> {
        self.ints(name).into_iter().map(|t| t as u32).collect()
    }

    /// Rows of an f32 entry.
    fn rows(&self, name: &str) -> Vec<Vec<f32>> {
        let (shape, values) = self.get::<f32>(name).unwrap_or_else(|| panic!("no golden {name}"));
        values.chunks(shape[1..].iter().product()).map(<[f32]>::to_vec).collect()
    }
}

/// What a forward pass showed, rows by position.
#[derive(Default)]
struct Seen {
    hidden: HashMap<String, Vec<Vec<f32>>>,
    selected: HashMap<usize, Vec<Vec<i32>>>,
    scores: HashMap<usize, Vec<Vec<f32>>>,
    routing: HashMap<usize, Vec<Vec<(u32, f32)>>>,
}

fn rows(t: &Tensor) -> Vec<Vec<f32>> {
    t.cpu().unwrap().chunks(t.cols()).map(<[f32]>::to_vec).collect()
}

impl Observer for Seen {
    fn wants_indexer(&self) -> bool {
        true
    }

    fn see(&mut self, event: Event<'_>) {
        match event {
            Event::Embedding(x) => self.hidden.entry("embed".into()).or_default().extend(rows(x)),
            Event::Layer { layer, x } => self.hidden.entry(layer.to_string()).or_default().extend(rows(x)),
            Event::Final(x) => self.hidden.entry("final".into()).or_default().extend(rows(x)),
            Event::Indexer { layer, q, w, keys, rows: layout, selection } => {
                let selected = self.selected.entry(layer).or_default();
                let row = |t| selection.row(t).unwrap().iter().map(|i| *i as i32).collect();
                selected.extend((0..layout.len()).map(row));
                let mut scores = Tensor::zeros(q.device(), layout.len(), layout.max_visible()).unwrap();
                let scale = 1.0 / (q.cols() as f32).sqrt();
                indexer_scores(q, w, keys, layout, scale, &mut scores, Precision::Exact).unwrap();
                self.scores.entry(layer).or_default().extend(rows(&scores));
            }
            Event::Routing { layer, routing } => {
                let k = routing.ids.cols();
                let ids = routing.ids.cpu().unwrap().chunks(k);
                let weights = routing.weights.cpu().unwrap().chunks(k);
                self.routing.entry(layer).or_default().extend(ids.zip(weights).map(|(i, w)| {
                    let mut pairs: Vec<_> = i.iter().copied().zip(w.iter().copied()).collect();
                    pairs.sort_by_key(|p| p.0);
                    pairs
                }));
            }
            _ => {}
        }
    }
}

/// Relative L2 distance; infinities must agree exactly and do not count.
fn distance(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let (mut diff, mut norm) = (0f64, 0f64);
    for (g, w) in got.iter().zip(want) {
        if w.is_infinite() {
            assert_eq!(g, w);
            continue;
        }
        assert!(g.is_finite(), "not finite: {g}, want {w}");
        diff += (*g as f64 - *w as f64).powi(2);
        norm += (*w as f64).powi(2);
    }
    (diff / norm.max(1e-30)).sqrt()
}

impl Tally {
    fn close(&mut self, name: &str, got: &[f32], want: &[f32]) {
        let d = distance(got, want);
        assert!(d <= BOUND, "{name}: relative L2 distance {d:.2e}, bound {BOUND:.0e}");
        self.worst = self.worst.max(d);
        self.entries += 1;
    }
}

/// Everything known of one prompt, computed in one pass.
fn check_prompt(g: &Goldens, model: &mut Model, x: &str, tally: &mut Tally) {
    let ids = g.tokens(&format!("{x}.ids"));
    let n = ids.len();
    let mut cache = model.new_cache(n, CacheType::F32).unwrap();
    let seq = cache.new_sequence();
    let mut seen = Seen::default();
    let batch = Batch::one(seq, &ids, LogitRows::ALL);
    let logits = rows(model.forward_observed(&batch, &mut cache, &mut seen).unwrap());

    let argmax =
        |row: &[f32]| (0..row.len()).reduce(|a, b| if row[b] > row[a] { b } else { a }).unwrap() as i32;
    let got: Vec<i32> = logits.iter().map(|r| argmax(r)).collect();
    assert_eq!(got, g.ints(&format!("{x}.argmax")), "{x}.argmax");
    for (p, want) in g.ints(&format!("{x}.logits.pos")).iter().zip(g.rows(&format!("{x}.logits"))) {
        tally.close(&format!("{x}.logits at {p}"), &logits[*p as usize], &want);
    }
    for name in ["embed", "0", "1", "2", "3", "final"] {
        let want = g.rows(&format!("{x}.hidden.{name}"));
        for (p, want) in g.ints(&format!("{x}.hidden.pos")).iter().zip(want) {
            tally.close(&format!("{x}.hidden.{name} at {p}"), &seen.hidden[name][*p as usize], &want);
        }
    }
    let nll: Vec<f32> = g.get(&format!("{x}.nll")).unwrap().1;
    for (t, want) in nll.iter().enumerate() {
        let got = log_sum_exp(&logits[t]) - logits[t][ids[t + 1] as usize] as f64;
        assert!((got - *want as f64).abs() < 1e-3, "{x}.nll at {t}: {got}, want {want}");
    }
    let positions = g.ints(&format!("{x}.rows.pos"));
    for layer in 0..4 {
        check_layer(g, x, layer, &positions, &seen, tally);
        for (i, p) in g.ints(&format!("{x}.cache.pos")).iter().enumerate() {
            let at = *p as usize;
            check_cache_row(g, x, layer, i, &cache.latent_row(seq, layer, at).unwrap(), tally);
            let key = format!("{x}.cache.{layer}.k_idx");
            let want = g.get::<f32>(&key);
            assert_eq!(want.is_some(), cache.index_row(seq, layer, at).is_ok(), "{key}");
            if want.is_some() {
                tally.close(&key, &cache.index_row(seq, layer, at).unwrap(), &g.rows(&key)[i]);
            }
        }
    }
}

fn check_layer(g: &Goldens, x: &str, layer: usize, positions: &[i32], seen: &Seen, tally: &mut Tally) {
    if let Some((shape, want)) = g.get::<i32>(&format!("{x}.sel.{layer}")) {
        for (p, want) in positions.iter().zip(want.chunks(shape[1])) {
            let want: Vec<i32> = want.iter().copied().filter(|i| *i >= 0).collect();
            assert_eq!(seen.selected[&layer][*p as usize], want, "{x}.sel.{layer} at {p}");
            tally.entries += 1;
        }
        let name = format!("{x}.score.{layer}");
        for (p, want) in g.ints(&format!("{x}.score.pos")).iter().zip(g.rows(&name)) {
            tally.close(&format!("{name} at {p}"), &seen.scores[&layer][*p as usize], &want);
        }
    } else {
        assert!(!seen.selected.contains_key(&layer), "layer {layer} selects, the golden model does not");
    }
    if let Some((shape, ids)) = g.get::<i32>(&format!("{x}.router.{layer}.ids")) {
        let weights = g.rows(&format!("{x}.router.{layer}.weights"));
        for ((p, ids), want) in positions.iter().zip(ids.chunks(shape[1])).zip(weights) {
            let (got_ids, got): (Vec<_>, Vec<_>) =
                seen.routing[&layer][*p as usize].iter().map(|(i, w)| (*i as i32, *w)).unzip();
            assert_eq!(got_ids, ids, "{x}.router.{layer}.ids at {p}");
            tally.close(&format!("{x}.router.{layer}.weights at {p}"), &got, &want);
        }
    }
}

fn check_cache_row(g: &Goldens, x: &str, layer: usize, i: usize, row: &[f32], tally: &mut Tally) {
    for (part, got) in [("c", &row[..512]), ("k_pe", &row[512..])] {
        let name = format!("{x}.cache.{layer}.{part}");
        tally.close(&name, got, &g.rows(&name)[i]);
    }
}

/// P3: a prompt, then cached greedy steps.
fn check_decode(g: &Goldens, model: &mut Model, tally: &mut Tally) {
    let (ids, greedy) = (g.tokens("p3.ids"), g.tokens("p3.greedy"));
    let mut cache = model.new_cache(ids.len() + greedy.len(), CacheType::F32).unwrap();
    let seq = cache.new_sequence();
    for (j, want) in g.rows("p3.logits").iter().enumerate() {
        let tokens = if j == 0 { &ids[..] } else { &greedy[j - 1..j] };
        let logits = rows(model.forward(&Batch::one(seq, tokens, LogitRows::Last), &mut cache).unwrap());
        tally.close(&format!("p3.logits row {j}"), &logits[0], want);
        let best = (0..logits[0].len()).reduce(|a, b| if logits[0][b] > logits[0][a] { b } else { a });
        assert_eq!(best, Some(greedy[j] as usize), "p3.greedy {j}");
    }
    for layer in 0..4 {
        for (i, p) in g.ints("p3.cache.pos").iter().enumerate() {
            check_cache_row(g, "p3", layer, i, &cache.latent_row(seq, layer, *p as usize).unwrap(), tally);
        }
    }
}

fn log_sum_exp(row: &[f32]) -> f64 {
    let max = row.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v)) as f64;
    max + row.iter().map(|v| (*v as f64 - max).exp()).sum::<f64>().ln()
}

#[test]
fn every_entry_is_met_with_f32_activations() {
    let device = Device::cpu(None).unwrap();
    for name in MODELS {
        let g = Goldens::open(name);
        let path = format!("{}/models/{name}.gguf", env!("CARGO_MANIFEST_DIR"));
        let mut model = Model::open(path, &device, &LoadOptions::default()).unwrap();
        let mut tally = Tally::default();
        check_prompt(&g, &mut model, "p1", &mut tally);
        check_prompt(&g, &mut model, "p2", &mut tally);
        check_decode(&g, &mut model, &mut tally);
        println!("{name}: {} entries, worst distance {:.1e}", tally.entries, tally.worst);
        assert!(tally.entries > 300, "{name}: only {} entries compared", tally.entries);
    }
}
