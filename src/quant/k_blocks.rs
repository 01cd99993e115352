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

/// The 256 nibbles of Q4_K and Q5_K. Unpacked before any arithmetic, as a loop that writes two streams of f32 does not
/// vectorize.
#[inline(always)]
fn nibbles(qs: &[u8; 128]) -> [u8; 256] {
    let mut q = [0; 256];
    for (bytes, q) in qs.as_chunks::<32>().0.iter().zip(q.as_chunks_mut::<64>().0) {
        for (i, &b) in bytes.iter().enumerate() {
            q[i] = b & 15;
            q[i + 32] = b >> 4;
        }
    }
    q
}

/// `d sc q - dmin mn` for the unpacked quants of Q4_K and Q5_K.
#[inline(always)]
fn affine(d: [u8; 2], dmin: [u8; 2], scales: &[u8; 12], q: &[u8; 256], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_to_f32(d), f16_to_f32(dmin));
    for (j, (q, out)) in q.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<32>().0).enumerate() {
        let (scale, min) = scale_min_k4(scales, j);
        let (scale, min) = (d * scale as f32, dmin * min as f32);
        for (&q, out) in q.iter().zip(out) {
            *out = scale * q as f32 - min;
        }
    }
}

impl Block for BlockQ4K {
    const TYPE: GgmlType = GgmlType::Q4_K;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        affine(self.d, self.dmin, &self.scales, &nibbles(&self.qs), out);
    }
}

impl Block for BlockQ5K {
    const TYPE: GgmlType = GgmlType::Q5_K;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let mut q = nibbles(&self.qs);
        for (j, q) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (q, &h) in q.iter_mut().zip(&self.qh) {
                *q |= (h >> j & 1) << 4;
            }
        }
        affine(self.d, self.dmin, &self.scales, &q, out);
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
