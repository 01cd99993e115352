//! Slices of a model, one behind another: the bits of the whole, in prompts of several sequences, where keys are selected, token by token, replayed.

use glm5::gguf::Gguf;
use glm5::model::{Batch, Cache, Config, IndexerKind, LoadOptions, LogitRows, Model, SeqId, Sequence, Slice};
use glm5::tensor::{CacheType, Device, Precision};

use super::goldens::{MODELS, files};

macro_rules! slices_properties {
    ($devices:path) => {
        $crate::suites::properties! { slices, $devices, 1; ; one_behind_another_they_are_the_model }
    };
}
pub(crate) use slices_properties;

/// Slices of a model, each with the residual stream of the one in front of it, or a single one of all layers.
struct Chain {
    parts: Vec<(Model, Cache, Vec<SeqId>)>,
}

impl Chain {
    /// Cut at `cuts`, with `n` sequences.
    fn new(d: &Device, gguf: &Gguf, options: LoadOptions, ty: CacheType, cuts: &[usize], n: usize) -> Self {
        let layers = Config::from_gguf(gguf).unwrap().n_layers;
        let ends: Vec<usize> = cuts.iter().copied().chain([layers]).collect();
        let mut first = 0;
        let part = |end: &usize| {
            let slice = Slice { first, end: *end, embedding: first == 0, head: *end == layers };
            first = *end;
            let slice = (!cuts.is_empty()).then_some(slice);
            let model = Model::load(gguf, d, &LoadOptions { slice, ..options }, &mut |_, _| {}).unwrap();
            let mut cache = model.new_cache(900, ty).unwrap();
            let sequences = (0..n).map(|_| cache.new_sequence()).collect();
            (model, cache, sequences)
        };
        Chain { parts: ends.iter().map(part).collect() }
    }

    /// What comes of new tokens of sequences, by their numbers.
    fn pass(&mut self, new: &[(usize, &[u32], LogitRows)]) -> Vec<f32> {
        let (mut hidden, last) = (None, self.parts.len() - 1);
        for (i, (model, cache, sequences)) in self.parts.iter_mut().enumerate() {
            let batch = new.iter().map(|&(seq, tokens, logits)| Sequence {
                seq: sequences[seq],
                tokens,
                logits: if i == last { logits } else { LogitRows::ALL },
            });
            let batch = Batch::new(batch.collect());
            let out = match &hidden {
                None => model.forward(&batch, cache),
                Some(hidden) => model.forward_hidden(&batch, hidden, cache),
            };
            hidden = Some(out.unwrap().try_clone().unwrap());
        }
        hidden.unwrap().to_vec().unwrap()
    }
}

pub fn one_behind_another_they_are_the_model(devices: &[Device]) {
    let d = &devices[0];
    let (emulated, on_gpu) = (d.name().contains("emulator"), d.gpu().is_ok());
    // Each step takes the emulator seconds. As many sequences as a power of two: rows that pad a step on a GPU go to experts, too, which those are
    // says where sums over a token's experts are cut, and the rows are others where they do not come from tokens.
    let (lens, steps) = if emulated { (&[2][..], 3) } else { (&[520, 3, 70, 9][..], 4) };
    let kinds = [(Precision::Fast, CacheType::Bf16), (Precision::Exact, CacheType::F32)];
    for (name, (precision, ty)) in MODELS.iter().flat_map(|name| kinds.map(|kind| (name, kind))) {
        if emulated && (*name, precision) != (MODELS[1], Precision::Fast) {
            continue;
        }
        let gguf = Gguf::open(files::path(&format!("{name}.gguf"))).unwrap();
        let config = Config::from_gguf(&gguf).unwrap();
        let full: Vec<usize> =
            (1..config.n_layers).filter(|i| config.indexers[*i] == IndexerKind::Full).collect();
        let mut cuts = vec![full[..1].to_vec()];
        if full.len() > 1 && !emulated {
            cuts.push(full);
        }
        let options = LoadOptions { precision, ..LoadOptions::default() };
        let chain = |cuts: &[usize]| Chain::new(d, &gguf, options, ty, cuts, lens.len());
        let run = |mut chain: Chain| {
            let texts: Vec<Vec<u32>> =
                lens.iter().map(|n| (0..*n as u32).map(|i| (i * i * 31 + i) % 4096).collect()).collect();
            let rows = [LogitRows::From(500), LogitRows::ALL, LogitRows::Last, LogitRows::ALL];
            let rows = if emulated { &[LogitRows::ALL; 1][..] } else { &rows[..] };
            let prompts: Vec<_> =
                texts.iter().zip(rows).enumerate().map(|(i, (text, rows))| (i, &text[..], *rows)).collect();
            let mut out = vec![chain.pass(&prompts)];
            for step in 0..steps {
                let token = [100 + step];
                let new: Vec<_> = (0..lens.len()).map(|i| (i, &token[..], LogitRows::Last)).collect();
                out.push(chain.pass(&new));
            }
            (out, chain)
        };
        let (want, whole) = run(chain(&[]));
        let counted = whole.parts[0].0.counters().clone();
        for cuts in cuts {
            let (got, chain) = run(chain(&cuts));
            assert!(got == want, "{name} cut at {cuts:?}, {precision}: other bits");
            let counters = chain.parts.iter().map(|(model, ..)| model.counters());
            let layers: Vec<_> = counters.clone().flat_map(|c| c.layers.clone()).collect();
            assert_eq!(layers, counted.layers);
            let logits: Vec<u64> = counters.clone().map(|c| c.logits).collect();
            assert_eq!(logits.last(), Some(&counted.logits));
            assert!(logits[..logits.len() - 1].iter().all(|n| *n == 0), "{logits:?}");
            assert!(counters.clone().all(|c| (c.tokens, c.steps) == (counted.tokens, counted.steps)));
            assert!(counters.clone().all(|c| (c.replayed > 0) == on_gpu), "steps that were replayed");
            let sparse = counted.layers.iter().map(|l| l.full_sparse).sum::<u64>();
            assert!(sparse > 0 || emulated);
        }
    }
}
