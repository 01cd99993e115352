// mxfp4.cuh: MXFP4, 2^(e - 127) F[q] with the sixteen values F of E2M1. Doubled they are integers.
#pragma once
#include "decode.cuh"
#include "params/blocks.h"

// Half of the E8M0 scale 2^(e - 127). Every e is a scale, 255 too; the two smallest are subnormal.
INTRIN float e8m0_half_to_f32(uint32_t e) { return f32_from_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

template <> struct decode<block_mxfp4> {
    static constexpr int kElems = 32, kScaleElems = 32;
    static constexpr bool kOffset = false;
    static INTRIN uint32_t quants4(const block_mxfp4 &b, int i) {
        // 0 1 2 3, 4 6 8 12, and their negatives.
        return lookup16(word<block_mxfp4>(b.qs + i % 4 * 4) >> i / 4 * 4, {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu});
    }
    static INTRIN float scale(const block_mxfp4 &b, int) { return e8m0_half_to_f32(b.e); }
};
