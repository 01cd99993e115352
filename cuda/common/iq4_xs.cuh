// iq4_xs.cuh: IQ4_XS, d (sc - 32) K[q] with the levels of IQ4_NL.
#pragma once
#include "iq4_nl.cuh"

template <> struct decode<block_iq4_xs> {
    static constexpr int kElems = QK_K, kScaleElems = 32;
    static constexpr bool kOffset = false;
    static INTRIN uint32_t quants4(const block_iq4_xs &b, int i) {
        return iq4_levels(word<block_iq4_xs>(b.qs + i / 8 * 16 + i % 4 * 4) >> i % 8 / 4 * 4);
    }
    static INTRIN float scale(const block_iq4_xs &b, int g) {
        const int sc = static_cast<int>(nibble(b.scales_l, g) | (b.scales_h >> 2 * g & 3u) << 4) - 32;
        return __fmul_rn(f16_to_f32(b.d), static_cast<float>(sc));
    }
};
