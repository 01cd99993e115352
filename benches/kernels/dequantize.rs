//! dequantize: bytes of the blocks + bytes of the values, over the copy roof. Goal: 85 % of it.

use criterion::Criterion;
use glm5::ops::dequantize::{dequantize, reference};
use glm5::quant::{GgmlType, Weight};
use glm5::tensor::{Float, Matrix, Tensor};
use half::{bf16, f16};

use super::blocks::{SUPPORTED, random_blocks};
use super::data::{DISTINCT, expected, repeated, results};
use super::report::Work;
use super::{Bench, Row};

/// Columns: the hidden size.
const COLS: usize = 6144;

pub fn benches(bench: &Bench, c: &mut Criterion) {
    let rows = if bench.measured { 8192 } else { 2 };
    for ty in SUPPORTED {
        case::<f32>(bench, c, ty, rows);
        case::<bf16>(bench, c, ty, rows);
    }
    case::<f16>(bench, c, GgmlType::Q4_K, rows);
    if bench.measured {
        case::<bf16>(bench, c, GgmlType::Q4_K, 512);
        case::<bf16>(bench, c, GgmlType::Q8_0, 512);
    }
}

fn case<T: Float + Into<f32>>(bench: &Bench, c: &mut Criterion, ty: GgmlType, rows: usize) {
    let name = format!("{ty} to {} [{rows}, {COLS}]", T::TYPE);
    if !bench.wants("dequantize", &name) {
        return;
    }
    let few = random_blocks(ty, DISTINCT.min(rows) * COLS / ty.block_elems(), false, 1);
    let bytes = repeated(&few, rows * COLS / ty.block_elems() * ty.block_bytes());
    let moved = bytes.len() + rows * COLS * size_of::<T>();
    let sets = bench.sets(moved);
    let weight = Weight::new(ty, [1, rows, COLS], bytes.into()).unwrap();
    let ws: Vec<Matrix> = (0..sets).map(|_| Matrix::new(&bench.device, weight.clone()).unwrap()).collect();
    let mut outs: Vec<Tensor<T>> =
        (0..sets).map(|_| Tensor::zeros(&bench.device, rows, COLS).unwrap()).collect();

    dequantize(&ws[0], 0, 0..rows, &mut outs[0]).unwrap();
    let got = results(outs[0].cuda().unwrap(), rows);
    let want = reference::dequantize_f32(ty, &few).unwrap();
    let want: Vec<T> = expected(&want, rows, COLS).into_iter().map(T::from_f32).collect();
    assert!(bytemuck::cast_slice::<_, u8>(&got) == bytemuck::cast_slice::<_, u8>(&want), "{name}");

    let mut launch = |i: usize| dequantize(&ws[i], 0, 0..rows, &mut outs[i]);
    bench.row(
        c,
        "dequantize",
        Row { name, work: Work::copying(moved), case: None, sets, launch: &mut launch },
    );
}
