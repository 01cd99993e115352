// iq3_s.cuh: IQ3_S, +-d (1 + 2 sc) g, g from 512 points of four.
#pragma once
#include "decode.cuh"
#include "grids.cuh"
#include "params/blocks.h"

template <> struct decode<block_iq3_s> {
    static constexpr int kElems = QK_K, kScaleElems = 32;
    static constexpr bool kOffset = false;
    static INTRIN uint32_t quants4(const block_iq3_s &b, int i) {
        const uint32_t point = b.qs[i] | (b.qh[i / 8] >> i % 8 & 1u) << 8;
        // Four indices of 4 bits into 1 3 5 7, 9 11 13 15.
        return negate4(__byte_perm(0x07050301u, 0x0f0d0b09u, kIq3sPoints[point]), b.signs[i / 2] >> i % 2 * 4);
    }
    static INTRIN float scale(const block_iq3_s &b, int g) {
        return __fmul_rn(f16_to_f32(b.d), static_cast<float>(1 + 2 * nibble(b.scales, g)));
    }
};
