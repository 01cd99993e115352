//! Block types: dequantization against golden blocks and against the formulas, quantization within its bounds.

use glm5::quant::{GgmlType, dequantize};
use safetensors::SafeTensors;

/// The types with golden blocks; with F32, the ones this crate computes.
const GOLDEN: [GgmlType; 22] = [
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
    GgmlType::IQ2_XXS,
    GgmlType::IQ2_XS,
    GgmlType::IQ2_S,
    GgmlType::IQ3_XXS,
    GgmlType::IQ3_S,
    GgmlType::IQ1_S,
    GgmlType::IQ1_M,
    GgmlType::MXFP4,
    GgmlType::F16,
    GgmlType::BF16,
];

fn dequantized(ty: GgmlType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; bytes.len() / ty.block_bytes() * ty.block_elems()];
    dequantize(ty, bytes, &mut out).unwrap();
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn golden_blocks_are_bit_equal() {
    let file = include_bytes!("data/dequant/blocks.safetensors");
    let tensors = SafeTensors::deserialize(file).unwrap();
    assert_eq!(tensors.len(), 2 * GOLDEN.len());
    for ty in GOLDEN {
        let raw = tensors.tensor(&format!("{ty}.raw")).unwrap();
        let expected = tensors.tensor(&format!("{ty}.f32")).unwrap();
        assert_eq!(raw.shape()[1], ty.block_bytes(), "{ty}");
        assert_eq!(expected.shape(), [raw.shape()[0], ty.block_elems()], "{ty}");
        let expected: Vec<f32> =
            expected.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        assert_eq!(bits(&dequantized(ty, raw.data())), bits(&expected), "{ty}");
    }
}
