// float_rows.cuh: a few rows of f32 and a few tokens, in f32 arithmetic: what router is made of, and rows that join a launch of quantized
// matrices (linear_decode) as blocks of threads of their own, so that others need no registers for it.
//
// A block of threads has 4 rows (or 2) and 4 tokens: of 6144 columns 98 KB of each, about what 16 rows of Q4_K and their pair in a SwiGLU
// are, so that the last block to end is not one of these. A warp takes 64 columns at a time, each half of it for two of the tokens, a lane
// 4 neighbouring columns of all rows.
#pragma once
#include "blocks.cuh"

enum { FLOAT_ROWS = 4, FLOAT_TOKENS = 4, FLOAT_COLS = 64 };

template <int kWarps> struct float_rows_smem {
    float partial[kWarps][32];
};

// Adds up kN values over lanes that are kOther and less away: half of what is left stays and half goes to the other lane, until both have
// the same one, sums[0].
template <int kOther, int kN, int kAll> INTRIN void share_sums(float (&sums)[kAll], uint32_t lane) {
    constexpr int kStay = kN > 1 ? kN / 2 : 1;
    const bool upper = kN > 1 && (lane & kOther) != 0;
#pragma unroll
    for (int i = 0; i < kStay; ++i) {
        const float stays = upper ? sums[kN - kStay + i] : sums[i], goes = upper ? sums[i] : sums[kN - kStay + i];
        sums[i] = __fadd_rn(stays, __shfl_xor_sync(0xffffffffu, goes, kOther));
    }
    if constexpr (kOther > 1) share_sums<kOther / 2, kStay>(sums, lane);
}

// Rows of y = W x, `row` and on of n, for tokens `token` and on of m, by a block of threads, of which the first warp gives y to
// store(row, token, y), more than once. Rows of W and of x have k values, which are whole loads. Loads of kAhead times 64 columns are on their way
// at a time.
template <int kRows, int kWarps, int kAhead, class Store>
INTRIN void multiply_float_rows(const float *matrix, uint32_t row, uint32_t n, const float *x, uint32_t token, uint32_t m, uint32_t k, Store store) {
    constexpr int kTokens = FLOAT_TOKENS / 2; // of a lane
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    token += lane / 16 * kTokens;
    // Rows and tokens behind the end are the last one again, whose results are not stored.
    const auto row_of = [&](uint32_t r) { return matrix + uint64_t{min(row + r, n - 1)} * k; };
    if (warp == 0 && lane < kRows) bulk_prefetch_l2(row_of(lane), k * 4); // weights do not depend on the kernels before this one
    const float *rows[kRows], *tokens[kTokens];
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) rows[r] = row_of(r);
#pragma unroll
    for (uint32_t t = 0; t < kTokens; ++t) tokens[t] = x + uint64_t{min(token + t, m - 1)} * k;
    griddep_launch_dependents();
    griddep_wait();

    float sums[kRows * kTokens] = {};
    for (uint32_t begin = warp * FLOAT_COLS; begin < k; begin += kAhead * kWarps * FLOAT_COLS) {
        float4 w[kAhead][kRows], of_tokens[kAhead][kTokens];
#pragma unroll
        for (int c = 0; c < kAhead; ++c) {
            const uint32_t col = begin + c * kWarps * FLOAT_COLS + lane % 16 * 4;
            if (col >= k) continue;
#pragma unroll
            for (int r = 0; r < kRows; ++r) w[c][r] = vector_at<float4>(rows[r] + col);
#pragma unroll
            for (int t = 0; t < kTokens; ++t) of_tokens[c][t] = vector_at<float4>(tokens[t] + col);
        }
#pragma unroll
        for (int c = 0; c < kAhead; ++c) {
            if (begin + c * kWarps * FLOAT_COLS + lane % 16 * 4 >= k) continue;
#pragma unroll
            for (int i = 0; i < kRows * kTokens; ++i) {
                const float4 &a = w[c][i / kTokens], &b = of_tokens[c][i % kTokens];
                sums[i] = __fmaf_rn(a.x, b.x, sums[i]), sums[i] = __fmaf_rn(a.y, b.y, sums[i]);
                sums[i] = __fmaf_rn(a.z, b.z, sums[i]), sums[i] = __fmaf_rn(a.w, b.w, sums[i]);
            }
        }
    }

    // Over the 16 lanes and then the warps.
    constexpr int kSame = 16 / (kRows * kTokens); // lanes that are left with the same one
    static_assert(kRows == 4 || kRows == 2, "two or four of them");
    share_sums<8, kRows * kTokens>(sums, lane);
    auto &partial = smem<float_rows_smem<kWarps>>().partial;
    partial[warp][lane] = sums[0];
    __syncthreads();
    if (warp > 0) return;
    float y = partial[0][lane];
#pragma unroll
    for (int other = 1; other < kWarps; ++other) y = __fadd_rn(y, partial[other][lane]);
    const uint32_t i = lane % 16 / kSame;
    row += i / kTokens, token += i % kTokens;
    if (row < n && token < m) store(row, token, y);
}
