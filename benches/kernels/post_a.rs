//! post_a: norms, rotation, rows of the caches and activations of the next linear layers in one launch, and for comparison the same by one
//! launch each. Goal: 3 us for one row; the rate of memory for many.

use criterion::Criterion;
use glm5::ops::linear::quantize;
use glm5::ops::norm::{layer_norm, rms_norm, rms_norm_cols};
use glm5::ops::post_a::{IndexKeys, PostA, post_a, reference};
use glm5::ops::rope::rope;
use glm5::tensor::{CacheType, Heads, PagedRows, QuantizedTiles, RaggedRows, Tensor};

use super::blocks::Rng;
use super::close::{close, rms_norm_slack};
use super::data::{DISTINCT, tiled};
use super::report::Work;
use super::rope::{angles, rows};
use super::{Bench, Row};

const EPS: f32 = 1e-5;
const EPS_KEYS: f32 = 1e-6;
const BASE: f64 = 1e6;

pub fn benches(bench: &Bench, c: &mut Criterion) {
    let tokens: &[usize] = if bench.measured { &[1, 2, 4, 8, 32, 512, 2048] } else { &[3, 20] };
    for m in tokens.iter().copied() {
        for how in [How::Whole, How::WithY, How::NoKeys, How::Apart] {
            of(bench, c, m, CacheType::Bf16, how);
        }
    }
    for ty in [CacheType::F16, CacheType::F32, CacheType::Fp8] {
        for m in if bench.measured { &[1usize, 2048][..] } else { &[2] } {
            of(bench, c, *m, ty, How::Whole);
        }
    }
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// Tiles, latent rows, keys of the indexer.
    Whole,
    /// The normed queries as f32, too.
    WithY,
    /// As in layers without an indexer.
    NoKeys,
    /// One launch for each operation.
    Apart,
}

/// What one launch reads and writes.
struct Set {
    q: Tensor,
    kv: Tensor,
    key: Tensor,
    y: Tensor,
    tiles: QuantizedTiles,
    latent: PagedRows,
    keys: PagedRows,
}

/// What all have in common.
struct Weights {
    q: Tensor,
    kv: Tensor,
    key: Tensor,
    bias: Tensor,
    angles: Tensor,
    rows: RaggedRows,
}

fn of(bench: &Bench, c: &mut Criterion, m: usize, ty: CacheType, how: How) {
    let d = &bench.device;
    let format = QuantizedTiles::new(d, m, 32).unwrap().format();
    let what = match how {
        How::Whole => "",
        How::WithY => ", f32 result",
        How::NoKeys => ", no keys of the indexer",
        How::Apart => ", by 8 launches",
    };
    let name = format!("{m} rows to {format} tiles, {ty} cache{what}");
    if !bench.wants("post_a", &name) {
        return;
    }
    let rng = &mut Rng(9);
    let rows = rows(d, 100_000, m);
    let few = |cols: usize, rng: &mut Rng| rng.normals(m.min(DISTINCT) * cols);
    let (q, kv, key) = (few(2048, rng), few(576, rng), few(128, rng));
    let weight =
        |n: usize, rng: &mut Rng| -> Vec<f32> { rng.normals(n).iter().map(|v| 1.0 + 0.3 * v).collect() };
    let (q_norm, kv_norm, key_norm, bias) =
        (weight(2048, rng), weight(512, rng), weight(128, rng), rng.normals(128));
    let on = |v: &[f32]| Tensor::from_vec(d, 1, v.len(), v.to_vec()).unwrap();
    let weights = Weights {
        q: on(&q_norm),
        kv: on(&kv_norm),
        key: on(&key_norm),
        bias: on(&bias),
        angles: angles(d, &rows),
        rows,
    };
    let (keys, y) = (how != How::NoKeys, how == How::WithY);
    let stored = [(576, ty), (128, ty.of_keys())].map(|(width, ty)| ty.row_bytes(width).unwrap());
    let mut per_row = 4 * 2048 + 2048 * format.bits() as usize / 8 + 4 * 576 + stored[0] + 4 * 64 + 4;
    per_row += if keys { 4 * 128 + stored[1] } else { 0 } + if y { 4 * 2048 } else { 0 };
    let sets = bench.few_sets(m * per_row);
    let pages = weights.rows.max_slot() / 64 + 1;
    let mut all: Vec<_> = (0..sets)
        .map(|_| Set {
            q: tiled(d, &q, m, 2048),
            kv: tiled(d, &kv, m, 576),
            key: tiled(d, &key, m, 128),
            y: Tensor::zeros(d, m, 2048).unwrap(),
            tiles: QuantizedTiles::new(d, m, 2048).unwrap(),
            latent: PagedRows::new(d, pages, 576, ty).unwrap(),
            keys: PagedRows::new(d, pages, 128, ty.of_keys()).unwrap(),
        })
        .collect();

    let set = &mut all[0];
    run(set, &weights, How::WithY).unwrap();
    let got = set.y.to_vec().unwrap();
    for t in [0, m / 2, m - 1] {
        let (position, at) = ([weights.rows.positions()[t]], t % DISTINCT);
        let want = reference::queries(&q[at * 2048..][..2048], &q_norm, EPS.into()).unwrap();
        close("q", &got[t * 2048..][..2048], &want, |i| rms_norm_slack(2048, want[i])).unwrap();
        let slot = weights.rows.slots()[t];
        // Of each value, and of the longest value or, of int8, of the whole key.
        let (own, all) = match ty {
            CacheType::F32 => (0.0, 1e-6),
            CacheType::Bf16 | CacheType::F16 => (2f64.powi(-8), 1e-6),
            CacheType::Fp8 | CacheType::Int8 => (0.0625, 1e-5),
        };
        let of_keys = if ty == CacheType::Fp8 { (0.0, 0.045) } else { (own, all) };
        let (kv, eps) = (&kv[at * 576..][..576], EPS.into());
        let want = reference::latent_rows(kv, &kv_norm, eps, &position, 64, BASE).unwrap();
        near("latent", &set.latent.row(slot).unwrap(), &want, (own, all));
        let (key, eps) = (&key[at * 128..][..128], EPS_KEYS.into());
        let want = reference::keys(key, &key_norm, &bias, eps, &position, 64, BASE).unwrap();
        near("key", &set.keys.row(slot).unwrap(), &want, of_keys);
    }
    let bytes = |tiles: &QuantizedTiles| tiles.tiles().to_vec(0..tiles.tiles().len()).unwrap();
    let got = bytes(&set.tiles);
    quantize(&set.y, &mut set.tiles).unwrap();
    assert!(got == bytes(&set.tiles), "{name}: other tiles");

    let mut launch = |i: usize| run(&mut all[i], &weights, how);
    let work = Work::copying(m * per_row);
    bench.row(c, "post_a", Row { name, work, case: None, sets, launch: &mut launch });
}

/// Within parts of each value, and of the length of all.
fn near(what: &str, got: &[f32], want: &[f64], (own, all): (f64, f64)) {
    let length = want.iter().map(|v| v * v).sum::<f64>().sqrt();
    close(what, got, want, |i| own * want[i].abs() + all * length).unwrap();
}

fn run(set: &mut Set, w: &Weights, how: How) -> glm5::Result<()> {
    let Set { q, kv, key, y, tiles, latent, keys } = set;
    if how == How::Apart {
        rms_norm(q, &w.q, EPS, y)?;
        quantize(y, tiles)?;
        rms_norm_cols(kv, 0..512, &w.kv, EPS)?;
        rope(kv, Heads::one(512, 64), &w.angles)?;
        latent.write(&w.rows, kv)?;
        layer_norm(key, &w.key, &w.bias, EPS_KEYS)?;
        rope(key, Heads::one(0, 64), &w.angles)?;
        return keys.write(&w.rows, key);
    }
    let input =
        PostA { q_a: q, q_norm: &w.q, kv_a: kv, kv_norm: &w.kv, eps: EPS, angles: &w.angles, rows: &w.rows };
    let index = IndexKeys { x: key, norm: &w.key, bias: &w.bias, eps: EPS_KEYS, cache: keys };
    let index = (how != How::NoKeys).then_some(index);
    post_a(&input, (how == How::WithY).then_some(y), Some(tiles), latent, index)
}
