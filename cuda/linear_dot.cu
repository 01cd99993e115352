// linear_dot: y = W x for few tokens, W of any type, in f32: a dot product for each row and token.
//
// Math    y[t][j] = sum_i W[j][i] x[t][i]; W decoded to f32, x as it is or rounded (linear_round), FMAs in f32
// Shapes  x [m, k], W [n, k], y [m, n], each once per slab
// Tiling  one block of threads for kRows rows and kTokens tokens; its warps take turns at steps of 32 kCols columns, a lane has
//         kCols neighbouring ones. A weight is decoded in registers and used for kTokens tokens, an activation for kRows rows.
// Floor   the bytes of W. 2048 x 6144 of Q4_K: 7.1 MB, 4.4 us at 1.61 TB/s.
// Limits  16 weights of Q4_K take about 170 instructions, so an SM does 12 weights a cycle: 40 % of the rate of an H200's memory,
//         more than that of an RTX PRO 6000's. More than kTokens tokens decode W again.
#include "common/linear.cuh"
#include "common/row.cuh"

template <class Block, int kRows, int kTokens, int kCols, int kWarps>
struct linear_dot_smem {
    float partial[kWarps][kRows * kTokens];
};

template <class Block, int kRows, int kTokens, int kCols, int kWarps>
__device__ __forceinline__ void linear_dot(const linear_params &p) {
    static_assert(kRows * kTokens <= 32 * kWarps, "a thread for each output");
    constexpr int kStep = 32 * kCols; // columns of a warp
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const linear_place<Block, kRows, kTokens> place(p);
    const int k = static_cast<int>(p.k);
    const int n_tokens = static_cast<int>(min(p.m - place.token, uint32_t{kTokens}));
    const Block *rows[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) rows[r] = place.w_row(r);
    griddep_launch_dependents();
    griddep_wait();

    float sums[kRows][kTokens] = {};
    for (int step = warp * kStep; step < k; step += kWarps * kStep) {
        const int col = step + lane * kCols;
        float x[kTokens][kCols] = {};
#pragma unroll
        for (int t = 0; t < kTokens; ++t)
            if (t < n_tokens) activations(place.x_row(t), col, k, p.round, x[t]);
        const auto multiply = [&](const float (&w)[kCols], float (&sums)[kTokens]) {
#pragma unroll
            for (int t = 0; t < kTokens; ++t)
#pragma unroll
                for (int i = 0; i < kCols; ++i) sums[t] = __fmaf_rn(w[i], x[t][i], sums[t]);
        };
        // One branch around all rows, so that the loads of all can be issued before the first is decoded.
        if (col + kCols <= k) {
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                float w[kCols];
                values(rows[r], col, w);
                multiply(w, sums[r]);
            }
        } else if (decode<Block>::kElems == 1 && col < k) {
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                float w[kCols];
                tail_values(rows[r], col, k, w);
                multiply(w, sums[r]);
            }
        }
    }

    // Over the lanes, then over the warps, always in the same order.
    auto &partial = smem<linear_dot_smem<Block, kRows, kTokens, kCols, kWarps>>().partial;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            const float sum = warp_sum(sums[r][t]);
            if (lane == 0) partial[warp][r * kTokens + t] = sum;
        }
    __syncthreads();
    const int out = threadIdx.x;
    if (out >= kRows * kTokens) return;
    float y = partial[0][out];
#pragma unroll
    for (int other = 1; other < kWarps; ++other) y = __fadd_rn(y, partial[other][out]);
    place.store(out / kTokens, out % kTokens, y);
}
