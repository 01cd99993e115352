// scalars.cuh: F32, F16 and BF16 as blocks of one value.
#pragma once
#include "decode.cuh"
#include "params/blocks.h"

INTRIN float to_f32(block_f32 x) { return x.d; }
INTRIN float to_f32(block_f16 x) { return f16_to_f32(x.d); }
INTRIN float to_f32(block_bf16 x) { return bf16_to_f32(x.d); }

template <class Scalar, int kN> INTRIN void scalar_values(const Scalar *p, float (&out)[kN]) {
    constexpr int kAlign = kN * sizeof(Scalar) < 16 ? kN * sizeof(Scalar) : 16;
    struct vector {
        Scalar values[kN];
    } v;
    // The same for the whole warp; rows of odd widths are not aligned.
    if (reinterpret_cast<uintptr_t>(p) % kAlign == 0) {
        memcpy(&v, __builtin_assume_aligned(p, kAlign), sizeof v);
    } else {
        for (int k = 0; k < kN; ++k) v.values[k] = p[k];
    }
#pragma unroll
    for (int k = 0; k < kN; ++k) out[k] = to_f32(v.values[k]);
}

template <> struct decode<block_f32> {
    static constexpr int kElems = 1;
};
template <> struct decode<block_f16> {
    static constexpr int kElems = 1;
};
template <> struct decode<block_bf16> {
    static constexpr int kElems = 1;
};

// Overloads that are preferred over the template for blocks of quants.
template <int kN> INTRIN void values(const block_f32 *p, unsigned first, float (&out)[kN]) { scalar_values(p + first, out); }
template <int kN> INTRIN void values(const block_f16 *p, unsigned first, float (&out)[kN]) { scalar_values(p + first, out); }
template <int kN> INTRIN void values(const block_bf16 *p, unsigned first, float (&out)[kN]) { scalar_values(p + first, out); }
