// act.cuh: int8 activations, how a block of values gets its scale and its quants.
//
// Scales have 22 bits: then 3 * 2^22 times a scale is exact (int8.cuh).
//
// The reference divides twice with correct rounding. CUDA's functions for that leave the straight line for operands at the
// ends of the range, one call after the other; the operands here are never there, and what follows is straight.
#pragma once
#include "intrin.cuh"

// a / 127, correctly rounded where that is normal, and below 2^-126 where the quotient is; a is finite and not negative.
//
// The product with the rounded 1/127 is within 1.5 units of the last place; the remainder a - 127 q is then exact, and its
// own quotient corrects q. That no bit differs was seen for every a (test_act.cpp has all mantissas).
INTRIN float act_div127(float a) {
    constexpr float kInverse = 1.f / 127.f;
    const float q = __fmul_rn(a, kInverse);
    return __fmaf_rn(__fmaf_rn(-q, 127.f, a), kInverse, q);
}

// 1 / x, correctly rounded, from a `seed` within 4 units of the last place; x and 1 / x are normal.
//
// After the first step of Newton the inverse is within one unit, and the second then rounds correctly, but for a mantissa
// of ones: its inverse is so little above the middle of two floats that the step ends on the even one. The other ends in 1.
// Seen for all mantissas and seeds (test_act.cpp); powers of two change nothing.
INTRIN float act_inverse(float x, float seed) {
    const float once = __fmaf_rn(seed, __fmaf_rn(-x, seed, 1.f), seed);
    const float twice = __fmaf_rn(once, __fmaf_rn(-x, once, 1.f), once);
    return f32_from_bits(f32_bits(twice) | ((f32_bits(x) & 0x7fffffu) == 0x7fffffu ? 1u : 0u));
}

// Scale of values of which the largest has these bits without the sign (magnitudes order as their bits do, NaN last), and
// its inverse: 0 if all quants are to be 0.
INTRIN float2 act_scale(uint32_t amax_bits) {
    const bool finite = amax_bits < (127u + 110u) << 23; // 2^110, see quant::Activations
    const uint32_t bits = f32_bits(act_div127(f32_from_bits(amax_bits)));
    const float scale = f32_from_bits((bits + 1 + (bits >> 2 & 1)) & ~3u); // 22 bits, halves to even
    const bool normal = scale >= 1.17549435e-38f; // then at most 2^122, so the inverse is normal too
    const float inverse = act_inverse(scale, rcp_approx(scale));
    return {finite ? (normal ? scale : 0.f) : f32_from_bits(0x7fc00000u), finite && normal ? inverse : 0.f};
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
