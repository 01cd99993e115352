// moe_gemm: the experts of a layer that have many rows: gate, up, SwiGLU and rounding, or one matrix alone.
//
// Math    products of int8 (int8.cuh); h = silu(gate x) * (up x) in f32, rounded to int8 in blocks of 32 (row_act.cuh)
// Shapes  x [m, k_tiles] rows by token, or by place; W [slabs, n / 16, k_tiles] tiles; h [places, n / 256], or y [places, n] f32
// Tiling  items are 16 kRows kRowWarps rows of an expert (of gate and up both, half as many of each) and a tile of its places
//         (moe_sort), of which as many eights are multiplied as there are. The tiles of an expert follow each other for the same rows, so that
//         weights come from memory once; experts with most rows come first. Blocks of threads take the next item from a queue. One warp
//         has the copy engine bring steps of 256 columns to shared memory, the weights as tiles and each row of x by itself, so that rows
//         are gathered without a copy before; the others multiply, 16 kRows rows each.
// Floor   bytes of the weights, or 2 n k operations for each row: 2048 tokens, 8 experts of 2048 x 6144: 1.24 Tflop, 1.0 ms at 1248 Tops
// Limits  the arithmetic of int8 in blocks of 32: 14 instructions for each of the matrix units (docs/kernels/linear_tiled.md)
#include "common/moe.cuh"
#include "common/row_act.cuh"

// What a step belongs to: in shared memory beside it.
struct moe_gemm_item {
    uint32_t place, rows, row_block, last; // rows 0: there is nothing more
};

template <class Block, int kGlu, int kRows, int kTokens, int kRowWarps, int kStages, int kBlocks, int kWarps> struct moe_gemm_smem {
    struct stage {
        typename tile<Block>::type w[kRows * kRowWarps];
        row_act x[kTokens * TILE_TOKENS];
    };
    alignas(128) stage stages[kStages];
    moe_gemm_item items[kStages];
    mbarrier full[kStages], empty[kStages];
    // Of the 16 columns of h that a warp has: the largest value of each row, and the sum of its quants.
    uint32_t amax[kRowWarps][kTokens * TILE_TOKENS];
    int sums[kRowWarps][kTokens * TILE_TOKENS];
};

// Rows of shared memory.
struct token_slots {
    const row_act *x; // those of all
    int lane;

    // Column c of B is row c / 2 + 4 (c % 2) of eight.
    INTRIN const row_act &of_column() const { return x[lane / 8 + 4 * (lane / 4 % 2)]; }
    INTRIN uint4 quants(int t, int c) const { return vector_at<uint4>((&of_column() + t * TILE_TOKENS)->qs[c][lane % 4]); }
    INTRIN uint2 sums(int t) const { return vector_at<uint2>((&of_column() + t * TILE_TOKENS)->sums[lane % 4]); }
    // Scale and shift of token i of the lane, of blocks 2 c and 2 c + 1.
    INTRIN float4 scales(int t, int c, int i) const { return vector_at<float4>(x[t * TILE_TOKENS + tile_token(lane, i)].scales[2 * c]); }
};

// A warp's rows and up to kTokens eights of places, of which there are `eights`: 256 columns.
template <class Block, int kRows, int kTokens> struct moe_gemm_step {
    using of = tile<Block>;
    static constexpr int kGroups = of::kGroups;
    float sums[kRows][kTokens][4];

    INTRIN void clear() {
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int t = 0; t < kTokens; ++t) sums[r][t][0] = sums[r][t][1] = sums[r][t][2] = sums[r][t][3] = 0.f;
    }

    INTRIN void add(const typename of::type *w, const token_slots &x, int lane, int eights) {
        typename of::row heads[kRows][2];
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int h = 0; h < 2; ++h) heads[r][h] = of::load(w[r], tile_row(lane, 2 * h));
        if constexpr (of::kMins) {
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                if (t >= eights) break;
                const uint2 of_blocks = x.sums(t);
#pragma unroll
                for (int r = 0; r < kRows; ++r) subtract_mins<Block>(sums[r][t], heads[r], lane, of_blocks);
            }
        }
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            if (c > 0) sums[0][0][0] = computed_here(sums[0][0][0]); // loads stay behind it
            uint32_t a[kRows][2][4];
            float s[kRows][2][2 * kGroups];
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                of::fragments(w[r], c, lane, a[r]);
#pragma unroll
                for (int h = 0; h < 2; ++h) of::scales(heads[r][h], c, s[r][h]);
            }
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                if (t >= eights) break;
                const uint4 b = x.quants(t, c);
                const float4 both[2] = {x.scales(t, c, 0), x.scales(t, c, 1)};
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    float2 e[2];
#pragma unroll
                    for (int i = 0; i < 2; ++i) e[i] = j == 0 ? make_float2(both[i].x, both[i].y) : make_float2(both[i].z, both[i].w);
                    products<kGroups> made[kRows];
#pragma unroll
                    for (int r = 0; r < kRows; ++r) made[r].multiply(a[r][j], j == 0 ? b.x : b.z, j == 0 ? b.y : b.w);
#pragma unroll
                    for (int r = 0; r < kRows; ++r) {
                        float of_block[2][kGroups];
#pragma unroll
                        for (int h = 0; h < 2; ++h)
#pragma unroll
                            for (int u = 0; u < kGroups; ++u) of_block[h][u] = s[r][h][j * kGroups + u];
                        made[r].template add<2>(sums[r][t], of_block, e);
                    }
                }
            }
        }
    }
};

template <class Block, int kGlu, int kRows, int kTokens, int kRowWarps, int kStages, int kBlocks, int kWarps>
__device__ __forceinline__ void moe_gemm(const moe_gemm_params &p) {
    static_assert(kWarps == kRowWarps + 1, "those that multiply, and one that copies");
    static_assert(kRows % (1 + kGlu) == 0 && kRowWarps % 2 == 0, "gate and up in the same warp, 32 columns in two");
    using smem_type = moe_gemm_smem<Block, kGlu, kRows, kTokens, kRowWarps, kStages, kBlocks, kWarps>;
    using weights = typename tile<Block>::type;
    constexpr int kParts = 1 + kGlu, kRowTiles = kRows * kRowWarps, kMost = kTokens * TILE_TOKENS;
    auto &shared = smem<smem_type>();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) mbarrier_init(shared.full[s], 1), mbarrier_init(shared.empty[s], kRowWarps * 32);
        mbarrier_init_fence();
    }
    __syncthreads();
    griddep_launch_dependents();
    griddep_wait();
    const uint32_t row_tiles = (p.n + TILE_ROWS - 1) / TILE_ROWS, down = (row_tiles + kRowTiles / kParts - 1) / (kRowTiles / kParts);

    if (warp == kRowWarps) {
        const uint32_t items = *p.n_tiles * down;
        uint32_t next = 0;
        const auto take = [&] {
            if (lane == 0) next = atomicAdd(p.queue, 1u);
        };
        take();
        int slot = 0;
        unsigned round = 0;
        bool first_round = true;
        const auto room = [&] {
            if (!first_round) mbarrier_wait(shared.empty[slot], round ^ 1);
        };
        const auto filled = [&] {
            if (++slot == kStages) slot = 0, round ^= 1, first_round = false;
        };
        for (;;) {
            const uint32_t item = __shfl_sync(0xffffffffu, next, 0);
            if (item >= items) break;
            take(); // on its way while this one is copied
            // Those of an expert: for each block of rows all its tiles.
            moe_tile at = p.tiles[item / down];
            const uint32_t within = item - at.begin * down;
            const uint32_t row_block = within / at.tiles;
            at = p.tiles[at.begin + within % at.tiles];
            if (at.count <= MOE_ROWS && at.tiles == 1) break; // moe_rows has these, and all that come behind have as few rows
            // A lane copies tiles of weights lane, lane + 32 and on, and the rows of these numbers.
            constexpr int kTilesOfLane = (kRowTiles + 31) / 32, kRowsOfLane = (kMost + 31) / 32;
            const weights *w[kTilesOfLane];
#pragma unroll
            for (int i = 0; i < kTilesOfLane; ++i) {
                const uint32_t r = i * 32 + lane; // behind the end of a matrix its last rows, whose results are not stored
                const uint32_t row = min(row_block * (kRowTiles / kParts) + r / kParts, row_tiles - 1);
                w[i] = static_cast<const weights *>(p.experts[r % kParts].w) + (uint64_t{at.expert} * row_tiles + row) * p.k_tiles;
            }
            const row_act *x[kRowsOfLane];
#pragma unroll
            for (int i = 0; i < kRowsOfLane; ++i) {
                const uint32_t place = at.first + min(static_cast<uint32_t>(i * 32 + lane), uint32_t{at.count} - 1);
                const uint32_t row = kGlu ? p.sorted[place] / p.top_k : place;
                x[i] = p.x + uint64_t{row} * p.k_tiles;
            }
            for (uint32_t k = 0; k < p.k_tiles; ++k) {
                room();
                auto &stage = shared.stages[slot];
                constexpr unsigned kRowBytes = sizeof(row_act) - sizeof(row_act::unused);
                if (lane == 0) {
                    shared.items[slot] = {at.first, at.count, row_block, k + 1 == p.k_tiles};
                    mbarrier_arrive_expect_tx(shared.full[slot], kRowTiles * sizeof(weights) + at.count * kRowBytes);
                }
                __syncwarp();
#pragma unroll
                for (int i = 0; i < kTilesOfLane; ++i)
                    if (i * 32 + lane < kRowTiles) cp_async_bulk(&stage.w[i * 32 + lane], w[i] + k, sizeof(weights), shared.full[slot]);
#pragma unroll
                for (int i = 0; i < kRowsOfLane; ++i)
                    if (i * 32 + lane < at.count) cp_async_bulk(&stage.x[i * 32 + lane], x[i] + k, kRowBytes, shared.full[slot]);
                filled();
            }
        }
        room();
        if (lane == 0) {
            shared.items[slot] = {0, 0, 0, 0};
            mbarrier_arrive(shared.full[slot]);
        }
        return;
    }

    moe_gemm_step<Block, kRows, kTokens> step;
    step.clear();
    int slot = 0;
    unsigned round = 0;
    for (;;) {
        mbarrier_wait(shared.full[slot], round);
        const moe_gemm_item item = shared.items[slot];
        if (item.rows == 0) return;
        const auto &stage = shared.stages[slot];
        const int eights = static_cast<int>((item.rows + TILE_TOKENS - 1) / TILE_TOKENS);
        step.add(stage.w + warp * kRows, token_slots{stage.x, lane}, lane, eights);
        mbarrier_arrive(shared.empty[slot]);
        if (++slot == kStages) slot = 0, round ^= 1;
        if (item.last == 0) continue;

        const uint32_t row_tile = item.row_block * (kRowTiles / kParts) + warp * (kRows / kParts);
        if constexpr (!kGlu) {
#pragma unroll
            for (int r = 0; r < kRows; ++r)
#pragma unroll
                for (int t = 0; t < kTokens; ++t)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const uint32_t row = (row_tile + r) * TILE_ROWS + tile_row(lane, i), token = t * TILE_TOKENS + tile_token(lane, i);
                        if (row < p.n && token < item.rows) p.y[uint64_t{item.place + token} * p.n + row] = step.sums[r][t][i];
                    }
        } else {
            static_assert(!kGlu || kRows == 2, "16 columns of h for a warp");
            const uint32_t pair_barrier = 1 + warp / 2;
#pragma unroll
            for (int t = 0; t < kTokens; ++t)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    uint32_t amax = 0;
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        float &v = step.sums[0][t][i + 2 * h];
                        v = __fmul_rn(silu(v), step.sums[1][t][i + 2 * h]);
                        amax = max(amax, f32_bits(v) & 0x7fffffffu);
                    }
#pragma unroll
                    for (int lanes = 4; lanes < 32; lanes *= 2) amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, lanes));
                    if (lane < 4) shared.amax[warp][t * TILE_TOKENS + tile_token(lane, i)] = amax;
                }
            bar_sync(pair_barrier, 64);
            const uint32_t h_tiles = (p.n + TILE_COLS - 1) / TILE_COLS, col = row_tile * TILE_ROWS + lane / 4; // and 8 further
            const bool there = row_tile < row_tiles;
            const int block = static_cast<int>(col % TILE_COLS / 32);
#pragma unroll
            for (int t = 0; t < kTokens; ++t)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const uint32_t token = t * TILE_TOKENS + tile_token(lane, i);
                    const float2 scale = act_scale(max(shared.amax[warp][token], shared.amax[warp ^ 1][token]));
                    int sum = 0;
                    unsigned char *qs = reinterpret_cast<unsigned char *>(p.h[uint64_t{item.place + token} * h_tiles + col / TILE_COLS].qs);
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const float v[4] = {step.sums[0][t][i + 2 * h], 0.f, 0.f, 0.f};
                        const int q = static_cast<int8_t>(act_quants4(v, scale.y) & 0xffu);
                        sum += q;
                        const int in_block = static_cast<int>(col % 32) + 8 * h, four = in_block / 4;
                        const int word = (block / 2 * 4 + four % 4) * 4 + 2 * (block % 2) + four / 4;
                        if (there && token < item.rows) qs[word * 4 + in_block % 4] = static_cast<unsigned char>(q);
                    }
#pragma unroll
                    for (int lanes = 4; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
                    if (lane < 4) shared.sums[warp][token] = sum;
                }
            bar_sync(pair_barrier, 64);
            // One of the two warps for each token.
            if (there)
                for (uint32_t token = warp % 2 * 32 + lane; token < item.rows; token += 64) {
                    const float2 scale = act_scale(max(shared.amax[warp][token], shared.amax[warp ^ 1][token]));
                    const int sum = shared.sums[warp][token] + shared.sums[warp ^ 1][token];
                    row_act &row = p.h[uint64_t{item.place + token} * h_tiles + row_tile * TILE_ROWS / TILE_COLS];
                    store_scale(row, block, scale.x, __fmul_rn(scale.x, static_cast<float>(sum)));
                    if ((row_tile / 2 + 1) * 32 == p.n) end_row(row, block);
                }
            bar_sync(pair_barrier, 64); // before the next are written
        }
        step.clear();
    }
}
