// q4k.cuh: Q4_K, d sc q - dmin mn.
#pragma once
#include "decode.cuh"
#include "params/blocks.h"

// The 6-bit scale and minimum of 32 values.
struct scale_min {
    uint32_t scale, min;
};

// Number j < 8 of the twelve bytes of Q4_K and Q5_K, which are aligned to 4.
INTRIN scale_min scale_min_k4(const uint8_t *scales, int j) {
    const uint32_t first = load_aligned<uint32_t, 4>(scales), second = load_aligned<uint32_t, 4>(scales + 4);
    const uint32_t third = load_aligned<uint32_t, 4>(scales + 8);
    const int shift = j % 4 * 8;
    const uint32_t a = first >> shift, b = second >> shift, c = third >> shift;
    if (j < 4) return {a & 63, b & 63};
    return {(c & 15) | (a >> 2 & 48), (c >> 4 & 15) | (b >> 2 & 48)};
}

// Quants 4 i to 4 i + 3 of Q4_K, the low four bits of Q5_K.
template <class Block> INTRIN uint32_t nibbles4(const Block &b, int i) {
    return word<Block>(b.qs + i / 16 * 32 + i % 8 * 4) >> i % 16 / 8 * 4 & 0x0f0f0f0fu;
}

template <> struct decode<block_q4_K> {
    static constexpr int kElems = QK_K, kScaleElems = 32;
    static constexpr bool kOffset = true;
    static INTRIN uint32_t quants4(const block_q4_K &b, int i) { return nibbles4(b, i); }
    static INTRIN float scale(const block_q4_K &b, int g) {
        return __fmul_rn(f16_to_f32(b.d), static_cast<float>(scale_min_k4(b.scales, g).scale));
    }
    static INTRIN float offset(const block_q4_K &b, int g) {
        return -__fmul_rn(f16_to_f32(b.dmin), static_cast<float>(scale_min_k4(b.scales, g).min));
    }
};
