//! What a run leaves: a line for each row of the table, and the same as lines of JSON in a file. `tools/roofline` makes tables
//! and plots of those.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Instant, SystemTime};

use glm5::cuda::Environment;
use glm5::cuda::roofs::Roofs;
use glm5::kernels::{Entry, linear_gemm, linear_gemm_wide};

use super::baselines::{Baseline, Case};

/// What one launch must do at least.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    pub bytes: usize,
    /// A product and a sum are two. Their roof is the rate of matrix units, also of kernels that use FMA units instead: nothing can
    /// be faster.
    pub operations: Option<u64>,
    /// Which way the bytes go; none if the GPU's memory is not what binds.
    pub memory: Option<Memory>,
}

impl Work {
    /// Reading and writing `bytes` bytes in all.
    pub fn copying(bytes: usize) -> Self {
        Work { bytes, operations: None, memory: Some(Memory::Copy) }
    }
}

/// The roof of the GPU's memory for a row.
#[derive(Debug, Clone, Copy)]
pub enum Memory {
    /// Of kernels that read and write.
    Copy,
    /// Of kernels that read, as much as one launch of the row does.
    Read,
}

/// What binds a row: of the times that its bytes and its operations need at least, the longer one.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Bound {
    /// `memory` or `arithmetic`.
    pub bound: &'static str,
    /// Which of the measured roofs: `copy`, `read`, `s8` or `f16`.
    pub roof: &'static str,
    /// Of that roof.
    pub share: f64,
    /// Seconds that the work needs at that roof.
    pub floor: f64,
}

impl Bound {
    /// Of a row that takes `seconds`. What `kernels` round activations to decides between the roofs of matrix units; f16 is the roof
    /// of those in f32.
    pub fn of(work: Work, kernels: &[(Entry, u64)], roofs: &Roofs, seconds: f64) -> Option<Self> {
        let memory = work.memory.map(|memory| match memory {
            Memory::Copy => ("memory", "copy", work.bytes as f64 / roofs.copy),
            Memory::Read => ("memory", "read", work.bytes as f64 / roofs.read_of(work.bytes as u64)),
        });
        let (unit, rate) = if kernels.iter().any(|(entry, _)| is_f16(*entry)) {
            ("f16", roofs.f16)
        } else {
            ("s8", roofs.s8)
        };
        let arithmetic = work.operations.map(|n| ("arithmetic", unit, n as f64 / rate));
        let floors = memory.into_iter().chain(arithmetic);
        let (bound, roof, floor) = floors.max_by(|(.., a), (.., b)| a.total_cmp(b))?;
        Some(Bound { bound, roof, share: floor / seconds, floor })
    }
}

/// Whether a kernel multiplies f16 or bf16 activations, or f32, which matrix units could take as f16 at best; those of the other linear
/// layers with operations are int8.
pub fn is_f16(entry: Entry) -> bool {
    let narrow = linear_gemm::INSTANCES.iter().map(|i| (i.entry, i.act));
    let mut all = narrow.chain(linear_gemm_wide::INSTANCES.iter().map(|i| (i.entry, i.act)));
    const FLOAT: [&str; 14] = [
        "linear_dot",
        "linear_heads",
        "linear_tile",
        "linear_float",
        "dsa_indexer",
        "dsa_indexer_any",
        "dsa_select",
        "mla_decode",
        "mla_few",
        "mla_expand",
        "mla_float",
        "mla_prefill",
        "mma_f16",
        "moe_dot",
    ];
    FLOAT.contains(&entry.family()) || all.any(|gemm| gemm == (entry, 16))
}

pub struct Report(RefCell<State>);

struct State {
    out: Option<File>,
    roofs: Roofs,
    baseline: Baseline,
    /// Whether the baseline was measured on such a GPU: its times mean nothing beside those of another.
    comparable: bool,
    start: Instant,
    /// When the row before was done.
    last: Instant,
    /// Seconds for what several rows share.
    preparing: f64,
    rows: usize,
    /// Seconds and name of the row that took longest.
    slowest: (f64, String),
}

/// The first line of the file.
#[derive(serde::Serialize)]
struct Head<'a> {
    /// What was measured: as `git describe` names it.
    commit: Option<String>,
    /// Seconds since 1970.
    time: u64,
    environment: &'a Environment,
    roofs: &'a Roofs,
    baseline: Named<'a>,
}

/// Where the figures come from that rows are compared with.
#[derive(serde::Serialize)]
struct Named<'a> {
    what: &'a str,
    gpu: &'a str,
}

/// A row.
#[derive(serde::Serialize)]
struct Line<'a> {
    name: &'a str,
    case: Option<Case>,
    /// Microseconds of one run: median, a tenth from below, a tenth from above.
    us: f64,
    p10: f64,
    p90: f64,
    bytes: usize,
    gb_per_s: f64,
    ops: Option<u64>,
    tops: Option<f64>,
    /// Operations for each byte: what decides which roof binds.
    ops_per_byte: Option<f64>,
    bound: Option<&'static str>,
    roof: Option<&'static str>,
    share: Option<f64>,
    /// Microseconds that nothing can be faster than, by that roof.
    floor_us: Option<f64>,
    /// What ran, with the number of launches if there were several.
    kernel: String,
    /// Microseconds that the baseline takes.
    baseline_us: Option<f64>,
    /// The baseline's time over this one, on the same GPU.
    ratio: Option<f64>,
    /// Seconds that the row took, with set-up and comparison.
    took: f64,
}

impl Report {
    /// `gpu` is what the driver calls it.
    pub fn new(out: Option<PathBuf>, gpu: &str, environment: &Environment, roofs: &Roofs) -> Self {
        let out = out
            .map(|path| File::create(&path).unwrap_or_else(|e| panic!("results to {}: {e}", path.display())));
        let (now, baseline) = (Instant::now(), Baseline::llama_cpp());
        let mut state = State {
            out,
            roofs: roofs.clone(),
            comparable: baseline.gpu == gpu,
            baseline,
            start: now,
            last: now,
            preparing: 0.0,
            rows: 0,
            slowest: (0.0, String::new()),
        };
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let Baseline { what, gpu, .. } = state.baseline;
        let baseline = Named { what, gpu };
        state.write(&Head { commit: commit(), time, environment, roofs, baseline });
        Report(RefCell::new(state))
    }

    /// What was done since the last row is for several to come.
    pub fn prepared(&self) {
        let state = &mut *self.0.borrow_mut();
        let now = Instant::now();
        state.preparing += (now - state.last).as_secs_f64();
        state.last = now;
    }

    /// `times` are seconds.
    pub fn row(
        &self,
        name: &str,
        work: Work,
        case: Option<Case>,
        kernels: &[(Entry, u64)],
        mut times: Vec<f64>,
    ) {
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[(share * (times.len() - 1) as f64).round() as usize];
        let state = &mut *self.0.borrow_mut();
        let now = Instant::now();
        let bound = Bound::of(work, kernels, &state.roofs, at(0.5));
        let baseline_us = case.and_then(|case| state.baseline.us(&case));
        let us = at(0.5) * 1e6;
        let line = Line {
            name,
            case,
            us,
            p10: at(0.1) * 1e6,
            p90: at(0.9) * 1e6,
            bytes: work.bytes,
            gb_per_s: work.bytes as f64 / at(0.5) / 1e9,
            ops: work.operations,
            tops: work.operations.map(|n| n as f64 / at(0.5) / 1e12),
            ops_per_byte: work.operations.map(|n| n as f64 / work.bytes as f64),
            bound: bound.map(|b| b.bound),
            roof: bound.map(|b| b.roof),
            share: bound.map(|b| b.share),
            floor_us: bound.map(|b| b.floor * 1e6),
            kernel: named(kernels),
            baseline_us,
            ratio: baseline_us.filter(|_| state.comparable).map(|baseline| baseline / us),
            took: (now - state.last).as_secs_f64(),
        };
        println!("{}", text(&line, &state.baseline));
        state.write(&line);
        (state.last, state.rows) = (now, state.rows + 1);
        if line.took > state.slowest.0 {
            state.slowest = (line.took, name.into());
        }
    }

    /// Says how long it took; false if there was no row.
    pub fn finish(&self) -> bool {
        let State { start, rows, preparing, slowest: (longest, name), .. } = &*self.0.borrow();
        println!(
            "{rows} rows in {:.1} s, {preparing:.1} of them for matrices of several rows; the slowest in {longest:.2} s \
             ({name})",
            start.elapsed().as_secs_f64()
        );
        *rows > 0
    }
}

/// Kernels that were issued, with how often if that was not once.
pub fn named(kernels: &[(Entry, u64)]) -> String {
    let named = kernels.iter().map(|(entry, n)| match n {
        1 => entry.to_string(),
        n => format!("{n} {entry}"),
    });
    named.collect::<Vec<_>>().join(" + ")
}

fn text(line: &Line, baseline: &Baseline) -> String {
    let Line { name, us, p10, p90, .. } = line;
    let rate = match (line.bound, line.tops) {
        (Some("arithmetic"), Some(tops)) => format!("{tops:.0} TOPS"),
        _ => format!("{:.0} GB/s", line.gb_per_s),
    };
    let mut text = format!("{name}: {us:.2} us (p10 {p10:.2}, p90 {p90:.2}), {rate}");
    if let (Some(share), Some(roof), Some(floor)) = (line.share, line.roof, line.floor_us) {
        text += &format!(" = {:.1} % of {roof}, floor {floor:.2} us", 100.0 * share);
    }
    if let Some(ratio) = line.ops_per_byte {
        text += &format!(", {ratio:.1} FLOP/B");
    }
    if !line.kernel.is_empty() {
        text += &format!(", {}", line.kernel);
    }
    match (line.baseline_us, line.ratio) {
        (Some(us), Some(ratio)) => text += &format!("; {} {us:.1} us: {ratio:.2} times", baseline.what),
        (Some(us), None) => text += &format!("; {} {us:.1} us on {}", baseline.what, baseline.gpu),
        _ => {}
    }
    text
}

/// What the build was told, for programs that travel; in the repository what git says.
fn commit() -> Option<String> {
    if let Some(commit) = option_env!("GLM5_COMMIT").filter(|commit| !commit.is_empty()) {
        return Some(commit.into());
    }
    let folder = env!("CARGO_MANIFEST_DIR");
    let git = Command::new("git").args(["-C", folder, "describe", "--always", "--dirty"]).output().ok()?;
    let said = String::from_utf8(git.stdout).ok()?;
    Some(said.trim().to_owned()).filter(|said| git.status.success() && !said.is_empty())
}

impl State {
    fn write(&mut self, line: &impl serde::Serialize) {
        if let Some(out) = &mut self.out {
            let text = serde_json::to_string(line).unwrap() + "\n";
            out.write_all(text.as_bytes()).unwrap_or_else(|e| panic!("GLM5_BENCH_OUT: {e}"));
        }
    }
}
