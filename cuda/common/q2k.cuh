// q2k.cuh: Q2_K, d sc q - dmin mn.
#pragma once
#include "decode.cuh"
#include "params/blocks.h"

// Quants 4 i to 4 i + 3 of Q2_K, the low two bits of Q3_K.
template <class Block> INTRIN uint32_t two_bits4(const Block &b, int i) {
    const int group = i / 4;
    const uint8_t *qs = b.qs + (group / 8 * 2 + group % 2) * 16;
    return word<Block>(qs + i % 4 * 4) >> group % 8 / 2 * 2 & 0x03030303u;
}

template <> struct decode<block_q2_K> {
    static constexpr int kElems = QK_K, kScaleElems = 16;
    static constexpr bool kOffset = true;
    static INTRIN uint32_t quants4(const block_q2_K &b, int i) { return two_bits4(b, i); }
    static INTRIN float scale(const block_q2_K &b, int g) {
        return __fmul_rn(f16_to_f32(b.d), static_cast<float>(b.scales[g] & 15));
    }
    static INTRIN float offset(const block_q2_K &b, int g) {
        return -__fmul_rn(f16_to_f32(b.dmin), static_cast<float>(b.scales[g] >> 4));
    }
};
