// q6k.cuh: Q6_K, d sc (q - 32), four bits here and two there.
#pragma once
#include "decode.cuh"
#include "params/blocks.h"

template <> struct decode<block_q6_K> {
    static constexpr int kElems = QK_K, kScaleElems = 16;
    static constexpr bool kOffset = false;
    static INTRIN uint32_t quants4(const block_q6_K &b, int i) {
        // Of each half of the block, quarters 0 and 2 share the bytes of their low bits, and all four those of the high.
        const int half = i / 32, quarter = i % 32 / 8, in_quarter = i % 8;
        const uint32_t low = word<block_q6_K>(b.ql + half * 64 + quarter % 2 * 32 + in_quarter * 4) >> quarter / 2 * 4;
        const uint32_t high = word<block_q6_K>(b.qh + half * 32 + in_quarter * 4) >> quarter * 2;
        return minus4<32>((low & 0x0f0f0f0fu) | (high & 0x03030303u) << 4);
    }
    static INTRIN float scale(const block_q6_K &b, int g) {
        return __fmul_rn(f16_to_f32(b.d), static_cast<float>(b.scales[g]));
    }
};
