// q5k.cuh: Q5_K, d sc q - dmin mn, the fifth bits apart.
#pragma once
#include "q4k.cuh"

template <> struct decode<block_q5_K> {
    static constexpr int kElems = QK_K, kScaleElems = 32;
    static constexpr bool kOffset = true;
    static INTRIN uint32_t quants4(const block_q5_K &b, int i) {
        const uint32_t high = word<block_q5_K>(b.qh + i % 8 * 4) >> i / 8 & 0x01010101u;
        return nibbles4(b, i) | high << 4;
    }
    static INTRIN float scale(const block_q5_K &b, int g) {
        return __fmul_rn(f16_to_f32(b.d), static_cast<float>(scale_min_k4(b.scales, g).scale));
    }
    static INTRIN float offset(const block_q5_K &b, int g) {
        return -__fmul_rn(f16_to_f32(b.dmin), static_cast<float>(scale_min_k4(b.scales, g).min));
    }
};
