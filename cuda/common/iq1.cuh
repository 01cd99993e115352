// iq1.cuh: what IQ1_S and IQ1_M share: points of eight ternary values, all shifted by 1/8 up or down.
//
// Eight times a shifted value is an integer, 8 g - 8 + 1 or - 1 with g = 0, 1, 2 as stored; the scale takes the eighth.
// That changes no bit of the product: a scale is far from subnormal, and a factor of 8 moves exponents only.
#pragma once
#include "decode.cuh"
#include "grids.cuh"
#include "params/blocks.h"

// Half `half` of a point, eight values of 2 bits.
INTRIN uint32_t iq1_quants4(uint32_t point, bool down, int half) {
    const uint32_t levels = down ? 0x0007fff7u : 0x000901f9u; // -9 -1 7, or -7 1 9
    return __byte_perm(levels, 0, selector4(kIq1Points[point] >> 8 * half & 0xffu));
}

// d (2 sc + 1) / 8
INTRIN float iq1_scale(uint32_t d, uint32_t sc) {
    return __fmul_rn(__fmul_rn(f16_to_f32(static_cast<uint16_t>(d)), static_cast<float>(2 * sc + 1)), 0.125f);
}
