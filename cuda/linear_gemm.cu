// linear_gemm: y = W x for many tokens, int8 activations, by integer matrix instructions.
//
// Math    as linear_decode
// Shapes  x [ceil(m / 8), k_tiles] and W [ceil(n / 16), k_tiles] tiles, y [m, n]
// Tiling  one block of threads for 16 kRows kRowWarps rows and 8 kTokens kTokenWarps tokens at a time, a warp for 16 kRows by 8
//         kTokens of them. Steps of 256 columns: whole tiles, each of which one thread has the copy engine bring to shared
//         memory, the next step while this one is multiplied. The steps of all tiles of y are dealt out evenly; a tile that
//         several blocks of threads share is summed up by the last of them, in order (linear_share).
// Floor   2 m n k operations of the matrix units: 2048 x 24576 x 6144 at 1250 Tops, 0.49 ms
// Limits  instructions: 14 for each matrix instruction, 8 of them the FMAs that scale (int8.cuh); an SM of an H200 issues as many
//         while its matrix units do two. On sm_120 these take 2.5 times as long and bind.
#include "common/int8.cuh"

template <class Block, int kRows, int kTokens, int kRowWarps, int kTokenWarps, int kBlocks, int kWarps>
struct linear_gemm_smem {
    struct stage {
        typename tile<Block>::type w[kRows * kRowWarps];
        tile_act x[kTokens * kTokenWarps];
    };
    alignas(128) stage stages[2];
    mbarrier full[2];
    uint32_t last;
};

// The steps of a block of threads: tiles of y one after the other, of each a range of steps. `steps` for each of `tiles`, dealt
// out to `blocks` as evenly as can be.
struct linear_share {
    uint32_t steps, tiles, blocks;

    INTRIN uint64_t begin(uint32_t block) const { return uint64_t{steps} * tiles * block / blocks; }
    // The block of threads that has a step.
    INTRIN uint32_t owner(uint64_t step) const {
        uint32_t block = static_cast<uint32_t>(step * blocks / (uint64_t{steps} * tiles));
        while (begin(block + 1) <= step) ++block;
        while (begin(block) > step) --block;
        return block;
    }
};

template <class Block, int kRows, int kTokens, int kRowWarps, int kTokenWarps, int kBlocks, int kWarps>
__device__ __forceinline__ void linear_gemm(const linear_gemm_params &p) {
    static_assert(kWarps == kRowWarps * kTokenWarps, "a warp for each part");
    using of = tile<Block>;
    using type = typename of::type;
    constexpr int kRowTiles = kRows * kRowWarps, kTokenTiles = kTokens * kTokenWarps; // of a block of threads
    [[maybe_unused]] constexpr int kColsAhead = sizeof(type) > 4096 ? 2 : 4; // of 64: more of Q8_0 take the registers of the sums
    constexpr unsigned kStageBytes = kRowTiles * sizeof(type) + kTokenTiles * sizeof(tile_act);
    auto &shared = smem<linear_gemm_smem<Block, kRows, kTokens, kRowWarps, kTokenWarps, kBlocks, kWarps>>();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row_warp = warp % kRowWarps * kRows, token_warp = warp / kRowWarps * kTokens;
    const uint32_t row_tiles = (p.n + TILE_ROWS - 1) / TILE_ROWS, token_tiles = (p.m + TILE_TOKENS - 1) / TILE_TOKENS;
    const uint32_t across = (token_tiles + kTokenTiles - 1) / kTokenTiles; // tiles of y with the same rows, which share weights
    const linear_share share{p.k_tiles, (row_tiles + kRowTiles - 1) / kRowTiles * across, gridDim.x};
    uint64_t at = share.begin(blockIdx.x);
    const uint64_t end = share.begin(blockIdx.x + 1);

    if (threadIdx.x == 0) {
        mbarrier_init(shared.full[0], 1);
        mbarrier_init(shared.full[1], 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    griddep_launch_dependents();
    griddep_wait();

    // The first warp copies, each lane a tile of its own. Behind the end of a matrix stand its last tiles, whose results are
    // not stored.
    static_assert(kRowTiles + kTokenTiles <= 32, "a lane for each tile");
    uint32_t y_tile = static_cast<uint32_t>(at / p.k_tiles), copied_k = static_cast<uint32_t>(at % p.k_tiles), copied_tile = y_tile;
    const unsigned char *from = nullptr;
    const auto locate = [&] {
        const uint32_t row = copied_tile / across * kRowTiles + lane, token = copied_tile % across * kTokenTiles + lane - kRowTiles;
        if (lane < kRowTiles)
            from = static_cast<const unsigned char *>(p.w) + (uint64_t{min(row, row_tiles - 1)} * p.k_tiles + copied_k) * sizeof(type);
        else from = reinterpret_cast<const unsigned char *>(p.x + uint64_t{min(token, token_tiles - 1)} * p.k_tiles + copied_k);
    };
    if (at < end) locate();
    const auto copy = [&](int to) {
        if (warp != 0) return;
        if (lane == 0) mbarrier_arrive_expect_tx(shared.full[to], kStageBytes);
        __syncwarp();
        if (lane < kRowTiles) cp_async_bulk(&shared.stages[to].w[lane], from, sizeof(type), shared.full[to]);
        else if (lane < kRowTiles + kTokenTiles)
            cp_async_bulk(&shared.stages[to].x[lane - kRowTiles], from, sizeof(tile_act), shared.full[to]);
        from += lane < kRowTiles ? sizeof(type) : sizeof(tile_act);
        if (++copied_k == p.k_tiles) {
            copied_k = 0, ++copied_tile;
            locate();
        }
    };
    uint32_t number = 0; // of the step of this block of threads
    if (at < end) copy(0);
    for (; at < end; ++y_tile) {
        const uint64_t tile_begin = uint64_t{y_tile} * p.k_tiles, tile_end = tile_begin + p.k_tiles;
        const uint64_t begin = at, until = min(tile_end, end);
        float acc[kRows][kTokens][4] = {};
#pragma unroll 1
        for (; at < until; ++at, ++number) {
            if (at + 1 < end) copy((number + 1) % 2);
            mbarrier_wait(shared.full[number % 2], number / 2 % 2);
            const auto &stage = shared.stages[number % 2];
            const type *w = stage.w + row_warp;
            const tile_act *x = stage.x + token_warp;
            typename of::row heads[kRows][2];
#pragma unroll
            for (int r = 0; r < kRows; ++r)
#pragma unroll
                for (int h = 0; h < 2; ++h) heads[r][h] = of::load(w[r], tile_row(lane, h));
            if constexpr (of::kMins) {
#pragma unroll
                for (int t = 0; t < kTokens; ++t) {
                    const uint2 sums = vector_at<uint2>(x[t].sums[lane]);
#pragma unroll
                    for (int r = 0; r < kRows; ++r) subtract_mins<Block>(acc[r][t], heads[r], lane, sums);
                }
            }
#pragma unroll kColsAhead
            for (int c = 0; c < 4; ++c) {
                uint32_t a[kRows][2][4];
                float s[kRows][2][2 * of::kGroups];
#pragma unroll
                for (int r = 0; r < kRows; ++r) {
                    of::fragments(w[r], c, lane, a[r]);
#pragma unroll
                    for (int h = 0; h < 2; ++h) of::scales(heads[r][h], c, s[r][h]);
                }
                // Products of one tile of tokens are scaled while the matrix units make those of the next.
                products<of::kGroups> sums[2][kRows][2];
                float4 e[2][2];
                const auto multiply = [&](int t) {
                    const uint4 b = vector_at<uint4>(x[t].qs[c][lane]);
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        e[t % 2][j] = vector_at<float4>(x[t].scales[2 * c + j][lane % 4 * 2]);
#pragma unroll
                        for (int r = 0; r < kRows; ++r)
                            sums[t % 2][r][j].multiply(a[r][j], j == 0 ? b.x : b.z, j == 0 ? b.y : b.w);
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
                            float of_block[2][of::kGroups];
#pragma unroll
                            for (int h = 0; h < 2; ++h)
#pragma unroll
                                for (int u = 0; u < of::kGroups; ++u) of_block[h][u] = s[r][h][j * of::kGroups + u];
                            sums[t % 2][r][j].template add<false>(acc[r][t], of_block, e[t % 2][j]);
                        }
                }
            }
            __syncthreads(); // all have read what is overwritten next
        }

        const auto each = [&](auto &&use) { // sums of this thread with their places among those of the block
#pragma unroll
            for (int r = 0; r < kRows; ++r)
#pragma unroll
                for (int t = 0; t < kTokens; ++t) use(acc[r][t], ((warp * kRows + r) * kTokens + t) * 32 + lane, r, t);
        };
        bool mine = true;
        if (begin != tile_begin || until != tile_end) {
            // Two places for each block of threads: for a piece at the beginning of its share and for one at the end.
            constexpr int kSums = kRowTiles * kTokenTiles * 32;
            // (A share within one tile has one piece; where it begins decides.)
            const auto place = [&](uint32_t block) {
                return p.partial + (uint64_t{block} * 2 + (share.begin(block) > tile_begin ? 0 : 1)) * kSums * 4;
            };
            each([&](float (&sum)[4], int i, int, int) {
                reinterpret_cast<float4 *>(place(blockIdx.x))[i] = make_float4(sum[0], sum[1], sum[2], sum[3]);
            });
            // Of the tiles that begin in one share only the last can be shared, so its first owner stands for it.
            const uint32_t from = share.owner(tile_begin), to = share.owner(tile_end - 1);
            __syncthreads();
            if (threadIdx.x == 0) {
                const bool last = atomic_add_acq_rel(p.arrived + from, 1) == to - from;
                if (last) p.arrived[from] = 0; // for the next launch
                shared.last = last;
            }
            __syncthreads();
            mine = shared.last != 0;
            if (mine) {
                each([&](float (&sum)[4], int i, int, int) {
                    sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
                    for (uint32_t block = from; block <= to; ++block) {
                        const float4 part = reinterpret_cast<const float4 *>(place(block))[i];
                        sum[0] = __fadd_rn(sum[0], part.x), sum[1] = __fadd_rn(sum[1], part.y);
                        sum[2] = __fadd_rn(sum[2], part.z), sum[3] = __fadd_rn(sum[3], part.w);
                    }
                });
            }
        }
        if (mine) {
            const uint32_t row = (y_tile / across * kRowTiles + row_warp) * TILE_ROWS;
            const uint32_t token = (y_tile % across * kTokenTiles + token_warp) * TILE_TOKENS;
            each([&](float (&sum)[4], int, int r, int t) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const uint32_t j = row + r * TILE_ROWS + tile_row(lane, i / 2);
                    const uint32_t of_token = token + t * TILE_TOKENS + lane % 4 * 2 + i % 2;
                    if (j < p.n && of_token < p.m) p.y[uint64_t{of_token} * p.n + j] = sum[i];
                }
            });
        }
    }
}
