// int8.cuh: products of weight tiles and activation tiles; the inner step of linear_decode and linear_gemm.
//
// A sum of int8 products over the 32 (or 16) columns of a scale becomes a float without a conversion: it begins with the bits
// of 3 * 2^22, where an f32 has a step of 1, so that the result is that number plus the sum. One FMA takes it off and
// multiplies by the scale of the activations: c * e - 3 * 2^22 e, where the product is exact and so is 3 * 2^22 e, as e has 22
// bits. Sums stay below 2^22: 32 * 127 * 128. A second FMA multiplies by the scale of the weights and adds up.
#pragma once
#include "places.cuh"
#include "tile.cuh"

constexpr int32_t kShiftBits = 0x4b400000; // of 3 * 2^22

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

// Of a block of 32 columns, for the first kColumns of a lane: the scale of the token there, and -3 * 2^22 times that.
template <int kColumns> INTRIN void of_tokens(const tile_act &x, int block, int lane, float2 (&e)[kColumns]) {
    if constexpr (kColumns == 1) {
        e[0] = vector_at<float2>(x.scales[block][lane % 4 * 2]);
    } else {
        const float4 both = vector_at<float4>(x.scales[block][lane % 4 * 2]);
        e[0] = make_float2(both.x, both.y), e[1] = make_float2(both.z, both.w);
    }
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
    // `s[h][j]`: scales of the two rows of the lane. `e[i]`: scale and shift of the token of its column i, of the first kColumns.
    template <int kColumns> INTRIN void add(float (&acc)[4], const float (&s)[2][kGroups], const float2 (&e)[kColumns]) const {
#pragma unroll
        for (int j = 0; j < kGroups; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int i = 0; i < kColumns; ++i) {
                    const int r = 2 * h + i;
                    acc[r] = __fmaf_rn(s[h][j], __fmaf_rn(__int_as_float(d[j][r]), e[i].x, e[i].y), acc[r]);
                }
    }
};
