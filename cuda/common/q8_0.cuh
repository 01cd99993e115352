// q8_0.cuh: Q8_0, d q.
#pragma once
#include "decode.cuh"
#include "params/blocks.h"

template <> struct decode<block_q8_0> {
    static constexpr int kElems = 32, kScaleElems = 32;
    static constexpr bool kOffset = false;
    static INTRIN uint32_t quants4(const block_q8_0 &b, int i) { return word<block_q8_0>(b.qs + 4 * i); }
    static INTRIN float scale(const block_q8_0 &b, int) { return f16_to_f32(b.d); }
};
