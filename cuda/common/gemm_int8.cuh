// gemm_int8.cuh: the step of linear_gemm on int8 activations: a warp's rows and tokens, 256 columns.
#pragma once
#include "int8.cuh"

template <class Block, int kRows, int kTokens> struct gemm_int8 {
    using of = tile<Block>;
    using weights = typename of::type;
    using activations = tile_act;
    static constexpr int kGroups = of::kGroups;
    float sums[kRows][kTokens][4];

    INTRIN void clear() {
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int t = 0; t < kTokens; ++t) sums[r][t][0] = sums[r][t][1] = sums[r][t][2] = sums[r][t][3] = 0.f;
    }

    INTRIN void add(const weights *w, const activations *x, int lane) {
        typename of::row heads[kRows][2];
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int h = 0; h < 2; ++h) heads[r][h] = of::load(w[r], tile_row(lane, 2 * h));
        if constexpr (of::kMins) {
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                const uint2 of_blocks = vector_at<uint2>(x[t].sums[lane]);
#pragma unroll
                for (int r = 0; r < kRows; ++r) subtract_mins<Block>(sums[r][t], heads[r], lane, of_blocks);
            }
        }
        constexpr int kColsAhead = sizeof(weights) > 4096 ? 2 : 1; // of 64: more of Q8_0 take the registers of the sums
#pragma unroll kColsAhead
        for (int c = 0; c < 4; ++c) {
            uint32_t a[kRows][2][4];
            float s[kRows][2][2 * kGroups];
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                of::fragments(w[r], c, lane, a[r]);
#pragma unroll
                for (int h = 0; h < 2; ++h) of::scales(heads[r][h], c, s[r][h]);
            }
            // Products of one tile of tokens are scaled while the matrix units make those of the next.
            products<kGroups> made[2][kRows][2];
            float2 e[2][2][2];
            const auto multiply = [&](int t) {
                const uint4 b = vector_at<uint4>(x[t].qs[c][lane]);
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    of_tokens<2>(x[t], 2 * c + j, lane, e[t % 2][j]);
#pragma unroll
                    for (int r = 0; r < kRows; ++r) made[t % 2][r][j].multiply(a[r][j], j == 0 ? b.x : b.z, j == 0 ? b.y : b.w);
                }
            };
            multiply(0);
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                if (t + 1 < kTokens) multiply(t + 1);
#pragma unroll
                for (int j = 0; j < 2; ++j)
#pragma unroll
                    for (int r = 0; r < kRows; ++r) {
                        float of_block[2][kGroups];
#pragma unroll
                        for (int h = 0; h < 2; ++h)
#pragma unroll
                            for (int u = 0; u < kGroups; ++u) of_block[h][u] = s[r][h][j * kGroups + u];
                        made[t % 2][r][j].template add<2>(sums[r][t], of_block, e[t % 2][j]);
                    }
            }
        }
    }

    // Scales are in the products.
    INTRIN void take_scales(const activations *, int) {}
    INTRIN void finish() {}
};
