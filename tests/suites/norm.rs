//! RMSNorm, residual add + RMSNorm, LayerNorm.

use glm5::ops::dequantize::reference::round_bf16;
use glm5::ops::linear::{LinearInput, Rounded, quantize};
use glm5::ops::norm::{
    add_rms_norm, layer_norm, norm_quantize, reference, rms_norm, rms_norm_cols, rms_norm_into,
};
use glm5::quant::{ActBlockSize, Activations, quantize_activations};
use glm5::tensor::{ActivationFormat, Device, Heads, QuantizedRows, QuantizedTiles, Tensor};
use half::bf16;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::Rng;
use super::close::{close, equal, layer_norm_slack, rms_norm_slack};
use super::inputs::{
    Bits, activations, any_m, gather, host, on_each, outside, poisoned, refused, scales, tensor, untouched,
};

macro_rules! norm_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { norm, $devices, $cases;
        rms_norm_is_the_reference(case), add_rms_norm_is_the_reference(case),
        rms_norm_cols_leaves_other_columns(case), layer_norm_is_the_reference(case), scale_cancels(case),
        norm_quantize_is_norm_then_quantize(quantized_case), rounded_forms_are_those_of_the_norm(quantized_case), bf16_is_the_rounded_norm(case);
        layer_norm_has_biased_variance_and_a_bias, quants_of_extreme_values, refuses_what_does_not_fit,
        norm_quantize_refuses_what_does_not_fit }
    };
}
pub(crate) use norm_properties;

#[derive(Debug, Clone)]
pub struct Case {
    m: usize,
    n: usize,
    eps: f32,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    let n = prop_oneof![prop::sample::select(vec![1usize, 2, 15, 16, 17, 128, 512, 2048, 6144]), 1usize..300];
    let eps = prop::sample::select(vec![1e-5f32, 1e-6]);
    (any_m(), n, eps, any::<u64>()).prop_map(|(m, n, eps, seed)| Case { m, n, eps, seed })
}

/// A case with whole blocks of 32 or of 256.
pub fn quantized_case() -> impl Strategy<Value = (Case, ActBlockSize)> {
    let widths = |block: usize| prop::sample::select(vec![1usize, 2, 3, 8, 24]).prop_map(move |b| b * block);
    let b32 = prop_oneof![prop::sample::select(vec![256usize, 512, 768, 2048, 6144, 8192 + 32]), widths(32)];
    let n = prop_oneof![
        b32.prop_map(|n| (n, ActBlockSize::B32)),
        widths(256).prop_map(|n| (n, ActBlockSize::B256))
    ];
    (case(), n).prop_map(|(case, (n, block))| (Case { n, ..case }, block))
}

pub fn rms_norm_is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let (mut x, w) = (activations(c.m, c.n, rng), scales(c.n, rng));
    if c.m > 1 {
        x[0] = f32::NAN; // Spoils its own row and no other.
    }
    let got = on_each(devices, |d| {
        let mut y = poisoned(d, c.m, c.n);
        rms_norm(&tensor(d, c.n, &x), &tensor(d, c.n, &w), c.eps, &mut y)?;
        Ok(host(&y))
    })?;
    let want = reference::rms_norm(&x, &w, c.eps.into()).unwrap();
    close("y", &got, &want, |i| rms_norm_slack(c.n, want[i]))
}

pub fn add_rms_norm_is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let (x, w) = (activations(c.m, c.n, rng), scales(c.n, rng));
    let mut r = activations(c.m, c.n, rng);
    r[0] = -x[0]; // Cancels.
    let (sum, y) = on_each(devices, |d| {
        let (mut sum, mut y) = (tensor(d, c.n, &x), poisoned(d, c.m, c.n));
        add_rms_norm(&mut sum, &tensor(d, c.n, &r), &tensor(d, c.n, &w), c.eps, &mut y)?;
        Ok((host(&sum), host(&y)))
    })?;
    let exact: Vec<f32> = x.iter().zip(&r).map(|(x, r)| x + r).collect();
    equal("x + r", &sum, &exact)?;
    let (_, want) = reference::add_rms_norm(&x, &r, &w, c.eps.into()).unwrap();
    close("y", &y, &want, |i| rms_norm_slack(c.n, want[i]))
}

pub fn rms_norm_cols_leaves_other_columns(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let (before, after) = (rng.below(20), rng.below(70));
    let (cols, part) = (before + c.n + after, before..before + c.n);
    let (x, w) = (activations(c.m, cols, rng), scales(c.n, rng));
    let got = on_each(devices, |d| {
        let mut x = tensor(d, cols, &x);
        rms_norm_cols(&mut x, part.clone(), &tensor(d, c.n, &w), c.eps)?;
        Ok(host(&x))
    })?;
    let heads = Heads { n: 1, stride: cols, offset: before, len: c.n };
    equal("other columns", &outside(&got, cols, heads), &outside(&x, cols, heads))?;
    let want = reference::rms_norm_cols(&x, cols, part, &w, c.eps.into()).unwrap();
    close("x", &got, &want, |i| rms_norm_slack(c.n, want[i]))?;
    // The same by another way: the columns alone.
    let alone = reference::rms_norm(&gather(&x, cols, heads), &w, c.eps.into()).unwrap();
    close("columns", &gather(&got, cols, heads), &alone, |i| rms_norm_slack(c.n, alone[i]))
}

impl Bits for Activations {
    fn bits(&self) -> Vec<u32> {
        let scales = self.scales().iter().map(|v| v.to_bits());
        let qs = self.qs().iter().map(|q| *q as u32);
        scales.chain(qs).chain(self.sums().iter().map(|s| *s as u32)).collect()
    }
}

/// Quants, scales and sums are exactly those of the f32 result, which is that of `add_rms_norm`.
pub fn norm_quantize_is_norm_then_quantize(
    devices: &[Device],
    (c, block): (Case, ActBlockSize),
) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let (x, w) = (activations(c.m, c.n, rng), scales(c.n, rng));
    let mut r = activations(c.m, c.n, rng);
    if c.m > 1 {
        r[c.n] = f32::INFINITY; // The second row: all its values are NaN or zero.
    }
    let quantized = |d: &Device, residual: bool, keep_y: bool| {
        let (mut sum, mut y, r) = (tensor(d, c.n, &x), poisoned(d, c.m, c.n), tensor(d, c.n, &r));
        let mut q = QuantizedRows::new(d, c.m, c.n, block)?;
        let r = residual.then_some(&r);
        norm_quantize(&mut sum, r, &tensor(d, c.n, &w), c.eps, keep_y.then_some(&mut y), Some(&mut q))?;
        assert_eq!(untouched(&y), !keep_y);
        Ok(((host(&sum), host(&y)), q.to_activations()?))
    };
    let ((sum, y), q) = on_each(devices, |d| quantized(d, true, true))?;
    let exact: Vec<f32> = x.iter().zip(&r).map(|(x, r)| x + r).collect();
    equal("x + r", &sum, &exact)?;
    let (_, want) = reference::add_rms_norm(&x, &r, &w, c.eps.into()).unwrap();
    close("y", &y, &want, |i| rms_norm_slack(c.n, want[i]))?;
    let want = reference::quantize(&y, block.elems()).unwrap();
    equal("scales", q.scales(), &want.scales)?;
    prop_assert_eq!(q.qs(), want.qs);
    prop_assert_eq!(q.sums(), want.sums);

    // Without an f32 result the same; without a residual x stays, and the quants are those of its norm.
    let (_, alone) = on_each(devices, |d| quantized(d, true, false))?;
    prop_assert_eq!(alone.bits(), q.bits());
    let ((same, y), q) = on_each(devices, |d| quantized(d, false, true))?;
    equal("x", &same, &x)?;
    let normed = on_each(devices, |d| {
        let mut y = poisoned(d, c.m, c.n);
        rms_norm(&tensor(d, c.n, &x), &tensor(d, c.n, &w), c.eps, &mut y)?;
        Ok(host(&y))
    })?;
    equal("norm", &y, &normed)?;
    prop_assert_eq!(q.bits(), quantize_activations(&y, block).unwrap().bits());
    Ok(())
}

/// The norm as without them; tiles with the bits that `quantize` makes of it, padding included, and rows with those of int8 tiles.
pub fn rounded_forms_are_those_of_the_norm(
    devices: &[Device],
    (c, _): (Case, ActBlockSize),
) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let (x, w, mut r) = (activations(c.m, c.n, rng), scales(c.n, rng), activations(c.m, c.n, rng));
    if c.m > 1 {
        r[c.n] = f32::INFINITY; // The second row: all its values are NaN or zero.
    }
    let sum: Vec<f32> = x.iter().zip(&r).map(|(x, r)| x + r).collect();
    let alone = reference::rms_norm(&x, &w, c.eps.into()).unwrap();
    let (_, of_sum) = reference::add_rms_norm(&x, &r, &w, c.eps.into()).unwrap();
    for residual in [false, true] {
        let normed = if residual { &of_sum } else { &alone };
        for wanted in [(true, true), (true, false), (false, true)] {
            for d in devices {
                let (mut x_there, r_there) = (tensor(d, c.n, &x), tensor(d, c.n, &r));
                let mut y = LinearInput::new(d, c.n).unwrap();
                y.resize(c.m).unwrap();
                let wanted = Rounded { tiles: wanted.0, rows: wanted.1 };
                let r = residual.then_some(&r_there);
                rms_norm_into(&mut x_there, r, &tensor(d, c.n, &w), c.eps, &mut y, wanted).unwrap();
                equal("x", &host(&x_there), if residual { &sum } else { &x })?;
                let values = host(y.values());
                close("y", &values, normed, |i| rms_norm_slack(c.n, normed[i]))?;
                let forms = y.forms_mut(wanted).unwrap();
                prop_assert_eq!(forms.tiles.is_some(), wanted.tiles && d.gpu().is_ok());
                prop_assert_eq!(forms.rows.is_some(), wanted.rows && d.gpu().is_ok());
                let quantized = |format| {
                    let mut q = QuantizedTiles::with_format(d, c.m, c.n, format).unwrap();
                    quantize(&tensor(d, c.n, &values), &mut q).unwrap();
                    words(q.tiles())
                };
                if let Some(tiles) = forms.tiles {
                    let want = quantized(tiles.format());
                    prop_assert_eq!(
                        differs(&words(tiles.tiles())[..want.len()], &want),
                        None,
                        "{}",
                        tiles.format()
                    );
                }
                if let Some(rows) = forms.rows {
                    let want = rows_of_tiles(&quantized(ActivationFormat::Int8), c.m, c.n);
                    let got = words(rows.rows());
                    // Four words at the end of 92 are not used.
                    let used = |words: &[u32]| -> Vec<u32> {
                        words.chunks(92).flat_map(|row| row[..88].to_vec()).collect()
                    };
                    prop_assert_eq!(differs(&used(&got), &used(&want)), None, "rows");
                }
            }
        }
    }
    Ok(())
}

fn words(buffer: &glm5::cuda::Buffer<u8>) -> Vec<u32> {
    let bytes = buffer.to_vec(0..buffer.len()).unwrap();
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

fn differs(got: &[u32], want: &[u32]) -> Option<usize> {
    if got.len() != want.len() {
        return Some(got.len().min(want.len()));
    }
    (0..want.len()).find(|i| got[*i] != want[*i])
}

/// `row_act` (`cuda/include/params/tiles.h`) of each token and 256 columns, from `tile_act` of each 256 columns and 8 tokens.
fn rows_of_tiles(tiles: &[u32], m: usize, n: usize) -> Vec<u32> {
    const TILE: usize = 4 * 32 * 4 + 8 * 8 * 2 + 32 * 2;
    let (k_tiles, token_tiles) = (n.div_ceil(256), m.div_ceil(8));
    let mut out = Vec::new();
    for token in 0..m {
        let g = token % 8 % 4 * 2 + token % 8 / 4;
        for k in 0..k_tiles {
            let (qs, rest) = tiles[(k * token_tiles + token / 8) * TILE..][..TILE].split_at(4 * 32 * 4);
            let (scales, sums) = rest.split_at(8 * 8 * 2);
            out.extend((0..4).flat_map(|i| &qs[(i * 32 + 4 * g) * 4..][..16]));
            out.extend((0..8).flat_map(|block| &scales[(block * 8 + g) * 2..][..2]));
            out.extend(&sums[4 * g * 2..][..8]);
            out.extend([0; 4]);
        }
    }
    out
}

/// A bf16 result is the f32 one rounded once.
pub fn bf16_is_the_rounded_norm(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let (x, w) = (activations(c.m, c.n, rng), scales(c.n, rng));
    let (y, rounded) = on_each(devices, |d| {
        let (mut x, w) = (tensor(d, c.n, &x), tensor(d, c.n, &w));
        let (mut y, mut rounded) = (poisoned(d, c.m, c.n), Tensor::<bf16>::zeros(d, c.m, c.n)?);
        norm_quantize(&mut x, None, &w, c.eps, Some(&mut y), None)?;
        norm_quantize(&mut x, None, &w, c.eps, Some(&mut rounded), None)?;
        Ok((host(&y), rounded.to_vec()?.iter().map(|v| v.to_f32()).collect::<Vec<f32>>()))
    })?;
    let want: Vec<f32> = y.iter().map(|v| round_bf16(*v).to_f32()).collect();
    equal("bf16", &rounded, &want)
}

/// With means of up to ten thousand times the spread, where `mean(x^2) - mean(x)^2` has no digits left.
pub fn layer_norm_is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let (w, b) = (scales(c.n, rng), rng.normals(c.n));
    let mut x = Vec::new();
    for _ in 0..c.m {
        let mean = [0.0, 1.0, -300.0, 1e4][rng.below(4)];
        x.extend(rng.normals(c.n).iter().map(|z| mean + z));
    }
    let got = on_each(devices, |d| {
        let mut x = tensor(d, c.n, &x);
        layer_norm(&mut x, &tensor(d, c.n, &w), &tensor(d, c.n, &b), c.eps)?;
        Ok(host(&x))
    })?;
    let want = reference::layer_norm(&x, &w, &b, c.eps.into()).unwrap();
    let slack = layer_norm_slack(&x, &w, &b, c.eps, &want);
    close("x", &got, &want, |i| slack[i])
}

/// With an epsilon of no account, a row and its double have the same norm.
pub fn scale_cancels(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let (x, w) = (rng.normals(c.n), scales(c.n, rng));
    let rows = [x.clone(), x.iter().map(|v| 2.0 * v).collect()].concat();
    let got = on_each(devices, |d| {
        let mut y = poisoned(d, 2, c.n);
        rms_norm(&tensor(d, c.n, &rows), &tensor(d, c.n, &w), 1e-30, &mut y)?;
        Ok(host(&y))
    })?;
    equal("double", &got[c.n..], &got[..c.n])
}

/// By hand: mean 5, biased variance 5, so the unbiased one (20 / 3) or a dropped bias would show.
pub fn layer_norm_has_biased_variance_and_a_bias(devices: &[Device]) {
    for d in devices {
        let (x, w, b) = ([2.0, 4.0, 6.0, 8.0], [1.0, 1.0, 1.0, 2.0], [0.0, 0.5, 0.0, -1.0]);
        let mut normed = tensor(d, 4, &x);
        layer_norm(&mut normed, &tensor(d, 4, &w), &tensor(d, 4, &b), 0.0).unwrap();
        let root = 5f64.sqrt();
        let want = [-3.0 / root, -1.0 / root + 0.5, 1.0 / root, 6.0 / root - 1.0];
        let slack = layer_norm_slack(&x, &w, &b, 0.0, &want);
        close("x", &host(&normed), &want, |i| slack[i]).unwrap();
    }
}

/// By hand: halves go to the even neighbour, a block whose scale is subnormal is all zeros, a NaN shows.
pub fn quants_of_extreme_values(devices: &[Device]) {
    for d in devices {
        // An epsilon that outweighs the squares: the norm is the value times 2^-20, w aside.
        let scale = 2f32.powi(20);
        let mut x = vec![0.0f32; 2 * 256];
        for (i, v) in x[..32].iter_mut().enumerate() {
            *v = [127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5, -127.0][i % 8];
        }
        x[32..64].fill(1e-38 * scale);
        x[64] = 1.48e-36 * scale; // a scale just below the smallest normal number
        x[96] = -1.5e-36 * scale; // just above
        x[256 + 40] = f32::NAN;
        let mut q = QuantizedRows::new(d, 2, 256, ActBlockSize::B32).unwrap();
        let (mut x, w) = (tensor(d, 256, &x), tensor(d, 256, &[1.0; 256]));
        norm_quantize(&mut x, None, &w, scale * scale, None::<&mut Tensor>, Some(&mut q)).unwrap();
        let q = q.to_activations().unwrap();
        let (scales, qs, sums) = (q.scales(), q.qs(), q.sums());
        assert_eq!(scales[..3], [1.0 / scale, 0.0, 0.0]);
        let exact = 1.5e-36 / 127.0;
        assert!((scales[3] / exact - 1.0).abs() <= 2f32.powi(-22) && scales[3].to_bits() % 4 == 0);
        assert_eq!(qs[..16], [[127, 0, 2, 2, 0, -2, -126, -127]; 2].concat());
        assert_eq!((sums[0], sums[1]), (-2 * 124, -2 * 124));
        assert!(qs[32..96].iter().all(|q| *q == 0));
        assert_eq!((qs[96], sums[6], sums[7]), (-127, -127, 0));
        // A NaN spoils the norm of its row, and so every block of it.
        assert!(scales[8..].iter().all(|s| s.is_nan()));
        assert!(qs[256..].iter().all(|q| *q == 0) && sums[16..].iter().all(|s| *s == 0));
    }
}

pub fn norm_quantize_refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let rows = |m: usize, n: usize| tensor(d, n, &vec![1.0; m * n]);
    let (mut x, mut y, mut short) = (rows(3, 64), rows(3, 64), rows(2, 64));
    let quants = |m, n, block| QuantizedRows::new(d, m, n, block);
    let mut q = quants(3, 64, ActBlockSize::B32).unwrap();
    let (mut few, mut narrow) =
        (quants(2, 64, ActBlockSize::B32).unwrap(), quants(3, 32, ActBlockSize::B32).unwrap());
    let none = || None::<&mut Tensor>;
    refused(vec![
        ("blocks", quants(3, 48, ActBlockSize::B32).map(|_| ())),
        ("blocks of 256", quants(3, 128, ActBlockSize::B256).map(|_| ())),
        ("no columns", quants(3, 0, ActBlockSize::B32).map(|_| ())),
        ("r", norm_quantize(&mut x, Some(&rows(2, 64)), &rows(1, 64), 1e-5, none(), Some(&mut q))),
        ("w", norm_quantize(&mut x, None, &rows(1, 32), 1e-5, none(), Some(&mut q))),
        ("y", norm_quantize(&mut x, None, &rows(1, 64), 1e-5, Some(&mut short), Some(&mut q))),
        ("q rows", norm_quantize(&mut x, None, &rows(1, 64), 1e-5, Some(&mut y), Some(&mut few))),
        ("q cols", norm_quantize(&mut x, Some(&y), &rows(1, 64), 1e-5, none(), Some(&mut narrow))),
    ]);
    for t in [x, y, short] {
        assert!(host(&t).iter().all(|v| *v == 1.0), "a refused call wrote something");
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let rows = |m: usize, n: usize| tensor(d, n, &vec![1.0; m * n]);
    let row = |n: usize| rows(1, n);
    let (mut x, mut y) = (rows(3, 8), rows(3, 8));
    let (mut short, mut narrow) = (rows(2, 8), rows(3, 7));
    refused(vec![
        ("rms_norm w", rms_norm(&x, &row(7), 1e-5, &mut y)),
        ("rms_norm w rows", rms_norm(&x, &rows(3, 8), 1e-5, &mut y)),
        ("rms_norm y rows", rms_norm(&x, &row(8), 1e-5, &mut short)),
        ("rms_norm y cols", rms_norm(&x, &row(8), 1e-5, &mut narrow)),
        ("cols w", rms_norm_cols(&mut x, 2..5, &row(8), 1e-5)),
        ("cols beyond", rms_norm_cols(&mut x, 2..9, &row(7), 1e-5)),
        ("cols empty", rms_norm_cols(&mut x, 2..2, &row(1), 1e-5)),
        ("add r rows", add_rms_norm(&mut x, &rows(2, 8), &row(8), 1e-5, &mut y)),
        ("add r cols", add_rms_norm(&mut x, &rows(3, 7), &row(8), 1e-5, &mut y)),
        ("add w", add_rms_norm(&mut x, &rows(3, 8), &row(9), 1e-5, &mut y)),
        ("add y", add_rms_norm(&mut x, &rows(3, 8), &row(8), 1e-5, &mut short)),
        ("layer_norm w", layer_norm(&mut x, &row(7), &row(8), 1e-5)),
        ("layer_norm b", layer_norm(&mut x, &row(8), &row(7), 1e-5)),
    ]);
    for t in [x, y, short, narrow] {
        assert!(host(&t).iter().all(|v| *v == 1.0), "a refused call wrote something");
    }
}
