// moe_dot: products of experts of any type in blocks with the tokens that chose them, in f32: a dot product for each row and place.
//
// Math    out[place][j] = sum_i W[expert][j][i] x[row][i]; W decoded to f32, x as it is or rounded (linear_round), FMAs in f32. The row
//         is the token of the place's pair, or the place
// Shapes  W [experts, n, k], x [m, k] or [places, k], out [places, n]; tiles of at most kTokens places (moe_sort.cu)
// Tiling  one block of threads for kRows rows and a tile, as linear_dot.cu has it. Blocks of threads of an expert are neighbours, those of
//         the same rows first, so that W comes from memory once. The grid is for as many tiles as there may be; what has none ends.
// Floor   the bytes of the experts that were chosen. 8 of 2048 x 6144 of Q4_K: 57 MB, 35 us at 1.61 TB/s.
// Limits  those of linear_dot: decoding takes as long as memory, or longer, and is done again for every kTokens places of an expert.
#include "common/linear.cuh"
#include "common/pairs.cuh"
#include "common/row.cuh"
#include "params/moe_dot.h"

template <class Block, int kRows, int kTokens, int kCols, int kWarps> struct moe_dot_smem {
    float partial[kWarps][kRows * kTokens];
};

template <class Block, int kRows, int kTokens, int kCols, int kWarps>
__device__ __forceinline__ void moe_dot(const moe_dot_params &p) {
    static_assert(kRows * kTokens <= 32 * kWarps, "a thread for each output");
    constexpr int kStep = 32 * kCols; // columns of a warp
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int k = static_cast<int>(p.k);
    griddep_wait();
    griddep_launch_dependents();

    // Any tile of this block's expert, then the one of this block: all tiles of some rows, then those of the next.
    const uint32_t across = (p.n + kRows - 1) / kRows, any = blockIdx.x / across;
    if (any >= p.counters[0]) return;
    const moe_tile expert = p.tiles[any];
    const uint32_t number = blockIdx.x - expert.begin * across, row = number / expert.tiles * kRows;
    const moe_tile tile = p.tiles[expert.begin + number % expert.tiles];
    const int n_tokens = min(static_cast<int>(tile.count), kTokens);
    const Block *rows[kRows];
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) {
        const uint64_t j = uint64_t{tile.expert} * p.n + min(row + r, p.n - 1); // behind the end the last one again
        rows[r] = static_cast<const Block *>(p.w) + j * (p.k / decode<Block>::kElems);
    }
    const float *tokens[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
        const uint32_t place = tile.first + min(t, n_tokens - 1);
        tokens[t] = p.x + uint64_t{p.sorted != nullptr ? p.sorted[place] / p.top_k : place} * p.k;
    }

    float sums[kRows][kTokens] = {};
    for (int step = warp * kStep; step < k; step += kWarps * kStep) {
        const int col = step + lane * kCols;
        float x[kTokens][kCols] = {};
#pragma unroll
        for (int t = 0; t < kTokens; ++t)
            if (t < n_tokens) activations(tokens[t], col, k, p.round, x[t]);
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
    auto &partial = smem<moe_dot_smem<Block, kRows, kTokens, kCols, kWarps>>().partial;
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
    const uint32_t r = out / kTokens;
    const int t = out % kTokens;
    if (row + r < p.n && t < n_tokens) p.y[uint64_t{tile.first + t} * p.n + row + r] = y;
}
