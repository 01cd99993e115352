//! Rows of a batch written to paged caches: rounded to nearest, to their slots and nowhere else.

use glm5::tensor::{CacheType, Device, PAGE_ROWS, PagedRows, RaggedRows};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::Rng;
use super::close::equal;
use super::inputs::{any_m, on_each, refused, tensor};
use super::sequences::any_cache_type;

macro_rules! cache_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { cache, $devices, $cases;
        rows_come_back_rounded_and_others_stay(case);
        rounds_halves_to_even, copied_pages_are_those_that_were_written, refuses_what_does_not_fit }
    };
}
pub(crate) use cache_properties;

#[derive(Debug, Clone)]
pub struct Case {
    m: usize,
    width: usize,
    ty: CacheType,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    let width = prop::sample::select(vec![1usize, 2, 4, 31, 32, 33, 127, 128, 129, 516, 576, 700]);
    (any_m(), width, any_cache_type(), any::<u64>()).prop_map(|(m, width, ty, seed)| Case {
        m,
        width,
        ty,
        seed,
    })
}

/// What a cache of this type keeps of a value.
pub fn rounded(ty: CacheType, v: f32) -> f32 {
    match ty {
        CacheType::F32 => v,
        CacheType::Bf16 => bf16::from_f32(v).to_f32(),
        CacheType::F16 => f16::from_f32(v).to_f32(),
    }
}

/// How far a value that is `slack[i]` from `want[i]` may be from that when a cache of this type has rounded it.
pub fn type_slack(ty: CacheType, want: &[f64], slack: &[f64], i: usize) -> f64 {
    let size = want[i].abs() + slack[i];
    match ty {
        CacheType::F32 => 0.0,
        CacheType::Bf16 => size * 2f64.powi(-8),
        CacheType::F16 => size * 2f64.powi(-11) + 2f64.powi(-25),
    }
}

/// All slots of `pages` pages as rows.
fn all_slots(d: &Device, pages: usize) -> RaggedRows {
    let mut all = RaggedRows::default();
    all.push(0, pages * PAGE_ROWS, &(0..pages as u32).collect::<Vec<_>>()).unwrap();
    all.upload(d).unwrap();
    all
}

/// A cache full of a value that no row has.
const BEFORE: f32 = -123.0;

fn full(d: &Device, pages: usize, width: usize, ty: CacheType) -> PagedRows {
    let mut cache = PagedRows::new(d, pages, width, ty).unwrap();
    let rows = all_slots(d, pages);
    cache.write(&rows, &tensor(d, width, &vec![BEFORE; rows.len() * width])).unwrap();
    cache
}

/// Single rows of sequences in pages of any order, some in one page.
pub fn rows_come_back_rounded_and_others_stay(devices: &[Device], c: Case) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let pages = c.m.div_ceil(PAGE_ROWS) + 2;
    let mut slots: Vec<usize> = (0..pages * PAGE_ROWS).collect();
    for i in (1..slots.len()).rev() {
        slots.swap(i, rng.below(i + 1));
    }
    slots.truncate(c.m);
    let mut x: Vec<f32> = (0..c.m * c.width).map(|_| rng.normal() * (3.0 * rng.normal()).exp()).collect();
    for special in [-0.0, 1e30, f32::INFINITY, 6.1e-5, 3e-8, 1e-42] {
        let at = rng.below(x.len());
        x[at] = special;
    }
    let got = on_each(devices, |d| {
        let mut cache = full(d, pages, c.width, c.ty);
        let mut rows = RaggedRows::default();
        for slot in &slots {
            rows.push(slot % PAGE_ROWS, 1, &[(slot / PAGE_ROWS) as u32])?;
        }
        rows.upload(d)?;
        cache.write(&rows, &tensor(d, c.width, &x))?;
        (0..cache.slots()).map(|slot| cache.row(slot as u32)).collect::<glm5::Result<Vec<_>>>()
    })?;
    let mut want = vec![vec![BEFORE; c.width]; got.len()];
    for (slot, x) in slots.iter().zip(x.chunks(c.width)) {
        want[*slot] = x.iter().map(|v| rounded(c.ty, *v)).collect();
    }
    equal("cache", &got.concat(), &want.concat())
}

/// 1 + 2^-8 lies between two bf16, 1 + 2^-11 between two f16.
pub fn rounds_halves_to_even(devices: &[Device]) {
    let (b, h) = (2f32.powi(-8), 2f32.powi(-11));
    for d in devices {
        for (ty, x, want) in [
            (
                CacheType::Bf16,
                [1.0 + b, 1.0 + 3.0 * b, 1.0 + b + 1e-6, -1.0 - b],
                [1.0, 1.0 + 4.0 * b, 1.0 + 2.0 * b, -1.0],
            ),
            (
                CacheType::F16,
                [1.0 + h, 1.0 + 3.0 * h, 65519.0, 65520.0],
                [1.0, 1.0 + 4.0 * h, 65504.0, f32::INFINITY],
            ),
        ] {
            let mut cache = PagedRows::new(d, 1, 4, ty).unwrap();
            let mut rows = RaggedRows::default();
            rows.push(7, 1, &[0]).unwrap();
            rows.upload(d).unwrap();
            cache.write(&rows, &tensor(d, 4, &x)).unwrap();
            assert_eq!(cache.row(7).unwrap(), want, "{ty}");
        }
    }
}

pub fn copied_pages_are_those_that_were_written(devices: &[Device]) {
    for d in devices {
        for ty in [CacheType::F32, CacheType::Bf16, CacheType::F16] {
            let mut cache = full(d, 3, 5, ty);
            let mut rows = RaggedRows::default();
            rows.push(0, PAGE_ROWS, &[2]).unwrap();
            rows.upload(d).unwrap();
            let x = Rng(3).normals(PAGE_ROWS * 5);
            cache.write(&rows, &tensor(d, 5, &x)).unwrap();
            cache.copy_page(2, 0).unwrap();
            for (slot, x) in x.chunks(5).enumerate() {
                let want: Vec<f32> = x.iter().map(|v| rounded(ty, *v)).collect();
                assert_eq!(cache.row(slot as u32).unwrap(), want);
                assert_eq!(cache.row((2 * PAGE_ROWS + slot) as u32).unwrap(), want);
                assert_eq!(cache.row((PAGE_ROWS + slot) as u32).unwrap(), [BEFORE; 5]);
            }
        }
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let mut cache = full(d, 2, 6, CacheType::F32);
    let rows = |pages: &[u32], n: usize| {
        let mut rows = RaggedRows::default();
        rows.push(0, n, pages).unwrap();
        rows.upload(d).unwrap();
        rows
    };
    // The last row alone lies beyond the cache.
    let beyond = rows(&[0, 2], PAGE_ROWS + 1);
    refused(vec![
        ("slots", cache.write(&beyond, &tensor(d, 6, &vec![1.0; beyond.len() * 6]))),
        ("rows", cache.write(&rows(&[1], 2), &tensor(d, 6, &[1.0; 18]))),
        ("width", cache.write(&rows(&[1], 2), &tensor(d, 5, &[1.0; 10]))),
    ]);
    if d.gpu().is_ok() {
        let mut not_there = RaggedRows::default();
        not_there.push(0, 2, &[1]).unwrap();
        let refusal = cache.write(&not_there, &tensor(d, 6, &[1.0; 12]));
        assert!(matches!(refusal, Err(glm5::Error::Unsupported { .. })), "{refusal:?}");
        let elsewhere = Device::cpu(Some(1)).unwrap();
        let refusal = cache.write(&rows(&[1], 2), &tensor(&elsewhere, 6, &[1.0; 12]));
        assert!(matches!(refusal, Err(glm5::Error::Unsupported { .. })), "{refusal:?}");
    }
    for slot in 0..cache.slots() as u32 {
        assert_eq!(cache.row(slot).unwrap(), [BEFORE; 6], "a refused call wrote something");
    }
}
