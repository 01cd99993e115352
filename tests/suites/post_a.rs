//! What follows the first projections of attention. Classic mistakes that these fail for, by their numbers in the list of this model's:
//! rotation of halves in place of neighbours (1, 2), of other columns than the last 64 of a latent row and the first 64 of a key (3), by
//! another width (4), a rotated key that is normed or has part in a norm, a latent that is not (6), queries for the indexer that are not
//! normed (25), RMSNorm in place of LayerNorm, no bias, `n - 1` (26), rows that depend on the batch (28).

use glm5::Result;
use glm5::ops::linear::quantize;
use glm5::ops::post_a::{IndexKeys, PostA, post_a, reference};
use glm5::ops::rope::rope_angles;
use glm5::tensor::{
    ActivationFormat, CacheType, Device, PAGE_ROWS, PagedRows, QuantizedTiles, RaggedRows, Tensor,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::Rng;
use super::close::{EPS, close, equal, layer_norm_slack, rms_norm_slack};
use super::inputs::*;
use super::sequences::any_cache_type;

macro_rules! post_a_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { post_a, $devices, $cases;
        is_the_reference(case), caches_of_any_type_hold_these_rows_rounded(case), tiles_are_those_of_the_normed_queries(case), rows_do_not_depend_on_others(case);
        rotated_keys_are_not_normed, keys_have_a_bias_and_a_biased_variance, a_replayed_graph_takes_new_positions,
        refuses_what_does_not_fit }
    };
}
pub(crate) use post_a_properties;

const BASE: f32 = 8e6;
const EPS_RMS: f32 = 1e-5;
const EPS_KEYS: f32 = 1e-6;

#[derive(Debug, Clone)]
pub struct Case {
    m: usize,
    q: usize,
    latent: usize,
    rope: usize,
    key: usize,
    latent_type: CacheType,
    key_type: CacheType,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    let real = Just((2048usize, 512usize, 64usize, 128usize));
    let q = prop::sample::select(vec![32usize, 224, 256, 288, 1536, 2048]);
    let latent = prop::sample::select(vec![4usize, 64, 128, 132, 384, 508, 512]);
    let rope =
        prop::sample::select(vec![(4usize, 4usize), (4, 128), (64, 64), (64, 96), (64, 128), (128, 128)]);
    let other = (q, latent, rope).prop_map(|(q, latent, (rope, key))| (q, latent, rope, key));
    let types = (any_cache_type(), any_cache_type());
    (any_m(), prop_oneof![real, other], types, any::<u64>()).prop_map(
        |(m, (q, latent, rope, key), (latent_type, key_type), seed)| Case {
            m,
            q,
            latent,
            rope,
            key,
            latent_type,
            key_type,
            seed,
        },
    )
}

/// Inputs of a case in host memory.
struct Inputs {
    q: Vec<f32>,
    q_norm: Vec<f32>,
    kv: Vec<f32>,
    kv_norm: Vec<f32>,
    key: Vec<f32>,
    key_norm: Vec<f32>,
    key_bias: Vec<f32>,
    positions: Vec<u32>,
    pages: usize,
    /// Page of each row, whose table begins with as many others as its position needs.
    own: Vec<u32>,
}

impl Case {
    fn inputs(&self) -> Inputs {
        let rng = &mut Rng(self.seed);
        let width = self.latent + self.rope;
        let mut kv = activations(self.m, width, rng);
        // What is not normed is of another size than what is.
        for row in kv.chunks_mut(width) {
            let by = [1e-3, 1.0, 300.0][rng.below(3)];
            row[self.latent..].iter_mut().for_each(|v| *v = by * rng.normal());
        }
        let mut key = activations(self.m, self.key, rng);
        key.chunks_mut(self.key).for_each(|row| {
            let mean = [0.0, 5.0][rng.below(2)];
            row.iter_mut().for_each(|v| *v += mean);
        });
        let last = [1usize, 5_000, 1_048_575][rng.below(3)];
        let pages = self.m + 2;
        let mut own: Vec<u32> = (0..pages as u32).collect();
        for i in (1..pages).rev() {
            own.swap(i, rng.below(i + 1));
        }
        own.truncate(self.m);
        Inputs {
            q: activations(self.m, self.q, rng),
            q_norm: scales(self.q, rng),
            kv,
            kv_norm: scales(self.latent, rng),
            key,
            key_norm: scales(self.key, rng),
            key_bias: rng.normals(self.key),
            positions: (0..self.m).map(|_| rng.below(last + 1) as u32).collect(),
            pages,
            own,
        }
    }
}

/// What came of rows: normed queries, and all rows of both caches.
type Results = (Vec<f32>, (Vec<f32>, Vec<f32>));

impl Inputs {
    fn rows(&self, d: &Device, some: &std::ops::Range<usize>) -> Result<RaggedRows> {
        let mut rows = RaggedRows::default();
        for t in some.clone() {
            let p = self.positions[t] as usize;
            let table = vec![self.own[t]; p / PAGE_ROWS + 1];
            rows.push(p, 1, &table)?;
        }
        rows.upload(d)?;
        Ok(rows)
    }

    fn slot(&self, t: usize) -> usize {
        self.own[t] as usize * PAGE_ROWS + self.positions[t] as usize % PAGE_ROWS
    }

    /// All rows at once.
    fn run_whole(&self, d: &Device, c: &Case) -> Result<Results> {
        self.run(d, c, std::slice::from_ref(&(0..c.m)))
    }

    /// Calls it once for each range of rows, over caches that held NaN.
    fn run(&self, d: &Device, c: &Case, cuts: &[std::ops::Range<usize>]) -> Result<Results> {
        let (width, mut q) = (c.latent + c.rope, Vec::new());
        let mut caches = [(width, c.latent_type), (c.key, c.key_type)]
            .map(|(width, ty)| PagedRows::new(d, self.pages, width, ty).unwrap());
        for cache in &mut caches {
            let mut all = RaggedRows::default();
            all.push(0, cache.slots(), &(0..self.pages as u32).collect::<Vec<_>>())?;
            all.upload(d)?;
            cache.write(&all, &tensor(d, cache.width(), &vec![f32::NAN; all.len() * cache.width()]))?;
        }
        let [latent, keys] = &mut caches;
        for some in cuts {
            let of = |x: &[f32], cols: usize| tensor(d, cols, &x[some.start * cols..some.end * cols]);
            let rows = self.rows(d, some)?;
            let mut angles = poisoned(d, rows.len(), c.rope);
            rope_angles(BASE, &rows, &mut angles)?;
            let mut y = poisoned(d, rows.len(), c.q);
            let input = PostA {
                q_a: &of(&self.q, c.q),
                q_norm: &tensor(d, c.q, &self.q_norm),
                kv_a: &of(&self.kv, width),
                kv_norm: &tensor(d, c.latent, &self.kv_norm),
                eps: EPS_RMS,
                angles: &angles,
                rows: &rows,
            };
            let index = IndexKeys {
                x: &of(&self.key, c.key),
                norm: &tensor(d, c.key, &self.key_norm),
                bias: &tensor(d, c.key, &self.key_bias),
                eps: EPS_KEYS,
                cache: &mut *keys,
            };
            post_a(&input, Some(&mut y), None, latent, Some(index))?;
            q.extend(host(&y));
        }
        let all = |cache: &PagedRows| -> Result<Vec<f32>> {
            Ok((0..cache.slots()).map(|s| cache.row(s as u32)).collect::<Result<Vec<_>>>()?.concat())
        };
        Ok((q, (all(latent)?, all(keys)?)))
    }
}

/// Rounding of a value of LayerNorm or RMSNorm that is then rotated: that of both values of its pair, and of the angle.
fn rotated_slack(values: &[f64], slack: &[f64], i: usize) -> f64 {
    let (a, b) = (i / 2 * 2, i / 2 * 2 + 1);
    slack[a] + slack[b] + (1e-6 + 4.0 * EPS) * (values[a].abs() + values[b].abs())
}

/// The rows of a cache are as wanted, and all others are what they were.
fn cached(
    what: &str,
    got: &[f32],
    width: usize,
    inputs: &Inputs,
    want: &[f64],
    slack: &[f64],
) -> TestCaseResult {
    let mut others: Vec<bool> = vec![true; got.len() / width];
    for t in 0..inputs.own.len() {
        others[inputs.slot(t)] = false;
        let row = &got[inputs.slot(t) * width..][..width];
        let (want, slack) = (&want[t * width..][..width], &slack[t * width..][..width]);
        close(what, row, want, |i| slack[i])?;
    }
    for (slot, row) in got.chunks(width).enumerate().filter(|(slot, _)| others[*slot]) {
        prop_assert!(row.iter().all(|v| v.is_nan()), "{}: slot {} was written", what, slot);
    }
    Ok(())
}

/// Into caches of f32.
pub fn is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let c = Case { latent_type: CacheType::F32, key_type: CacheType::F32, ..c };
    let inputs = c.inputs();
    let (q, (latent, keys)) = on_each(devices, |d| inputs.run_whole(d, &c))?;
    let want = reference::queries(&inputs.q, &inputs.q_norm, EPS_RMS.into()).unwrap();
    close("q", &q, &want, |i| rms_norm_slack(c.q, want[i]))?;

    let (positions, base) = (&inputs.positions, f64::from(BASE));
    let want =
        reference::latent_rows(&inputs.kv, &inputs.kv_norm, EPS_RMS.into(), positions, c.rope, base).unwrap();
    let width = c.latent + c.rope;
    let slack: Vec<f64> = (0..want.len())
        .map(|i| match i % width < c.latent {
            true => rms_norm_slack(c.latent, want[i]),
            false => {
                let row = i / width * width;
                let z = |i: usize| f64::from(inputs.kv[row + c.latent + i]);
                let i = i - row - c.latent;
                (1e-6 + 4.0 * EPS) * (z(i / 2 * 2).abs() + z(i / 2 * 2 + 1).abs())
            }
        })
        .collect();
    cached("latent", &latent, width, &inputs, &want, &slack)?;

    let (x, w, b) = (&inputs.key, &inputs.key_norm, &inputs.key_bias);
    let want = reference::keys(x, w, b, EPS_KEYS.into(), positions, c.rope, base).unwrap();
    let normed = glm5::ops::norm::reference::layer_norm(x, w, b, EPS_KEYS.into()).unwrap();
    let own = layer_norm_slack(x, w, b, EPS_KEYS, &normed);
    let slack: Vec<f64> = (0..want.len())
        .map(|i| if i % c.key < c.rope { rotated_slack(&normed, &own, i) } else { own[i] })
        .collect();
    cached("keys", &keys, c.key, &inputs, &want, &slack)
}

/// Bit for bit what `PagedRows::write` makes of the rows of f32 caches.
pub fn caches_of_any_type_hold_these_rows_rounded(devices: &[Device], c: Case) -> TestCaseResult {
    let inputs = c.inputs();
    let plain = Case { latent_type: CacheType::F32, key_type: CacheType::F32, ..c.clone() };
    let (_, (latent, keys)) = on_each(devices, |d| inputs.run_whole(d, &c))?;
    let (_, exact) = on_each(devices, |d| inputs.run_whole(d, &plain))?;
    let written = on_each(devices, |d| {
        let rows = inputs.rows(d, &(0..c.m))?;
        let mut results = Vec::new();
        for (exact, width, ty) in
            [(&exact.0, c.latent + c.rope, c.latent_type), (&exact.1, c.key, c.key_type)]
        {
            let mut cache = PagedRows::new(d, inputs.pages, width, ty)?;
            let values: Vec<f32> =
                rows.slots().iter().flat_map(|s| exact[*s as usize * width..][..width].to_vec()).collect();
            cache.write(&rows, &tensor(d, width, &values))?;
            results.push(rows.slots().iter().map(|s| cache.row(*s)).collect::<Result<Vec<_>>>()?.concat());
        }
        Ok(results)
    })?;
    for (got, written, width) in [(&latent, &written[0], c.latent + c.rope), (&keys, &written[1], c.key)] {
        for (t, written) in written.chunks(width).enumerate() {
            equal("row", &got[inputs.slot(t) * width..][..width], written)?;
        }
    }
    Ok(())
}

/// Both formats, bit for bit those that `quantize` makes of the f32 result, padding included; and the same f32 result beside them.
pub fn tiles_are_those_of_the_normed_queries(devices: &[Device], c: Case) -> TestCaseResult {
    let inputs = c.inputs();
    for d in devices.iter().filter(|d| d.gpu().is_ok()) {
        for format in [ActivationFormat::Int8, ActivationFormat::F16] {
            let tiles = || QuantizedTiles::with_format(d, c.m, c.q, format).unwrap();
            let rows = inputs.rows(d, &(0..c.m)).unwrap();
            let mut angles = poisoned(d, c.m, c.rope);
            rope_angles(BASE, &rows, &mut angles).unwrap();
            let mut q = inputs.q.clone();
            if c.m > 2 {
                (q[0], q[c.q + 1]) = (f32::NAN, f32::INFINITY);
            }
            let input = PostA {
                q_a: &tensor(d, c.q, &q),
                q_norm: &tensor(d, c.q, &inputs.q_norm),
                kv_a: &tensor(d, c.latent + c.rope, &inputs.kv),
                kv_norm: &tensor(d, c.latent, &inputs.kv_norm),
                eps: EPS_RMS,
                angles: &angles,
                rows: &rows,
            };
            let mut latent = PagedRows::new(d, inputs.pages, c.latent + c.rope, c.latent_type).unwrap();
            let (mut alone, mut with_y, mut want) = (tiles(), tiles(), tiles());
            let [mut y, mut y_alone] = [0; 2].map(|_| poisoned(d, c.m, c.q));
            post_a(&input, None, Some(&mut alone), &mut latent, None).unwrap();
            post_a(&input, Some(&mut y), Some(&mut with_y), &mut latent, None).unwrap();
            post_a(&input, Some(&mut y_alone), None, &mut latent, None).unwrap();
            quantize(&y, &mut want).unwrap();
            equal("y", &host(&y), &host(&y_alone))?;
            let bytes = |t: &QuantizedTiles| t.tiles().to_vec(0..t.tiles().len()).unwrap();
            let want = bytes(&want);
            for (what, got) in [("without y", bytes(&alone)), ("with y", bytes(&with_y))] {
                let wrong = (0..want.len()).find(|i| got[*i] != want[*i]);
                prop_assert_eq!(
                    wrong,
                    None,
                    "{} tiles {}: first byte that differs, of {}",
                    format,
                    what,
                    want.len()
                );
            }
        }
    }
    Ok(())
}

/// A row alone, in two pieces or among all has the same bits.
pub fn rows_do_not_depend_on_others(devices: &[Device], c: Case) -> TestCaseResult {
    let inputs = c.inputs();
    let run = |cuts: Vec<std::ops::Range<usize>>| on_each(devices, |d| inputs.run(d, &c, &cuts));
    let (q, (latent, keys)) = on_each(devices, |d| inputs.run_whole(d, &c))?;
    let single: Vec<_> = (0..c.m).map(|t| t..t + 1).collect();
    for cuts in [single, vec![0..c.m / 3, c.m / 3..c.m]] {
        let (q_cut, (latent_cut, keys_cut)) = run(cuts)?;
        equal("q", &q_cut, &q)?;
        equal("latent", &latent_cut, &latent)?;
        equal("keys", &keys_cut, &keys)?;
    }
    Ok(())
}

fn real(m: usize, seed: u64) -> Case {
    let ty = CacheType::F32;
    Case { m, q: 2048, latent: 512, rope: 64, key: 128, latent_type: ty, key_type: ty, seed }
}

/// A rotated key a thousand times as long: its own row's latent keeps its bits, and its length is that of what came in (mistakes 3 and 6).
pub fn rotated_keys_are_not_normed(devices: &[Device]) {
    let c = real(3, 5);
    let inputs = c.inputs();
    let mut longer = c.inputs();
    longer.kv.chunks_mut(576).for_each(|row| row[512..].iter_mut().for_each(|v| *v *= 1024.0));
    let run = |inputs: &Inputs| on_each(devices, |d| inputs.run_whole(d, &c)).unwrap().1.0;
    let (short, long) = (run(&inputs), run(&longer));
    let length = |v: &[f32]| v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    for t in 0..3 {
        let (a, b) = (&short[inputs.slot(t) * 576..][..576], &long[inputs.slot(t) * 576..][..576]);
        equal("latent", &a[..512], &b[..512]).unwrap();
        let want = length(&inputs.kv[t * 576 + 512..(t + 1) * 576]);
        assert!((length(&a[512..]) - want).abs() < 1e-5 * want);
        assert!((length(&b[512..]) - 1024.0 * want).abs() < 1e-2 * want);
    }
}

/// `0, 2, 0, 2, ...` has mean and deviation 1: of 4 values 1.1547 by `n - 1`, and without the mean 0.7071 and 1.4142. At position 0
/// nothing turns (mistake 26).
pub fn keys_have_a_bias_and_a_biased_variance(devices: &[Device]) {
    let mut c = real(1, 6);
    (c.key, c.rope) = (4, 4);
    let mut inputs = c.inputs();
    inputs.positions[0] = 0;
    inputs.key = vec![0.0, 2.0, 0.0, 2.0];
    (inputs.key_norm, inputs.key_bias) = (vec![1.0, 1.0, 2.0, -3.0], vec![0.0, 0.25, 0.5, 10.0]);
    let (_, (_, keys)) = on_each(devices, |d| inputs.run_whole(d, &c)).unwrap();
    let want = [-1.0, 1.25, -1.5, 7.0];
    close("key", &keys[inputs.slot(0) * 4..][..4], &want, |_| 2e-6).unwrap();
}

/// Positions and slots are read on the device: a graph that was recorded once follows those that are uploaded.
pub fn a_replayed_graph_takes_new_positions(devices: &[Device]) {
    let c = real(2, 7);
    for d in devices.iter().filter(|d| d.gpu().is_ok()) {
        let inputs = c.inputs();
        let rows_at = |rows: &mut RaggedRows, first: usize, page: u32| {
            rows.clear();
            rows.push(first, 2, &vec![page; first / PAGE_ROWS + 1]).unwrap();
            rows.upload(d).unwrap();
        };
        let mut rows = RaggedRows::default();
        rows_at(&mut rows, 3 * PAGE_ROWS, 0); // the longest table comes first, so that the copy stays where it is
        let [q, q_norm] = [(&inputs.q, 2048), (&inputs.q_norm, 2048)].map(|(v, n)| tensor(d, n, v));
        let [kv, kv_norm] = [(&inputs.kv, 576), (&inputs.kv_norm, 512)].map(|(v, n)| tensor(d, n, v));
        let mut latent = PagedRows::new(d, 3, 576, CacheType::F32).unwrap();
        let (mut angles, mut y) = (poisoned(d, 2, 64), poisoned(d, 2, 2048));
        let mut issue = |rows: &RaggedRows, latent: &mut PagedRows| {
            rope_angles(BASE, rows, &mut angles)?;
            let (q_a, q_norm, kv_a, kv_norm) = (&q, &q_norm, &kv, &kv_norm);
            let input = PostA { q_a, q_norm, kv_a, kv_norm, eps: EPS_RMS, angles: &angles, rows };
            post_a(&input, Some(&mut y), None, latent, None)
        };
        let mut graph = d.gpu().unwrap().capture(|| issue(&rows, &mut latent)).unwrap();
        for (first, page) in [(70, 2), (5, 1), (0, 0)] {
            rows_at(&mut rows, first, page);
            graph.launch().unwrap();
            let positions = [first as u32, first as u32 + 1];
            let (kv, w) = (&inputs.kv, &inputs.kv_norm);
            let want = reference::latent_rows(kv, w, EPS_RMS.into(), &positions, 64, BASE.into()).unwrap();
            for (want, p) in want.chunks(576).zip(positions) {
                let slot = page as usize * PAGE_ROWS + p as usize % PAGE_ROWS;
                let size = want.iter().fold(0f64, |m, v| m.max(v.abs()));
                close("latent", &latent.row(slot as u32).unwrap(), want, |_| 1e-5 * size).unwrap();
            }
        }
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let mut rows = RaggedRows::default();
    rows.push(62, 2, &[1]).unwrap();
    rows.upload(d).unwrap();
    let mut beyond = RaggedRows::default();
    beyond.push(63, 2, &[1, 2]).unwrap();
    beyond.upload(d).unwrap();
    let t = |m: usize, cols: usize| tensor(d, cols, &vec![1.0; m * cols]);
    let (q, q_norm, kv, kv_norm, angles) = (t(2, 32), t(1, 32), t(2, 12), t(1, 8), t(2, 4));
    let (x, norm, bias) = (t(2, 8), t(1, 8), t(1, 8));
    let input = PostA {
        q_a: &q,
        q_norm: &q_norm,
        kv_a: &kv,
        kv_norm: &kv_norm,
        eps: EPS_RMS,
        angles: &angles,
        rows: &rows,
    };
    let mut y = poisoned(d, 2, 32);
    let cache = |width| PagedRows::new(d, 2, width, CacheType::F32).unwrap();
    let (mut latent, mut keys) = (cache(12), cache(8));
    let (short, odd) = (t(1, 32), t(2, 3));
    let few = t(2, 2);
    let mut wide = cache(13);
    let mut call = |input: &PostA<'_>, x: &Tensor, norm: &Tensor, y: &mut Tensor| {
        let index = IndexKeys { x, norm, bias: &bias, eps: EPS_KEYS, cache: &mut keys };
        post_a(input, Some(y), None, &mut latent, Some(index))
    };
    refused(vec![
        ("q rows", call(&PostA { q_a: &short, ..input }, &x, &norm, &mut y)),
        ("q norm", call(&PostA { q_norm: &kv_norm, ..input }, &x, &norm, &mut y)),
        ("kv", call(&PostA { kv_a: &q, ..input }, &x, &norm, &mut y)),
        ("kv norm", call(&PostA { kv_norm: &q_norm, ..input }, &x, &norm, &mut y)),
        ("angles", call(&PostA { angles: &odd, ..input }, &x, &norm, &mut y)),
        ("slots", call(&PostA { rows: &beyond, ..input }, &x, &norm, &mut y)),
        ("keys", call(&input, &q, &norm, &mut y)),
        ("keys without the rotated", call(&input, &few, &norm, &mut y)),
        ("norm of keys", call(&input, &x, &q_norm, &mut y)),
        ("y", call(&input, &x, &norm, &mut poisoned(d, 2, 31))),
        ("latent", post_a(&input, Some(&mut y), None, &mut wide, None)),
    ]);
    assert!(untouched(&y), "a refused call wrote something");
    // Rows in fp8 have 64 rotated values: of 192 not 32.
    let mut packed = PagedRows::new(d, 2, 192, CacheType::Fp8).unwrap();
    let (kv, kv_norm, angles) = (t(2, 192), t(1, 160), t(2, 32));
    let few = PostA { kv_a: &kv, kv_norm: &kv_norm, angles: &angles, ..input };
    refused(vec![("rotated in fp8", post_a(&few, Some(&mut y), None, &mut packed, None))]);
    // Rows in int8 are keys of the indexer, however wide.
    let mut of_int8 = PagedRows::new(d, 2, 128, CacheType::Int8).unwrap();
    let (kv, kv_norm, angles) = (t(2, 128), t(1, 64), t(2, 64));
    let short = PostA { kv_a: &kv, kv_norm: &kv_norm, angles: &angles, ..input };
    let result = post_a(&short, Some(&mut y), None, &mut of_int8, None);
    assert!(matches!(result, Err(glm5::Error::Unsupported { .. })), "{result:?}");
    assert!(
        untouched(&y) && of_int8.row(1).unwrap().iter().all(|v| *v == 0.0),
        "a refused call wrote something"
    );
    for cache in [&latent, &keys] {
        for slot in [0, 62, 126, 127] {
            assert!(cache.row(slot).unwrap().iter().all(|v| *v == 0.0), "a refused call wrote something");
        }
    }
}
