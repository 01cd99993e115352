//! Interleaved rotary embedding.

use glm5::ops::rope::{reference, rope, rope_angles, rope_into};
use glm5::tensor::{Device, Heads, PAGE_ROWS, RaggedRows, Tensor};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::Rng;
use super::close::{EPS, close, equal};
use super::inputs::{
    any_m, gather, host, on_each, outside, poisoned, refused, spread_heads, tensor, untouched,
};

macro_rules! rope_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { rope, $devices, $cases;
        angles_are_good_to_two_ten_millionths(case), rotates_head_parts_only(case), into_equals_in_place(case),
        scores_do_not_change_when_all_positions_shift(case);
        rotates_adjacent_pairs, has_the_published_frequencies, parts_of_real_heads_are_the_right_ones,
        neighbours_of_nan_and_negative_zeros_stay, refuses_what_does_not_fit }
    };
}
pub(crate) use rope_properties;

#[derive(Debug, Clone)]
pub struct Case {
    positions: Vec<u32>,
    dim: usize,
    heads: usize,
    base: f32,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    let position =
        prop_oneof![prop::sample::select(vec![0u32, 1, 63, 64, 999_999, 1_000_000]), 0u32..1_048_576];
    let positions = any_m().prop_flat_map(move |m| prop::collection::vec(position.clone(), m));
    let base = prop::sample::select(vec![1e4f32, 1e6, 8e6]);
    let half = prop_oneof![2 => 1usize..=32, 1 => prop::sample::select(vec![32usize, 33, 64])];
    let heads = prop_oneof![4 => 1usize..6, 1 => prop::sample::select(vec![16usize, 64])];
    (positions, half, heads, base, any::<u64>()).prop_map(|(positions, half, heads, base, seed)| Case {
        positions,
        dim: 2 * half,
        heads,
        base,
        seed,
    })
}

/// Rows at any positions, of sequences whose tokens all lie in one page.
fn at(d: &Device, positions: &[u32]) -> glm5::Result<RaggedRows> {
    let last = positions.iter().max().map_or(0, |p| *p as usize);
    let pages = vec![0; last / PAGE_ROWS + 1];
    let mut rows = RaggedRows::default();
    for p in positions {
        rows.push(*p as usize, 1, &pages[..*p as usize / PAGE_ROWS + 1])?;
    }
    rows.upload(d)?;
    Ok(rows)
}

fn angles(d: &Device, base: f32, positions: &[u32], dim: usize) -> glm5::Result<Tensor> {
    let mut angles = poisoned(d, positions.len(), dim);
    rope_angles(base, &at(d, positions)?, &mut angles)?;
    Ok(angles)
}

pub fn angles_are_good_to_two_ten_millionths(devices: &[Device], c: Case) -> TestCaseResult {
    let got = on_each(devices, |d| Ok(host(&angles(d, c.base, &c.positions, c.dim)?)))?;
    let freqs = reference::frequencies(c.base.into(), c.dim).unwrap();
    let mut want = Vec::new();
    for p in &c.positions {
        for f in &freqs {
            let phi = f64::from(*p) * f;
            want.extend([phi.cos(), phi.sin()]);
        }
    }
    close("angles", &got, &want, |_| 2e-7)
}

pub fn rotates_head_parts_only(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let (heads, cols) = spread_heads(c.heads, c.dim, rng);
    let x = rng.normals(c.positions.len() * cols);
    let got = on_each(devices, |d| {
        let mut x = tensor(d, cols, &x);
        rope(&mut x, heads, &angles(d, c.base, &c.positions, c.dim)?)?;
        Ok(host(&x))
    })?;
    equal("other columns", &outside(&got, cols, heads), &outside(&x, cols, heads))?;
    let parts = gather(&x, cols, heads);
    let want = reference::rope(&parts, &c.positions, c.dim, c.base.into()).unwrap();
    // Cosine and sine may be off by a millionth, the arithmetic by a few units.
    close("parts", &gather(&got, cols, heads), &want, |i| {
        let (a, b) = (parts[i / 2 * 2], parts[i / 2 * 2 + 1]);
        (1e-6 + 4.0 * EPS) * f64::from(a.abs() + b.abs())
    })
}

pub fn into_equals_in_place(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let (x_heads, x_cols) = spread_heads(c.heads, c.dim, rng);
    let (y_heads, y_cols) = spread_heads(c.heads, c.dim, rng);
    let m = c.positions.len();
    let (x, before) = (rng.normals(m * x_cols), rng.normals(m * y_cols));
    let (in_place, y) = on_each(devices, |d| {
        let angles = angles(d, c.base, &c.positions, c.dim)?;
        let (mut in_place, from) = (tensor(d, x_cols, &x), tensor(d, x_cols, &x));
        rope(&mut in_place, x_heads, &angles)?;
        let mut y = tensor(d, y_cols, &before);
        rope_into(&from, x_heads, &angles, &mut y, y_heads)?;
        Ok((host(&in_place), host(&y)))
    })?;
    equal("parts", &gather(&y, y_cols, y_heads), &gather(&in_place, x_cols, x_heads))?;
    equal("other columns", &outside(&y, y_cols, y_heads), &outside(&before, y_cols, y_heads))
}

/// The last 64 of 256 of a query, its place behind 512 absorbed values, the first 64 of 128 of an indexer's: rotated in another order,
/// by another width or at another place, something of this differs (mistakes 1 to 4).
pub fn parts_of_real_heads_are_the_right_ones(devices: &[Device]) {
    let (m, base, positions) = (3, 8e6, [5u32, 70_000, 1_048_575]);
    let rng = &mut Rng(11);
    let (x, y, index) = (rng.normals(m * 64 * 256), rng.normals(m * 64 * 576), rng.normals(m * 32 * 128));
    let heads = |n, stride, offset| Heads { n, stride, offset, len: 64 };
    let (x_heads, y_heads, i_heads) = (heads(64, 256, 192), heads(64, 576, 512), heads(32, 128, 0));
    let (got_y, got_index) = on_each(devices, |d| {
        let angles = angles(d, base, &positions, 64)?;
        let (x, mut y, mut index) =
            (tensor(d, 64 * 256, &x), tensor(d, 64 * 576, &y), tensor(d, 32 * 128, &index));
        rope_into(&x, x_heads, &angles, &mut y, y_heads)?;
        rope(&mut index, i_heads, &angles)?;
        Ok((host(&y), host(&index)))
    })
    .unwrap();
    let expected =
        |before: &[f32], from: &dyn Fn(usize, usize) -> f64, n: usize, stride: usize, offset: usize| {
            let mut want: Vec<f64> = before.iter().map(|v| f64::from(*v)).collect();
            for (t, p) in positions.iter().enumerate() {
                for h in 0..n {
                    for i in 0..32 {
                        let phi = f64::from(*p) * f64::from(base).powf(-(i as f64) / 32.0);
                        let (a, b) = (from(t * n + h, 2 * i), from(t * n + h, 2 * i + 1));
                        let at = (t * n + h) * stride + offset + 2 * i;
                        (want[at], want[at + 1]) =
                            (a * phi.cos() - b * phi.sin(), a * phi.sin() + b * phi.cos());
                    }
                }
            }
            want
        };
    let of_x = |head: usize, i: usize| f64::from(x[head * 256 + 192 + i]);
    let of_index = |head: usize, i: usize| f64::from(index[head * 128 + i]);
    close("y", &got_y, &expected(&y, &of_x, 64, 576, 512), |_| 5e-6).unwrap();
    close("index", &got_index, &expected(&index, &of_index, 32, 128, 0), |_| 5e-6).unwrap();
    equal("absorbed", &outside(&got_y, 64 * 576, y_heads), &outside(&y, 64 * 576, y_heads)).unwrap();
    equal("unrotated", &outside(&got_index, 32 * 128, i_heads), &outside(&index, 32 * 128, i_heads)).unwrap();
}

/// A value that is not finite spoils its pair alone; at position 0 zeros keep their signs as sums of products have them.
pub fn neighbours_of_nan_and_negative_zeros_stay(devices: &[Device]) {
    let x = [f32::NAN, 1.0, -0.0, -0.0, -0.0, 2.0, f32::INFINITY, 0.5, -0.0, 0.0, 3.0, -4.0];
    let rows = on_each(devices, |d| {
        let mut x = tensor(d, 12, &[&x[..], &x].concat());
        rope(&mut x, Heads { n: 2, stride: 6, offset: 2, len: 4 }, &angles(d, 1e6, &[0, 9], 4)?)?;
        Ok(host(&x))
    })
    .unwrap();
    // -0 - -0 is 0, and -0 + -0 is -0.
    equal(
        "at 0",
        &rows[..12],
        &[f32::NAN, 1.0, 0.0, -0.0, -0.0, 2.0, f32::INFINITY, 0.5, -0.0, 0.0, 3.0, -4.0],
    )
    .unwrap();
    let spoiled: Vec<usize> = (12..24).filter(|i| !rows[*i].is_finite()).map(|i| i - 12).collect();
    assert_eq!(spoiled, [0, 6]); // outside the parts, where nothing is rotated
    equal("outside", &[rows[12], rows[13], rows[18], rows[19]], &[f32::NAN, 1.0, f32::INFINITY, 0.5])
        .unwrap();
}

pub fn scores_do_not_change_when_all_positions_shift(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let (q, k) = (rng.normals(c.dim), rng.normals(c.dim));
    let (p, s) = (rng.below(5000) as u32, rng.below(5000) as u32);
    let shift = rng.below(1_000_000) as u32;
    let rows = on_each(devices, |d| {
        let mut x = tensor(d, c.dim, &[&q[..], &k, &q, &k].concat());
        let positions = [p, s, p + shift, s + shift];
        rope(&mut x, Heads::one(0, c.dim), &angles(d, c.base, &positions, c.dim)?)?;
        Ok(host(&x))
    })?;
    let dot = |a: usize, b: usize| -> f64 {
        (0..c.dim).map(|i| f64::from(rows[a * c.dim + i]) * f64::from(rows[b * c.dim + i])).sum()
    };
    let length = |v: &[f32]| v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let (here, there) = (dot(0, 1), dot(2, 3));
    let bound = 1e-5 * length(&q) * length(&k);
    prop_assert!(
        (here - there).abs() <= bound,
        "{} at {} and {}, {} when shifted by {}",
        here,
        p,
        s,
        there,
        shift
    );
    Ok(())
}

/// The first unit vector turns to `(cos p, sin p, 0, ...)`: neighbours are a pair, not halves.
pub fn rotates_adjacent_pairs(devices: &[Device]) {
    for d in devices {
        let mut x = tensor(d, 6, &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
        rope(&mut x, Heads::one(0, 6), &angles(d, 1000.0, &[3, 7], 6).unwrap()).unwrap();
        let last: f64 = 7.0 * 0.01; // 1000^(-4/6)
        let want = [3f64.cos(), 3f64.sin(), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, last.cos(), last.sin()];
        close("x", &host(&x), &want, |_| 1e-7).unwrap();
    }
}

/// First and last angles at position 1 for the two bases of real checkpoints, for a rotated width of 64.
pub fn has_the_published_frequencies(devices: &[Device]) {
    let golden = [
        (1e6, [1.0, 0.649381632, 0.421696503, 0.273841963], 1.53992653e-6),
        (8e6, [1.0, 0.608525018, 0.370302698, 0.225338456], 2.05414726e-7),
    ];
    for d in devices {
        for (base, first, last) in golden {
            let table = host(&angles(d, base, &[1], 64).unwrap());
            let angle = |i: usize| f64::from(table[2 * i + 1]).atan2(f64::from(table[2 * i]));
            for (i, f) in [(0, first[0]), (1, first[1]), (2, first[2]), (3, first[3]), (31, last)] {
                let off: f64 = (angle(i) - f) / f;
                assert!(off.abs() < 3e-7, "base {base}, pair {i}: {} instead of {f}", angle(i));
            }
        }
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let heads = Heads { n: 2, stride: 6, offset: 1, len: 4 };
    let table = tensor(d, 4, &[1.0; 12]);
    let (mut x, mut y) = (poisoned(d, 3, 12), poisoned(d, 3, 12));
    let (mut odd, mut empty, mut other) = (poisoned(d, 2, 5), poisoned(d, 2, 0), poisoned(d, 2, 12));
    let from = poisoned(d, 3, 12);
    let wide = Heads { n: 3, ..heads };
    let (two, three) = (at(d, &[1, 2]).unwrap(), at(d, &[1, 2, 3]).unwrap());
    refused(vec![
        ("angles rows", rope_angles(1e6, &three, &mut odd)),
        ("angles odd", rope_angles(1e6, &two, &mut odd)),
        ("angles empty", rope_angles(1e6, &two, &mut empty)),
        ("rope table", rope(&mut x, Heads { len: 2, ..heads }, &table)),
        ("rope rows", rope(&mut other, heads, &table)),
        ("rope heads", rope(&mut x, wide, &table)),
        ("rope overlap", rope(&mut x, Heads { stride: 4, ..heads }, &table)),
        ("rope no heads", rope(&mut x, Heads { n: 0, ..heads }, &table)),
        ("into x heads", rope_into(&from, wide, &table, &mut y, wide)),
        ("into y heads", rope_into(&from, heads, &table, &mut y, Heads { stride: 8, ..heads })),
        ("into count", rope_into(&from, heads, &table, &mut y, Heads { n: 1, ..heads })),
        ("into width", rope_into(&from, heads, &table, &mut y, Heads { len: 2, ..heads })),
        ("into rows", rope_into(&from, heads, &table, &mut other, heads)),
    ]);
    for base in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let mut table = poisoned(d, 3, 4);
        let refusal = rope_angles(base, &three, &mut table);
        assert!(matches!(refusal, Err(glm5::Error::Argument { .. })), "base {base}: {refusal:?}");
        assert!(untouched(&table), "a refused call wrote something");
    }
    assert!([x, y, odd, other].iter().all(untouched), "a refused call wrote something");
}
