//! GPU kernels at GLM-5's shapes, and the roofs of the GPU: microseconds, GB/s, share of the copy roof measured in the same
//! run. Without a GPU, or without the feature `cuda`, it says so; with `GLM5_REQUIRE_GPU=1` it fails then.
//!
//! `cargo bench --features cuda --bench kernels [-- norm]` takes the rows whose name, `group/row`, holds the word. With
//! `GLM5_BENCH_OUT` the results go to that file too, as lines of JSON.
//!
//! A time is that of a graph of launches, divided by their number, so it includes the edge between two kernels. Buffers
//! rotate over four times the L2 cache unless a row says `L2-warm`. Nothing is timed before its output was compared.

#[path = "../../tests/suites/blocks.rs"]
mod blocks;
#[path = "../../tests/suites/close.rs"]
mod close;
mod data;
mod dequantize;
mod embedding;
mod linear;
mod linear_decode_variants;
mod linear_int8;
mod norm;
mod report;
mod roofs;

use std::time::Duration;

use criterion::{Criterion, Throughput};
use glm5::Result;
use glm5::cuda::roofs::Roofs;
use glm5::cuda::{Environment, Gpu};
use glm5::tensor::Device;
use report::Report;

/// Launches of a graph, at least: a small kernel must not show what starting a graph costs.
const LAUNCHES: usize = 100;

/// Times of a row.
const SAMPLES: usize = 20;

/// A GPU and what it can do.
struct Bench {
    device: Device,
    roofs: Roofs,
    /// Whether times are wanted; else each row is tried once.
    measured: bool,
    /// What the name of a row must hold.
    filter: String,
    report: Report,
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
        let filter = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
        let environment = Environment::look();
        if let Some(why) = &environment.trouble {
            println!("skipped: {why}");
            let required = std::env::var_os("GLM5_REQUIRE_GPU").is_some_and(|v| !v.is_empty() && v != "0");
            if required {
                std::process::exit(1);
            }
            return None;
        }
        println!("{environment}");
        let device = Device::auto().unwrap();
        let roofs =
            Roofs::measure(device.gpu().unwrap(), if measured { None } else { Some(1 << 20) }).unwrap();
        println!("{roofs}");
        let report = Report::new(&environment, &roofs);
        Some(Bench { device, roofs, measured, filter, report })
    }

    fn gpu(&self) -> &Gpu {
        self.device.gpu().unwrap()
    }

    /// Whether this row is to be run; asked before anything is prepared for it.
    fn wants(&self, group: &str, name: &str) -> bool {
        format!("{group}/{name}").contains(&self.filter)
    }

    /// Sets of buffers of `bytes` each that no cache holds.
    fn sets(&self, bytes: usize) -> usize {
        let rotate = if self.measured { 4 * self.gpu().properties().l2 as usize } else { 1 };
        rotate.div_ceil(bytes.max(1)).max(2)
    }

    /// Times and reports a row: 0.1 s of samples, so that a whole table takes minutes.
    fn row(&self, c: &mut Criterion, group: &str, row: Row<'_>) {
        let Row { name, bytes, sets, launch } = row;
        let launches = if bytes < 16 << 20 { LAUNCHES.next_multiple_of(sets) } else { sets };
        let launches = if self.measured { launches } else { sets };
        let mut graph = self.gpu().capture(|| (0..launches).try_for_each(|i| launch(i % sets))).unwrap();
        graph.launch().unwrap(); // A first run that does not count.
        if !self.measured {
            self.gpu().synchronize().unwrap();
            return println!("{group}/{name}: runs");
        }
        let mut times = Vec::new();
        let mut criterion_group = c.benchmark_group(group);
        criterion_group
            .sample_size(SAMPLES)
            .nresamples(2000)
            .warm_up_time(Duration::from_millis(10))
            .measurement_time(Duration::from_millis(100))
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
        let warm = times.split_off(times.len() - SAMPLES); // without those of the warm-up
        self.report.row(&format!("{group}/{name}"), bytes, warm, Some(self.roofs.copy));
    }
}

fn main() {
    let Some(bench) = Bench::new() else { return };
    // Not configured by the arguments: criterion's filter is a regular expression, and names hold `+` and `[`.
    let c = &mut Criterion::default();
    roofs::benches(&bench, c);
    norm::benches(&bench, c);
    embedding::benches(&bench, c);
    dequantize::benches(&bench, c);
    linear::benches(&bench, c);
    linear_int8::benches(&bench, c);
    linear_decode_variants::benches(&bench, c);
    c.final_summary();
    if bench.measured && !bench.report.finish() {
        eprintln!("no row has `{}` in its name", bench.filter);
        std::process::exit(1);
    }
}
