//! dequantize: bytes of the blocks + bytes of the values, over the copy roof. Goal: 85 % of it.

use criterion::Criterion;
use glm5::ops::dequantize::{dequantize, reference};
use glm5::quant::{GgmlType, Weight};
use glm5::tensor::{Float, Matrix, Tensor};
use half::{bf16, f16};

use crate::blocks::{SUPPORTED, random_blocks};
use crate::{Bench, Row};

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
    // A few rows of random blocks, over and over.
    let some = random_blocks(ty, 64.min(rows) * COLS / ty.block_elems(), false, 1);
    let bytes: Vec<u8> =
        some.iter().copied().cycle().take(rows * COLS / ty.block_elems() * ty.block_bytes()).collect();
    let moved = bytes.len() + rows * COLS * size_of::<T>();
    let sets = bench.sets(moved);
    let weight = Weight::new(ty, [1, rows, COLS], bytes.into()).unwrap();
    let ws: Vec<Matrix> = (0..sets).map(|_| Matrix::new(&bench.device, weight.clone()).unwrap()).collect();
    let mut outs: Vec<Tensor<T>> =
        (0..sets).map(|_| Tensor::zeros(&bench.device, rows, COLS).unwrap()).collect();

    dequantize(&ws[0], 0, 0..rows, &mut outs[0]).unwrap();
    let got = outs[0].to_vec().unwrap();
    let want = reference::dequantize_f32(ty, weight.rows_bytes(0, 0..64.min(rows))).unwrap();
    let want = want.iter().cycle().map(|v| T::from_f32(*v).into().to_bits());
    assert!(got.into_iter().map(|v| v.into().to_bits()).eq(want.take(rows * COLS)), "{ty} to {}", T::TYPE);

    let mut launch = |i: usize| dequantize(&ws[i], 0, 0..rows, &mut outs[i]);
    let name = format!("{ty} to {} [{rows}, {COLS}]", T::TYPE);
    bench.row(c, "dequantize", Row { name, bytes: moved, sets, launch: &mut launch });
}
