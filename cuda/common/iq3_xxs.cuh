// iq3_xxs.cuh: IQ3_XXS, +-d (1/2 + sc) / 2 g, g from 256 points of four.
#pragma once
#include "decode.cuh"
#include "grids.cuh"
#include "params/blocks.h"

template <> struct decode<block_iq3_xxs> {
    static constexpr int kElems = QK_K, kScaleElems = 32;
    static constexpr bool kOffset = false;
    static INTRIN uint32_t signs_scale(const block_iq3_xxs &b, int g) { return word<block_iq3_xxs>(b.scales + 4 * g); }
    static INTRIN uint32_t quants4(const block_iq3_xxs &b, int i) {
        // A point is four indices of 4 bits into 4 12 20 28, 36 44 52 62: a selector as it stands.
        const uint32_t magnitudes = __byte_perm(0x1c140c04u, 0x3e342c24u, kIq3xxsPoints[b.qs[i]]);
        const uint32_t signs = even_signs(signs_scale(b, i / 8) >> i % 8 / 2 * 7 & 127);
        return negate4(magnitudes, signs >> i % 2 * 4);
    }
    static INTRIN float scale(const block_iq3_xxs &b, int g) {
        const float sc = static_cast<float>(signs_scale(b, g) >> 28);
        return __fmul_rn(__fmul_rn(f16_to_f32(b.d), __fadd_rn(0.5f, sc)), 0.5f);
    }
};
