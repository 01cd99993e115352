// q5_1.cuh: Q5_1, d q + m, the fifth bits apart.
#pragma once
#include "decode.cuh"
#include "params/blocks.h"

template <> struct decode<block_q5_1> {
    static constexpr int kElems = 32, kScaleElems = 32;
    static constexpr bool kOffset = true;
    static INTRIN uint32_t quants4(const block_q5_1 &b, int i) {
        const uint32_t low = word<block_q5_1>(b.qs + i % 4 * 4) >> i / 4 * 4 & 0x0f0f0f0fu;
        return low | spread_bits4(word<block_q5_1>(b.qh) >> 4 * i) << 4;
    }
    static INTRIN float scale(const block_q5_1 &b, int) { return f16_to_f32(b.d); }
    static INTRIN float offset(const block_q5_1 &b, int) { return f16_to_f32(b.m); }
};
