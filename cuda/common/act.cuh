// act.cuh: activations rounded to int8 blocks, with the roundings of the reference: d = amax / 127 with 22 significant bits,
// q = round(y / d), halves to even.
#pragma once
#include "intrin.cuh"

// Scale of values of which the largest has these bits without the sign (magnitudes order as their bits do, NaN last), and
// its inverse: 0 if all quants are to be 0.
INTRIN float2 act_scale(uint32_t amax_bits) {
    if (amax_bits >= (127u + 110u) << 23) return {f32_from_bits(0x7fc00000u), 0.f};
    const uint32_t bits = f32_bits(__fdiv_rn(f32_from_bits(amax_bits), 127.f));
    const float scale = f32_from_bits((bits + 1 + (bits >> 2 & 1)) & ~3u);
    if (scale < 1.17549435e-38f) return {0.f, 0.f};
    return {scale, __frcp_rn(scale)};
}

// At 1.5 * 2^23 an f32 has a step of 1: the sum rounds to an integer, halves to even, whose low byte is the quant.
constexpr float kActShift = 12582912.f;
INTRIN float act_shifted(float y, float inverse) { return __fadd_rn(__fmul_rn(y, inverse), kActShift); }

// Four quants, the first in the lowest byte.
INTRIN uint32_t act_quants4(const float (&y)[4], float inverse) {
    uint32_t q[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) q[k] = f32_bits(act_shifted(y[k], inverse));
    const uint32_t quants = __byte_perm(__byte_perm(q[0], q[1], 0x0040), __byte_perm(q[2], q[3], 0x0040), 0x5410);
    return inverse == 0.f ? 0 : quants;
}

// A value rounded and back. A NaN scale gives NaN.
INTRIN float act_rounded(float y, float2 scale) {
    return __fmul_rn(scale.x, __fsub_rn(act_shifted(y, scale.y), kActShift));
}
