//! Sixteen values at a time on x86: widening of bytes to floats, the arithmetic of dequantization, transposition.
//!
//! Loops over blocks are written with these, because the autovectorizer does well on them for the baseline and badly
//! (stack traffic in 128-bit pieces) for AVX2 and AVX-512. Other targets take the plain loops, for which their baseline is
//! the level: see [`super::row_dot`] and [`super::tile`].

use std::arch::x86_64::{__m128i, __m256, __m512};

use pulp::NullaryFnOnce;
use pulp::x86::{V3, V4};

/// A level with 16-byte vectors and vectors of sixteen floats, which may be several registers.
pub(super) trait Lanes: Copy {
    /// Sixteen floats.
    type Floats: Copy;

    /// Operations on sixteen bytes are the same at all levels.
    fn v3(self) -> V3;
    /// Runs `f` compiled for the level.
    fn vectorize<F: NullaryFnOnce>(self, f: F) -> F::Output;

    /// From unsigned bytes.
    fn unsigned(self, bytes: __m128i) -> Self::Floats;
    /// From signed bytes.
    fn signed(self, bytes: __m128i) -> Self::Floats;
    /// From f16.
    fn half(self, halves: &[u8; 32]) -> Self::Floats;
    /// From bf16.
    fn bfloat(self, halves: &[u8; 32]) -> Self::Floats;
    /// One f16, sixteen times.
    fn splat_half(self, half: [u8; 2]) -> Self::Floats;
    fn splat(self, value: f32) -> Self::Floats;
    fn load(self, values: &[f32; 16]) -> Self::Floats;
    fn store(self, values: Self::Floats, to: &mut [f32; 16]);
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn sub(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a b + c`, rounded once.
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    fn sum(self, a: Self::Floats) -> f32;
    /// Column `i` of the sixteen rows is row `i` of the result.
    fn transpose(self, rows: [Self::Floats; 16]) -> [Self::Floats; 16];

    /// From f32 as they lie in a file.
    #[inline(always)]
    fn single(self, values: &[u8; 64]) -> Self::Floats {
        self.load(&bytemuck::cast(*values))
    }

    #[inline(always)]
    fn bytes(self, bytes: &[u8; 16]) -> __m128i {
        bytemuck::cast(*bytes)
    }

    /// The low four bits of each byte.
    #[inline(always)]
    fn low(self, bytes: __m128i) -> __m128i {
        self.and(bytes, 15)
    }

    /// The high four bits of each byte.
    #[inline(always)]
    fn high(self, bytes: __m128i) -> __m128i {
        self.low(self.v3().sse2._mm_srli_epi16::<4>(bytes))
    }

    /// `bytes & mask`.
    #[inline(always)]
    fn and(self, bytes: __m128i, mask: u8) -> __m128i {
        let sse2 = self.v3().sse2;
        sse2._mm_and_si128(bytes, sse2._mm_set1_epi8(mask as i8))
    }

    #[inline(always)]
    fn or(self, a: __m128i, b: __m128i) -> __m128i {
        self.v3().sse2._mm_or_si128(a, b)
    }

    /// `bytes - value`, wrapping.
    #[inline(always)]
    fn minus(self, bytes: __m128i, value: u8) -> __m128i {
        let sse2 = self.v3().sse2;
        sse2._mm_sub_epi8(bytes, sse2._mm_set1_epi8(value as i8))
    }

    /// Shifts pairs of bytes: for callers that mask what crosses from one byte to the other.
    #[inline(always)]
    fn shift_left<const N: i32>(self, bytes: __m128i) -> __m128i {
        self.v3().sse2._mm_slli_epi16::<N>(bytes)
    }

    /// As [`Lanes::shift_left`].
    #[inline(always)]
    fn shift_right<const N: i32>(self, bytes: __m128i) -> __m128i {
        self.v3().sse2._mm_srli_epi16::<N>(bytes)
    }

    /// `table[index]` for indices below 16.
    #[inline(always)]
    fn lookup(self, table: __m128i, index: __m128i) -> __m128i {
        self.v3().ssse3._mm_shuffle_epi8(table, index)
    }

    /// Bytes of ones where the bit is clear, of 32 bits; first those of bits 0 to 15.
    #[inline(always)]
    fn clear_bits(self, bits: [u8; 4]) -> [__m128i; 2] {
        const BYTE: [u128; 2] =
            [0x0101_0101_0101_0101_0000_0000_0000_0000, 0x0303_0303_0303_0303_0202_0202_0202_0202];
        const BIT: u128 = 0x8040_2010_0804_0201_8040_2010_0804_0201;
        let (sse2, ssse3) = (self.v3().sse2, self.v3().ssse3);
        let bits = sse2._mm_set1_epi32(i32::from_le_bytes(bits));
        let a =
            sse2._mm_and_si128(ssse3._mm_shuffle_epi8(bits, bytemuck::cast(BYTE[0])), bytemuck::cast(BIT));
        let b =
            sse2._mm_and_si128(ssse3._mm_shuffle_epi8(bits, bytemuck::cast(BYTE[1])), bytemuck::cast(BIT));
        let zero = sse2._mm_setzero_si128();
        [sse2._mm_cmpeq_epi8(a, zero), sse2._mm_cmpeq_epi8(b, zero)]
    }
}

impl Lanes for V4 {
    type Floats = __m512;

    #[inline(always)]
    fn v3(self) -> V3 {
        *self
    }

    #[inline(always)]
    fn vectorize<F: NullaryFnOnce>(self, f: F) -> F::Output {
        V4::vectorize(self, f)
    }

    #[inline(always)]
    fn unsigned(self, bytes: __m128i) -> __m512 {
        self.avx512f._mm512_cvtepi32_ps(self.avx512f._mm512_cvtepu8_epi32(bytes))
    }

    #[inline(always)]
    fn signed(self, bytes: __m128i) -> __m512 {
        self.avx512f._mm512_cvtepi32_ps(self.avx512f._mm512_cvtepi8_epi32(bytes))
    }

    #[inline(always)]
    fn half(self, halves: &[u8; 32]) -> __m512 {
        self.avx512f._mm512_cvtph_ps(bytemuck::cast(*halves))
    }

    #[inline(always)]
    fn bfloat(self, halves: &[u8; 32]) -> __m512 {
        let wide = self.avx512f._mm512_cvtepu16_epi32(bytemuck::cast(*halves));
        self.avx512f._mm512_castsi512_ps(self.avx512f._mm512_slli_epi32::<16>(wide))
    }

    #[inline(always)]
    fn splat_half(self, half: [u8; 2]) -> __m512 {
        self.avx512f._mm512_cvtph_ps(self.avx._mm256_set1_epi16(i16::from_le_bytes(half)))
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        self.avx512f._mm512_set1_ps(value)
    }

    #[inline(always)]
    fn load(self, values: &[f32; 16]) -> __m512 {
        bytemuck::cast(*values)
    }

    #[inline(always)]
    fn store(self, values: __m512, to: &mut [f32; 16]) {
        *to = bytemuck::cast(values);
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        self.avx512f._mm512_add_ps(a, b)
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        self.avx512f._mm512_sub_ps(a, b)
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        self.avx512f._mm512_mul_ps(a, b)
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        self.avx512f._mm512_fmadd_ps(a, b, c)
    }

    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        self.avx512f._mm512_reduce_add_ps(a)
    }

    #[inline(always)]
    fn transpose(self, r: [__m512; 16]) -> [__m512; 16] {
        let f = self.avx512f;
        // Pairs of rows, then fours: register 4 i + c holds column 4 l + c of rows 4 i.. in its quarter l.
        let mut t = r;
        for i in 0..8 {
            t[2 * i] = f._mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = f._mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        let mut u = t;
        for i in 0..4 {
            let (a, b) = (f._mm512_castps_pd(t[4 * i]), f._mm512_castps_pd(t[4 * i + 1]));
            let (c, d) = (f._mm512_castps_pd(t[4 * i + 2]), f._mm512_castps_pd(t[4 * i + 3]));
            u[4 * i] = f._mm512_castpd_ps(f._mm512_unpacklo_pd(a, c));
            u[4 * i + 1] = f._mm512_castpd_ps(f._mm512_unpackhi_pd(a, c));
            u[4 * i + 2] = f._mm512_castpd_ps(f._mm512_unpacklo_pd(b, d));
            u[4 * i + 3] = f._mm512_castpd_ps(f._mm512_unpackhi_pd(b, d));
        }
        let mut out = u;
        for c in 0..4 {
            let (ab_low, ab_high) = (
                f._mm512_shuffle_f32x4::<0x44>(u[c], u[4 + c]),
                f._mm512_shuffle_f32x4::<0xee>(u[c], u[4 + c]),
            );
            let (cd_low, cd_high) = (
                f._mm512_shuffle_f32x4::<0x44>(u[8 + c], u[12 + c]),
                f._mm512_shuffle_f32x4::<0xee>(u[8 + c], u[12 + c]),
            );
            out[c] = f._mm512_shuffle_f32x4::<0x88>(ab_low, cd_low);
            out[4 + c] = f._mm512_shuffle_f32x4::<0xdd>(ab_low, cd_low);
            out[8 + c] = f._mm512_shuffle_f32x4::<0x88>(ab_high, cd_high);
            out[12 + c] = f._mm512_shuffle_f32x4::<0xdd>(ab_high, cd_high);
        }
        out
    }
}

impl Lanes for V3 {
    type Floats = [__m256; 2];

    #[inline(always)]
    fn v3(self) -> V3 {
        self
    }

    #[inline(always)]
    fn vectorize<F: NullaryFnOnce>(self, f: F) -> F::Output {
        V3::vectorize(self, f)
    }

    #[inline(always)]
    fn unsigned(self, bytes: __m128i) -> [__m256; 2] {
        let (avx, avx2) = (self.avx, self.avx2);
        let high = self.sse2._mm_unpackhi_epi64(bytes, bytes);
        [
            avx._mm256_cvtepi32_ps(avx2._mm256_cvtepu8_epi32(bytes)),
            avx._mm256_cvtepi32_ps(avx2._mm256_cvtepu8_epi32(high)),
        ]
    }

    #[inline(always)]
    fn signed(self, bytes: __m128i) -> [__m256; 2] {
        let (avx, avx2) = (self.avx, self.avx2);
        let high = self.sse2._mm_unpackhi_epi64(bytes, bytes);
        [
            avx._mm256_cvtepi32_ps(avx2._mm256_cvtepi8_epi32(bytes)),
            avx._mm256_cvtepi32_ps(avx2._mm256_cvtepi8_epi32(high)),
        ]
    }

    #[inline(always)]
    fn half(self, halves: &[u8; 32]) -> [__m256; 2] {
        // The level does not include F16C.
        let mut values = [0f32; 16];
        for (value, half) in values.iter_mut().zip(halves.as_chunks::<2>().0) {
            *value = crate::quant::scalar::f16_to_f32(*half);
        }
        bytemuck::cast(values)
    }

    #[inline(always)]
    fn bfloat(self, halves: &[u8; 32]) -> [__m256; 2] {
        let halves: [__m128i; 2] = bytemuck::cast(*halves);
        [self.bfloat8(halves[0]), self.bfloat8(halves[1])]
    }

    #[inline(always)]
    fn splat_half(self, half: [u8; 2]) -> [__m256; 2] {
        Lanes::splat(self, crate::quant::scalar::f16_to_f32(half))
    }

    #[inline(always)]
    fn splat(self, value: f32) -> [__m256; 2] {
        [self.avx._mm256_set1_ps(value); 2]
    }

    #[inline(always)]
    fn load(self, values: &[f32; 16]) -> [__m256; 2] {
        bytemuck::cast(*values)
    }

    #[inline(always)]
    fn store(self, values: [__m256; 2], to: &mut [f32; 16]) {
        *to = bytemuck::cast(values);
    }

    #[inline(always)]
    fn add(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        [self.avx._mm256_add_ps(a[0], b[0]), self.avx._mm256_add_ps(a[1], b[1])]
    }

    #[inline(always)]
    fn sub(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        [self.avx._mm256_sub_ps(a[0], b[0]), self.avx._mm256_sub_ps(a[1], b[1])]
    }

    #[inline(always)]
    fn mul(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        [self.avx._mm256_mul_ps(a[0], b[0]), self.avx._mm256_mul_ps(a[1], b[1])]
    }

    #[inline(always)]
    fn mul_add(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        [self.fma._mm256_fmadd_ps(a[0], b[0], c[0]), self.fma._mm256_fmadd_ps(a[1], b[1], c[1])]
    }

    #[inline(always)]
    fn sum(self, a: [__m256; 2]) -> f32 {
        pulp::Simd::reduce_sum_f32s(self, bytemuck::cast(self.avx._mm256_add_ps(a[0], a[1])))
    }

    #[inline(always)]
    fn transpose(self, r: [[__m256; 2]; 16]) -> [[__m256; 2]; 16] {
        let mut out = r;
        for (rows, half) in [(0, 0), (0, 1), (8, 0), (8, 1)] {
            let mut square = [r[0][0]; 8];
            for i in 0..8 {
                square[i] = r[rows + i][half];
            }
            let columns = self.transpose8(square);
            for i in 0..8 {
                out[8 * half + i][rows / 8] = columns[i];
            }
        }
        out
    }
}

/// Helpers of the AVX2 level.
trait Avx2 {
    fn bfloat8(self, halves: __m128i) -> __m256;
    fn transpose8(self, rows: [__m256; 8]) -> [__m256; 8];
}

impl Avx2 for V3 {
    #[inline(always)]
    fn bfloat8(self, halves: __m128i) -> __m256 {
        let wide = self.avx2._mm256_cvtepu16_epi32(halves);
        self.avx._mm256_castsi256_ps(self.avx2._mm256_slli_epi32::<16>(wide))
    }

    #[inline(always)]
    fn transpose8(self, r: [__m256; 8]) -> [__m256; 8] {
        let avx = self.avx;
        let mut t = r;
        for i in 0..4 {
            t[2 * i] = avx._mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = avx._mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        let mut u = t;
        for i in 0..2 {
            let (a, b) = (avx._mm256_castps_pd(t[4 * i]), avx._mm256_castps_pd(t[4 * i + 1]));
            let (c, d) = (avx._mm256_castps_pd(t[4 * i + 2]), avx._mm256_castps_pd(t[4 * i + 3]));
            u[4 * i] = avx._mm256_castpd_ps(avx._mm256_unpacklo_pd(a, c));
            u[4 * i + 1] = avx._mm256_castpd_ps(avx._mm256_unpackhi_pd(a, c));
            u[4 * i + 2] = avx._mm256_castpd_ps(avx._mm256_unpacklo_pd(b, d));
            u[4 * i + 3] = avx._mm256_castpd_ps(avx._mm256_unpackhi_pd(b, d));
        }
        let mut out = u;
        for c in 0..4 {
            out[c] = avx._mm256_permute2f128_ps::<0x20>(u[c], u[4 + c]);
            out[4 + c] = avx._mm256_permute2f128_ps::<0x31>(u[c], u[4 + c]);
        }
        out
    }
}
