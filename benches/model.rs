//! The small model end to end: loading, a 400-token prompt, single tokens behind it.
//!
//! Floor of a decoded token: 12 M multiply-adds on 7.2 MB of weights, all within the last-level cache, so arithmetic and
//! the hand-over between threads bind, not memory. `cargo bench --bench model`

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use glm5::gguf::Gguf;
use glm5::model::{Batch, LoadOptions, LogitRows, Model};
use glm5::tensor::{CacheType, Device};

const PROMPT: usize = 400;

fn model(c: &mut Criterion) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/nano-q4_k_m.gguf");
    let device = Device::cpu(None).unwrap();
    let Device::Cpu(cpu) = &device else { unreachable!("made by Device::cpu") };
    let open =
        || Model::load(&Gguf::open(path).unwrap(), &device, &LoadOptions::default(), &mut |_, _| {}).unwrap();
    println!("{}", device.name());
    c.bench_function("load", |b| b.iter(open));

    let mut model = open();
    let mut cache = model.new_cache(4096, CacheType::F32).unwrap();
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| i * 37 % 4000).collect();
    let mut group = c.benchmark_group("nano-q4_k_m");
    group.throughput(Throughput::Elements(PROMPT as u64));
    group.bench_function("prefill 400", |b| {
        cpu.install(|| {
            b.iter(|| {
                let seq = cache.new_sequence();
                model.forward(&Batch::one(seq, &prompt, LogitRows::Last), &mut cache).unwrap();
                cache.remove(seq).unwrap();
            })
        })
    });
    let seq = cache.new_sequence();
    model.forward(&Batch::one(seq, &prompt, LogitRows::None), &mut cache).unwrap();
    group.throughput(Throughput::Elements(1));
    group.bench_function("decode behind 400", |b| {
        cpu.install(|| {
            b.iter(|| {
                model.forward(&Batch::one(seq, &[7], LogitRows::Last), &mut cache).unwrap();
                cache.truncate(seq, PROMPT).unwrap();
            })
        })
    });
    group.finish();
}

criterion_group!(benches, model);
criterion_main!(benches);
