//! Dequantization of block types against golden blocks, against gguf-py over every codebook entry, and against the
//! formulas; refusals; weights. Quantization is tested in `quantize.rs`.

mod suites {
    pub mod blocks;
}

use glm5::Error;
use glm5::quant::block::*;
use glm5::quant::{
    Block, GgmlType, SharedBytes, Weight, dequantize, dequantize_blocks, is_supported, quantize,
};
use half::{bf16, f16};
use proptest::prelude::*;
use safetensors::SafeTensors;
use suites::blocks::{Rng, SCALES, SUPPORTED, any_blocks, any_type, random_block, random_weight};

fn dequantized(ty: GgmlType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; bytes.len() / ty.block_bytes() * ty.block_elems()];
    dequantize(ty, bytes, &mut out).unwrap();
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn is_shape_error<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Shape { .. }))
}

#[test]
fn golden_blocks_are_bit_equal() {
    let file = include_bytes!("data/dequant/blocks.safetensors");
    let tensors = SafeTensors::deserialize(file).unwrap();
    let golden = SUPPORTED.iter().filter(|ty| **ty != GgmlType::F32);
    assert_eq!(tensors.len(), 2 * golden.clone().count());
    for ty in golden {
        let raw = tensors.tensor(&format!("{ty}.raw")).unwrap();
        let expected = tensors.tensor(&format!("{ty}.f32")).unwrap();
        assert_eq!(raw.shape()[1], ty.block_bytes(), "{ty}");
        assert_eq!(expected.shape(), [raw.shape()[0], ty.block_elems()], "{ty}");
        let expected: Vec<f32> =
            expected.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        assert_eq!(bits(&dequantized(*ty, raw.data())), bits(&expected), "{ty}");
    }
}

/// Eight golden blocks of a type reach only a part of its codebook. These 2048 blocks of SplitMix64 bytes (seed: the
/// type's id) reach all of it, every scale and every sign pattern. Sums of bits times odd numbers, from the values of
/// gguf-py 0.19; the listed f16 scales get the exponent 14, IQ1_M's the top nibble 3, so that nothing overflows.
#[test]
fn checksums_over_every_codebook_entry_agree_with_gguf_py() {
    let cases: [(GgmlType, &[usize], u64); 20] = [
        (GgmlType::Q4_0, &[0], 0x7c5c8af161448000),
        (GgmlType::Q4_1, &[0, 2], 0x7fb31a553aac5c00),
        (GgmlType::Q5_0, &[0], 0x7e3e62b187f58400),
        (GgmlType::Q5_1, &[0, 2], 0x82ade9b07acf4b00),
        (GgmlType::Q8_0, &[0], 0x81a16869671c7740),
        (GgmlType::Q2_K, &[80, 82], 0x913c29f75b682180),
        (GgmlType::Q3_K, &[108], 0x27c4abf39a22b540),
        (GgmlType::Q4_K, &[0, 2], 0x20487fcc56fe6e10),
        (GgmlType::Q5_K, &[0, 2], 0x5e92ba2e2e72ea94),
        (GgmlType::Q6_K, &[208], 0x99a969e147ae3e4e),
        (GgmlType::IQ4_NL, &[0], 0x81ab9ce00f5a2880),
        (GgmlType::IQ4_XS, &[0], 0xb021641ab2091be4),
        (GgmlType::IQ2_XXS, &[0], 0x648712d968e5f0e0),
        (GgmlType::IQ2_XS, &[0], 0x5b1a5d3996f016f8),
        (GgmlType::IQ2_S, &[0], 0x571d8707e55169c0),
        (GgmlType::IQ3_XXS, &[0], 0x920900c46971b700),
        (GgmlType::IQ3_S, &[0], 0x7a41415a88daf850),
        (GgmlType::IQ1_S, &[0], 0x0691843af894f9e0),
        (GgmlType::IQ1_M, &[], 0xecc5bebf8f88afc0),
        (GgmlType::MXFP4, &[], 0x6f84471a20400000),
    ];
    for (ty, scales, expected) in cases {
        let mut rng = Rng(ty.id() as u64);
        let len = 2048 * ty.block_bytes();
        let mut bytes: Vec<u8> =
            (0..len.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes()).take(len).collect();
        for block in bytes.chunks_exact_mut(ty.block_bytes()) {
            for at in scales {
                block[at + 1] = block[at + 1] & 0x83 | 0x38;
            }
            if ty == GgmlType::IQ1_M {
                block[55] = block[55] & 0x0f | 0x30;
            }
        }
        let sum = dequantized(ty, &bytes)
            .iter()
            .zip(0u64..)
            .fold(0u64, |sum, (v, i)| sum.wrapping_add((v.to_bits() as u64).wrapping_mul(2 * i + 1)));
        assert_eq!(sum, expected, "{ty}: {sum:#018x}");
    }
}

/// Value `e` of block `b` by the published formula, one element at a time; `None` for types with codebooks.
fn element(ty: GgmlType, b: &[u8], e: usize) -> Option<f32> {
    let f = |at: usize| f16::from_le_bytes([b[at], b[at + 1]]).to_f32();
    let u = |at: usize| b[at] as i32;
    let low = |x: i32| x & 15;
    let high = |x: i32| x >> 4;
    // Nibble of value e of a block of 32 whose nibbles start at `at`.
    let nibble32 = |at: usize, e: usize| if e < 16 { low(u(at + e)) } else { high(u(at + e - 16)) };
    let bit = |at: usize, i: usize| u(at + i / 8) >> (i % 8) & 1;
    let levels = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    let fp4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
    let scale_min = |at: usize, j: usize| match j < 4 {
        true => (u(at + j) & 63, u(at + j + 4) & 63),
        false => (u(at + j + 4) & 15 | (u(at + j - 4) >> 6) << 4, u(at + j + 4) >> 4 | (u(at + j) >> 6) << 4),
    };
    let two_bits = |at: usize| u(at + 32 * (e / 128) + e % 32) >> (2 * (e % 128 / 32)) & 3;
    Some(match ty {
        GgmlType::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        GgmlType::F16 => f(0),
        GgmlType::BF16 => bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        GgmlType::Q4_0 => f(0) * (nibble32(2, e) - 8) as f32,
        GgmlType::Q4_1 => f(0) * nibble32(4, e) as f32 + f(2),
        GgmlType::Q5_0 => f(0) * ((nibble32(6, e) | bit(2, e) << 4) - 16) as f32,
        GgmlType::Q5_1 => f(0) * (nibble32(8, e) | bit(4, e) << 4) as f32 + f(2),
        GgmlType::Q8_0 => f(0) * b[2 + e] as i8 as f32,
        GgmlType::Q2_K => {
            let sc = u(e / 16);
            f(80) * low(sc) as f32 * two_bits(16) as f32 - f(82) * high(sc) as f32
        }
        GgmlType::Q3_K => {
            let k = e / 16;
            let sc = if k < 8 { low(u(96 + k)) } else { high(u(96 + k - 8)) };
            let sc = sc | (u(96 + 8 + k % 4) >> (2 * (k / 4)) & 3) << 4;
            let third = u(e % 32) >> (e / 32) & 1;
            f(108) * (sc - 32) as f32 * (two_bits(32) - if third == 1 { 0 } else { 4 }) as f32
        }
        GgmlType::Q4_K => {
            let j = e / 32;
            let q = u(16 + 32 * (j / 2) + e % 32);
            let q = if j & 1 == 0 { low(q) } else { high(q) };
            let (sc, mn) = scale_min(4, j);
            f(0) * sc as f32 * q as f32 - f(2) * mn as f32
        }
        GgmlType::Q5_K => {
            let j = e / 32;
            let q = u(48 + 32 * (j / 2) + e % 32);
            let q = if j & 1 == 0 { low(q) } else { high(q) } + 16 * (u(16 + e % 32) >> j & 1);
            let (sc, mn) = scale_min(4, j);
            f(0) * sc as f32 * q as f32 - f(2) * mn as f32
        }
        GgmlType::Q6_K => {
            let (half, g, l) = (e / 128, e % 128 / 32, e % 32);
            let q = u(64 * half + 32 * (g & 1) + l);
            let q = if g < 2 { low(q) } else { high(q) } | (u(128 + 32 * half + l) >> (2 * g) & 3) << 4;
            f(208) * b[192 + e / 16] as i8 as f32 * (q - 32) as f32
        }
        GgmlType::IQ4_NL => f(0) * levels[nibble32(2, e) as usize] as f32,
        GgmlType::IQ4_XS => {
            let j = e / 32;
            let sh = u(2) | u(3) << 8;
            let sc = u(4 + j / 2) >> (4 * (j & 1)) & 15 | (sh >> (2 * j) & 3) << 4;
            f(0) * (sc - 32) as f32 * levels[nibble32(8 + 16 * j, e % 32) as usize] as f32
        }
        // Through f64, in which 2^(E - 127) is a normal number for every E; the product is rounded once.
        GgmlType::MXFP4 => (2f64.powi(u(0) - 127) * fp4[nibble32(1, e) as usize]) as f32,
        _ => return None,
    })
}

/// Bits, with one NaN; and with one zero for MXFP4, as its level -0 is an integer here.
fn canonical(ty: GgmlType, v: f32) -> u32 {
    match ty {
        _ if v.is_nan() => f32::NAN.to_bits(),
        GgmlType::MXFP4 => (v + 0.0).to_bits(),
        _ => v.to_bits(),
    }
}

proptest! {
    #[test]
    fn values_are_those_of_the_formulas((ty, bytes) in any_blocks(4)) {
        let values = dequantized(ty, &bytes);
        for (block, values) in bytes.chunks(ty.block_bytes()).zip(values.chunks(ty.block_elems())) {
            for (e, v) in values.iter().enumerate() {
                if let Some(expected) = element(ty, block, e) {
                    prop_assert_eq!(canonical(ty, *v), canonical(ty, expected), "{} [{}]: {} for {}", ty, e, v, expected);
                }
            }
        }
    }

    /// Any bytes are a block: infinite and NaN scales give infinite or NaN values, nothing panics.
    #[test]
    fn any_bytes_are_blocks(ty in any_type(), n in 0usize..4, seed: u64) {
        let mut rng = Rng(seed);
        let bytes: Vec<u8> = (0..n * ty.block_bytes()).map(|_| rng.next() as u8).collect();
        let values = dequantized(ty, &bytes);
        prop_assert_eq!(values.len(), n * ty.block_elems());
        for (block, values) in bytes.chunks(ty.block_bytes()).zip(values.chunks(ty.block_elems())) {
            let again = dequantized(ty, block);
            for (e, (v, again)) in values.iter().zip(&again).enumerate() {
                prop_assert_eq!(canonical(ty, *v), canonical(ty, *again));
                if let Some(expected) = element(ty, block, e) {
                    prop_assert_eq!(canonical(ty, *v), canonical(ty, expected), "{} [{}]", ty, e);
                }
            }
        }
    }

    #[test]
    fn wrong_lengths_are_refused(ty in any_type(), n in 0usize..3, extra in 1usize..300, seed: u64) {
        let mut rng = Rng(seed);
        let bytes: Vec<u8> = (0..n * ty.block_bytes() + extra).map(|_| rng.next() as u8).collect();
        let whole = bytes.len() / ty.block_bytes();
        let mut out = vec![7.0; (whole + 1) * ty.block_elems()];
        if !bytes.len().is_multiple_of(ty.block_bytes()) {
            let values = whole * ty.block_elems();
            prop_assert!(is_shape_error(&dequantize(ty, &bytes, &mut out[..values])));
        }
        let bytes = &bytes[..whole * ty.block_bytes()];
        prop_assert!(is_shape_error(&dequantize(ty, bytes, &mut out)));
        let short = (whole * ty.block_elems()).saturating_sub(extra);
        if short < whole * ty.block_elems() {
            prop_assert!(is_shape_error(&dequantize(ty, bytes, &mut out[..short])));
        }
        prop_assert!(out.iter().all(|v| *v == 7.0), "a refused call wrote");
    }

    /// Rows of a stack are the rows of the whole, in order, and nothing outside exists.
    #[test]
    fn weights_give_their_rows(
        ty in any_type(), slabs in 1usize..4, rows in 1usize..5, blocks in 1usize..3, seed: u64,
        slab in 0usize..4, a in 0usize..6, b in 0usize..6,
    ) {
        let cols = blocks * ty.block_elems();
        let weight = random_weight(ty, slabs, rows, cols, seed);
        let whole = dequantized(ty, weight.bytes());
        let range = a..b;
        let values = weight.dequantize(slab, range.clone());
        if slab < slabs && a <= b && b <= rows {
            let base = slab * rows * cols;
            prop_assert_eq!(bits(&values.unwrap()), bits(&whole[base + a * cols..base + b * cols]));
            let mut long = vec![0.0; (b - a) * cols + 1];
            prop_assert!(weight.dequantize_into(slab, range, &mut long).is_err());
        } else {
            prop_assert!(is_shape_error(&values));
        }
    }

    #[test]
    fn f32_weights_keep_their_bits(values in prop::collection::vec(any::<u32>(), 12)) {
        let values: Vec<f32> = values.into_iter().map(f32::from_bits).collect();
        let weight = Weight::from_f32([2, 3, 2], &values).unwrap();
        prop_assert_eq!(bits(&weight.dequantize(1, 0..3).unwrap()), bits(&values[6..]));
        prop_assert!(Weight::from_f32([2, 3, 3], &values).is_err());
    }
}

/// The compile-time entry is the run-time one.
#[test]
fn static_and_dynamic_entries_agree() {
    let weight = random_weight(GgmlType::Q4_K, 1, 3, 512, 5);
    let mut values = vec![f32::NAN; 3 * 512];
    dequantize_blocks::<BlockQ4K>(weight.bytes(), &mut values).unwrap();
    assert_eq!(bits(&values), bits(&weight.dequantize(0, 0..3).unwrap()));
    let blocks = as_blocks::<BlockQ4K>(weight.bytes()).unwrap();
    let mut block = [f32::NAN; BlockQ4K::ELEMS];
    blocks[3].dequantize(&mut block);
    assert_eq!(bits(&block), bits(&values[3 * 256..4 * 256]));
    assert!(is_shape_error(&as_blocks::<BlockQ4K>(&weight.bytes()[1..])));
}

#[test]
fn types_known_by_size_are_refused_by_name() {
    let mut refused = 0;
    for &ty in GgmlType::ALL {
        assert_eq!(is_supported(ty), SUPPORTED.contains(&ty), "{ty}");
        if is_supported(ty) {
            continue;
        }
        refused += 1;
        let name = format!("type {ty}");
        let bytes = vec![0; 2 * ty.block_bytes()];
        let mut out = vec![0.0; 2 * ty.block_elems()];
        let weight = Weight::new(ty, [1, 2, ty.block_elems()], SharedBytes::from(bytes.clone())).unwrap();
        for error in [dequantize(ty, &bytes, &mut out).unwrap_err(), weight.dequantize(0, 0..2).unwrap_err()]
        {
            assert!(matches!(&error, Error::Unsupported { what, .. } if *what == name), "{error}");
        }
        let error = quantize(ty, &out).unwrap_err();
        assert!(matches!(&error, Error::Unsupported { what, .. } if what.contains(ty.name())), "{error}");
    }
    assert_eq!(refused, GgmlType::ALL.len() - SUPPORTED.len());
}

/// What the other suites rely on: generated blocks are finite, of the size of trained weights, and the edges are edges.
#[test]
fn generated_blocks_have_the_scales_they_claim() {
    for ty in SUPPORTED {
        let weight = random_weight(ty, 1, 8, 1024, 42);
        let values = weight.dequantize(0, 0..8).unwrap();
        let rms = (values.iter().map(|v| (*v as f64).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
        assert!((0.005..0.3).contains(&rms), "{ty}: rms {rms}");
        let mut rng = Rng(7);
        for scale in SCALES {
            let values = dequantized(ty, &random_block(ty, scale, &mut rng));
            assert!(values.iter().all(|v| v.is_finite()), "{ty} {scale:?}");
            let max = values.iter().fold(0f32, |m, v| m.max(v.abs()));
            match scale {
                suites::blocks::Scale::Zero => assert_eq!(max, 0.0, "{ty}"),
                suites::blocks::Scale::Subnormal => assert!(max < 1e-3, "{ty}: {max}"),
                suites::blocks::Scale::Largest => assert!(max >= 65504.0, "{ty}: {max}"),
                _ => assert!(max < 2.0, "{ty} {scale:?}: {max}"),
            }
        }
    }
}
