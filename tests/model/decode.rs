//! Steady-state decoding allocates nothing: not when a page is full, not when selection sets in, not for sampling.
//!
//! Counted on the thread that runs the loop, inside [`glm5::cpu::Cpu::install`]: a call from outside is handed to the pool
//! through a queue that allocates now and then. With two threads that one computes half of everything, so every kernel runs
//! on it; tasks are the same whichever thread takes them.

use glm5::model::{Batch, LoadOptions, LogitRows, Model};
use glm5::tensor::{CacheType, Device, PAGE_ROWS, Precision};
use glm5::text::{Sampler, SamplingParams};

use crate::common::{self, MODELS, TOP_K};
use crate::texts::Texts;

/// Tokens before counting begins: below top-k and one before the end of a page.
const WARM: usize = PAGE_ROWS - 4;

#[test]
fn decoding_allocates_nothing() {
    for threads in [1, 2] {
        let device = Device::cpu(Some(threads)).unwrap();
        let Device::Cpu(cpu) = &device else { panic!("not a CPU") };
        for (which, name) in MODELS.iter().enumerate() {
            for (ty, precision) in [(CacheType::F32, Precision::Exact), (CacheType::Bf16, Precision::Fast)] {
                let options = LoadOptions { precision, ..LoadOptions::default() };
                let path = common::path(&format!("{name}.gguf"));
                let mut model = Model::open(path, &device, &options).unwrap();
                let mut cache = model.new_cache(512, ty).unwrap();
                let text = &Texts::of(which).tokens[0];
                let params = SamplingParams { repeat_penalty: 1.1, ..SamplingParams::default() };
                let mut sampler = Sampler::new(params).unwrap();
                // As a caller does with its prompt; the sampler then has all the tokens that it keeps.
                text[..WARM].iter().chain(&text[..WARM]).for_each(|t| sampler.accept(*t));
                let seq = cache.new_sequence();
                let n = cpu.install(|| {
                    model.forward(&Batch::one(seq, &text[..WARM - 2], LogitRows::Last), &mut cache).unwrap();
                    let mut token = text[WARM - 2];
                    let mut step = || {
                        let logits = model.forward(&Batch::one(seq, &[token], LogitRows::Last), &mut cache);
                        token = sampler.sample(logits.unwrap().cpu().unwrap()).unwrap();
                        sampler.accept(token);
                    };
                    // The first single tokens size the workspace.
                    (0..2).for_each(|_| step());
                    // Two pages begin, and selection at TOP_K.
                    let info = allocation_counter::measure(|| (0..2 * PAGE_ROWS).for_each(|_| step()));
                    info.count_total
                });
                assert_eq!(cache.len(seq).unwrap(), WARM + 2 * PAGE_ROWS);
                assert!(WARM < TOP_K && model.counters().total().full_sparse > 0);
                assert_eq!(
                    n,
                    0,
                    "{name}, {threads} threads, {ty}, {precision}: allocations in {} steps",
                    2 * PAGE_ROWS
                );
            }
        }
    }
}
