//! Dequantization of plain scalars and of the blocks of 32 values.

use super::block::*;
use super::scalar::{bf16_to_f32, e8m0_half_to_f32, f16_to_f32};
use super::{GgmlType, IQ4_LEVELS, MXFP4_LEVELS};

impl Block for BlockF32 {
    const TYPE: GgmlType = GgmlType::F32;
    type Values = [f32; 1];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 1]) {
        out[0] = f32::from_le_bytes(self.d);
    }
}

impl Block for BlockF16 {
    const TYPE: GgmlType = GgmlType::F16;
    type Values = [f32; 1];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 1]) {
        out[0] = f16_to_f32(self.d);
    }
}

impl Block for BlockBF16 {
    const TYPE: GgmlType = GgmlType::BF16;
    type Values = [f32; 1];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 1]) {
        out[0] = bf16_to_f32(self.d);
    }
}

/// The 32 nibbles of 16 bytes, low halves first. Unpacked before any arithmetic: bytes vectorize sixteen at a time, and
/// one loop over 32 values vectorizes where LLVM unrolls two of 16 into scalar code.
#[inline(always)]
fn nibbles(qs: &[u8; 16]) -> [u8; 32] {
    let mut out = [0; 32];
    for (i, &q) in qs.iter().enumerate() {
        out[i] = q & 15;
        out[i + 16] = q >> 4;
    }
    out
}

/// `scale * levels[nibble]` for 16 bytes of nibbles, low halves first. The look-ups go to bytes, so that the arithmetic
/// after them vectorizes.
#[inline(always)]
pub(super) fn nibble_levels(scale: f32, qs: &[u8; 16], levels: &[i8; 16], out: &mut [f32; 32]) {
    let mut found = [0i8; 32];
    for (i, &q) in qs.iter().enumerate() {
        found[i] = levels[q as usize & 15];
        found[i + 16] = levels[q as usize >> 4];
    }
    for (&level, out) in found.iter().zip(out) {
        *out = scale * level as f32;
    }
}

impl Block for BlockQ4_0 {
    const TYPE: GgmlType = GgmlType::Q4_0;
    type Values = [f32; 32];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = f16_to_f32(self.d);
        for (q, out) in nibbles(&self.qs).into_iter().zip(out) {
            *out = d * (q as i32 - 8) as f32;
        }
    }
}

impl Block for BlockQ4_1 {
    const TYPE: GgmlType = GgmlType::Q4_1;
    type Values = [f32; 32];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let (d, m) = (f16_to_f32(self.d), f16_to_f32(self.m));
        for (q, out) in nibbles(&self.qs).into_iter().zip(out) {
            *out = d * q as f32 + m;
        }
    }
}

impl Block for BlockQ5_0 {
    const TYPE: GgmlType = GgmlType::Q5_0;
    type Values = [f32; 32];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let (d, qh) = (f16_to_f32(self.d), u32::from_le_bytes(self.qh));
        for (i, (q, out)) in nibbles(&self.qs).into_iter().zip(out).enumerate() {
            *out = d * ((q as u32 | (qh >> i & 1) << 4) as i32 - 16) as f32;
        }
    }
}

impl Block for BlockQ5_1 {
    const TYPE: GgmlType = GgmlType::Q5_1;
    type Values = [f32; 32];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let (d, m, qh) = (f16_to_f32(self.d), f16_to_f32(self.m), u32::from_le_bytes(self.qh));
        for (i, (q, out)) in nibbles(&self.qs).into_iter().zip(out).enumerate() {
            *out = d * (q as u32 | (qh >> i & 1) << 4) as i32 as f32 + m;
        }
    }
}

impl Block for BlockQ8_0 {
    const TYPE: GgmlType = GgmlType::Q8_0;
    type Values = [f32; 32];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = f16_to_f32(self.d);
        for (&q, out) in self.qs.iter().zip(out) {
            *out = d * q as i8 as f32;
        }
    }
}

impl Block for BlockIQ4NL {
    const TYPE: GgmlType = GgmlType::IQ4_NL;
    type Values = [f32; 32];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = f16_to_f32(self.d);
        nibble_levels(d, &self.qs, &IQ4_LEVELS, out);
    }
}

impl Block for BlockMXFP4 {
    const TYPE: GgmlType = GgmlType::MXFP4;
    type Values = [f32; 32];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = e8m0_half_to_f32(self.e[0]);
        nibble_levels(d, &self.qs, &MXFP4_LEVELS, out);
    }
}
