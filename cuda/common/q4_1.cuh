// q4_1.cuh: Q4_1, d q + m.
#pragma once
#include "decode.cuh"
#include "params/blocks.h"

template <> struct decode<block_q4_1> {
    static constexpr int kElems = 32, kScaleElems = 32;
    static constexpr bool kOffset = true;
    static INTRIN uint32_t quants4(const block_q4_1 &b, int i) {
        return word<block_q4_1>(b.qs + i % 4 * 4) >> i / 4 * 4 & 0x0f0f0f0fu;
    }
    static INTRIN float scale(const block_q4_1 &b, int) { return f16_to_f32(b.d); }
    static INTRIN float offset(const block_q4_1 &b, int) { return f16_to_f32(b.m); }
};
