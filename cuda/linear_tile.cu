// linear_tile: y = W x for many tokens, W of any type, in f32: tiles of W are decoded once for kTokens tokens.
//
// Math    as linear_dot
// Shapes  as linear_dot
// Tiling  one block of threads for kRows rows and kTokens tokens, a warp for 32 x 32 of them, a lane for 8 x 4. Steps of 32
//         columns go through shared memory, two of them: while one is multiplied the next is decoded into the other.
// Floor   2 m n k operations of the FMA units. 512 x 2048 x 6144: 12.9 Gflop, 0.20 ms at 66 Tflop/s (H200).
// Limits  f32 has no tensor cores. Loads are not issued ahead of the step that needs them: other warps hide them.
#include "common/linear.cuh"

constexpr int kTileStep = 32; // columns: one int8 block of activations

template <class Block, int kRows, int kTokens, int kWarps>
struct linear_tile_smem {
    // Column by column, so that a lane reads neighbouring rows at once. The upper half of the columns has its rows XORed with
    // 16: the lanes that store hold 16 rows and 2 halves, and so meet all banks.
    alignas(16) float w[2][kTileStep][kRows], x[2][kTileStep][kTokens];
};

template <class Block, int kRows, int kTokens, int kWarps>
__device__ __forceinline__ void linear_tile(const linear_params &p) {
    static_assert(kRows % 32 == 0 && kTokens % 32 == 0 && kWarps == kRows / 32 * (kTokens / 32), "32 x 32 for a warp");
    constexpr int kThreads = 32 * kWarps;
    constexpr int kCols = kTileStep / 2; // columns that a thread decodes at a time
    static_assert(kRows * 2 % kThreads == 0 && kTokens * 2 % kThreads == 0, "all threads store");
    constexpr int kFold = 256; // columns in one chain of sums: keeps rounding errors small in long rows
    auto &s = smem<linear_tile_smem<Block, kRows, kTokens, kWarps>>();
    const linear_place<Block, kRows, kTokens> place(p);
    const int k = static_cast<int>(p.k);

    // Filling: two threads take the columns of a row.
    const int half = threadIdx.x % 2 * kCols, first_row = threadIdx.x / 2;
    const auto fill = [&](int stage, int step) {
        float v[kCols];
#pragma unroll
        for (int r = first_row; r < kRows; r += kThreads / 2) {
            row_values(place.w_row(r), step + half, k, v);
#pragma unroll
            for (int i = 0; i < kCols; ++i) s.w[stage][half + i][r ^ half] = v[i];
        }
#pragma unroll
        for (int t = first_row; t < kTokens; t += kThreads / 2) {
            activations(place.x_row(t), step + half, k, p.round, v);
#pragma unroll
            for (int i = 0; i < kCols; ++i) s.x[stage][half + i][t ^ half] = v[i];
        }
    };

    // Multiplying: rows row to row + 3 and 16 further, tokens token to token + 3. The lanes of a warp read 64 neighbouring bytes
    // of w and 128 of x.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp % (kRows / 32) * 32 + lane % 4 * 4, token = warp / (kRows / 32) * 32 + lane / 4 * 4;
    float sums[8][4] = {};
    int stage = 0;
    fill(0, 0);
    __syncthreads();
    for (int first = 0; first < k; first += kFold) {
        float chain[8][4] = {};
        const int end = min(first + kFold, k);
        for (int step = first; step < end; step += kTileStep) {
            if (step + kTileStep < k) fill(stage ^ 1, step + kTileStep);
#pragma unroll 1
            for (int c = 0; c < kTileStep; c += kCols) {
#pragma unroll
                for (int i = 0; i < kCols; ++i) {
                    const float4 w0 = *reinterpret_cast<const float4 *>(&s.w[stage][c + i][row ^ c]);
                    const float4 w1 = *reinterpret_cast<const float4 *>(&s.w[stage][c + i][(row + 16) ^ c]);
                    const float4 x0 = *reinterpret_cast<const float4 *>(&s.x[stage][c + i][token ^ c]);
                    const float w[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w}, x[4] = {x0.x, x0.y, x0.z, x0.w};
#pragma unroll
                    for (int r = 0; r < 8; ++r)
#pragma unroll
                        for (int t = 0; t < 4; ++t) chain[r][t] = __fmaf_rn(w[r], x[t], chain[r][t]);
                }
            }
            __syncthreads(); // the next step is stored, and this one no longer read
            stage ^= 1;
        }
#pragma unroll
        for (int r = 0; r < 8; ++r)
#pragma unroll
            for (int t = 0; t < 4; ++t) sums[r][t] = __fadd_rn(sums[r][t], chain[r][t]);
    }

#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
        for (int r = 0; r < 8; ++r) place.store(row + r % 4 + r / 4 * 16, token + t, sums[r][t]);
}
