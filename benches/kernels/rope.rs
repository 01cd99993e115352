//! rope: angles of the rows of a step, and queries of a layer into the absorbed ones. Goals: the rate of memory for many rows, a launch
//! for few.

use criterion::Criterion;
use glm5::ops::rope::{reference, rope_angles, rope_into};
use glm5::tensor::{Device, Heads, PAGE_ROWS, RaggedRows, Tensor};

use super::blocks::Rng;
use super::close::close;
use super::data::{DISTINCT, results, tiled};
use super::report::Work;
use super::{Bench, Row};

const BASE: f32 = 1e6;

/// Rows of one sequence from position `first` on, whose pages are all the same ones: no row meets another's.
pub fn rows(d: &Device, first: usize, m: usize) -> RaggedRows {
    let (own, table) = (m.div_ceil(PAGE_ROWS) + 1, (first + m).div_ceil(PAGE_ROWS));
    let mut rows = RaggedRows::default();
    rows.push(first, m, &(0..table).map(|page| (page % own) as u32).collect::<Vec<_>>()).unwrap();
    rows.upload(d).unwrap();
    rows
}

/// The table of the angles of those rows.
pub fn angles(d: &Device, rows: &RaggedRows) -> Tensor {
    let mut angles = Tensor::zeros(d, rows.len(), 64).unwrap();
    rope_angles(BASE, rows, &mut angles).unwrap();
    angles
}

pub fn benches(bench: &Bench, c: &mut Criterion) {
    let tokens: &[usize] = if bench.measured { &[1, 2, 4, 8, 32, 512, 2048] } else { &[3] };
    for m in tokens.iter().copied() {
        let name = format!("angles of 64 values, {m} rows");
        if bench.wants("rope", &name) {
            let rows = rows(&bench.device, 100_000, m);
            let mut table = angles(&bench.device, &rows);
            let want = rows.positions().iter().flat_map(|p| {
                let freqs = reference::frequencies(BASE.into(), 64).unwrap();
                freqs.into_iter().flat_map(|f| [(f64::from(*p) * f).cos(), (f64::from(*p) * f).sin()])
            });
            close("angles", &table.to_vec().unwrap(), &want.collect::<Vec<_>>(), |_| 2e-7).unwrap();
            let mut launch = |_| rope_angles(BASE, &rows, &mut table);
            let work = Work::copying(m * (4 + 4 * 64));
            bench.row(c, "rope", Row { name, work, case: None, sets: 1, launch: &mut launch });
        }
        for heads in [64, 8] {
            queries(bench, c, m, heads);
        }
    }
}

fn queries(bench: &Bench, c: &mut Criterion, m: usize, n: usize) {
    let name = format!("queries of {n} heads, {m} rows");
    if !bench.wants("rope", &name) {
        return;
    }
    let d = &bench.device;
    let heads = |stride, offset| Heads { n, stride, offset, len: 64 };
    let (from, to) = (heads(256, 192), heads(576, 512));
    let rows = rows(d, 100_000, m);
    let angles = angles(d, &rows);
    let bytes = 4 * m * 64 * (2 * n + 1);
    let sets = bench.few_sets(bytes);
    let x = Rng(3).normals(m.min(DISTINCT) * n * 256);
    let mut all: Vec<_> =
        (0..sets).map(|_| (tiled(d, &x, m, n * 256), Tensor::zeros(d, m, n * 576).unwrap())).collect();
    let (from_x, y) = &mut all[0];
    rope_into(from_x, from, &angles, y, to).unwrap();
    let got = results(y.cuda().unwrap(), m);
    // The first and the last row that are compared.
    for (row, t) in [(0, 0), (got.len() / (n * 576) - 1, m - 1)] {
        let part = |x: &[f32], of: Heads, row: usize| -> Vec<f32> {
            let cols = n * of.stride;
            (0..n).flat_map(|h| x[row * cols + h * of.stride + of.offset..][..64].to_vec()).collect()
        };
        let position = [rows.positions()[t]];
        let want = reference::rope(&part(&x, from, t % DISTINCT), &position, 64, BASE.into()).unwrap();
        close(&name, &part(&got, to, row), &want, |_| 5e-6).unwrap();
    }
    let mut launch = |set: usize| {
        let (x, y) = &mut all[set];
        rope_into(x, from, &angles, y, to)
    };
    let work = Work::copying(bytes);
    bench.row(c, "rope", Row { name, work, case: None, sets, launch: &mut launch });
}
