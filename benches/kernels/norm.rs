//! Norms between the linear layers. Goals: 2.0 us for up to 32 rows of 6144 with residual and quants, 85 % of the copy
//! roof for 8192.

use criterion::Criterion;
use glm5::ops::linear::{LinearInput, Rounded, quantize};
use glm5::ops::norm::{layer_norm, norm_quantize, reference, rms_norm, rms_norm_cols, rms_norm_into};
use glm5::quant::ActBlockSize::{self, B32, B256};
use glm5::tensor::{QuantizedRows, QuantizedTiles, Tensor};

use super::blocks::Rng;
use super::close::{close, layer_norm_slack, rms_norm_slack};
use super::data::{DISTINCT, expected, results, tiled};
use super::report::Work;
use super::{Bench, Row};

const EPS: f32 = 1e-5;

pub fn benches(bench: &Bench, c: &mut Criterion) {
    for rows in [1, 2, 8, 32, 128] {
        add_norm_quantize(bench, c, rows, 6144, B32, false);
    }
    add_norm_quantize(bench, c, 1, 6144, B32, true);
    add_norm_quantize(bench, c, 32, 6144, B256, false);
    for (rows, keep_y) in [(512, false), (2048, false), (8192, false), (8192, true)] {
        add_norm_quantize(bench, c, rows, 6144, B256, keep_y);
    }
    for rows in [1, 2, 8, 16, 32, 512, 2048] {
        for rounded in [Rounded { tiles: true, rows: false }, Rounded { tiles: false, rows: true }] {
            add_norm_tiles(bench, c, rows, 6144, rounded);
        }
    }
    for rows in [1, 32, 8192] {
        plain(bench, c, rows, 2048, 2048); // q_a_norm
        plain(bench, c, rows, 576, 512); // kv_a_norm, in place
        layer(bench, c, rows, 128); // the key of the indexer
    }
}

/// Rows, and sets of buffers for `bytes` a launch, with what to call them: few rows are in L2 when a layer normalizes them.
fn sizes(bench: &Bench, rows: usize, bytes: impl Fn(usize) -> usize) -> (usize, usize, &'static str) {
    let rows = if bench.measured { rows } else { rows.min(3) };
    match bytes(rows) < 4 << 20 {
        true => (rows, 4, ", L2-warm"),
        false => (rows, bench.sets(bytes(rows)), ""),
    }
}

/// Values of the rows that differ.
fn distinct(rng: &mut Rng, rows: usize, cols: usize) -> Vec<f32> {
    rng.normals(rows.min(DISTINCT) * cols)
}

/// `[rows, cols]` on the device, `sets` times, of the rows that differ.
fn tensors(bench: &Bench, sets: usize, rows: usize, cols: usize, few: &[f32]) -> Vec<Tensor> {
    (0..sets).map(|_| tiled(&bench.device, few, rows, cols)).collect()
}

fn zeros(bench: &Bench, sets: usize, rows: usize, cols: usize) -> Vec<Tensor> {
    (0..sets).map(|_| Tensor::zeros(&bench.device, rows, cols).unwrap()).collect()
}

/// What is compared of a tensor of `rows` rows.
fn some(t: &Tensor) -> Vec<f32> {
    results(t.cuda().unwrap(), t.rows())
}

fn add_norm_quantize(
    bench: &Bench,
    c: &mut Criterion,
    rows: usize,
    n: usize,
    block: ActBlockSize,
    keep_y: bool,
) {
    // x read and written, r read; y; quants, scales, sums. The weights of the norm stay in L2.
    let per_value = 12.0 + if keep_y { 4.0 } else { 0.0 } + 1.0 + 4.0 / block.elems() as f64 + 2.0 / 16.0;
    let (rows, sets, warm) = sizes(bench, rows, |rows| (per_value * (rows * n) as f64) as usize + 4 * n);
    let y = if keep_y { ", f32 result" } else { "" };
    let name = format!("add + norm + quantize by {} [{rows}, {n}]{y}{warm}", block.elems());
    if !bench.wants("norm", &name) {
        return;
    }
    let rng = &mut Rng(7);
    let (x, r, w) = (distinct(rng, rows, n), distinct(rng, rows, n), rng.normals(n));
    let (mut xs, rs) = (tensors(bench, sets, rows, n, &x), tensors(bench, sets, rows, n, &r));
    let mut ys = zeros(bench, sets, rows, n);
    let w_on_device = &tensors(bench, 1, 1, n, &w)[0];
    let mut qs: Vec<QuantizedRows> =
        (0..sets).map(|_| QuantizedRows::new(&bench.device, rows, n, block).unwrap()).collect();

    norm_quantize(&mut xs[0], Some(&rs[0]), w_on_device, EPS, Some(&mut ys[0]), Some(&mut qs[0])).unwrap();
    let y = some(&ys[0]);
    let (_, want) = reference::add_rms_norm(&x, &r, &w, EPS.into()).unwrap();
    let wanted = expected(&want, rows, n);
    close("y", &y, &wanted, |i| rms_norm_slack(n, wanted[i])).unwrap();
    let (q, want) = (qs[0].cuda().unwrap(), reference::quantize(&y, block.elems()).unwrap());
    let (scales, quants, sums) = (results(&q.scales, rows), results(&q.qs, rows), results(&q.sums, rows));
    assert!(scales == want.scales && quants == want.qs && sums == want.sums, "{name}");

    let mut launch = |i: usize| {
        let y = keep_y.then_some(&mut ys[i]);
        norm_quantize(&mut xs[i], Some(&rs[i]), w_on_device, EPS, y, Some(&mut qs[i]))
    };
    let bytes = (per_value * (rows * n) as f64) as usize + 4 * n;
    bench.row(c, "norm", Row { name, work: Work::copying(bytes), case: None, sets, launch: &mut launch });
}

/// As between the blocks of a layer: the f32 result, and tiles for linear layers or rows for experts.
fn add_norm_tiles(bench: &Bench, c: &mut Criterion, rows: usize, n: usize, rounded: Rounded) {
    let format = QuantizedTiles::new(&bench.device, rows, 32).unwrap().format();
    let bits = if rounded.tiles { format.bits() } else { 8 };
    // x read and written, r read, y written, and what is rounded.
    let per_value = 16.0 + f64::from(bits) / 8.0 + 0.5;
    let (rows, sets, warm) = sizes(bench, rows, |rows| (per_value * (rows * n) as f64) as usize + 4 * n);
    let form = if rounded.tiles { format!("{format} tiles") } else { "int8 rows".into() };
    let name = format!("add + norm [{rows}, {n}] to f32 and {form}{warm}");
    if !bench.wants("norm", &name) {
        return;
    }
    let rng = &mut Rng(7);
    let (x, r, w) = (distinct(rng, rows, n), distinct(rng, rows, n), rng.normals(n));
    let (mut xs, rs) = (tensors(bench, sets, rows, n, &x), tensors(bench, sets, rows, n, &r));
    let mut ys: Vec<_> = (0..sets)
        .map(|_| {
            let mut y = LinearInput::new(&bench.device, n).unwrap();
            y.resize(rows).unwrap();
            y.forms_mut(rounded).unwrap(); // no memory is taken while a graph is recorded
            y
        })
        .collect();
    let w_on_device = &tensors(bench, 1, 1, n, &w)[0];
    rms_norm_into(&mut xs[0], Some(&rs[0]), w_on_device, EPS, &mut ys[0], rounded).unwrap();
    let (_, want) = reference::add_rms_norm(&x, &r, &w, EPS.into()).unwrap();
    let wanted = expected(&want, rows, n);
    close("y", &some(ys[0].values()), &wanted, |i| rms_norm_slack(n, wanted[i])).unwrap();
    if rounded.tiles {
        let mut q = QuantizedTiles::new(&bench.device, rows, n).unwrap();
        quantize(ys[0].values(), &mut q).unwrap();
        let bytes = |tiles: &QuantizedTiles| tiles.tiles().to_vec(0..tiles.tiles().len()).unwrap();
        let forms = ys[0].forms_mut(rounded).unwrap();
        assert!(bytes(forms.tiles.unwrap()) == bytes(&q), "{name}: other tiles");
    }
    let mut launch =
        |i: usize| rms_norm_into(&mut xs[i], Some(&rs[i]), w_on_device, EPS, &mut ys[i], rounded);
    let bytes = (per_value * (rows * n) as f64) as usize + 4 * n;
    bench.row(c, "norm", Row { name, work: Work::copying(bytes), case: None, sets, launch: &mut launch });
}

/// RMSNorm of the first `n` of `cols` columns; in place if there are others.
fn plain(bench: &Bench, c: &mut Criterion, rows: usize, cols: usize, n: usize) {
    let (rows, sets, warm) = sizes(bench, rows, |rows| 8 * rows * n);
    let name = format!("RMSNorm {n} of [{rows}, {cols}]{warm}");
    if !bench.wants("norm", &name) {
        return;
    }
    let rng = &mut Rng(8);
    let (x, w) = (distinct(rng, rows, cols), rng.normals(n));
    let mut xs = tensors(bench, sets, rows, cols, &x);
    let mut ys = zeros(bench, sets, rows, cols);
    let w_on_device = &tensors(bench, 1, 1, n, &w)[0];
    let want = reference::rms_norm_cols(&x, cols, 0..n, &w, EPS.into()).unwrap();
    let mut launch = |i: usize| match n < cols {
        true => rms_norm_cols(&mut xs[i], 0..n, w_on_device, EPS),
        false => rms_norm(&xs[i], w_on_device, EPS, &mut ys[i]),
    };
    launch(0).unwrap();
    let got = if n < cols { some(&xs[0]) } else { some(&ys[0]) };
    let wanted = expected(&want, rows, cols);
    close("norm", &got, &wanted, |i| rms_norm_slack(n, wanted[i])).unwrap();
    let mut launch = |i: usize| match n < cols {
        true => rms_norm_cols(&mut xs[i], 0..n, w_on_device, EPS),
        false => rms_norm(&xs[i], w_on_device, EPS, &mut ys[i]),
    };
    bench.row(
        c,
        "norm",
        Row { name, work: Work::copying(8 * rows * n), case: None, sets, launch: &mut launch },
    );
}

fn layer(bench: &Bench, c: &mut Criterion, rows: usize, n: usize) {
    let (rows, sets, warm) = sizes(bench, rows, |rows| 8 * rows * n);
    let name = format!("LayerNorm [{rows}, {n}]{warm}");
    if !bench.wants("norm", &name) {
        return;
    }
    let rng = &mut Rng(9);
    let (x, w, b) = (distinct(rng, rows, n), rng.normals(n), rng.normals(n));
    let mut xs = tensors(bench, sets, rows, n, &x);
    let (w_on_device, b_on_device) = (&tensors(bench, 1, 1, n, &w)[0], &tensors(bench, 1, 1, n, &b)[0]);
    layer_norm(&mut xs[0], w_on_device, b_on_device, EPS).unwrap();
    let want = reference::layer_norm(&x, &w, &b, EPS.into()).unwrap();
    let slack = expected(&layer_norm_slack(&x, &w, &b, EPS, &want), rows, n);
    close("layer norm", &some(&xs[0]), &expected(&want, rows, n), |i| slack[i]).unwrap();
    let mut launch = |i: usize| layer_norm(&mut xs[i], w_on_device, b_on_device, EPS);
    bench.row(
        c,
        "norm",
        Row { name, work: Work::copying(8 * rows * n), case: None, sets, launch: &mut launch },
    );
}
