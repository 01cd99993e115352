// iq2_xxs.cuh: IQ2_XXS, +-d (1/2 + sc) / 4 g, g from 256 points.
#pragma once
#include "iq2.cuh"

template <> struct decode<block_iq2_xxs> {
    static constexpr int kElems = QK_K, kScaleElems = 32;
    static constexpr bool kOffset = false;
    // Per 32 values: four points of a byte, then four times 7 sign bits and the scale.
    static INTRIN const uint8_t *group(const block_iq2_xxs &b, int g) {
        return reinterpret_cast<const uint8_t *>(b.qs + 4 * g);
    }
    static INTRIN uint32_t signs_scale(const block_iq2_xxs &b, int g) { return word<block_iq2_xxs>(group(b, g) + 4); }
    static INTRIN uint32_t half_point(const block_iq2_xxs &b, int k, int half) {
        const uint32_t signs = even_signs(signs_scale(b, k / 4) >> 7 * (k % 4) & 127);
        return iq2_quants4(kIq2xxsPoints[group(b, k / 4)[k % 4]], signs, half);
    }
    static INTRIN uint32_t quants4(const block_iq2_xxs &b, int i) { return half_point(b, i / 2, i % 2); }
    static INTRIN float scale(const block_iq2_xxs &b, int g) { return iq2_scale(b.d, signs_scale(b, g) >> 28); }
};
