// linear.cuh: what linear_dot and linear_tile share: neighbouring values of a row of weights or activations, straight from
// global memory. A block is read by several lanes and over several steps, so most of these loads hit L1.
#pragma once
#include "act.cuh"
#include "blocks.cuh"
#include "params/linear.h"

// Columns `col` to col + kN - 1 of a row of k values, of which some are behind its end: those are zeros.
template <class Block, int kN> INTRIN void tail_values(const Block *row, int col, int k, float (&v)[kN]) {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
        v[i] = 0.f;
        // Blocks of several values are 32 or 256, of which kN is a part: no row ends within it.
        if constexpr (decode<Block>::kElems == 1)
            if (col + i < k) v[i] = to_f32(row[col + i]);
    }
}

template <class Block, int kN> INTRIN void row_values(const Block *row, int col, int k, float (&v)[kN]) {
    if (col + kN <= k) values(row, col, v);
    else tail_values(row, col, k, v);
}

// The same of activations, rounded. By whole warps, of which neighbouring lanes take the parts of 32 columns.
template <int kN> INTRIN void activations(const float *row, int col, int k, linear_round round, float (&v)[kN]) {
    row_values(reinterpret_cast<const block_f32 *>(row), col, k, v);
    if (round == ROUND_INT8) {
        uint32_t amax = 0;
#pragma unroll
        for (int i = 0; i < kN; ++i) amax = max(amax, f32_bits(v[i]) & 0x7fffffffu);
#pragma unroll
        for (int lanes = 1; lanes < 32 / kN; lanes *= 2) amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, lanes));
        const float2 scale = act_scale(amax);
#pragma unroll
        for (int i = 0; i < kN; ++i) v[i] = act_rounded(v[i], scale);
    } else if (round == ROUND_BF16) {
#pragma unroll
        for (int i = 0; i < kN; ++i) v[i] = bf16_to_f32(f32_to_bf16(v[i]));
    }
}

// What a block of threads computes: kRows rows of W for kTokens tokens, both cut off at the end of the matrix. Tiles of the
// same rows follow each other, so that their weights are in L2.
template <class Block, int kRows, int kTokens> struct linear_place {
    const linear_params &p;
    uint32_t row, token; // the first

    INTRIN explicit linear_place(const linear_params &p) : p(p) {
        const uint32_t tiles = (p.m + kTokens - 1) / kTokens;
        row = blockIdx.x / tiles * kRows;
        token = blockIdx.x % tiles * kTokens;
    }
    // Row r of the tile; behind the end the last one again, whose result is not stored.
    INTRIN const Block *w_row(int r) const {
        const uint64_t j = uint64_t{blockIdx.y} * p.n + min(row + r, p.n - 1);
        return static_cast<const Block *>(p.w) + j * (p.k / decode<Block>::kElems);
    }
    INTRIN const float *x_row(int t) const {
        return p.x + blockIdx.y * p.x_head + min(token + t, p.m - 1) * p.x_stride;
    }
    INTRIN void store(int r, int t, float y) const {
        if (row + r < p.n && token + t < p.m) p.y[blockIdx.y * p.y_head + (token + t) * p.y_stride + row + r] = y;
    }
};
