// float_rows.cuh: rows of f32 in a launch of quantized matrices (linear_decode), for few tokens, in f32 arithmetic on the activations as
// they were before they were rounded. They are the work of blocks of threads of their own, so that others need no registers for it.
//
// A block of threads has 4 rows and 4 tokens: of 6144 columns 98 KB of each, about what 16 rows of Q4_K and their pair in a SwiGLU are,
// so that the last block to end is not one of these. A warp takes 64 columns at a time, each half of it for two of the tokens, a lane 4
// neighbouring columns of all four rows.
#pragma once
#include "blocks.cuh"

enum { FLOAT_ROWS = 4, FLOAT_TOKENS = 4, FLOAT_COLS = 64 };

template <int kWarps> struct float_rows_smem {
    float partial[kWarps][32];
};

// Rows of y = W x, `row` and on, for tokens `token` and on, by a block of threads. Rows of W and of x have k values, which are whole loads.
// Loads of kAhead times 64 columns are on their way at a time.
template <int kWarps, int kAhead>
INTRIN void multiply_float_rows(const linear_group &group, uint32_t row, const float *x, uint32_t token, uint32_t m, uint32_t k) {
    constexpr int kTokens = FLOAT_TOKENS / 2; // of a lane
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    token += lane / 16 * kTokens;
    // Rows and tokens behind the end are the last one again, whose results are not stored.
    const auto row_of = [&](uint32_t r) { return static_cast<const float *>(group.w) + uint64_t{min(row + r, group.n - 1)} * k; };
    if (warp == 0 && lane < FLOAT_ROWS) bulk_prefetch_l2(row_of(lane), k * 4); // weights do not depend on the kernels before this one
    const float *rows[FLOAT_ROWS], *tokens[kTokens];
#pragma unroll
    for (uint32_t r = 0; r < FLOAT_ROWS; ++r) rows[r] = row_of(r);
#pragma unroll
    for (uint32_t t = 0; t < kTokens; ++t) tokens[t] = x + uint64_t{min(token + t, m - 1)} * k;
    griddep_launch_dependents();
    griddep_wait();

    float sums[FLOAT_ROWS * kTokens] = {};
    for (uint32_t begin = warp * FLOAT_COLS; begin < k; begin += kAhead * kWarps * FLOAT_COLS) {
        float4 w[kAhead][FLOAT_ROWS], of_tokens[kAhead][kTokens];
#pragma unroll
        for (int c = 0; c < kAhead; ++c) {
            const uint32_t col = begin + c * kWarps * FLOAT_COLS + lane % 16 * 4;
            if (col >= k) continue;
#pragma unroll
            for (int r = 0; r < FLOAT_ROWS; ++r) w[c][r] = vector_at<float4>(rows[r] + col);
#pragma unroll
            for (int t = 0; t < kTokens; ++t) of_tokens[c][t] = vector_at<float4>(tokens[t] + col);
        }
#pragma unroll
        for (int c = 0; c < kAhead; ++c) {
            if (begin + c * kWarps * FLOAT_COLS + lane % 16 * 4 >= k) continue;
#pragma unroll
            for (int i = 0; i < FLOAT_ROWS * kTokens; ++i) {
                const float4 &a = w[c][i / kTokens], &b = of_tokens[c][i % kTokens];
                sums[i] = __fmaf_rn(a.x, b.x, sums[i]), sums[i] = __fmaf_rn(a.y, b.y, sums[i]);
                sums[i] = __fmaf_rn(a.z, b.z, sums[i]), sums[i] = __fmaf_rn(a.w, b.w, sums[i]);
            }
        }
    }

    // Over the 16 lanes: of what is left half stays and half goes to the other lane, until both have the same one. Then over the warps.
#pragma unroll
    for (int other = 8, n = FLOAT_ROWS * kTokens / 2; other > 1; other /= 2, n /= 2)
#pragma unroll
        for (int i = 0; i < n; ++i) {
            const bool upper = (lane & other) != 0;
            const float stays = upper ? sums[n + i] : sums[i], goes = upper ? sums[i] : sums[n + i];
            sums[i] = __fadd_rn(stays, __shfl_xor_sync(0xffffffffu, goes, other));
        }
    static_assert(FLOAT_ROWS * kTokens == 8, "one is left when lanes are neighbours");
    auto &partial = smem<float_rows_smem<kWarps>>().partial;
    partial[warp][lane] = __fadd_rn(sums[0], __shfl_xor_sync(0xffffffffu, sums[0], 1));
    __syncthreads();
    if (warp > 0) return;
    float y = partial[0][lane];
#pragma unroll
    for (int other = 1; other < kWarps; ++other) y = __fadd_rn(y, partial[other][lane]);
    const uint32_t i = lane % 16 / 2;
    row += i / kTokens, token += i % kTokens;
    if (row < group.n && token < m) group.y[uint64_t{token} * group.y_stride + row] = y;
}
