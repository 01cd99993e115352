//! Quantized linear layers at GLM-5's shapes and at a small model's, on all threads of the machine.
//!
//! Floor: one token must read every weight byte once, so the memory binds: its roof is measured here by a loop that reads, and
//! the share of it is printed. Weights of the large shapes rotate over more than a last-level cache. With 400 tokens the
//! multiply-adds bind: 32 per cycle and core with AVX-512, 16 with AVX2. `cargo bench --bench linear`

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use glm5::cpu::Cpu;
use glm5::ops::linear::linear;
use glm5::quant::{GgmlType, Weight};
use glm5::tensor::{Device, Matrix, Precision, Tensor};

/// Larger than the last-level caches of most machines, together.
const ROTATE_BYTES: usize = 192 << 20;

/// Type, rows, columns, numbers of tokens.
const CASES: [(GgmlType, usize, usize, &[usize]); 10] = [
    (GgmlType::Q4_K, 1024, 256, &[1, 4, 400]),
    (GgmlType::Q5_0, 1024, 256, &[1]),
    (GgmlType::Q5_K, 1024, 256, &[1]),
    (GgmlType::Q6_K, 1024, 256, &[1, 400]),
    (GgmlType::Q8_0, 1024, 256, &[1]),
    (GgmlType::Q4_K, 2048, 6144, &[1, 4, 400]),
    (GgmlType::Q6_K, 2048, 6144, &[1]),
    (GgmlType::Q8_0, 2048, 6144, &[1]),
    (GgmlType::Q4_K, 16384, 2048, &[1, 4]),
    (GgmlType::Q4_K, 6144, 16384, &[1, 4]),
];

fn benches(c: &mut Criterion) {
    // Without `--bench` criterion only tries each case once.
    let measured = std::env::args().any(|a| a == "--bench");
    let rotate = if measured { ROTATE_BYTES } else { 1 };
    let device = Device::cpu(None).unwrap();
    let Device::Cpu(cpu) = &device else { unreachable!("made by Device::cpu") };
    let roof = read_roof(cpu, rotate.max(1 << 20));
    println!("{}: reads {:.1} GB/s", device.name(), roof / 1e9);

    for (ty, n, k, tokens) in CASES {
        let bytes = random_blocks(ty, n * k);
        // A small model's weights stay in the cache from token to token.
        let copies = if bytes.len() < 1 << 20 { 1 } else { rotate.div_ceil(bytes.len()) };
        let weights: Vec<Matrix> = (0..copies)
            .map(|_| Matrix::new(&device, Weight::new(ty, [1, n, k], bytes.clone().into()).unwrap()).unwrap())
            .collect();
        let mut group = c.benchmark_group(format!("{ty} [{n}, {k}]"));
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(300))
            .measurement_time(Duration::from_secs(1));
        for &m in tokens {
            let x = Tensor::from_vec(&device, m, k, random(m * k)).unwrap();
            let mut y = Tensor::zeros(&device, m, n).unwrap();
            group.throughput(match m {
                1 => Throughput::Bytes(bytes.len() as u64),
                m => Throughput::Elements((m * n * k) as u64),
            });
            let mut best = f64::INFINITY;
            group.bench_function(format!("m = {m}"), |b| {
                b.iter_custom(|times| {
                    cpu.install(|| {
                        let start = Instant::now();
                        for i in 0..times as usize {
                            linear(&weights[i % copies], &x, &mut y, Precision::Exact).unwrap();
                        }
                        let took = start.elapsed();
                        best = best.min(took.as_secs_f64() / times as f64);
                        took
                    })
                })
            });
            if m == 1 && copies > 1 {
                let speed = bytes.len() as f64 / best;
                println!("best {:.1} GB/s, {:.0} % of the read roof", speed / 1e9, 100.0 * speed / roof);
            }
        }
    }
}

/// Bytes per second of all threads reading memory, the best of a few rounds.
fn read_roof(cpu: &Cpu, bytes: usize) -> f64 {
    let words = vec![1u64; bytes / 8];
    let read = |part: &[u64]| black_box(part.iter().fold(0u64, |sum, w| sum.wrapping_add(*w)));
    let rounds = (0..5).map(|_| {
        let start = Instant::now();
        std::thread::scope(|s| {
            for part in words.chunks(words.len().div_ceil(cpu.threads())) {
                s.spawn(move || read(part));
            }
        });
        start.elapsed().as_secs_f64()
    });
    (words.len() * 8) as f64 / rounds.fold(f64::INFINITY, f64::min)
}

/// Random bytes, except that the scales are about 1e-2.
fn random_blocks(ty: GgmlType, n: usize) -> Vec<u8> {
    let scales: &[usize] = match ty {
        GgmlType::Q4_K | GgmlType::Q5_K => &[0, 2],
        GgmlType::Q6_K => &[208],
        _ => &[0],
    };
    let mut next = random_words();
    let mut bytes: Vec<u8> = (0..n / ty.block_elems() * ty.block_bytes()).map(|_| next() as u8).collect();
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for at in scales {
            block[at + 1] = block[at + 1] & 0x83 | 0x20;
        }
    }
    bytes
}

fn random(n: usize) -> Vec<f32> {
    let mut next = random_words();
    (0..n).map(|_| next() as f32 / (1 << 30) as f32 - 1.0).collect()
}

/// 31 bits at a time of a linear congruential generator.
fn random_words() -> impl FnMut() -> u32 {
    let mut state = 1u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u32
    }
}

criterion_group!(linear_layers, benches);
criterion_main!(linear_layers);
