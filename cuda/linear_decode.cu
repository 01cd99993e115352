// linear_decode: y = W x for up to 8 tokens, int8 activations, at the rate at which memory brings W.
//
// Math    y[t][j] = sum over blocks of e d (sum of int8 products), minus the minimums (int8.cuh)
// Shapes  x [1, k_tiles] and W [n / 16, k_tiles] tiles, y [m, n], m <= 8
// Tiling  a block of threads takes 16 rows at a time, its warps every kWarps-th tile of them; sums over the warps in order.
//         Each warp has a ring of kStages tiles of its own in shared memory and copies ahead across rows, so that between rows,
//         and before the kernels before this one have ended, memory is busy.
// Floor   bytes of W. 6144 x 24576 of Q4_K: 85 MB, 47 us at 1.79 TB/s.
// Limits  few rows: 16 of 2048 inputs are 18 KB for a block of threads. More tokens: instructions; see linear_gemm.
#include "common/int8.cuh"

template <class Block, int kTokens, int kStages, int kBlocks, int kWarps>
struct linear_decode_smem {
    typename tile<Block>::type ring[kWarps][kStages];
    float partial[kWarps][4][32];
};

template <class Block, int kTokens, int kStages, int kBlocks, int kWarps>
__device__ __forceinline__ void linear_decode(const linear_int8_params &p) {
    static_assert(kTokens == 1 || kTokens == TILE_TOKENS, "one token, or a tile of them");
    using of = tile<Block>;
    using type = typename of::type;
    constexpr bool kOne = kTokens == 1;
    constexpr int kChunks = sizeof(type) / 16;
    static_assert(sizeof(type) % 16 == 0, "whole copies");
    auto &shared = smem<linear_decode_smem<Block, kTokens, kStages, kBlocks, kWarps>>();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int k_tiles = static_cast<int>(p.k_tiles);
    const int row_tiles = static_cast<int>((p.n + TILE_ROWS - 1) / TILE_ROWS);
    const int mine = k_tiles > warp ? (k_tiles - warp + kWarps - 1) / kWarps : 0; // tiles of each row tile

    // Copies, tile after tile of this warp.
    int left = mine * ((row_tiles - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x));
    const type *from = static_cast<const type *>(p.w) + static_cast<uint64_t>(blockIdx.x) * k_tiles + warp;
    int copied = 0; // of this row tile
    const auto copy = [&](int to) {
        if (left > 0) {
            unsigned char *dst = reinterpret_cast<unsigned char *>(&shared.ring[warp][to]);
            const unsigned char *src = reinterpret_cast<const unsigned char *>(from);
#pragma unroll
            for (int c = 0; c < (kChunks + 31) / 32; ++c)
                if (kChunks % 32 == 0 || c * 32 + lane < kChunks) cp_async<16>(dst + (c * 32 + lane) * 16, src + (c * 32 + lane) * 16);
            --left;
            from += kWarps;
            if (++copied == mine) {
                copied = 0;
                from += static_cast<uint64_t>(gridDim.x) * k_tiles - mine * kWarps;
            }
        }
        cp_async_commit();
    };
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) copy(s);
    griddep_launch_dependents();
    griddep_wait();

    int reading = 0;
    for (int row_tile = blockIdx.x; row_tile < row_tiles; row_tile += gridDim.x) {
        float acc[4] = {};
#pragma unroll 1
        for (int i = 0; i < mine; ++i) {
            const tile_act &x = p.x[warp + i * kWarps];
            cp_async_wait<kStages - 2>();
            __syncwarp(); // the copies of other lanes are there, and all have read the tile before, which is overwritten now
            copy(reading == 0 ? kStages - 1 : reading - 1);
            const type &w = shared.ring[warp][reading];
            reading = reading + 1 == kStages ? 0 : reading + 1;
            const typename of::row heads[2] = {of::load(w, tile_row(lane, 0)), of::load(w, tile_row(lane, 1))};
            if constexpr (of::kMins) subtract_mins<Block>(acc, heads, lane, vector_at<uint2>(x.sums[lane]));
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                if constexpr (kBlocks > 2) compiler_fence(); // more warps instead of more loads ahead
                uint32_t a[2][4];
                of::fragments(w, c, lane, a);
                float s[2][2 * of::kGroups];
#pragma unroll
                for (int h = 0; h < 2; ++h) of::scales(heads[h], c, s[h]);
                const uint4 b = vector_at<uint4>(x.qs[c][lane]);
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    products<of::kGroups> sums;
                    sums.multiply(a[j], j == 0 ? b.x : b.z, j == 0 ? b.y : b.w);
                    float of_block[2][of::kGroups];
#pragma unroll
                    for (int h = 0; h < 2; ++h)
#pragma unroll
                        for (int u = 0; u < of::kGroups; ++u) of_block[h][u] = s[h][j * of::kGroups + u];
                    sums.template add<kOne>(acc, of_block,
                                            vector_at<float4>(x.scales[2 * c + j][lane % 4 * 2]));
                }
            }
        }

#pragma unroll
        for (int r = 0; r < 4; ++r) shared.partial[warp][r][lane] = acc[r];
        __syncthreads();
        for (int out = threadIdx.x; out < 128; out += 32 * kWarps) {
            const int r = out / 32, of_lane = out % 32;
            float y = shared.partial[0][r][of_lane];
#pragma unroll
            for (int other = 1; other < kWarps; ++other) y = __fadd_rn(y, shared.partial[other][r][of_lane]);
            const uint32_t row = row_tile * TILE_ROWS + tile_row(of_lane, r / 2), token = of_lane % 4 * 2 + r % 2;
            if (row < p.n && token < p.m) p.y[static_cast<uint64_t>(token) * p.n + row] = y;
        }
        __syncthreads();
    }
}
