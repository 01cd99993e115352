//! Values of quantized matrices.

use std::ops::Range;

use glm5::Result;
use glm5::ops::dequantize::{dequantize, reference};
use glm5::quant::{GgmlType, Weight};
use glm5::tensor::{Device, Float, Tensor};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::{SUPPORTED, random_blocks};
use super::close::equal;
use super::inputs::{matrix, on_each, poisoned, refused, tensor, type_and_width, untouched};

macro_rules! dequantize_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { dequantize, $devices, $cases;
        rows_have_the_values_of_their_blocks(case), any_float_is_rounded_to_nearest(floats);
        every_type_over_several_tiles, refuses_what_does_not_fit }
    };
}
pub(crate) use dequantize_properties;

#[derive(Debug, Clone)]
pub struct Case {
    ty: GgmlType,
    shape: [usize; 3],
    slab: usize,
    rows: Range<usize>,
    seed: u64,
}

/// Rows that begin anywhere: most blocks are not aligned to more than two bytes.
pub fn case() -> impl Strategy<Value = Case> {
    let shape = (type_and_width(1536), 1usize..4, 1usize..9, any::<u64>());
    shape.prop_flat_map(|((ty, cols), slabs, n, seed)| {
        (0..slabs, 0..=n, 0..=n).prop_map(move |(slab, a, b)| {
            let rows = a.min(b)..a.max(b);
            Case { ty, shape: [slabs, n, cols], slab, rows, seed }
        })
    })
}

/// Any bits at all, and values near the steps of f16 and bf16.
pub fn floats() -> impl Strategy<Value = Vec<f32>> {
    let near = (any::<u16>(), prop::sample::select(vec![0u32, 1, 2, 0x7fff, 0x8000, 0x8001]))
        .prop_map(|(high, low)| f32::from_bits(u32::from(high) << 16 | low));
    let half = (any::<u16>(), -2i32..=2).prop_map(|(bits, off)| {
        let (here, next) = (f16::from_bits(bits).to_f32(), f16::from_bits(bits.wrapping_add(1)).to_f32());
        f32::from_bits(((here + next) / 2.0).to_bits().wrapping_add_signed(off))
    });
    let any = any::<u32>().prop_map(f32::from_bits);
    prop::collection::vec(prop_oneof![any, near, half], 1..300)
}

/// The rows as f32, whatever type they were asked for in.
fn values<T: Float + Into<f32>>(
    d: &Device,
    w: &Weight,
    slab: usize,
    rows: &Range<usize>,
) -> Result<Vec<f32>> {
    let mut out = Tensor::<T>::zeros(d, rows.len(), w.cols())?;
    dequantize(&matrix(d, w), slab, rows.clone(), &mut out)?;
    Ok(out.to_vec()?.into_iter().map(Into::into).collect())
}

fn check(devices: &[Device], w: &Weight, slab: usize, rows: Range<usize>) -> TestCaseResult {
    let want = reference::dequantize_f32(w.ty(), w.rows_bytes(slab, rows.clone())).unwrap();
    let got = on_each(devices, |d| {
        let mut out = poisoned(d, rows.len(), w.cols());
        dequantize(&matrix(d, w), slab, rows.clone(), &mut out)?;
        out.to_vec()
    })?;
    equal("f32", &got, &want)?;
    let got = on_each(devices, |d| values::<f16>(d, w, slab, &rows))?;
    let rounded: Vec<f32> = want.iter().map(|v| reference::round_f16(*v).to_f32()).collect();
    equal("f16", &got, &rounded)?;
    let got = on_each(devices, |d| values::<bf16>(d, w, slab, &rows))?;
    let rounded: Vec<f32> = want.iter().map(|v| reference::round_bf16(*v).to_f32()).collect();
    equal("bf16", &got, &rounded)
}

pub fn rows_have_the_values_of_their_blocks(devices: &[Device], c: Case) -> TestCaseResult {
    let blocks = c.shape.iter().product::<usize>() / c.ty.block_elems();
    let w = Weight::new(c.ty, c.shape, random_blocks(c.ty, blocks, true, c.seed).into()).unwrap();
    check(devices, &w, c.slab, c.rows)
}

pub fn any_float_is_rounded_to_nearest(devices: &[Device], values: Vec<f32>) -> TestCaseResult {
    let w = Weight::from_f32([1, 1, values.len()], &values).unwrap();
    check(devices, &w, 0, 0..1)
}

/// Every block of every type, with scales of every kind, through whole tiles and a part of one.
pub fn every_type_over_several_tiles(devices: &[Device]) {
    for (i, ty) in SUPPORTED.into_iter().enumerate() {
        let blocks = (2 * 4096 + 768) / ty.block_elems();
        let bytes = random_blocks(ty, blocks, true, i as u64);
        let w = Weight::new(ty, [1, 1, blocks * ty.block_elems()], bytes.into()).unwrap();
        check(devices, &w, 0, 0..1).unwrap_or_else(|e| panic!("{ty}: {e}"));
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let w =
        Weight::new(GgmlType::Q8_0, [2, 3, 32], random_blocks(GgmlType::Q8_0, 6, false, 1).into()).unwrap();
    let w = matrix(d, &w);
    let (mut out, mut narrow) = (poisoned(d, 2, 32), poisoned(d, 2, 31));
    #[allow(clippy::reversed_empty_ranges)]
    refused(vec![
        ("slab", dequantize(&w, 2, 0..2, &mut out)),
        ("rows", dequantize(&w, 0, 2..4, &mut out)),
        ("reversed", dequantize(&w, 0, 2..1, &mut out)),
        ("out rows", dequantize(&w, 0, 0..3, &mut out)),
        ("out cols", dequantize(&w, 0, 0..2, &mut narrow)),
    ]);
    assert!([&out, &narrow].into_iter().all(untouched), "a refused call wrote something");
    let cpu = Device::cpu(Some(1)).unwrap();
    if !matches!(d, Device::Cpu(_)) {
        let elsewhere = dequantize(&w, 0, 0..2, &mut tensor(&cpu, 32, &[0.0; 64]));
        assert!(matches!(elsewhere, Err(glm5::Error::Unsupported { .. })), "{elsewhere:?}");
    }
}
