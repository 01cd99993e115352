// q5_0.cuh: Q5_0, d (q - 16), the fifth bits apart.
#pragma once
#include "decode.cuh"
#include "params/blocks.h"

template <> struct decode<block_q5_0> {
    static constexpr int kElems = 32, kScaleElems = 32;
    static constexpr bool kOffset = false;
    static INTRIN uint32_t quants4(const block_q5_0 &b, int i) {
        const uint32_t low = word<block_q5_0>(b.qs + i % 4 * 4) >> i / 4 * 4 & 0x0f0f0f0fu;
        return minus4<16>(low | spread_bits4(word<block_q5_0>(b.qh) >> 4 * i) << 4);
    }
    static INTRIN float scale(const block_q5_0 &b, int) { return f16_to_f32(b.d); }
};
