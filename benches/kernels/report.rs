//! What a run leaves: a line for each row of the table, and the same as lines of JSON in the file that `GLM5_BENCH_OUT`
//! names.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::time::Instant;

use glm5::cuda::Environment;
use glm5::cuda::roofs::Roofs;

pub struct Report(RefCell<State>);

struct State {
    out: Option<File>,
    start: Instant,
    /// When the row before was done.
    last: Instant,
    rows: usize,
    /// Seconds and name of the row that took longest.
    slowest: (f64, String),
}

/// The first line of the file.
#[derive(serde::Serialize)]
struct Head<'a> {
    environment: &'a Environment,
    roofs: &'a Roofs,
}

/// A row.
#[derive(serde::Serialize)]
struct Line<'a> {
    name: &'a str,
    /// Microseconds of one run: median, a tenth from below, a tenth from above.
    us: f64,
    p10: f64,
    p90: f64,
    bytes: usize,
    gb_per_s: f64,
    /// Of the copy roof, where that is what binds.
    share_of_copy: Option<f64>,
    /// Seconds that the row took, with set-up and comparison.
    took: f64,
}

impl Report {
    pub fn new(environment: &Environment, roofs: &Roofs) -> Self {
        let path = std::env::var_os("GLM5_BENCH_OUT").filter(|path| !path.is_empty());
        let out = path.map(|path| {
            File::create(&path).unwrap_or_else(|e| panic!("GLM5_BENCH_OUT={}: {e}", path.display()))
        });
        let now = Instant::now();
        let mut state = State { out, start: now, last: now, rows: 0, slowest: (0.0, String::new()) };
        state.write(&Head { environment, roofs });
        Report(RefCell::new(state))
    }

    /// `times` are seconds, `roof` bytes per second.
    pub fn row(&self, name: &str, bytes: usize, mut times: Vec<f64>, roof: Option<f64>) {
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[(share * (times.len() - 1) as f64).round() as usize];
        let rate = bytes as f64 / at(0.5);
        let state = &mut *self.0.borrow_mut();
        let now = Instant::now();
        let line = Line {
            name,
            us: at(0.5) * 1e6,
            p10: at(0.1) * 1e6,
            p90: at(0.9) * 1e6,
            bytes,
            gb_per_s: rate / 1e9,
            share_of_copy: roof.map(|roof| rate / roof),
            took: (now - state.last).as_secs_f64(),
        };
        let of_copy =
            line.share_of_copy.map_or(String::new(), |share| format!(" = {:.1} % of copy", 100.0 * share));
        println!(
            "{name}: {:.2} us (p10 {:.2}, p90 {:.2}), {:.0} GB/s{of_copy}",
            line.us, line.p10, line.p90, line.gb_per_s
        );
        state.write(&line);
        (state.last, state.rows) = (now, state.rows + 1);
        if line.took > state.slowest.0 {
            state.slowest = (line.took, name.into());
        }
    }

    /// Says how long it took; false if there was no row.
    pub fn finish(&self) -> bool {
        let State { start, rows, slowest: (longest, name), .. } = &*self.0.borrow();
        println!(
            "{rows} rows in {:.1} s, the slowest in {longest:.2} s ({name})",
            start.elapsed().as_secs_f64()
        );
        *rows > 0
    }
}

impl State {
    fn write(&mut self, line: &impl serde::Serialize) {
        if let Some(out) = &mut self.out {
            let text = serde_json::to_string(line).unwrap() + "\n";
            out.write_all(text.as_bytes()).unwrap_or_else(|e| panic!("GLM5_BENCH_OUT: {e}"));
        }
    }
}
