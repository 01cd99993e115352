//! Quantization of weights and activations: errors within stated bounds, exact cases, what is refused.

mod suites {
    pub mod blocks;
}

use glm5::Error;
use glm5::ops::linear::reference;
use glm5::quant::activations::ACT_SUM_ELEMS;
use glm5::quant::{ActBlockSize, Activations, GgmlType, Weight, dequantize, quantize, quantize_activations};
use proptest::prelude::*;
use suites::blocks::Rng;

const K_TYPES: [GgmlType; 3] = [GgmlType::Q4_K, GgmlType::Q5_K, GgmlType::Q6_K];

fn round_trip(ty: GgmlType, values: &[f32]) -> Vec<f32> {
    let bytes = quantize(ty, values).unwrap();
    let mut out = vec![f32::NAN; values.len()];
    dequantize(ty, &bytes, &mut out).unwrap();
    out
}

fn relative_rms(got: &[f32], expected: &[f32]) -> f64 {
    let error: f64 = got.iter().zip(expected).map(|(g, e)| (*g as f64 - *e as f64).powi(2)).sum();
    (error / expected.iter().map(|e| (*e as f64).powi(2)).sum::<f64>()).sqrt()
}

fn amax(values: &[f32]) -> f32 {
    values.iter().fold(0f32, |m, v| m.max(v.abs()))
}

/// Kinds of data that break quantizers in different ways.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Normal,
    Outliers,
    Constant,
    Positive,
    Negative,
    Offset,
    Sparse,
    Steps,
}

fn data(kind: Kind, n: usize, magnitude: f32, rng: &mut Rng) -> Vec<f32> {
    let constant = rng.normal();
    (0..n)
        .map(|i| {
            magnitude
                * match kind {
                    Kind::Normal => rng.normal(),
                    Kind::Outliers => rng.normal() * if rng.below(100) == 0 { 20.0 } else { 1.0 },
                    Kind::Constant => constant,
                    Kind::Positive => rng.normal().abs(),
                    Kind::Negative => -rng.normal().abs(),
                    Kind::Offset => 10.0 + rng.normal(),
                    Kind::Sparse => {
                        if rng.below(40) == 0 {
                            rng.normal()
                        } else {
                            0.0
                        }
                    }
                    Kind::Steps => (i % 7) as f32 - 3.0,
                }
        })
        .collect()
}

fn any_data(n: usize) -> impl Strategy<Value = Vec<f32>> {
    let kinds = [
        Kind::Normal,
        Kind::Outliers,
        Kind::Constant,
        Kind::Positive,
        Kind::Negative,
        Kind::Offset,
        Kind::Sparse,
        Kind::Steps,
    ];
    (proptest::sample::select(kinds.to_vec()), -12i32..12, any::<u64>())
        .prop_map(move |(kind, exponent, seed)| data(kind, n, 2f32.powi(exponent), &mut Rng(seed)))
}

proptest! {
    /// Half a step of the scale, plus the rounding of the scale to f16 at 127 of them.
    #[test]
    fn q8_0_errs_by_half_a_step(values in any_data(96)) {
        for (x, y) in values.chunks(32).zip(round_trip(GgmlType::Q8_0, &values).chunks(32)) {
            let step = amax(x) / 127.0;
            let bound = 0.5001 * step + 127.0 * (step / 2048.0).max(2f32.powi(-25));
            for (x, y) in x.iter().zip(y) {
                prop_assert!((x - y).abs() <= bound, "{} -> {}, bound {}", x, y, bound);
            }
        }
    }

    /// No value is off by more than one and a half steps of the widest sub-block's range (a half by rounding, the rest by
    /// the quantized scales and by ranges cut for the sake of the other values).
    #[test]
    fn k_blocks_err_by_steps(ty in proptest::sample::select(&K_TYPES[..]), values in any_data(512)) {
        for (x, y) in values.chunks(256).zip(round_trip(ty, &values).chunks(256)) {
            let (group, levels) = match ty {
                GgmlType::Q4_K => (32, 15.0),
                GgmlType::Q5_K => (32, 31.0),
                _ => (16, 63.0),
            };
            let range = |x: &[f32]| match ty {
                GgmlType::Q6_K => 2.0 * amax(x),
                _ => x.iter().fold(0f32, |m, v| m.max(*v)) - x.iter().fold(0f32, |m, v| m.min(*v)),
            };
            let step = x.chunks(group).map(range).fold(0f32, f32::max) / levels;
            // An f16 scale is off by up to 2^-24 when subnormal, times the largest factors.
            let bound = 1.5 * step + 2f32.powi(-24) * 128.0 * 32.0;
            for (x, y) in x.iter().zip(y) {
                prop_assert!((x - y).abs() <= bound, "{}: {} -> {}, bound {}", ty, x, y, bound);
            }
        }
    }

    /// Values that a block can hold come back: whole numbers up to 127 times a power of two.
    #[test]
    fn q8_0_keeps_what_it_can_hold(q in prop::collection::vec(-127i32..=127, 31), exponent in -14i32..8) {
        let values: Vec<f32> = q.into_iter().chain([127]).map(|q| q as f32 * 2f32.powi(exponent)).collect();
        prop_assert_eq!(round_trip(GgmlType::Q8_0, &values), values);
    }

    #[test]
    fn non_finite_weights_are_refused(
        ty in proptest::sample::select(vec![GgmlType::F32, GgmlType::F16, GgmlType::BF16, GgmlType::Q8_0,
            GgmlType::Q4_K, GgmlType::Q5_K, GgmlType::Q6_K]),
        at in 0usize..512,
        bad in proptest::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
    ) {
        let mut values = vec![0.5; 512];
        values[at] = bad;
        let refused = matches!(quantize(ty, &values), Err(Error::Argument { .. }));
        prop_assert!(refused);
    }

    /// Each activation block: the scale, half a step, the largest value at 127, the sums.
    #[test]
    fn activations_keep_their_contract(
        values in any_data(512),
        block in proptest::sample::select(vec![ActBlockSize::B32, ActBlockSize::B256]),
    ) {
        let act = quantize_activations(&values, block).unwrap();
        prop_assert_eq!(act.block(), block);
        prop_assert_eq!(act.qs().len(), values.len());
        prop_assert_eq!(act.scales().len(), values.len() / block.elems());
        prop_assert_eq!(act.sums().len(), values.len() / ACT_SUM_ELEMS);
        for ((x, qs), &scale) in values.chunks(block.elems()).zip(act.qs().chunks(block.elems())).zip(act.scales()) {
            let exact = amax(x) / 127.0;
            match scale {
                0.0 => prop_assert!(exact < f32::MIN_POSITIVE, "{exact:e} became zero"),
                // 22 bits
                _ => prop_assert!(
                    (scale / exact - 1.0).abs() <= 2f32.powi(-22) && scale.to_bits() % 4 == 0,
                    "{scale:e} for {exact:e}"
                ),
            }
            let largest = qs.iter().map(|q| q.unsigned_abs()).max().unwrap();
            prop_assert_eq!(largest, if scale == 0.0 { 0 } else { 127 });
            for (x, &q) in x.iter().zip(qs) {
                prop_assert!((x - scale * q as f32).abs() <= 0.5001 * scale);
            }
        }
        for (qs, &sum) in act.qs().chunks(ACT_SUM_ELEMS).zip(act.sums()) {
            prop_assert_eq!(qs.iter().map(|&q| q as i32).sum::<i32>(), sum as i32);
        }
        let dequantized = act.dequantize();
        for (i, y) in dequantized.iter().enumerate() {
            prop_assert_eq!(*y, act.scales()[i / block.elems()] * act.qs()[i] as f32);
        }
    }

    /// Signs do not matter to rounding, blocks not to each other, and old contents not to new ones.
    #[test]
    fn activations_are_symmetric_separate_and_reusable(a in any_data(256), b in any_data(512)) {
        for block in [ActBlockSize::B32, ActBlockSize::B256] {
            let first = quantize_activations(&a, block).unwrap();
            let negated = quantize_activations(&a.iter().map(|v| -v).collect::<Vec<_>>(), block).unwrap();
            prop_assert_eq!(negated.scales(), first.scales());
            prop_assert!(negated.qs().iter().zip(first.qs()).all(|(n, q)| *n == -*q));

            let both = quantize_activations(&[a.clone(), b.clone()].concat(), block).unwrap();
            prop_assert_eq!(&both.qs()[..a.len()], first.qs());
            prop_assert_eq!(&both.scales()[..first.scales().len()], first.scales());

            let mut reused = quantize_activations(&b, block).unwrap();
            reused.quantize(&a).unwrap();
            prop_assert_eq!(&reused, &first);
        }
    }

    /// A non-finite value makes its block NaN, and only its block.
    #[test]
    fn non_finite_activations_stay_visible(
        at in 0usize..768,
        bad in proptest::sample::select(vec![f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
        seed: u64,
    ) {
        let mut values = Rng(seed).normals(768);
        values[at] = bad;
        for block in [ActBlockSize::B32, ActBlockSize::B256] {
            let n = block.elems();
            let act = quantize_activations(&values, block).unwrap();
            for (i, y) in act.dequantize().iter().enumerate() {
                prop_assert_eq!(y.is_nan(), i / n == at / n);
            }
            prop_assert!(act.qs()[at / n * n..][..n].iter().all(|q| *q == 0));
            prop_assert!(act.sums()[at / n * n / ACT_SUM_ELEMS..][..n / ACT_SUM_ELEMS].iter().all(|s| *s == 0));
        }
    }
}

/// Relative RMS errors of normal data, with a few percent of room: a lost bit or a lazier fit shows.
#[test]
fn normal_data_costs_what_the_bits_allow() {
    let values = Rng(1).normals(256 * 400);
    let cases = [
        (GgmlType::BF16, 0.00175),
        (GgmlType::F16, 0.00022),
        (GgmlType::Q8_0, 0.0056),
        (GgmlType::Q6_K, 0.018),
        (GgmlType::Q5_K, 0.0368),
        (GgmlType::Q4_K, 0.0732),
    ];
    for (ty, bound) in cases {
        let error = relative_rms(&round_trip(ty, &values), &values);
        assert!(error < bound && error > 0.5 * bound, "{ty}: {error}");
    }
}

/// The figures known for 8-bit activations: normal data 0.53 % and 0.70 %, with 1 % of values 20 times the rest 1.1 %
/// and 2.6 %.
#[test]
fn activation_errors_are_the_known_ones() {
    let mut rng = Rng(2);
    let normal = data(Kind::Normal, 256 * 400, 1.0, &mut rng);
    let outliers = data(Kind::Outliers, 256 * 400, 1.0, &mut rng);
    let cases = [
        (&normal, ActBlockSize::B32, 0.0053),
        (&normal, ActBlockSize::B256, 0.0070),
        (&outliers, ActBlockSize::B32, 0.011),
        (&outliers, ActBlockSize::B256, 0.026),
    ];
    for (values, block, expected) in cases {
        let act = quantize_activations(values, block).unwrap();
        let error = relative_rms(&act.dequantize(), values);
        assert!((error / expected - 1.0).abs() < 0.1, "{block:?}: {error}, known {expected}");
    }
}

#[test]
fn constant_and_zero_blocks_are_close_or_exact() {
    for ty in [GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::Q5_K, GgmlType::Q6_K] {
        assert!(round_trip(ty, &[0.0; 256]).iter().all(|v| *v == 0.0), "{ty}");
        for c in [1.0f32, -1.0, 0.02, -0.02, 1000.0, -1000.0] {
            let y = round_trip(ty, &[c; 256]);
            assert!(y.iter().all(|y| (y / c - 1.0).abs() < 0.004), "{ty}: {c} -> {}", y[0]);
        }
        // Below every f16 scale: zeros, not infinities by division.
        assert!(round_trip(ty, &[1e-40; 256]).iter().all(|v| v.abs() < 1e-4), "{ty}");
    }
}

/// A scale of the scales that is subnormal in f16 must not be rounded down, or the largest sub-scale is out of reach.
#[test]
fn k_blocks_reach_values_of_subnormal_scales() {
    for ty in K_TYPES {
        for c in [7.9e-5f32, -7.9e-5, 1.6e-4] {
            let y = round_trip(ty, &[c; 256]);
            assert!(y.iter().all(|y| (y / c - 1.0).abs() < 0.02), "{ty}: {c} -> {}", y[0]);
        }
    }
}

/// ggml's Q8_0 rounds halves away from zero and divides by the scale before its rounding to f16.
#[test]
fn q8_0_rounds_as_ggml() {
    let mut x = [0.0; 32];
    x[..5].copy_from_slice(&[127.0, 0.5, -0.5, 2.5, -126.5]);
    let bytes = quantize(GgmlType::Q8_0, &x).unwrap();
    let qs: Vec<i8> = bytes[2..7].iter().map(|q| *q as i8).collect();
    assert_eq!(qs, [127, 1, -1, 3, -127]);
}

#[test]
fn activations_round_halves_to_even() {
    let mut x = [0.0; 32];
    x[..8].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]);
    let act = quantize_activations(&x, ActBlockSize::B32).unwrap();
    assert_eq!(act.scales(), [1.0]);
    assert_eq!(act.qs()[..8], [127, 0, 2, 2, 0, -2, -2, 126]);
    assert_eq!(act.sums(), [127 + 126, 0]);
}

#[test]
fn activations_reach_from_the_smallest_to_the_largest_numbers() {
    for block in [ActBlockSize::B32, ActBlockSize::B256] {
        let n = block.elems();
        let with_peak = |peak: f32| {
            let mut x = vec![peak / 3.0; n];
            x[n - 1] = -peak;
            x
        };
        let largest = f32::from_bits(2f32.powi(110).to_bits() - 1);
        for peak in [1.5e-36, 1e-20, 127.0, 1e33, largest] {
            let x = with_peak(peak);
            let act = quantize_activations(&x, block).unwrap();
            let scale = act.scales()[0];
            assert!((scale / (peak / 127.0) - 1.0).abs() <= 2f32.powi(-22), "{peak}");
            assert_eq!(
                3.0 * 2f64.powi(22) * f64::from(scale),
                f64::from(3.0 * 2f32.powi(22) * scale),
                "{peak}"
            );
            assert_eq!(act.qs()[n - 1], -127, "{peak}");
            assert_eq!(act.qs()[0], 42, "{peak}");
        }
        for peak in [0.0, 1e-45, 1e-40, f32::MIN_POSITIVE, 1.4e-36] {
            let act = quantize_activations(&with_peak(peak), block).unwrap();
            assert_eq!(act.scales(), [0.0], "{peak}");
            assert!(act.qs().iter().all(|q| *q == 0) && act.sums().iter().all(|s| *s == 0), "{peak}");
        }
        for peak in [2f32.powi(110), f32::MAX, f32::INFINITY, f32::NAN] {
            let act = quantize_activations(&with_peak(peak), block).unwrap();
            assert!(act.scales()[0].is_nan() && act.qs().iter().all(|q| *q == 0), "{peak}");
        }
    }
    // The largest sums.
    let act = quantize_activations(&[-3.0; 256], ActBlockSize::B256).unwrap();
    assert!(act.sums().iter().all(|s| *s == -127 * 16));
}

#[test]
fn values_beyond_a_type_are_refused() {
    let with_peak = |peak: f32| {
        let mut x = vec![0.0; 256];
        x[100] = peak;
        x
    };
    for (ty, holds, refuses) in [
        (GgmlType::F16, 65504.0, 65520.0),
        (GgmlType::BF16, 3.38e38, f32::MAX),
        (GgmlType::Q8_0, 127.0 * 65504.0, 127.0 * 65536.0),
        (GgmlType::Q4_K, 6e7, 7e7),
        (GgmlType::Q5_K, 1.2e8, 1.4e8),
        (GgmlType::Q6_K, 2e8, 3e8),
    ] {
        let y = round_trip(ty, &with_peak(holds));
        assert!((y[100] / holds - 1.0).abs() < 0.02, "{ty}: {}", y[100]);
        assert!(matches!(quantize(ty, &with_peak(refuses)), Err(Error::Argument { .. })), "{ty}");
    }
}

#[test]
fn part_blocks_are_refused() {
    for ty in [GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::Q5_K, GgmlType::Q6_K] {
        assert!(matches!(quantize(ty, &vec![0.0; ty.block_elems() + 1]), Err(Error::Shape { .. })), "{ty}");
        // Whole blocks in all, but not in each row.
        let values = vec![0.0; 3 * ty.block_elems()];
        assert!(Weight::quantize(ty, [1, 2, ty.block_elems() / 2 * 3], &values).is_err(), "{ty}");
        assert!(Weight::quantize(ty, [1, 3, ty.block_elems()], &values).is_ok(), "{ty}");
    }
    let mut act = Activations::new(ActBlockSize::B256);
    act.quantize(&[1.0; 256]).unwrap();
    let before = act.clone();
    assert!(matches!(act.quantize(&[1.0; 32]), Err(Error::Shape { .. })));
    assert_eq!(act, before);
    act.quantize(&[]).unwrap();
    assert!(act.qs().is_empty() && act.scales().is_empty() && act.sums().is_empty());
}

/// What the number of values that share a scale costs, and f16: the table of docs/kernels/linear_tiled.md, by which `Precision::Fast`
/// takes blocks of 32 and f16. `--nocapture` prints it.
#[test]
fn accuracy_decides_how_activations_are_rounded() {
    const K: usize = 6144;
    let rng = &mut Rng(11);
    let w = rng.normals(64 * K);
    let mut normals = || rng.normals(4 * K);
    let (gaussian, spread) = (normals(), [normals(), normals(), normals(), normals()]);
    let times_20 = |loud: &dyn Fn(usize) -> bool| -> Vec<f32> {
        gaussian.iter().enumerate().map(|(i, v)| if loud(i) { 20.0 * v } else { *v }).collect()
    };
    let mut choice = Rng(12);
    let loud: Vec<bool> = (0..4 * K).map(|_| choice.below(100) == 0).collect();
    let student: Vec<f32> = (0..4 * K)
        .map(|i| gaussian[i] / (spread.iter().map(|s| s[i].powi(2)).sum::<f32>() / 4.0).sqrt())
        .collect();
    let columns = |x: &[f32]| -> [f64; 6] {
        let of = |x: &[f32]| reference::linear(&w, x, 64, K).unwrap();
        let ideal = of(x);
        let error = |rounded: &[f32]| {
            let off: f64 = of(rounded).iter().zip(&ideal).map(|(a, b)| (a - b).powi(2)).sum();
            (off / ideal.iter().map(|v| v.powi(2)).sum::<f64>()).sqrt()
        };
        let int8 = |block| error(&reference::round_int8(x, K, block).unwrap());
        [int8(16), int8(32), int8(64), int8(128), int8(256), error(&reference::round_f16(x, K).unwrap())]
    };
    let kinds = [
        ("Gaussian", gaussian.clone()),
        ("1 % of the values 20 times the rest", times_20(&|i| loud[i])),
        ("1 % of the channels 20 times the rest", times_20(&|i| loud[i % K])),
        ("Student's t with 4 degrees", student),
    ];
    for (kind, x) in kinds {
        let e = columns(&x);
        println!(
            "{kind:40} 16 to 256: {:.2e} {:.2e} {:.2e} {:.2e} {:.2e}, f16 {:.2e}",
            e[0], e[1], e[2], e[3], e[4], e[5]
        );
        assert!(e.windows(2).take(4).all(|e| e[0] < e[1]), "{kind}: smaller blocks are better: {e:?}");
        assert!(e[5] < e[1] / 20.0, "{kind}: f16 has not a twentieth of the error of blocks of 32: {e:?}");
        if kind.starts_with('1') {
            // 1.25 times would have been the price of half of the scales that is worth it.
            assert!(e[4] > 2.0 * e[1], "{kind}: blocks of 256 are near those of 32: {e:?}");
        }
    }
}
