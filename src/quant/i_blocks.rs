//! Dequantization of the IQ blocks of 256 values: magnitudes from a codebook, signs apart; and IQ4_XS.

use super::block::*;
use super::grids;
use super::scalar::f16_to_f32;
use super::small_blocks::nibble_levels;
use super::{GgmlType, IQ4_LEVELS};

/// A block on its way from codebook to values: magnitudes and sign masks (0 or -1), gathered first, so that the
/// arithmetic after the look-ups vectorizes.
struct Points {
    magnitudes: [u8; 256],
    signs: [u8; 256],
}

impl Points {
    #[inline(always)]
    fn new() -> Self {
        Points { magnitudes: [0; 256], signs: [0; 256] }
    }

    /// `± scale g` for values `16 group..16 group + 16`.
    #[inline(always)]
    fn values(&self, out: &mut [f32; 256], scale: impl Fn(usize) -> f32) {
        let points = self.magnitudes.as_chunks::<16>().0.iter().zip(self.signs.as_chunks::<16>().0);
        for (group, ((gs, signs), out)) in points.zip(out.as_chunks_mut::<16>().0).enumerate() {
            let scale = scale(group);
            for ((&g, &sign), out) in gs.iter().zip(signs).zip(out) {
                *out = scale * (g ^ sign).wrapping_sub(sign) as i8 as f32;
            }
        }
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
            nibble_levels(d * (sc - 32) as f32, qs, &IQ4_LEVELS, out);
        }
    }
}

impl Block for BlockIQ2XXS {
    const TYPE: GgmlType = GgmlType::IQ2_XXS;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        let mut points = Points::new();
        let mut scales = [0.0; 8];
        let gs = points.magnitudes.as_chunks_mut::<32>().0.iter_mut();
        let groups = gs.zip(points.signs.as_chunks_mut::<32>().0);
        for (((gs, signs), qs), scale) in groups.zip(self.qs.as_chunks::<8>().0).zip(&mut scales) {
            let [a, b, c, e, s @ ..] = *qs;
            let s = u32::from_le_bytes(s);
            *scale = d * (0.5 + (s >> 28) as f32) * 0.25;
            let eights = gs.as_chunks_mut::<8>().0.iter_mut().zip(signs.as_chunks_mut::<8>().0);
            for (k, ((g, sign), q)) in eights.zip([a, b, c, e]).enumerate() {
                *g = grids::IQ2XXS[q as usize];
                *sign = grids::EVEN_SIGNS[(s >> (7 * k)) as usize & 127];
            }
        }
        points.values(out, |group| scales[group / 2]);
    }
}

impl Block for BlockIQ2XS {
    const TYPE: GgmlType = GgmlType::IQ2_XS;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        let mut points = Points::new();
        let eights =
            points.magnitudes.as_chunks_mut::<8>().0.iter_mut().zip(points.signs.as_chunks_mut::<8>().0);
        for ((g, sign), &q) in eights.zip(self.qs.as_chunks::<2>().0) {
            let q = u16::from_le_bytes(q) as usize;
            *g = grids::IQ2XS[q & 511];
            *sign = grids::EVEN_SIGNS[q >> 9];
        }
        points.values(out, |group| d * (0.5 + nibble(&self.scales, group) as f32) * 0.25);
    }
}

impl Block for BlockIQ2S {
    const TYPE: GgmlType = GgmlType::IQ2_S;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        let mut points = Points::new();
        let eights =
            points.magnitudes.as_chunks_mut::<8>().0.iter_mut().zip(points.signs.as_chunks_mut::<8>().0);
        for (i, (((g, sign), &q), &s)) in eights.zip(&self.qs).zip(&self.signs).enumerate() {
            *g = grids::IQ2S[q as usize | (self.qh[i / 4] as usize >> (i % 4 * 2) & 3) << 8];
            *sign = grids::SIGNS[s as usize];
        }
        points.values(out, |group| d * (0.5 + nibble(&self.scales, group) as f32) * 0.25);
    }
}

impl Block for BlockIQ3XXS {
    const TYPE: GgmlType = GgmlType::IQ3_XXS;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        let mut points = Points::new();
        for (g, &q) in points.magnitudes.as_chunks_mut::<4>().0.iter_mut().zip(&self.qs) {
            *g = grids::IQ3XXS[q as usize];
        }
        let mut scales = [0.0; 8];
        let groups = points.signs.as_chunks_mut::<32>().0.iter_mut().zip(self.scales.as_chunks::<4>().0);
        for ((signs, &s), scale) in groups.zip(&mut scales) {
            let s = u32::from_le_bytes(s);
            *scale = d * (0.5 + (s >> 28) as f32) * 0.5;
            for (k, sign) in signs.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *sign = grids::EVEN_SIGNS[(s >> (7 * k)) as usize & 127];
            }
        }
        points.values(out, |group| scales[group / 2]);
    }
}

impl Block for BlockIQ3S {
    const TYPE: GgmlType = GgmlType::IQ3_S;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        let mut points = Points::new();
        for (i, (g, &q)) in points.magnitudes.as_chunks_mut::<4>().0.iter_mut().zip(&self.qs).enumerate() {
            *g = grids::IQ3S[q as usize | (self.qh[i / 8] as usize >> (i % 8) & 1) << 8];
        }
        for (sign, &s) in points.signs.as_chunks_mut::<8>().0.iter_mut().zip(&self.signs) {
            *sign = grids::SIGNS[s as usize];
        }
        points.values(out, |group| d * (1 + 2 * nibble(&self.scales, group / 2)) as f32);
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
