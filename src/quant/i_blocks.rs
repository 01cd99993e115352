//! Dequantization of the IQ blocks of 256 values: magnitudes from a codebook, signs apart; and IQ4_XS.

use super::block::*;
use super::grids;
use super::scalar::f16_to_f32;
use super::small_blocks::nibbles;
use super::{GgmlType, IQ4_LEVELS};

/// `± scale g`: bit `i` of `signs` is the sign of value `i`.
#[inline(always)]
fn signed<const K: usize>(scale: f32, points: &[u8; K], signs: u8, out: &mut [f32; K]) {
    for (i, (&g, out)) in points.iter().zip(out).enumerate() {
        let sign = (signs as u32 >> i & 1) << 31;
        *out = f32::from_bits((scale * g as f32).to_bits() ^ sign);
    }
}

/// Nibble `i` of `bytes`, low halves first.
#[inline(always)]
fn nibble<const N: usize>(bytes: &[u8; N], i: usize) -> u8 {
    bytes[i / 2] >> (i % 2 * 4) & 15
}

impl Block for BlockIQ4XS {
    const TYPE: GgmlType = GgmlType::IQ4_XS;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        let scales_h = u16::from_le_bytes(self.scales_h);
        let qs = self.qs.as_chunks::<16>().0;
        for (j, (qs, out)) in qs.iter().zip(out.as_chunks_mut::<32>().0).enumerate() {
            let sc = nibble(&self.scales_l, j) as i32 | (scales_h as i32 >> (2 * j) & 3) << 4;
            let scale = d * (sc - 32) as f32;
            nibbles(qs, out, |q, _| scale * IQ4_LEVELS[q as usize & 15] as f32);
        }
    }
}

impl Block for BlockIQ2XXS {
    const TYPE: GgmlType = GgmlType::IQ2_XXS;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        let qs = self.qs.as_chunks::<8>().0;
        for (&[a, b, c, e, s @ ..], out) in qs.iter().zip(out.as_chunks_mut::<32>().0) {
            let s = u32::from_le_bytes(s);
            let scale = d * (0.5 + (s >> 28) as f32) * 0.25;
            for (k, (q, out)) in [a, b, c, e].into_iter().zip(out.as_chunks_mut::<8>().0).enumerate() {
                let signs = grids::EVEN_SIGNS[(s >> (7 * k)) as usize & 127];
                signed(scale, &grids::IQ2XXS[q as usize], signs, out);
            }
        }
    }
}

impl Block for BlockIQ2XS {
    const TYPE: GgmlType = GgmlType::IQ2_XS;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        let qs = self.qs.as_chunks::<2>().0;
        for (i, (&q, out)) in qs.iter().zip(out.as_chunks_mut::<8>().0).enumerate() {
            let q = u16::from_le_bytes(q) as usize;
            let scale = d * (0.5 + nibble(&self.scales, i / 2) as f32) * 0.25;
            signed(scale, &grids::IQ2XS[q & 511], grids::EVEN_SIGNS[q >> 9], out);
        }
    }
}

impl Block for BlockIQ2S {
    const TYPE: GgmlType = GgmlType::IQ2_S;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        let points = self.qs.iter().zip(&self.signs);
        for (i, ((&q, &signs), out)) in points.zip(out.as_chunks_mut::<8>().0).enumerate() {
            let q = q as usize | (self.qh[i / 4] as usize >> (i % 4 * 2) & 3) << 8;
            let scale = d * (0.5 + nibble(&self.scales, i / 2) as f32) * 0.25;
            signed(scale, &grids::IQ2S[q], signs, out);
        }
    }
}

impl Block for BlockIQ3XXS {
    const TYPE: GgmlType = GgmlType::IQ3_XXS;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        let groups = self.qs.as_chunks::<8>().0.iter().zip(self.scales.as_chunks::<4>().0);
        for ((qs, &s), out) in groups.zip(out.as_chunks_mut::<32>().0) {
            let s = u32::from_le_bytes(s);
            let scale = d * (0.5 + (s >> 28) as f32) * 0.5;
            for (k, (&q, out)) in qs.iter().zip(out.as_chunks_mut::<4>().0).enumerate() {
                let signs = grids::EVEN_SIGNS[(s >> (k / 2 * 7)) as usize & 127];
                signed(scale, &grids::IQ3XXS[q as usize], signs >> (k % 2 * 4), out);
            }
        }
    }
}

impl Block for BlockIQ3S {
    const TYPE: GgmlType = GgmlType::IQ3_S;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        for (i, (&q, out)) in self.qs.iter().zip(out.as_chunks_mut::<4>().0).enumerate() {
            let q = q as usize | (self.qh[i / 8] as usize >> (i % 8) & 1) << 8;
            let scale = d * (1 + 2 * nibble(&self.scales, i / 8)) as f32;
            signed(scale, &grids::IQ3S[q], self.signs[i / 2] >> (i % 2 * 4), out);
        }
    }
}

/// `scale (g ± 1/8)` for eight ternary values; the point is stored plus one.
#[inline(always)]
fn ternary(scale: f32, q: usize, negative: bool, out: &mut [f32; 8]) {
    let shift = if negative { -0.125 } else { 0.125 };
    for (&g, out) in grids::IQ1[q & 2047].iter().zip(out) {
        *out = scale * ((g as i32 - 1) as f32 + shift);
    }
}

impl Block for BlockIQ1S {
    const TYPE: GgmlType = GgmlType::IQ1_S;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        let groups = self.qs.as_chunks::<4>().0.iter().zip(self.qh.as_chunks::<2>().0);
        for ((qs, &h), out) in groups.zip(out.as_chunks_mut::<32>().0) {
            let h = u16::from_le_bytes(h) as usize;
            let scale = d * (2 * (h >> 12 & 7) + 1) as f32;
            for (k, (&q, out)) in qs.iter().zip(out.as_chunks_mut::<8>().0).enumerate() {
                ternary(scale, q as usize | (h >> (3 * k) & 7) << 8, h & 0x8000 != 0, out);
            }
        }
    }
}

impl Block for BlockIQ1M {
    const TYPE: GgmlType = GgmlType::IQ1_M;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = self.d();
        let scales = self.scales.as_chunks::<2>().0;
        for (i, (&q, out)) in self.qs.iter().zip(out.as_chunks_mut::<8>().0).enumerate() {
            // Sixteen groups of 16 values, four 3-bit scales to a u16.
            let group = i / 2;
            let sc = u16::from_le_bytes(scales[group / 4]) >> (group % 4 * 3) & 7;
            let h = nibble(&self.qh, i);
            ternary(d * (2 * sc + 1) as f32, q as usize | (h as usize & 7) << 8, h & 8 != 0, out);
        }
    }
}
