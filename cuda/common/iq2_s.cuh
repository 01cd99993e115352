// iq2_s.cuh: IQ2_S, +-d (1/2 + sc) / 4 g, g from 1024 points.
#pragma once
#include "iq2.cuh"

template <> struct decode<block_iq2_s> {
    static constexpr int kElems = QK_K, kScaleElems = 16;
    static constexpr bool kOffset = false;
    static INTRIN uint32_t half_point(const block_iq2_s &b, int k, int half) {
        const uint32_t point = b.qs[k] | (b.qh[k / 4] >> k % 4 * 2 & 3u) << 8;
        return iq2_quants4(kIq2sPoints[point], b.signs[k], half);
    }
    static INTRIN uint32_t quants4(const block_iq2_s &b, int i) { return half_point(b, i / 2, i % 2); }
    static INTRIN float scale(const block_iq2_s &b, int g) { return iq2_scale(b.d, nibble(b.scales, g)); }
};
