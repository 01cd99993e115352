//! GPU kernels at GLM-5's shapes: microseconds, GB/s, share of the copy roof measured in the same run. Without a GPU, or
//! without the feature `cuda`, it says so. `cargo bench --features cuda --bench kernels [-- norm]`
//!
//! A time is that of a graph of launches, divided by their number, so it includes the edge between two kernels. Buffers
//! rotate over four times the L2 cache unless a row says `L2-warm`. Nothing is timed before its output was compared.

#[path = "../../tests/suites/blocks.rs"]
mod blocks;
mod dequantize;
mod embedding;
mod linear;
mod norm;

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use glm5::cuda::roofs::Roofs;
use glm5::cuda::{Environment, Gpu};
use glm5::tensor::Device;
use glm5::{Error, Result};

/// Launches of a graph, at least: a small kernel must not show what starting a graph costs.
const LAUNCHES: usize = 100;

/// A GPU and what it can do.
struct Bench {
    device: Device,
    roofs: Roofs,
    /// Whether times are wanted; else each row is tried once.
    measured: bool,
}

/// One row of the table.
struct Row<'a> {
    name: String,
    /// Bytes that one launch must move.
    bytes: usize,
    /// Sets of buffers; `launch` is told which to use.
    sets: usize,
    launch: &'a mut dyn FnMut(usize) -> Result<()>,
}

impl Bench {
    fn new() -> Option<Self> {
        let measured = std::env::args().any(|a| a == "--bench");
        match Device::auto().and_then(|device| device.gpu().cloned()) {
            Ok(gpu) => {
                println!("{}", Environment::look());
                let roofs = Roofs::measure(&gpu, if measured { None } else { Some(1 << 20) }).unwrap();
                println!("{roofs}");
                Some(Bench { device: Device::Cuda(gpu), roofs, measured })
            }
            Err(Error::NoGpu(why)) => skipped(&why),
            Err(Error::Unsupported { .. }) => skipped("no GPU, or a build without the feature `cuda`"),
            Err(e) => panic!("{e}"),
        }
    }

    fn gpu(&self) -> &Gpu {
        self.device.gpu().unwrap()
    }

    /// Sets of buffers of `bytes` each that no cache holds.
    fn sets(&self, bytes: usize) -> usize {
        let rotate = if self.measured { 4 * self.gpu().properties().l2 as usize } else { 1 };
        rotate.div_ceil(bytes.max(1)).max(2)
    }

    fn row(&self, c: &mut Criterion, group: &str, row: Row<'_>) {
        let Row { name, bytes, sets, launch } = row;
        let launches = if bytes < 16 << 20 { LAUNCHES.next_multiple_of(sets) } else { sets };
        let launches = if self.measured { launches } else { sets };
        let mut graph = self.gpu().capture(|| (0..launches).try_for_each(|i| launch(i % sets))).unwrap();
        graph.launch().unwrap(); // A first run that does not count.
        let mut times = Vec::new();
        let mut criterion_group = c.benchmark_group(group);
        criterion_group
            .sample_size(20)
            .nresamples(2000)
            .warm_up_time(Duration::from_millis(20))
            .measurement_time(Duration::from_millis(150))
            .throughput(Throughput::Bytes(bytes as u64));
        criterion_group.bench_function(&name, |b| {
            b.iter_custom(|n| {
                let replays = (n as usize).div_ceil(launches);
                let took = self.gpu().time(|| (0..replays).try_for_each(|_| graph.launch())).unwrap();
                let each = took.as_secs_f64() / (replays * launches) as f64;
                times.push(each);
                Duration::from_secs_f64(each * n as f64)
            })
        });
        criterion_group.finish();
        if self.measured && !times.is_empty() {
            times.sort_by(f64::total_cmp);
            let at = |share: f64| times[(share * (times.len() - 1) as f64).round() as usize];
            let rate = bytes as f64 / at(0.5);
            println!(
                "{group}/{name}: {:.2} us (p10 {:.2}, p90 {:.2}), {:.0} GB/s = {:.1} % of copy",
                at(0.5) * 1e6,
                at(0.1) * 1e6,
                at(0.9) * 1e6,
                rate / 1e9,
                100.0 * rate / self.roofs.copy
            );
        }
    }
}

fn skipped(why: &str) -> Option<Bench> {
    println!("skipped: {why}");
    None
}

fn benches(c: &mut Criterion) {
    if let Some(bench) = Bench::new() {
        norm::benches(&bench, c);
        embedding::benches(&bench, c);
        dequantize::benches(&bench, c);
        linear::benches(&bench, c);
    }
}

criterion_group!(kernels, benches);
criterion_main!(kernels);
