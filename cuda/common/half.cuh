// half.cuh: weights in tiles (params/tiles.h) as operands of the f16 matrix instruction.
//
// A weight is u * a - m * v: a is an f16 made from integers, u and v are f32, m * v is the minimum of a block. Of the K types u is the same
// for the 256 columns that a row has in a tile, and a the scale of a block times the quant: of Q4_K and Q5_K below 2^11, so nothing is
// rounded; of Q6_K up to 2^12, and an odd one above 2^11 is rounded once. Of Q5_0 and Q8_0 u is the scale of a block, and a the quant.
//
//   kMins                                whether there are minimums
//   kUnitOfBlock                         whether u is that of a block
//   scale                                what is known of the scale of a block
//   fragments<j>(tile, c, lane, s, a)    registers of A for both halves of block 2 c + j; scales s of rows g and g + 8
// With a unit of the block:
//   unit_of<j>(tile, c, row, s)          u of block 2 c + j, never zero, and its scale: of a block of zeros a is zero
// With one of the row:
//   row, load(tile, r)                   what a row has besides its quants
//   unit(row)                            u; never zero: of a row of zeros a is zero
//   own, prepare(row, t)                 scales of blocks 2 t and 2 t + 1 as f16, twice in a register; t numbers the lanes of a row
//   scale_of<j>(own, c, lane, s)         that of block 2 c + j, from the lane that has it
//   mins(row, t)                         minimums of blocks 2 t and 2 t + 1
//   minimum(row)                         v
//
// A quant becomes an f16 by bits: 0x6400 is 1024, where an f16 has a step of 1, and a nibble below it or'ed is 1024 + q; one
// that stays in the upper half of its byte is 1024 + 16 q. Of the four columns of a word, columns 0 and 2 are one register of A,
// and 1 and 3 another: their bytes lie in the halves of the word, so they need no exchange. Activations have the same order.
#pragma once
#include "q5_0.cuh"
#include "tile.cuh"

// An integer as f16, in both halves of a register.
template <int kValue> NUM_FN constexpr uint32_t f16x2_exact() {
    constexpr uint32_t magnitude = kValue < 0 ? -kValue : kValue;
    uint32_t exponent = 0;
    while (magnitude >> exponent > 1) ++exponent;
    static_assert(magnitude != 0 && magnitude < 1u << 16, "the range of f16");
    const uint32_t fraction = (exponent <= 10 ? magnitude << (10 - exponent) : magnitude >> (exponent - 10)) & 0x3ffu;
    const uint32_t bits = (kValue < 0 ? 0x8000u : 0u) | (exponent + 15) << 10 | fraction;
    return bits | bits << 16;
}
template <int kValue> INTRIN uint32_t f16x2_of() {
    constexpr uint32_t bits = f16x2_exact<kValue>(); // a constant, not a call
    return bits;
}
constexpr uint32_t kSixteenth = 0x2c002c00u; // 1/16, twice

// Byte k of four plus kOffset as f16, in both halves.
template <int kOffset = 0> INTRIN uint32_t byte_to_f16x2(uint32_t four, int k) {
    return add_f16x2(__byte_perm(four, 0x64646464u, k * 0x101 + 0x4040), f16x2_of<kOffset - 1024>());
}

// Columns 0 and 2 (kOdd: 1 and 3) of a word of nibbles, as 1024 + q (kUpper: 1024 + 16 q of the upper nibbles).
template <int kUpper, bool kOdd> INTRIN uint32_t nibbles_to_f16x2(uint32_t word) {
    return ((kOdd ? word >> 8 : word) & (kUpper ? 0x00f000f0u : 0x000f000fu)) | 0x64006400u;
}
// The same of bits `from` and on of bytes: kMask says how many, or'ed above the nibbles.
template <int kUpper, bool kOdd, uint32_t kMask> INTRIN uint32_t with_high_bits(uint32_t value, uint32_t bytes, int from) {
    const int shift = from + (kOdd ? 8 : 0) - (kUpper ? 8 : 4);
    const uint32_t moved = shift >= 0 ? bytes >> shift : bytes << -shift;
    return value | (moved & kMask << (kUpper ? 8 : 4));
}

template <class Block> struct half_tile;

// What Q4_K and Q5_K share.
template <class Tile> struct half_k4 {
    static constexpr bool kMins = true, kUnitOfBlock = false;
    using type = Tile;
    using row = uint4; // a tile_head_k4
    static INTRIN row load(const Tile &w, int r) { return vector_at<uint4>(&w.heads[r]); }
    static INTRIN float unit(row head) {
        const float d = f16_to_f32(static_cast<uint16_t>(head.x));
        return d == 0.f ? 1.f : d;
    }
    static INTRIN float minimum(row head) { return f16_to_f32(static_cast<uint16_t>(head.x >> 16)); }
    static INTRIN uint32_t mins(row head, int t) {
        const uint32_t four = t < 2 ? head.z & 0x3f3f3f3fu : (head.w >> 4 & 0x0f0f0f0fu) | (head.z >> 2 & 0x30303030u);
        return add_f16x2(__byte_perm(four, 0x64646464u, t % 2 == 0 ? 0x4140 : 0x4342), f16x2_of<-1024>());
    }

    struct own {
        uint32_t blocks[2];
    };
    static INTRIN own prepare(row head, int t) {
        uint32_t four = t < 2 ? head.y & 0x3f3f3f3fu : (head.w & 0x0f0f0f0fu) | (head.y >> 2 & 0x30303030u);
        if ((head.x & 0x7fffu) == 0) four = 0; // d is zero
        four >>= 16 * (t % 2);
        return {{byte_to_f16x2(four, 0), byte_to_f16x2(four, 1)}};
    }
    // s q = mul (1024 + q) + add, or mul (1024 + 16 q) + add with a sixteenth of s: exact, and so is -1024 s.
    struct scale {
        uint32_t mul, add;
    };
    template <int kUpper> static INTRIN void scale_of(const own &from, int c, int lane, scale &s) {
        const uint32_t sc = __shfl_sync(0xffffffffu, from.blocks[kUpper], (lane & 28) + c);
        s.mul = !kUpper ? sc : mul_f16x2(sc, kSixteenth);
        s.add = mul_f16x2(sc, !kUpper ? f16x2_of<-1024>() : f16x2_of<-64>());
    }
};

template <> struct half_tile<block_q4_K> : half_k4<tile_q4_K> {
    template <int kUpper> static INTRIN void fragments(const tile_q4_K &w, int c, int lane, const scale (&s)[2], uint32_t (&a)[2][4]) {
        const uint4 qs = vector_at<uint4>(w.qs[c][lane]);
        const uint32_t words[4] = {qs.x, qs.y, qs.z, qs.w};
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            a[r / 2][r % 2] = fma_f16x2(nibbles_to_f16x2<kUpper, false>(words[r]), s[r % 2].mul, s[r % 2].add);
            a[r / 2][r % 2 + 2] = fma_f16x2(nibbles_to_f16x2<kUpper, true>(words[r]), s[r % 2].mul, s[r % 2].add);
        }
    }
};

template <> struct half_tile<block_q5_K> : half_k4<tile_q5_K> {
    template <int kUpper> static INTRIN void fragments(const tile_q5_K &w, int c, int lane, const scale (&s)[2], uint32_t (&a)[2][4]) {
        const uint4 qs = vector_at<uint4>(w.qs[c][lane]);
        const uint32_t words[4] = {qs.x, qs.y, qs.z, qs.w}, high = w.qh[c][lane];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int bit = (kUpper ? 4 : 0) + r;
            const uint32_t even = with_high_bits<kUpper, false, 0x00010001u>(nibbles_to_f16x2<kUpper, false>(words[r]), high, bit);
            const uint32_t odd = with_high_bits<kUpper, true, 0x00010001u>(nibbles_to_f16x2<kUpper, true>(words[r]), high, bit);
            a[r / 2][r % 2] = fma_f16x2(even, s[r % 2].mul, s[r % 2].add);
            a[r / 2][r % 2 + 2] = fma_f16x2(odd, s[r % 2].mul, s[r % 2].add);
        }
    }
};

template <> struct half_tile<block_q6_K> {
    static constexpr bool kMins = false, kUnitOfBlock = false;
    using type = tile_q6_K;
    struct row {
        uint4 scales; // of 16 columns each
        float d;
    };
    static INTRIN row load(const tile_q6_K &w, int r) { return {vector_at<uint4>(w.scales[r]), f16_to_f32(w.d[r])}; }
    static INTRIN float unit(const row &head) { return head.d == 0.f ? 1.f : head.d; }

    struct own {
        uint32_t four; // as they are, of columns 64 t and on: four f16 of each row are too many registers
    };
    static INTRIN own prepare(const row &head, int t) {
        const uint32_t four = t == 0 ? head.scales.x : t == 1 ? head.scales.y : t == 2 ? head.scales.z : head.scales.w;
        return {head.d == 0.f ? 0x80808080u : four ^ 0x80808080u};
    }
    struct scale {
        uint32_t mul[2];
    };
    template <int kUpper> static INTRIN void scale_of(const own &from, int c, int lane, scale &s) {
        const uint32_t four = __shfl_sync(0xffffffffu, from.four, (lane & 28) + c);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const uint32_t sc = byte_to_f16x2<-128>(four, 2 * kUpper + h);
            s.mul[h] = !kUpper ? sc : mul_f16x2(sc, kSixteenth);
        }
    }
    template <int kUpper> static INTRIN void fragments(const tile_q6_K &w, int c, int lane, const scale (&s)[2], uint32_t (&a)[2][4]) {
        const uint4 qs = vector_at<uint4>(w.qs[c][lane]);
        const uint32_t words[4] = {qs.x, qs.y, qs.z, qs.w}, high = w.qh[c][lane][kUpper ? 1 : 0];
        const uint32_t zero = kUpper ? f16x2_of<-1024 - 16 * 32>() : f16x2_of<-1024 - 32>();
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const uint32_t even = with_high_bits<kUpper, false, 0x00030003u>(nibbles_to_f16x2<kUpper, false>(words[r]), high, 2 * r);
            const uint32_t odd = with_high_bits<kUpper, true, 0x00030003u>(nibbles_to_f16x2<kUpper, true>(words[r]), high, 2 * r);
            a[r / 2][r % 2] = mul_f16x2(add_f16x2(even, zero), s[r % 2].mul[r / 2]);
            a[r / 2][r % 2 + 2] = mul_f16x2(add_f16x2(odd, zero), s[r % 2].mul[r / 2]);
        }
    }
};

// What types with a scale for 32 columns share.
template <class Tile> struct half_d8 {
    static constexpr bool kMins = false, kUnitOfBlock = true;
    using type = Tile;
    struct row {}; // nothing that is the same for 256 columns
    struct own {};
    using scale = bool; // whether there is one
    template <int kUpper> static INTRIN float unit_of(const Tile &w, int c, int row, scale &s) {
        const float d = f16_to_f32(w.d[row][2 * c + kUpper]);
        s = d != 0.f;
        return s ? d : 1.f;
    }
    // q + kOffset as an f16, from 1024 + kTimes q; zero of a block without a scale.
    template <int kOffset, int kTimes> struct affine {
        uint32_t mul, add;
        INTRIN explicit affine(scale s) : mul(s ? one() : 0), add(s ? f16x2_of<kOffset - 1024 / kTimes>() : 0) {}
        INTRIN uint32_t operator()(uint32_t q) const { return fma_f16x2(q, mul, add); }
        static INTRIN uint32_t one() { return kTimes == 1 ? f16x2_of<1>() : kSixteenth; }
    };
};

template <> struct half_tile<block_q5_0> : half_d8<tile_q5_0> {
    template <int kUpper> static INTRIN void fragments(const tile_q5_0 &w, int c, int lane, const scale (&s)[2], uint32_t (&a)[2][4]) {
        const uint4 qs = vector_at<uint4>(w.qs[c][lane]);
        const uint32_t words[4] = {qs.x, qs.y, qs.z, qs.w}, high = w.qh[c][lane];
        using of_row = affine<-16, kUpper ? 16 : 1>;
        const of_row rows[2] = {of_row(s[0]), of_row(s[1])};
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int bit = (kUpper ? 4 : 0) + r;
            const uint32_t even = with_high_bits<kUpper, false, 0x00010001u>(nibbles_to_f16x2<kUpper, false>(words[r]), high, bit);
            const uint32_t odd = with_high_bits<kUpper, true, 0x00010001u>(nibbles_to_f16x2<kUpper, true>(words[r]), high, bit);
            a[r / 2][r % 2] = rows[r % 2](even), a[r / 2][r % 2 + 2] = rows[r % 2](odd);
        }
    }
};

template <> struct half_tile<block_q8_0> : half_d8<tile_q8_0> {
    template <int kUpper> static INTRIN void fragments(const tile_q8_0 &w, int c, int lane, const scale (&s)[2], uint32_t (&a)[2][4]) {
        const uint4 qs = vector_at<uint4>(w.qs[2 * c + kUpper][lane]);
        const uint32_t words[4] = {qs.x, qs.y, qs.z, qs.w};
        using of_row = affine<-128, 1>;
        const of_row rows[2] = {of_row(s[0]), of_row(s[1])};
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const uint32_t bytes = words[r] ^ 0x80808080u; // q + 128
            a[r / 2][r % 2] = rows[r % 2](__byte_perm(bytes, 0x64646464u, 0x4240));
            a[r / 2][r % 2 + 2] = rows[r % 2](__byte_perm(bytes, 0x64646464u, 0x4341));
        }
    }
};
