//! GPU kernels at GLM-5's shapes, and the roofs of the GPU, measured in the same run: microseconds, GB/s or TOPS and the share of
//! the roof that binds, which kernels ran, what llama.cpp takes. Without a GPU, or without the feature `cuda`, it says so; with
//! `GLM5_REQUIRE_GPU=1` it fails then.
//!
//! `cargo bench --features cuda --bench kernels [-- norm]` takes the rows whose name, `group/row`, holds the word. With
//! `GLM5_BENCH_OUT` the results go to that file too, as lines of JSON. The whole table has about 970 rows; 925 of an earlier one took
//! 102 s on an H200.
//!
//! A time is that of a graph of launches, divided by their number, so it includes the edge between two kernels. Buffers
//! rotate over four times the L2 cache unless a row says `L2-warm`. Nothing is timed before its output was compared.

mod baselines;
#[path = "../../tests/suites/blocks.rs"]
mod blocks;
mod cache;
#[path = "../../tests/suites/close.rs"]
mod close;
mod data;
mod dequantize;
mod dsa_indexer;
mod dsa_topk;
mod embedding;
mod ffn;
mod linear;
mod linear_fused;
mod linear_heads;
mod linear_tiled;
mod linear_variants;
mod mla_attention;
mod mla_prefill;
mod moe;
mod moe_blocks;
mod moe_sort;
mod moe_sum;
mod norm;
mod paged;
mod post_a;
mod report;
mod roofs;
mod rope;
mod router;
mod shapes;
#[cfg(test)]
#[allow(dead_code, unused_imports)] // Without a harness there are no tests in here.
mod tests;

use std::time::Duration;

use criterion::{Criterion, Throughput};
use glm5::Result;
use glm5::cuda::roofs::Roofs;
use glm5::cuda::{Environment, Gpu};
use glm5::kernels::Entry;
use glm5::tensor::{Device, DeviceChoice};

use baselines::Case;
use report::{Report, Work};

/// Launches of a graph, at least: a small kernel must not show what starting a graph costs.
const LAUNCHES: usize = 100;

/// Seconds of a graph, at most, if it has more than one launch, and those are not short.
const GRAPH: f64 = 2.5e-3;

/// Seconds of a short launch: by itself it takes some microseconds longer than in a graph, so no graph of these is long.
const SHORT: f64 = 25e-6;

/// Sets of activations that take turns, at most: what a layer writes is in L2 when the next one reads it.
const FEW_SETS: usize = 8;

/// Times of a row.
const SAMPLES: usize = 20;

/// Times of a row whose graph takes longer than this many seconds.
const FEW_SAMPLES: (f64, usize) = (5e-3, 10);

/// A GPU and what it can do.
pub struct Bench {
    device: Device,
    /// Whether times are wanted; else each row is tried once.
    measured: bool,
    /// What the name of a row must hold.
    filter: String,
    report: Report,
}

/// One row of the table.
struct Row<'a> {
    name: String,
    /// What one launch must do.
    work: Work,
    /// What other programs may have measured, too.
    case: Option<Case>,
    /// Sets of buffers; `launch` is told which to use.
    sets: usize,
    launch: &'a mut dyn FnMut(usize) -> Result<()>,
}

impl Bench {
    /// Measures the roofs.
    pub fn new(device: Device, measured: bool, filter: String) -> Self {
        let gpu = device.gpu().unwrap();
        let roofs = Roofs::measure(gpu, if measured { None } else { Some(1 << 20) }).unwrap();
        println!("{roofs}");
        let out = std::env::var_os("GLM5_BENCH_OUT").filter(|path| measured && !path.is_empty());
        let report = Report::new(out.map(Into::into), &gpu.properties().name, &Environment::look(), &roofs);
        Bench { device, measured, filter, report }
    }

    fn gpu(&self) -> &Gpu {
        self.device.gpu().unwrap()
    }

    /// Whether this row is to be run; asked before anything is prepared for it.
    fn wants(&self, group: &str, name: &str) -> bool {
        format!("{group}/{name}").contains(&self.filter)
    }

    /// Whether a cache of so many bytes has room beside all else; if not, a row that is wanted is said to be left out.
    fn holds(&self, group: &str, name: &str, bytes: usize) -> bool {
        let memory = self.gpu().properties().memory as usize;
        let holds = bytes <= memory / 4;
        if !holds && self.wants(group, name) {
            println!("{group}/{name}: left out: a cache of {} MB on a GPU of {}", bytes >> 20, memory >> 20);
        }
        holds
    }

    /// Sets of buffers of `bytes` each that no cache holds.
    fn sets(&self, bytes: usize) -> usize {
        let rotate = if self.measured { 4 * self.gpu().properties().l2 as usize } else { 1 };
        rotate.div_ceil(bytes.max(1)).max(2)
    }

    /// The same of inputs or outputs, which caches may hold.
    fn few_sets(&self, bytes: usize) -> usize {
        self.sets(bytes).min(FEW_SETS)
    }

    /// Times and reports a row: 0.1 s of samples, so that a whole table takes minutes.
    fn row(&self, c: &mut Criterion, group: &str, row: Row<'_>) {
        let Row { name, work, case, sets, launch } = row;
        let before = self.gpu().launches();
        launch(0).unwrap();
        let kernels = issued(&before, &self.gpu().launches());
        let once = self.gpu().time(|| launch(1 % sets)).unwrap().as_secs_f64();
        let launches = if self.measured { launches(once, work.bytes, sets) } else { sets };
        let mut graph = self.gpu().capture(|| (0..launches).try_for_each(|i| launch(i % sets))).unwrap();
        graph.launch().unwrap(); // A first run that does not count.
        if !self.measured {
            self.gpu().synchronize().unwrap();
            return println!("{group}/{name}: {} runs", report::named(&kernels));
        }
        let (long, few) = FEW_SAMPLES;
        let samples = if once * launches as f64 > long { few } else { SAMPLES };
        let mut times = Vec::new();
        let mut criterion_group = c.benchmark_group(group);
        criterion_group
            .sample_size(samples)
            .nresamples(2000)
            .warm_up_time(Duration::from_millis(10))
            .measurement_time(Duration::from_millis(100))
            .throughput(Throughput::Bytes(work.bytes as u64));
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
        let warm = times.split_off(times.len() - samples); // without those of the warm-up
        self.report.row(&format!("{group}/{name}"), work, case, &kernels, warm);
    }
}

/// Launches of a graph, of which one takes `once` seconds for `bytes` bytes: all sets of buffers in turn, where that does not take
/// long. Where it does, arithmetic binds, and what a launch reads and writes besides its weights is more than a cache holds.
fn launches(once: f64, bytes: usize, sets: usize) -> usize {
    let all = if bytes < 16 << 20 { LAUNCHES.next_multiple_of(sets) } else { sets };
    if once < SHORT { all } else { all.min((GRAPH / once) as usize).max(1) }
}

/// What was issued between two counts.
fn issued(before: &[(Entry, u64)], after: &[(Entry, u64)]) -> Vec<(Entry, u64)> {
    let counted = |entry: Entry| before.iter().find(|(e, _)| *e == entry).map_or(0, |(_, n)| *n);
    after.iter().map(|(entry, n)| (*entry, n - counted(*entry))).filter(|(_, n)| *n > 0).collect()
}

/// All rows, by group.
pub fn run(bench: &Bench, c: &mut Criterion) {
    roofs::benches(bench, c);
    norm::benches(bench, c);
    rope::benches(bench, c);
    cache::benches(bench, c);
    post_a::benches(bench, c);
    router::benches(bench, c);
    mla_attention::benches(bench, c);
    mla_prefill::benches(bench, c);
    moe::benches(bench, c);
    moe_sort::benches(bench, c);
    moe_sum::benches(bench, c);
    moe_blocks::benches(bench, c);
    dsa_topk::benches(bench, c);
    dsa_indexer::benches(bench, c);
    ffn::benches(bench, c);
    embedding::benches(bench, c);
    dequantize::benches(bench, c);
    linear::benches(bench, c);
    linear_tiled::benches(bench, c);
    linear_fused::benches(bench, c);
    linear_heads::benches(bench, c);
    linear_variants::benches(bench, c);
}

#[allow(dead_code)] // The emulator's tests have a main of their own.
fn main() {
    let environment = Environment::look();
    if let Some(why) = &environment.trouble {
        println!("skipped: {why}");
        let required = std::env::var_os("GLM5_REQUIRE_GPU").is_some_and(|v| !v.is_empty() && v != "0");
        std::process::exit(required.into());
    }
    println!("{environment}");
    let measured = std::env::args().any(|a| a == "--bench");
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    let bench = Bench::new(Device::open(DeviceChoice::Auto, None).unwrap().device, measured, filter);
    // Not configured by the arguments: criterion's filter is a regular expression, and names hold `+` and `[`.
    let c = &mut Criterion::default();
    run(&bench, c);
    c.final_summary();
    if bench.measured && !bench.report.finish() {
        eprintln!("no row has `{}` in its name", bench.filter);
        std::process::exit(1);
    }
}
