// int8.cuh: products of weight tiles and activation tiles; the inner step of linear_decode and linear_gemm.
//
// A sum of int8 products over the 32 (or 16) columns of a scale becomes a float without a conversion: it begins with the bits
// of 3 * 2^22, where an f32 has a step of 1, so that the result is that number plus the sum. One FMA takes it off and
// multiplies by the scale of the activations: c * e - 3 * 2^22 e, where the product is exact and so is 3 * 2^22 e, as e has 22
// bits. Sums stay below 2^22: 32 * 127 * 128. A second FMA multiplies by the scale of the weights and adds up.
#pragma once
#include "tile.cuh"

constexpr int32_t kShiftBits = 0x4b400000; // of 3 * 2^22

// Rows of D that a lane has.
INTRIN int tile_row(int lane, int h) { return lane / 4 + 8 * h; }

// acc -= minimums of the lane's rows times the sums of the blocks, over 256 columns.
template <class Block> INTRIN void subtract_mins(float (&acc)[4], const typename tile<Block>::row (&heads)[2], int lane, uint2 sums) {
    // The same operand for the upper and the lower parts of the sums.
    uint32_t a[4];
#pragma unroll
    for (int h = 0; h < 2; ++h) a[h] = a[2 + h] = tile<Block>::mins(heads[h], lane % 4);
    float d[4];
    const uint32_t b[2] = {sums.x, sums.y};
    mma_m16n8k16_bf16_zero(d, a, b);
#pragma unroll
    for (int r = 0; r < 4; ++r) acc[r] = __fmaf_rn(-tile<Block>::dmin(heads[r / 2]), d[r], acc[r]);
}

// Sums of products of 32 columns: one for each scale of the weights.
template <int kGroups> struct products {
    int32_t d[kGroups][4];

    INTRIN void multiply(const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        if constexpr (kGroups == 1) {
            const uint32_t b[2] = {b0, b1};
            mma_m16n8k32_s8_from(kShiftBits, d[0], a, b);
        } else {
            const uint32_t a0[2] = {a[0], a[1]}, a1[2] = {a[2], a[3]}, lower[1] = {b0}, upper[1] = {b1};
            mma_m16n8k16_s8_from(kShiftBits, d[0], a0, lower);
            mma_m16n8k16_s8_from(kShiftBits, d[1], a1, upper);
        }
    }
    // `s[h][j]`: scales of the two rows of the lane. `e`: scale and shift of the tokens of its two columns. Of columns that
    // nobody asked for (kOne: all but the first of the tile) nothing is computed.
    template <bool kOne> INTRIN void add(float (&acc)[4], const float (&s)[2][kGroups], float4 e) const {
#pragma unroll
        for (int j = 0; j < kGroups; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                acc[2 * h] = __fmaf_rn(s[h][j], __fmaf_rn(__int_as_float(d[j][2 * h]), e.x, e.y), acc[2 * h]);
                if constexpr (!kOne)
                    acc[2 * h + 1] = __fmaf_rn(s[h][j], __fmaf_rn(__int_as_float(d[j][2 * h + 1]), e.z, e.w), acc[2 * h + 1]);
            }
    }
};
