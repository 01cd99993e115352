// q4_0.cuh: Q4_0, d (q - 8).
#pragma once
#include "decode.cuh"
#include "params/blocks.h"

template <> struct decode<block_q4_0> {
    static constexpr int kElems = 32, kScaleElems = 32;
    static constexpr bool kOffset = false;
    static INTRIN uint32_t quants4(const block_q4_0 &b, int i) {
        return minus4<8>(word<block_q4_0>(b.qs + i % 4 * 4) >> i / 4 * 4 & 0x0f0f0f0fu);
    }
    static INTRIN float scale(const block_q4_0 &b, int) { return f16_to_f32(b.d); }
};
