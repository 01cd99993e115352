//! Dequantization of the K-blocks: 256 values, scales quantized themselves.

use super::GgmlType;
use super::block::*;
use super::scalar::f16_to_f32;

impl Block for BlockQ2K {
    const TYPE: GgmlType = GgmlType::Q2_K;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let (d, dmin) = (f16_to_f32(self.d), f16_to_f32(self.dmin));
        let groups = out.as_chunks_mut::<16>().0;
        for (g, (out, sc)) in groups.iter_mut().zip(self.scales).enumerate() {
            let (scale, min) = (d * (sc & 15) as f32, dmin * (sc >> 4) as f32);
            let (qs, shift) = two_bits(&self.qs, g);
            for (&q, out) in qs.iter().zip(out) {
                *out = scale * (q >> shift & 3) as f32 - min;
            }
        }
    }
}

/// Bytes and shift of the 2-bit quants of group `g` of 16 values in Q2_K and Q3_K.
#[inline(always)]
fn two_bits(qs: &[u8; 64], g: usize) -> (&[u8; 16], usize) {
    (&qs.as_chunks::<16>().0[g / 8 * 2 + g % 2], g % 8 / 2 * 2)
}

impl Block for BlockQ3K {
    const TYPE: GgmlType = GgmlType::Q3_K;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        let groups = out.as_chunks_mut::<16>().0;
        for (g, out) in groups.iter_mut().enumerate() {
            let low = self.scales[g % 8] >> (g / 8 * 4) & 15;
            let high = self.scales[8 + g % 4] >> (g / 4 * 2) & 3;
            let scale = d * ((low | high << 4) as i32 - 32) as f32;
            let (qs, shift) = two_bits(&self.qs, g);
            let hmask = &self.hmask.as_chunks::<16>().0[g % 2];
            for ((&q, &h), out) in qs.iter().zip(hmask).zip(out) {
                let q = (q >> shift & 3) | (h >> (g / 2) & 1) << 2;
                *out = scale * (q as i32 - 4) as f32;
            }
        }
    }
}

impl Block for BlockQ4K {
    const TYPE: GgmlType = GgmlType::Q4_K;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let (d, dmin) = (f16_to_f32(self.d), f16_to_f32(self.dmin));
        let qs = self.qs.as_chunks::<32>().0;
        let pairs = out.as_chunks_mut::<64>().0;
        for (p, (qs, out)) in qs.iter().zip(pairs).enumerate() {
            let [(scale0, min0), (scale1, min1)] = [2 * p, 2 * p + 1].map(|j| {
                let (scale, min) = scale_min_k4(&self.scales, j);
                (d * scale as f32, dmin * min as f32)
            });
            let (low, high) = out.split_at_mut(32);
            // Two loops, as LLVM does not vectorize one with two output streams.
            for (&q, out) in qs.iter().zip(low) {
                *out = scale0 * (q & 15) as f32 - min0;
            }
            for (&q, out) in qs.iter().zip(high) {
                *out = scale1 * (q >> 4) as f32 - min1;
            }
        }
    }
}

impl Block for BlockQ5K {
    const TYPE: GgmlType = GgmlType::Q5_K;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let (d, dmin) = (f16_to_f32(self.d), f16_to_f32(self.dmin));
        let qs = self.qs.as_chunks::<32>().0;
        let pairs = out.as_chunks_mut::<64>().0;
        for (p, (qs, out)) in qs.iter().zip(pairs).enumerate() {
            let [(scale0, min0), (scale1, min1)] = [2 * p, 2 * p + 1].map(|j| {
                let (scale, min) = scale_min_k4(&self.scales, j);
                (d * scale as f32, dmin * min as f32)
            });
            let (low, high) = out.split_at_mut(32);
            for ((&q, &h), out) in qs.iter().zip(&self.qh).zip(low) {
                *out = scale0 * ((q & 15) | (h >> (2 * p) & 1) << 4) as f32 - min0;
            }
            for ((&q, &h), out) in qs.iter().zip(&self.qh).zip(high) {
                *out = scale1 * (q >> 4 | (h >> (2 * p + 1) & 1) << 4) as f32 - min1;
            }
        }
    }
}

impl Block for BlockQ6K {
    const TYPE: GgmlType = GgmlType::Q6_K;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        let ql = self.ql.as_chunks::<16>().0;
        let qh = self.qh.as_chunks::<16>().0;
        let groups = out.as_chunks_mut::<16>().0;
        for (g, (out, sc)) in groups.iter_mut().zip(self.scales).enumerate() {
            let scale = d * sc as i8 as f32;
            // Group g is the piece g % 2 of quarter g % 8 / 2 of half g / 8.
            let (half, quarter, piece) = (g / 8, g % 8 / 2, g % 2);
            let ql = &ql[4 * half + quarter % 2 * 2 + piece];
            let qh = &qh[2 * half + piece];
            let (low_shift, high_shift) = (quarter / 2 * 4, quarter * 2);
            for ((&l, &h), out) in ql.iter().zip(qh).zip(out) {
                let q = (l >> low_shift & 15) | (h >> high_shift & 3) << 4;
                *out = scale * (q as i32 - 32) as f32;
            }
        }
    }
}
