// multiply_tile.cuh: a tile of int8 weights times tokens: the step of linear_decode and of the experts' kernels.
//
// Activations come in tiles of eight tokens or as rows of any tokens; a source tells where a lane finds, of eight tokens t of several:
//
//   quants(t, c)               registers of B for columns 64 c and on
//   scales<kColumns>(t, c, e)  scale and shift of the tokens of its columns in the result (int8.cuh), for the two blocks of these
//   sums(t)                    what the minimums meet
#pragma once
#include "int8.cuh"

// Of kColsAhead times 64 columns loads are on their way at a time.
template <class Block, int kColumns, int kColsAhead, int kTokenTiles, class Source>
INTRIN void multiply_tile(float (&acc)[kTokenTiles][4], const typename tile<Block>::type &w, int lane, const Source &x) {
    using of = tile<Block>;
    const typename of::row heads[2] = {of::load(w, tile_row(lane, 0)), of::load(w, tile_row(lane, 2))};
    if constexpr (of::kMins)
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) subtract_mins<Block>(acc[t], heads, lane, x.sums(t));
#pragma unroll kColsAhead
    for (int c = 0; c < 4; ++c) {
        uint32_t a[2][4];
        of::fragments(w, c, lane, a);
        float s[2][2 * of::kGroups];
#pragma unroll
        for (int h = 0; h < 2; ++h) of::scales(heads[h], c, s[h]);
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
            const uint4 b = x.quants(t, c);
            float2 e[2][kColumns];
            x.template scales<kColumns>(t, c, e);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                products<of::kGroups> sums;
                sums.multiply(a[j], j == 0 ? b.x : b.z, j == 0 ? b.y : b.w);
                float of_block[2][of::kGroups];
#pragma unroll
                for (int h = 0; h < 2; ++h)
#pragma unroll
                    for (int u = 0; u < of::kGroups; ++u) of_block[h][u] = s[h][j * of::kGroups + u];
                sums.template add<kColumns>(acc[t], of_block, e[j]);
            }
        }
    }
}

// Tiles of tokens, one after the other.
struct token_tiles {
    const tile_act *x;
    int lane;

    INTRIN uint4 quants(int t, int c) const { return vector_at<uint4>(x[t].qs[c][lane]); }
    INTRIN uint2 sums(int t) const { return vector_at<uint2>(x[t].sums[lane]); }
    template <int kColumns> INTRIN void scales(int t, int c, float2 (&e)[2][kColumns]) const {
#pragma unroll
        for (int j = 0; j < 2; ++j) of_tokens<kColumns>(x[t], 2 * c + j, lane, e[j]);
    }
};

// Rows of eight tokens: that of the lane's column of B, and those of its columns of the result.
struct token_rows {
    const row_act *of_quants, *of_scales[2];
    int lane;

    INTRIN uint4 quants(int, int c) const { return vector_at<uint4>(of_quants->qs[c][lane % 4]); }
    INTRIN uint2 sums(int) const { return vector_at<uint2>(of_quants->sums[lane % 4]); }
    template <int kColumns> INTRIN void scales(int, int c, float2 (&e)[2][kColumns]) const {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            const float4 both = vector_at<float4>(of_scales[i]->scales[2 * c]);
            e[0][i] = make_float2(both.x, both.y), e[1][i] = make_float2(both.z, both.w);
        }
    }
};
