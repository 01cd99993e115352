// iq2_xs.cuh: IQ2_XS, +-d (1/2 + sc) / 4 g, g from 512 points.
#pragma once
#include "iq2.cuh"

template <> struct decode<block_iq2_xs> {
    static constexpr int kElems = QK_K, kScaleElems = 16;
    static constexpr bool kOffset = false;
    static INTRIN uint32_t half_point(const block_iq2_xs &b, int k, int half) {
        const uint32_t q = b.qs[k];
        return iq2_quants4(kIq2xsPoints[q & 511], even_signs(q >> 9), half);
    }
    static INTRIN uint32_t quants4(const block_iq2_xs &b, int i) { return half_point(b, i / 2, i % 2); }
    static INTRIN float scale(const block_iq2_xs &b, int g) { return iq2_scale(b.d, nibble(b.scales, g)); }
};
