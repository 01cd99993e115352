// iq2.cuh: what IQ2_XXS, IQ2_XS and IQ2_S share: points of eight magnitudes out of three.
#pragma once
#include "decode.cuh"
#include "grids.cuh"
#include "params/blocks.h"

// Half `half` of a point, eight indices of 2 bits into 8, 25, 43; negated where the bit of `signs` is set.
INTRIN uint32_t iq2_quants4(uint32_t point, uint32_t signs, int half) {
    const uint32_t selector = selector4(point >> 8 * half & 0xffu);
    return negate4(__byte_perm(0x002b1908u, 0, selector), signs >> 4 * half);
}

// d (1/2 + sc) / 4
INTRIN float iq2_scale(uint16_t d, uint32_t sc) {
    return __fmul_rn(__fmul_rn(f16_to_f32(d), __fadd_rn(0.5f, static_cast<float>(sc))), 0.25f);
}
