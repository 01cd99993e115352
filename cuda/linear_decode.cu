// linear_decode: y = W x for up to 16 tokens, int8 activations, as near as can be to the rate at which memory brings W. Several W of
// a type in one launch, or y = silu(W x) * (W' x), of which the two products never leave the chip; and W of f32 on the same input.
//
// Math    y[t][j] = sum over blocks of e d (sum of int8 products), minus the minimums (int8.cuh); of f32 float_rows.cuh
// Shapes  x [k_tiles, ceil(m / 8)]; W [n / 16, k_tiles] tiles and y [m, n] of each group, m <= kTokens; W of f32 [n, k], x_f32 [m, k]
// Tiling  a block of threads takes 16 rows at a time, its warps every kWarps-th tile of them; sums over the warps in order.
//         The row tiles of all groups are one list. Each warp has a ring of kStages tiles of its own in shared memory and copies
//         ahead across rows and groups, so that between rows, and before the kernels before this one have ended, memory is busy.
//         While some warps, in turn, add up a row tile, the others are at the next; of 8 warps also at the end of it, as sums of two row
//         tiles have room. (Of 16 tokens 8 warps have 8 sums: all of them add up.)
//         With kGlu groups are pairs: 16 rows of the first, then the same rows of the second.
//         The last blocks of threads have four rows of f32 each, for four tokens. Rotated parts of heads go out rotated (linear_out.cuh).
// Floor   bytes of W. 6144 x 24576 of Q4_K: 85 MB, 53 us at 1.61 TB/s.
// Limits  few rows: 16 of 2048 inputs are 18 KB for a block of threads. 16 tokens: every 16 rows read all activations, 5.6 KB
//         for each 256 columns, from L2 if L1 does not hold them. More: see linear_gemm.
#include "common/float_rows.cuh"
#include "common/linear_out.cuh"
#include "common/multiply_tile.cuh"
#include "common/silu.cuh"

template <class Block, int kTokens, int kGlu, int kStages, int kBlocks, int kWarps>
struct linear_decode_smem {
    static constexpr int kTokenTiles = (kTokens + TILE_TOKENS - 1) / TILE_TOKENS;
    static constexpr int kColumns = kTokens < TILE_TOKENS ? 1 : 2; // of the two that a lane has in a result
    static constexpr int kSums = kTokenTiles * 2 * kColumns; // of a lane, in a row tile
    static constexpr int kSlots = kWarps > 8 ? 1 : 2;        // row tiles whose sums have room
    typename tile<Block>::type ring[kWarps][kStages];
    float partial[kSlots][1 + kGlu][kWarps][kSums][32];
    mbarrier full[kSlots], empty[kSlots];
};

// A place in the row tiles of all groups, one group after the other. Of kParts neighbouring groups, which have the same rows, the
// first counts.
template <int kParts> struct decode_rows {
    const linear_decode_params &p;
    int group = 0, row_tile = 0;

    INTRIN bool there() const { return group < static_cast<int>(p.n_groups); }
    INTRIN void skip(int n) {
        row_tile += n;
        while (there()) {
            const int tiles = static_cast<int>((p.groups[group].n + TILE_ROWS - 1) / TILE_ROWS);
            if (row_tile < tiles) return;
            row_tile -= tiles;
            group += kParts;
        }
    }
};

// The tiles of one warp, in the order in which it reads them; behind the last one null.
template <class Tile, int kParts, int kWarps> struct decode_tiles {
    decode_rows<kParts> rows;
    int k_tiles, mine; // of a row tile: all, and those of this warp
    int part = 0, i = 0;
    const Tile *at = nullptr;

    INTRIN void start(int warp) {
        at = nullptr;
        if (mine > 0 && rows.there())
            at = static_cast<const Tile *>(rows.p.groups[rows.group + part].w) + static_cast<uint64_t>(rows.row_tile) * k_tiles + warp;
    }
    INTRIN void next(int warp) {
        at += kWarps;
        if (++i < mine) return;
        i = 0;
        if (++part == kParts) {
            part = 0;
            rows.skip(static_cast<int>(rows.p.blocks));
        }
        start(warp);
    }
};

// Of the four times 64 columns of a tile, those whose loads are on their way at a time: as many as there are registers for. For sm_120
// nvcc needs more of them, and there a tile takes four times as long to come from memory.
template <int kTokenTiles, int kWarps> INTRIN constexpr int decode_cols_ahead() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
    return kTokenTiles > 1 ? 1 : 4;
#else
    return kTokenTiles > 1 && kWarps == 8 ? 2 : 4;
#endif
}

template <class Block, int kTokens, int kGlu, int kStages, int kBlocks, int kWarps>
__device__ __forceinline__ void linear_decode(const linear_decode_params &p) {
    using smem_type = linear_decode_smem<Block, kTokens, kGlu, kStages, kBlocks, kWarps>;
    using of = tile<Block>;
    using type = typename of::type;
    constexpr int kTokenTiles = smem_type::kTokenTiles, kColumns = smem_type::kColumns, kSums = smem_type::kSums;
    constexpr int kSlots = smem_type::kSlots;
    static_assert(kTokens == TILE_TOKENS / 2 || kTokens % TILE_TOKENS == 0, "the half of a tile that has the even columns, or whole tiles");
    constexpr int kParts = 1 + kGlu;
    constexpr int kChunks = sizeof(type) / 16;
    static_assert(sizeof(type) % 16 == 0, "whole copies");
    static_assert(kWarps % kSums == 0, "warps that add up, in turn");
    static_assert(sizeof(float_rows_smem<kWarps>) <= sizeof(smem_type), "room for either");
    if (blockIdx.x >= p.blocks) {
        const uint32_t across = (p.m + FLOAT_TOKENS - 1) / FLOAT_TOKENS, tile = blockIdx.x - p.blocks;
        uint32_t group = p.n_groups, row = tile / across * FLOAT_ROWS;
        while (row >= p.groups[group].n) row -= (p.groups[group++].n + FLOAT_ROWS - 1) / FLOAT_ROWS * FLOAT_ROWS;
        constexpr int kAhead = kTokens > TILE_TOKENS ? 1 : 3; // with more, and 16 tokens, nvcc spills in what follows
        const linear_group &g = p.groups[group];
        multiply_float_rows<FLOAT_ROWS, kWarps, kAhead>(
            static_cast<const float *>(g.w), row, g.n, p.x_f32, tile % across * FLOAT_TOKENS, p.m, p.k,
            [&](uint32_t j, uint32_t t, float y) { g.y[uint64_t{t} * g.y_stride + j] = y; });
        return;
    }
    auto &shared = smem<smem_type>();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int k_tiles = static_cast<int>(p.k_tiles);
    const int mine = k_tiles > warp ? (k_tiles - warp + kWarps - 1) / kWarps : 0; // tiles of each row tile
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < kSlots; ++slot) {
            mbarrier_init(shared.full[slot], kWarps * 32);
            mbarrier_init(shared.empty[slot], kSums * 32);
        }
        mbarrier_init_fence();
    }

    decode_rows<kParts> rows{p};
    rows.skip(static_cast<int>(blockIdx.x));
    decode_tiles<type, kParts, kWarps> ahead{{p}, k_tiles, mine};
    ahead.rows.skip(static_cast<int>(blockIdx.x));
    ahead.start(warp);
    const auto copy = [&](int to) {
        if (ahead.at != nullptr) {
            unsigned char *dst = reinterpret_cast<unsigned char *>(&shared.ring[warp][to]);
            const unsigned char *src = reinterpret_cast<const unsigned char *>(ahead.at);
#pragma unroll
            for (int c = 0; c < (kChunks + 31) / 32; ++c)
                if (kChunks % 32 == 0 || c * 32 + lane < kChunks) cp_async<16>(dst + (c * 32 + lane) * 16, src + (c * 32 + lane) * 16);
            ahead.next(warp);
        }
        cp_async_commit();
    };
    // A ring of several tiles has one that is being read: what is copied to it next is on its way before that is computed.
    constexpr int kAhead = kStages > 1 ? kStages - 1 : 1;
#pragma unroll
    for (int s = 0; s < kAhead; ++s) copy(s);
    griddep_launch_dependents();
    griddep_wait();
    __syncthreads(); // barriers are there

    constexpr int kColsAhead = decode_cols_ahead<kTokenTiles, kWarps>();
    int reading = 0;
    for (unsigned turn = 0; rows.there(); rows.skip(static_cast<int>(p.blocks)), ++turn) {
        const unsigned slot = turn % kSlots, round = turn / kSlots % 2;
#pragma unroll 1
        for (int part = 0; part < kParts; ++part) {
            float acc[kTokenTiles][4] = {};
#pragma unroll 1
            for (int i = 0; i < mine; ++i) {
                const tile_act *x = p.x + (warp + i * kWarps) * kTokenTiles;
                cp_async_wait<kAhead - 1>();
                __syncwarp(); // the copies of other lanes are there, and all have read the tile before
                if constexpr (kStages > 1) copy(reading == 0 ? kStages - 1 : reading - 1);
                const type &w = shared.ring[warp][reading];
                multiply_tile<Block, kColumns, kColsAhead>(acc, w, lane, token_tiles{x, lane});
                if constexpr (kStages == 1) {
                    __syncwarp(); // all have read it
                    copy(0);
                }
                reading = reading + 1 == kStages ? 0 : reading + 1;
            }
            if (part == 0 && turn >= kSlots) mbarrier_wait(shared.empty[slot], round ^ 1);
#pragma unroll
            for (int r = 0; r < kSums; ++r)
                shared.partial[slot][part][warp][r][lane] = acc[r / (2 * kColumns)][r % (2 * kColumns) * 2 / kColumns];
        }
        mbarrier_arrive(shared.full[slot]);

        const unsigned r = warp - turn * kSums % kWarps; // warps take turns
        if (r >= kSums) continue;
        const linear_group &group = p.groups[rows.group];
        const int t = static_cast<int>(r) / (2 * kColumns), of_lane = static_cast<int>(r) % (2 * kColumns) * 2 / kColumns;
        const uint32_t row = rows.row_tile * TILE_ROWS + tile_row(lane, of_lane), token = t * TILE_TOKENS + tile_token(lane, of_lane);
        const linear_out<kGlu == 0> out(group, group.y, row, p.m);
        float2 angle;
        if (kGlu == 0 && out.turns) angle = out.angle(token);
        mbarrier_wait(shared.full[slot], round);
        const auto sum = [&](int part) {
            float y = shared.partial[slot][part][0][r][lane];
#pragma unroll
            for (int other = 1; other < kWarps; ++other) y = __fadd_rn(y, shared.partial[slot][part][other][r][lane]);
            return y;
        };
        float y = sum(0);
        if constexpr (kGlu) y = __fmul_rn(silu(y), sum(1));
        mbarrier_arrive(shared.empty[slot]);
        if (kGlu == 0 && out.turns) y = out.turned(y, angle);
        out.store(token, y);
    }
}
