// float_rows.cuh: rows of f32 in a launch of quantized matrices (linear_decode), for up to 16 tokens, in f32 arithmetic on the activations
// as they were before they were rounded. They are the work of blocks of threads of their own, so that others need no registers for it.
//
// A block of threads has 4 rows, which of 6144 columns are 98 KB, as much as 16 rows of Q4_K and their pair in a SwiGLU. A warp takes 64
// columns at a time, each half of it for half of the tokens, a lane 4 neighbouring columns of all four rows.
#pragma once
#include "blocks.cuh"

enum { FLOAT_ROWS = 4, FLOAT_COLS = 64 };

template <int kTokens, int kWarps> struct float_rows {
    static constexpr int kHalf = kTokens / 2, kValues = FLOAT_ROWS * kHalf; // tokens of a lane, and its sums
    static constexpr int kOfLane = kValues > 16 ? kValues / 16 : 1;         // of them when lanes have shared them out
    static constexpr int kLanes = kValues < 16 ? 16 / kValues : 1;          // that have the same one then
    static constexpr int kShare = kValues / kOfLane;
    struct smem_type {
        float partial[kWarps][kOfLane][32];
    };

    // Four rows of y = W x, `first` and on, by a block of threads. Rows of W and x have k values, which are whole loads. The weights
    // do not depend on the kernels before this one.
    static INTRIN void multiply(const linear_group &group, uint32_t first, const float *x, uint32_t m, uint32_t k) {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = lane / 16 * kHalf;
        const auto row_of = [&](uint32_t r) { // behind the end the last one again, whose results are not stored
            return static_cast<const float *>(group.w) + uint64_t{min(first + r, group.n - 1)} * k;
        };
        if (warp == 0 && lane < FLOAT_ROWS) bulk_prefetch_l2(row_of(lane), k * 4);
        const float *rows[FLOAT_ROWS];
#pragma unroll
        for (uint32_t r = 0; r < FLOAT_ROWS; ++r) rows[r] = row_of(r);
        griddep_launch_dependents();
        griddep_wait();

        // Times 64 columns whose loads are on their way at a time, and their tokens: as there are registers for.
        constexpr int kAhead = kTokens > 8 ? 1 : kTokens == 8 ? 2 : 3, kAtOnce = kHalf < 4 ? kHalf : kTokens > 8 ? 2 : 4;
        float sums[kOfLane][kShare] = {};
        for (uint32_t begin = warp * FLOAT_COLS; begin < k; begin += kAhead * kWarps * FLOAT_COLS) {
            float4 w[kAhead][FLOAT_ROWS], of_tokens[kAhead][kAtOnce];
#pragma unroll
            for (int t = 0; t < kHalf; t += kAtOnce) {
#pragma unroll
                for (int c = 0; c < kAhead; ++c) {
                    const uint32_t col = begin + c * kWarps * FLOAT_COLS + lane % 16 * 4;
                    if (col >= k) continue;
#pragma unroll
                    for (int r = 0; r < FLOAT_ROWS; ++r)
                        if (t == 0) w[c][r] = vector_at<float4>(rows[r] + col);
#pragma unroll
                    for (uint32_t i = 0; i < kAtOnce; ++i) // tokens behind the last are that one again
                        of_tokens[c][i] = vector_at<float4>(x + uint64_t{min(token + t + i, m - 1)} * k + col);
                }
#pragma unroll
                for (int c = 0; c < kAhead; ++c) {
                    if (begin + c * kWarps * FLOAT_COLS + lane % 16 * 4 >= k) continue;
#pragma unroll
                    for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
                        for (int r = 0; r < FLOAT_ROWS; ++r) {
                            const int value = r * kHalf + t + i;
                            float &sum = sums[value / kShare][value % kShare];
                            sum = __fmaf_rn(w[c][r].x, of_tokens[c][i].x, sum), sum = __fmaf_rn(w[c][r].y, of_tokens[c][i].y, sum);
                            sum = __fmaf_rn(w[c][r].z, of_tokens[c][i].z, sum), sum = __fmaf_rn(w[c][r].w, of_tokens[c][i].w, sum);
                        }
                }
            }
        }

        // Over the lanes and then the warps, in an order that does not depend on the number of tokens.
        auto &partial = smem<smem_type>().partial;
#pragma unroll
        for (int i = 0; i < kOfLane; ++i) {
            share<8, kShare>(sums[i], lane);
            partial[warp][i][lane] = sums[i][0];
        }
        __syncthreads();
        if (warp >= kOfLane) return;
        float y = partial[0][warp][lane];
#pragma unroll
        for (int other = 1; other < kWarps; ++other) y = __fadd_rn(y, partial[other][warp][lane]);
        const uint32_t value = warp * 16 + lane % 16 / kLanes, row = first + value / kHalf, t = token + value % kHalf;
        if (row < group.n && t < m) group.y[uint64_t{t} * group.y_stride + row] = y;
    }

  private:
    // kN values with the lane that is kOther away: half of them stay, the others go there; one alone is added up on both.
    template <int kOther, int kN> static INTRIN void share(float (&v)[kShare], uint32_t lane) {
        constexpr int kStay = kN > 1 ? kN / 2 : 1;
        const bool upper = kN > 1 && (lane & kOther) != 0;
#pragma unroll
        for (int j = 0; j < kStay; ++j) {
            const float stays = upper ? v[kN - kStay + j] : v[j], goes = upper ? v[j] : v[kN - kStay + j];
            v[j] = __fadd_rn(stays, __shfl_xor_sync(0xffffffffu, goes, kOther));
        }
        if constexpr (kOther > 1) share<kOther / 2, kStay>(v, lane);
    }
};
