//! Rows of a batch written to paged caches: rounded to nearest, to their slots and nowhere else.

use glm5::ops::mla_attention::{MlaConfig, mla_attention};
use glm5::tensor::{CacheType, Device, PAGE_ROWS, PagedRows, RaggedRows};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::Rng;
use super::close::equal;
use super::inputs::{activations, any_m, host, on_each, poisoned, refused, tensor};
use super::sequences::any_cache_type;

macro_rules! cache_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { cache, $devices, $cases;
        rows_come_back_rounded_and_others_stay(case), packed_rows_come_back_within_their_bounds(packed_case);
        what_is_not_finite_spoils_its_block, attention_reads_packed_rows, rounds_halves_to_even, copied_pages_are_those_that_were_written, refuses_what_does_not_fit }
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
        CacheType::Fp8 | CacheType::Int8 => panic!("values of a row are rounded together"),
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

#[derive(Debug, Clone)]
pub struct PackedCase {
    m: usize,
    ty: CacheType,
    width: usize,
    seed: u64,
}

pub fn packed_case() -> impl Strategy<Value = PackedCase> {
    let types =
        vec![(CacheType::Fp8, 576), (CacheType::Fp8, 192), (CacheType::Fp8, 320), (CacheType::Int8, 128)];
    (any_m(), prop::sample::select(types), any::<u64>()).prop_map(|(m, (ty, width), seed)| PackedCase {
        m,
        ty,
        width,
        seed,
    })
}

/// `x` times the Hadamard matrix over `sqrt(128)`, by its definition.
fn hadamard(x: &[f32]) -> Vec<f64> {
    let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let row = |i: usize| x.iter().enumerate().map(|(j, v)| sign(i, j) * f64::from(*v)).sum::<f64>();
    (0..x.len()).map(|i| row(i) / (x.len() as f64).sqrt()).collect()
}

/// Every value within its own bound, the bits of the CPU, rows beside untouched; fp8 rows, written again, stay.
pub fn packed_rows_come_back_within_their_bounds(devices: &[Device], c: PackedCase) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let pages = c.m.div_ceil(PAGE_ROWS) + 1;
    let mut slots: Vec<usize> = (0..pages * PAGE_ROWS).collect();
    for i in (1..slots.len()).rev() {
        slots.swap(i, rng.below(i + 1));
    }
    slots.truncate(c.m);
    let mut x = activations(c.m, c.width, rng);
    for row in x.chunks_mut(c.width) {
        let by = [1.0f32, 1.0, 1e-6, 3e4, 1e-40][rng.below(5)];
        row.iter_mut().for_each(|v| *v *= by);
    }
    let write = |d: &Device, x: &[f32]| {
        let mut cache = full(d, pages, c.width, c.ty);
        let before = cache.row(0)?;
        let mut rows = RaggedRows::default();
        for slot in &slots {
            rows.push(slot % PAGE_ROWS, 1, &[(slot / PAGE_ROWS) as u32])?;
        }
        rows.upload(d)?;
        cache.write(&rows, &tensor(d, c.width, x))?;
        for slot in (0..cache.slots()).filter(|slot| !slots.contains(slot)) {
            assert_eq!(cache.row(slot as u32)?, before, "slot {slot} was written");
        }
        slots.iter().map(|slot| cache.row(*slot as u32)).collect::<glm5::Result<Vec<_>>>()
    };
    let got = on_each(devices, |d| write(d, &x))?.concat();
    let cpu = Device::cpu(Some(1)).unwrap();
    equal("as on a CPU", &got, &write(&cpu, &x).unwrap().concat())?;
    if c.ty == CacheType::Fp8 {
        equal("written again", &on_each(devices, |d| write(d, &got))?.concat(), &got)?;
    }
    for (got, x) in got.chunks(c.width).zip(x.chunks(c.width)) {
        if c.ty == CacheType::Int8 {
            // Half a step of each rotated value, and the rounding of f32.
            let (got, want) = (hadamard(got), hadamard(x));
            let largest = want.iter().fold(0f64, |m, v| m.max(v.abs()));
            let bound = largest * (0.5 / 127.0 + 1e-5) + 1e-36; // below that all are zeros
            let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0f64, f64::max);
            prop_assert!(off <= bound, "off by {} of {}", off, largest);
            continue;
        }
        let latent = c.width - 64;
        equal(
            "rotated",
            &got[latent..],
            &x[latent..].iter().map(|v| rounded(CacheType::Bf16, *v)).collect::<Vec<_>>(),
        )?;
        for (got, x) in got[..latent].chunks(128).zip(x[..latent].chunks(128)) {
            let largest = x.iter().fold(0f64, |m, v| m.max(f64::from(v.abs())));
            let scale = 2f64.powi((largest / 448.0).log2().ceil() as i32).max(f64::from(f32::MIN_POSITIVE));
            for (got, x) in got.iter().zip(x) {
                let (got, x) = (f64::from(*got), f64::from(*x));
                let bound = (x.abs() / 16.0).max(scale / 1024.0);
                prop_assert!((got - x).abs() <= bound, "{} came back as {}, scale {}", x, got, scale);
            }
        }
    }
    Ok(())
}

/// A NaN or an infinity: in fp8 the 128 values of its scale, or itself among the rotated ones; in int8 the whole key.
pub fn what_is_not_finite_spoils_its_block(devices: &[Device]) {
    for d in devices {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = Rng(4).normals(3 * 576);
            (x[130], x[576 + 514]) = (bad, bad); // the second block of row 0, a rotated value of row 1
            let mut cache = PagedRows::new(d, 1, 576, CacheType::Fp8).unwrap();
            let mut rows = RaggedRows::default();
            rows.push(0, 3, &[0]).unwrap();
            rows.upload(d).unwrap();
            cache.write(&rows, &tensor(d, 576, &x)).unwrap();
            for slot in 0..3 {
                let row = cache.row(slot).unwrap();
                let spoiled: Vec<usize> = (0..576).filter(|i| !row[*i].is_finite()).collect();
                let want: Vec<usize> = [(128..256).collect(), vec![514], vec![]][slot as usize].clone();
                assert_eq!(spoiled, want, "row {slot}");
            }
            let mut keys = PagedRows::new(d, 1, 128, CacheType::Int8).unwrap();
            let mut x = Rng(5).normals(3 * 128);
            x[128 + 9] = bad;
            keys.write(&rows, &tensor(d, 128, &x)).unwrap();
            for slot in 0..3 {
                assert!(keys.row(slot).unwrap().iter().all(|v| v.is_nan() == (slot == 1)), "key {slot}");
            }
        }
    }
}

/// What a cache gives back is what attention sees: the same bits as from an f32 cache of it. On CPUs.
pub fn attention_reads_packed_rows(devices: &[Device]) {
    for d in devices.iter().filter(|d| d.gpu().is_err()) {
        let n = PAGE_ROWS + 3;
        let mut rows = RaggedRows::default();
        rows.push(0, n, &[1, 0]).unwrap();
        let mut packed = PagedRows::new(d, 2, 576, CacheType::Fp8).unwrap();
        packed.write(&rows, &tensor(d, 576, &Rng(1).normals(n * 576))).unwrap();
        let mut plain = PagedRows::new(d, 2, 576, CacheType::F32).unwrap();
        let back: Vec<f32> = rows.slots().iter().flat_map(|s| packed.row(*s).unwrap()).collect();
        plain.write(&rows, &tensor(d, 576, &back)).unwrap();
        let config = MlaConfig { n_heads: 3, kv_lora_rank: 512, qk_rope_head_dim: 64, sm_scale: 1.0 / 16.0 };
        let q = tensor(d, 3 * 576, &Rng(3).normals(n * 3 * 576));
        let attend = |cache: &PagedRows| {
            let mut out = poisoned(d, n, 3 * 512);
            mla_attention(&q, cache, &rows, None, &config, &mut out).unwrap();
            host(&out)
        };
        equal("attention", &attend(&packed), &attend(&plain)).unwrap();
    }
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
        for (ty, width) in [
            (CacheType::F32, 5),
            (CacheType::Bf16, 5),
            (CacheType::F16, 5),
            (CacheType::Fp8, 192),
            (CacheType::Int8, 128),
        ] {
            let mut cache = full(d, 3, width, ty);
            let before = cache.row(0).unwrap();
            let mut rows = RaggedRows::default();
            rows.push(0, PAGE_ROWS, &[2]).unwrap();
            rows.upload(d).unwrap();
            cache.write(&rows, &tensor(d, width, &Rng(3).normals(PAGE_ROWS * width))).unwrap();
            let all = |cache: &PagedRows| -> Vec<Vec<f32>> {
                (0..3 * PAGE_ROWS).map(|slot| cache.row(slot as u32).unwrap()).collect()
            };
            let written = all(&cache);
            assert!(written[..2 * PAGE_ROWS].iter().all(|row| *row == before));
            assert!(written[2 * PAGE_ROWS..].iter().all(|row| *row != before));
            cache.copy_page(2, 0).unwrap();
            let copied = all(&cache);
            assert_eq!(copied[..PAGE_ROWS], written[2 * PAGE_ROWS..], "{ty}");
            assert_eq!(copied[PAGE_ROWS..], written[PAGE_ROWS..], "{ty}");
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
    for (ty, width) in
        [(CacheType::Fp8, 64), (CacheType::Fp8, 128), (CacheType::Fp8, 512), (CacheType::Int8, 64)]
    {
        let refusal = PagedRows::new(d, 1, width, ty);
        assert!(matches!(refusal, Err(glm5::Error::Unsupported { .. })), "{ty}, {width}: {refusal:?}");
    }
}
