// rotate.cuh: angles of the rotary embedding, and the rotation of a pair.
#pragma once
#include "intrin.cuh"

// (a cos - b sin, a sin + b cos), each operation rounded: the bits of the same in plain f32.
INTRIN float2 rotated(float a, float b, float cosine, float sine) {
    return make_float2(__fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)), __fadd_rn(__fmul_rn(a, sine), __fmul_rn(b, cosine)));
}

// Cosine and sine of position times `quarters` quarters of a turn. The product is exact before whole quarters leave it (fma), so what
// is left, at most half a quarter, is as good as `quarters` is: 2^-53 of 2^32 quarters. Then the series of both, whose first missing
// terms are below 2^-29 there: good to 1.5e-7.
INTRIN float2 cos_sin_of(uint32_t position, double quarters) {
    const double p = position, whole = rint(p * quarters);
    const float x = static_cast<float>(fma(p, quarters, -whole) * 1.57079632679489661923);
    const uint32_t quadrant = static_cast<uint32_t>(static_cast<int64_t>(whole)) & 3u;
    const float x2 = __fmul_rn(x, x);
    float s = 1.f / 362880.f, c = -1.f / 3628800.f;
    s = __fmaf_rn(s, x2, -1.f / 5040.f), c = __fmaf_rn(c, x2, 1.f / 40320.f);
    s = __fmaf_rn(s, x2, 1.f / 120.f), c = __fmaf_rn(c, x2, -1.f / 720.f);
    s = __fmaf_rn(s, x2, -1.f / 6.f), c = __fmaf_rn(c, x2, 1.f / 24.f);
    c = __fmaf_rn(c, x2, -0.5f);
    s = __fmaf_rn(__fmul_rn(s, x2), x, x), c = __fmaf_rn(c, x2, 1.f);
    const float cosine = quadrant % 2 ? s : c, sine = quadrant % 2 ? c : s;
    return make_float2(quadrant == 1 || quadrant == 2 ? -cosine : cosine, quadrant >= 2 ? -sine : sine);
}
