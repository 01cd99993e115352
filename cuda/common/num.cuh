// num.cuh: the small float formats as plain bit arithmetic, the same on host and device, and types that carry them.
//
//   f16   1 sign, 5 exponent, 10 mantissa (IEEE binary16)
//   bf16  1, 8, 7: the upper half of an f32
//   e4m3  1, 4, 3: bias 7, no infinities, NaN is 0x7f and 0xff, largest value 448
//
// All conversions to a smaller format round to nearest, ties to even. f16 and bf16 overflow to infinity, e4m3 saturates
// (the .satfinite of PTX). The _soft functions define the results; kernels call the conversions of intrin.cuh, which
// are single instructions on the device and these on the host.
#pragma once
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define NUM_FN __host__ __device__ __forceinline__
#else
#define NUM_FN inline
#endif

// Typed bits: what a pointer into a buffer of such values points to.
struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};
struct e4m3 {
    uint8_t bits;
};

NUM_FN uint32_t f32_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

NUM_FN float f32_from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

NUM_FN float bf16_to_f32_soft(uint16_t bits) { return f32_from_bits((uint32_t)bits << 16); }

NUM_FN uint16_t f32_to_bf16_soft(float x) {
    const uint32_t bits = f32_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff; // the NaN that the instruction makes
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// A float with a small exponent field: `mantissa` explicit bits, exponents biased by `bias`. Subnormals included; the
// callers handle what the all-ones exponent means in their format.
NUM_FN float small_to_f32(uint32_t sign, uint32_t exponent, uint32_t fraction, int mantissa, int bias) {
    // fraction * 2^(1 - bias - mantissa) is exact in f32, and so is the scale, for both formats.
    const uint32_t significand = exponent == 0 ? fraction : fraction | 1u << mantissa;
    const int power = (exponent == 0 ? 1 : (int)exponent) - bias - mantissa;
    const float scale = f32_from_bits((uint32_t)(power + 127) << 23);
    const float magnitude = (float)significand * scale;
    return sign ? -magnitude : magnitude;
}

NUM_FN float f16_to_f32_soft(uint16_t h) {
    const uint32_t sign = h >> 15, exponent = h >> 10 & 31, fraction = h & 1023u;
    if (exponent == 31) // infinity, or a NaN
        return f32_from_bits(sign << 31 | 0x7f800000u | fraction << 13 | (fraction ? 0x00400000u : 0u));
    return small_to_f32(sign, exponent, fraction, 10, 15);
}

NUM_FN float e4m3_to_f32_soft(uint8_t b) {
    if ((b & 0x7f) == 0x7f) return f32_from_bits(0x7fffffffu);
    return small_to_f32(b >> 7, b >> 3 & 15, b & 7u, 3, 7);
}

// |x| rounded to a format with `mantissa` explicit bits and the given bias, as exponent and fraction in one integer; a
// carry out of the fraction moves into the exponent by itself. Not for NaN.
NUM_FN uint32_t round_magnitude(float x, int mantissa, int bias) {
    const uint32_t bits = f32_bits(x) & 0x7fffffffu;
    int exponent = (int)(bits >> 23) - 127 + bias;
    uint32_t significand = (bits & 0x7fffffu) | 0x800000u; // an f32 subnormal rounds to zero whatever stands here
    int drop = 23 - mantissa;
    if (exponent <= 0) { // subnormal: the implicit bit moves into the fraction
        drop += 1 - exponent;
        exponent = 0;
        if (drop > 25) return 0; // below half of the smallest subnormal
    } else {
        significand &= 0x7fffffu;
    }
    const uint32_t kept = significand >> drop, rest = significand & ((1u << drop) - 1), half = 1u << (drop - 1);
    const uint32_t up = rest > half || (rest == half && (kept & 1)) ? 1u : 0u;
    return ((uint32_t)exponent << mantissa) + kept + up;
}

NUM_FN uint16_t f32_to_f16_soft(float x) {
    const uint32_t bits = f32_bits(x), magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff; // the NaN that the instruction makes
    const uint32_t sign = bits >> 16 & 0x8000u;
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7c00u); // 2^16 and beyond
    const uint32_t rounded = round_magnitude(x, 10, 15);
    return (uint16_t)(sign | (rounded > 0x7c00u ? 0x7c00u : rounded));
}

NUM_FN uint8_t f32_to_e4m3_soft(float x) {
    const uint32_t bits = f32_bits(x), magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7f;
    const uint32_t sign = bits >> 24 & 0x80u;
    if (magnitude >= 0x43e00000u) return (uint8_t)(sign | 0x7eu); // 448 and beyond saturate
    const uint32_t rounded = round_magnitude(x, 3, 7);
    return (uint8_t)(sign | (rounded > 0x7eu ? 0x7eu : rounded));
}
