// iq1_m.cuh: IQ1_M, d (2 sc + 1) (g +- 1/8), scale per 16 values, sign of the shift per 8.
#pragma once
#include "iq1.cuh"

template <> struct decode<block_iq1_m> {
    static constexpr int kElems = QK_K, kScaleElems = 16;
    static constexpr bool kOffset = false;
    static INTRIN uint32_t half_point(const block_iq1_m &b, int k, int half) {
        const uint32_t h = nibble(b.qh, k);
        return iq1_quants4(b.qs[k] | (h & 7) << 8, (h & 8) != 0, half);
    }
    static INTRIN uint32_t quants4(const block_iq1_m &b, int i) { return half_point(b, i / 2, i % 2); }
    static INTRIN float scale(const block_iq1_m &b, int g) {
        // Four u16 of four 3-bit scales; their top nibbles are d, lowest first.
        const uint32_t s01 = load_aligned<uint32_t, 4>(b.scales), s23 = load_aligned<uint32_t, 4>(b.scales + 4);
        const uint32_t d = (s01 >> 12 & 0xfu) | (s01 >> 24 & 0xf0u) | (s23 >> 4 & 0xf00u) | (s23 >> 16 & 0xf000u);
        const uint32_t four = (g < 8 ? s01 : s23) >> g % 8 / 4 * 16;
        return iq1_scale(d, four >> g % 4 * 3 & 7);
    }
};
