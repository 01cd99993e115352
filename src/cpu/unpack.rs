//! Blocks to floats on x86, sixteen values at a time, once for dot products and for dequantization. Every value is bit for
//! bit that of [`Block::dequantize`](crate::quant::Block::dequantize), which is also what describes the layouts.

use std::arch::x86_64::__m128i;

use bytemuck::Pod;

use super::lanes::Lanes;
pub(super) use crate::quant::block::{
    BlockIQ4NL, BlockIQ4XS, BlockMXFP4, BlockQ4_0, BlockQ4K, BlockQ5_0, BlockQ5K, BlockQ6K, BlockQ8_0,
};
use crate::quant::scalar::{e8m0_half_to_f32, f16_to_f32};
use crate::quant::{IQ4_LEVELS, MXFP4_LEVELS};

/// Takes the values of a block, in any order.
pub(super) trait Sink<L: Lanes> {
    /// Values `16 at..16 at + 16`.
    fn put(&mut self, at: usize, values: L::Floats);
}

/// Whole sixteens of values.
pub(super) trait Unpack: Pod {
    /// How many.
    const SIXTEENS: usize;

    fn unpack<L: Lanes>(&self, l: L, out: &mut impl Sink<L>);
}

/// Evaluates `$body` with `$B` naming what unpacks rows of `$ty`, or `$otherwise` for types without such code.
macro_rules! with_unpack {
    ($ty:expr, $B:ident => $body:expr, else $otherwise:expr) => {
        $crate::cpu::unpack::with_unpack!(@match $ty, $B, $body, $otherwise,
            F32 ScalarsF32, F16 ScalarsF16, BF16 ScalarsBF16, Q4_0 BlockQ4_0, Q5_0 BlockQ5_0, Q8_0 BlockQ8_0,
            Q4_K BlockQ4K, Q5_K BlockQ5K, Q6_K BlockQ6K, IQ4_NL BlockIQ4NL, IQ4_XS BlockIQ4XS, MXFP4 BlockMXFP4)
    };
    (@match $ty:expr, $B:ident, $body:expr, $otherwise:expr, $($variant:ident $block:ident),*) => {
        match $ty {
            $($crate::quant::GgmlType::$variant => {
                type $B = $crate::cpu::unpack::$block;
                $body
            })*
            _ => $otherwise,
        }
    };
}
pub(super) use with_unpack;

macro_rules! scalars {
    ($($name:ident [u8; $bytes:literal] by $load:ident),*) => {$(
        /// 64 scalars: as many as one activation has chains of sums.
        #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(transparent)]
        pub(super) struct $name([[u8; $bytes]; 4]);

        impl Unpack for $name {
            const SIXTEENS: usize = 4;

            #[inline(always)]
            fn unpack<L: Lanes>(&self, l: L, out: &mut impl Sink<L>) {
                for i in 0..4 {
                    out.put(i, l.$load(&self.0[i]));
                }
            }
        }
    )*};
}

scalars!(ScalarsF32 [u8; 64] by single, ScalarsF16 [u8; 32] by half, ScalarsBF16 [u8; 32] by bfloat);

impl Unpack for BlockQ8_0 {
    const SIXTEENS: usize = 2;

    #[inline(always)]
    fn unpack<L: Lanes>(&self, l: L, out: &mut impl Sink<L>) {
        let d = l.splat_half(self.d);
        let [a, b] = sixteens(l, &self.qs);
        out.put(0, l.mul(d, l.signed(a)));
        out.put(1, l.mul(d, l.signed(b)));
    }
}

impl Unpack for BlockQ5_0 {
    const SIXTEENS: usize = 2;

    #[inline(always)]
    fn unpack<L: Lanes>(&self, l: L, out: &mut impl Sink<L>) {
        let d = l.splat_half(self.d);
        let q = l.bytes(&self.qs);
        // q - 16 in two's complement: the upper four bits are ones if the fifth is clear, else zeros.
        let [a, b] = l.clear_bits(self.qh);
        out.put(0, l.mul(d, l.signed(l.or(l.low(q), l.and(a, 0xf0)))));
        out.put(1, l.mul(d, l.signed(l.or(l.high(q), l.and(b, 0xf0)))));
    }
}

/// `d levels[nibble]` for sixteen bytes of nibbles.
#[inline(always)]
fn levels<L: Lanes>(l: L, d: L::Floats, levels: &[i8; 16], qs: &[u8; 16], at: usize, out: &mut impl Sink<L>) {
    let (table, q) = (bytemuck::cast(*levels), l.bytes(qs));
    out.put(at, l.mul(d, l.signed(l.lookup(table, l.low(q)))));
    out.put(at + 1, l.mul(d, l.signed(l.lookup(table, l.high(q)))));
}

impl Unpack for BlockQ4_0 {
    const SIXTEENS: usize = 2;

    #[inline(always)]
    fn unpack<L: Lanes>(&self, l: L, out: &mut impl Sink<L>) {
        let d = l.splat_half(self.d);
        levels(l, d, &[-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7], &self.qs, 0, out);
    }
}

impl Unpack for BlockIQ4NL {
    const SIXTEENS: usize = 2;

    #[inline(always)]
    fn unpack<L: Lanes>(&self, l: L, out: &mut impl Sink<L>) {
        levels(l, l.splat_half(self.d), &IQ4_LEVELS, &self.qs, 0, out);
    }
}

impl Unpack for BlockMXFP4 {
    const SIXTEENS: usize = 2;

    #[inline(always)]
    fn unpack<L: Lanes>(&self, l: L, out: &mut impl Sink<L>) {
        levels(l, l.splat(e8m0_half_to_f32(self.e[0])), &MXFP4_LEVELS, &self.qs, 0, out);
    }
}

impl Unpack for BlockIQ4XS {
    const SIXTEENS: usize = 16;

    #[inline(always)]
    fn unpack<L: Lanes>(&self, l: L, out: &mut impl Sink<L>) {
        let d = f16_to_f32(self.d);
        let (low, high) = (u32::from_le_bytes(self.scales_l), u16::from_le_bytes(self.scales_h) as u32);
        for (j, qs) in self.qs.as_chunks::<16>().0.iter().enumerate() {
            let sc = (low >> (4 * j) & 15 | (high >> (2 * j) & 3) << 4) as i32 - 32;
            levels(l, l.splat(d * sc as f32), &IQ4_LEVELS, qs, 2 * j, out);
        }
    }
}

#[inline(always)]
fn sixteens<L: Lanes>(l: L, bytes: &[u8; 32]) -> [__m128i; 2] {
    let [a, b]: [[u8; 16]; 2] = bytemuck::cast(*bytes);
    [l.bytes(&a), l.bytes(&b)]
}

/// The products `d sc` of Q4_K and Q5_K in the first, `dmin mn` in the second eight places.
#[inline(always)]
fn scales_k4<L: Lanes>(l: L, d: [u8; 2], dmin: [u8; 2], scales: &[u8; 12]) -> [[f32; 16]; 2] {
    // Four bytes at once: see `scale_min_k4`.
    let [a, b, c]: [[u8; 4]; 3] = bytemuck::cast(*scales);
    let (a, b, c) = (u32::from_le_bytes(a), u32::from_le_bytes(b), u32::from_le_bytes(c));
    let bytes = [
        a & 0x3f3f_3f3f,
        c & 0x0f0f_0f0f | a >> 2 & 0x3030_3030,
        b & 0x3f3f_3f3f,
        c >> 4 & 0x0f0f_0f0f | b >> 2 & 0x3030_3030,
    ];
    let values = l.unsigned(bytemuck::cast(bytes));
    let mut out = [[0.0; 16]; 2];
    l.store(l.mul(l.splat_half(d), values), &mut out[0]);
    l.store(l.mul(l.splat_half(dmin), values), &mut out[1]);
    out
}

impl Unpack for BlockQ4K {
    const SIXTEENS: usize = 16;

    #[inline(always)]
    fn unpack<L: Lanes>(&self, l: L, out: &mut impl Sink<L>) {
        let [scales, mins] = scales_k4(l, self.d, self.dmin, &self.scales);
        for (j, qs) in self.qs.as_chunks::<32>().0.iter().enumerate() {
            let [a, b] = sixteens(l, qs);
            let (scale, min) = (l.splat(scales[2 * j]), l.splat(mins[8 + 2 * j]));
            out.put(4 * j, l.sub(l.mul(scale, l.unsigned(l.low(a))), min));
            out.put(4 * j + 1, l.sub(l.mul(scale, l.unsigned(l.low(b))), min));
            let (scale, min) = (l.splat(scales[2 * j + 1]), l.splat(mins[9 + 2 * j]));
            out.put(4 * j + 2, l.sub(l.mul(scale, l.unsigned(l.high(a))), min));
            out.put(4 * j + 3, l.sub(l.mul(scale, l.unsigned(l.high(b))), min));
        }
    }
}

impl Unpack for BlockQ5K {
    const SIXTEENS: usize = 16;

    #[inline(always)]
    fn unpack<L: Lanes>(&self, l: L, out: &mut impl Sink<L>) {
        let [scales, mins] = scales_k4(l, self.d, self.dmin, &self.scales);
        // Two fifth bits of every byte per turn.
        let [mut ha, mut hb] = sixteens(l, &self.qh);
        for (j, qs) in self.qs.as_chunks::<32>().0.iter().enumerate() {
            let [a, b] = sixteens(l, qs);
            let (scale, min) = (l.splat(scales[2 * j]), l.splat(mins[8 + 2 * j]));
            let fifth = |h| l.and(l.shift_left::<4>(h), 16);
            out.put(4 * j, l.sub(l.mul(scale, l.unsigned(l.or(l.low(a), fifth(ha)))), min));
            out.put(4 * j + 1, l.sub(l.mul(scale, l.unsigned(l.or(l.low(b), fifth(hb)))), min));
            let (scale, min) = (l.splat(scales[2 * j + 1]), l.splat(mins[9 + 2 * j]));
            let fifth = |h| l.and(l.shift_left::<3>(h), 16);
            out.put(4 * j + 2, l.sub(l.mul(scale, l.unsigned(l.or(l.high(a), fifth(ha)))), min));
            out.put(4 * j + 3, l.sub(l.mul(scale, l.unsigned(l.or(l.high(b), fifth(hb)))), min));
            (ha, hb) = (l.shift_right::<2>(ha), l.shift_right::<2>(hb));
        }
    }
}

impl Unpack for BlockQ6K {
    const SIXTEENS: usize = 16;

    #[inline(always)]
    fn unpack<L: Lanes>(&self, l: L, out: &mut impl Sink<L>) {
        let mut scales = [0.0; 16];
        l.store(l.mul(l.splat_half(self.d), l.signed(l.bytes(&self.scales))), &mut scales);
        let ql = self.ql.as_chunks::<16>().0;
        let qh = self.qh.as_chunks::<16>().0;
        for half in 0..2 {
            for piece in 0..2 {
                let (a, b) = (l.bytes(&ql[4 * half + piece]), l.bytes(&ql[4 * half + piece + 2]));
                let h = l.bytes(&qh[2 * half + piece]);
                let quarters = [
                    l.or(l.low(a), l.and(l.shift_left::<4>(h), 0x30)),
                    l.or(l.low(b), l.and(l.shift_left::<2>(h), 0x30)),
                    l.or(l.high(a), l.and(h, 0x30)),
                    l.or(l.high(b), l.and(l.shift_right::<2>(h), 0x30)),
                ];
                for (quarter, q) in quarters.into_iter().enumerate() {
                    let at = 8 * half + 2 * quarter + piece;
                    out.put(at, l.mul(l.splat(scales[at]), l.signed(l.minus(q, 32))));
                }
            }
        }
    }
}
