// iq1_s.cuh: IQ1_S, d (2 sc + 1) (g +- 1/8), scale and sign of the shift per 32 values.
#pragma once
#include "iq1.cuh"

template <> struct decode<block_iq1_s> {
    static constexpr int kElems = QK_K, kScaleElems = 32;
    static constexpr bool kOffset = false;
    static INTRIN uint32_t half_point(const block_iq1_s &b, int k, int half) {
        const uint32_t h = b.qh[k / 4];
        return iq1_quants4(b.qs[k] | (h >> k % 4 * 3 & 7) << 8, (h & 0x8000) != 0, half);
    }
    static INTRIN uint32_t quants4(const block_iq1_s &b, int i) { return half_point(b, i / 2, i % 2); }
    static INTRIN float scale(const block_iq1_s &b, int g) { return iq1_scale(b.d, b.qh[g] >> 12 & 7u); }
};
