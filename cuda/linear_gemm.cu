// linear_gemm: y = W x for many tokens by matrix instructions. Several W of a type in one launch, one W for each part of x, or
// y = silu(W x) * (W' x).
//
// Math    kAct 16: exact products of f16 (half.cuh, gemm_f16.cuh); 8: as linear_decode (int8.cuh, gemm_int8.cuh)
// Shapes  x [slabs, k_tiles, ceil(m / 8)] and W [slabs, ceil(n / 16), k_tiles] tiles, y [m, n] of each group and slab
// Tiling  a block of threads multiplies 16 kRows kRowWarps rows and 8 kTokens kTokenWarps tokens at a time, a warp 16 kRows by
//         8 kTokens of them, in steps of 256 columns: whole tiles, which one more warp has the copy engine bring to shared memory,
//         up to kStages steps ahead. Each step has a barrier that says it is there and one that says it was read, so that warps
//         drift apart, and some decode while others multiply. The steps of all tiles of y are dealt out evenly; a tile that several
//         blocks of threads share is summed up by the last of them, in order (linear_share).
//         With kGlu, row tiles of gate and up alternate, so that a warp has both of a row. Rotated parts of heads go out rotated
//         (linear_out.cuh).
// Floor   2 m n k operations of the matrix units: 2048 x 24576 x 6144 at 600 Tflops, 1.03 ms
// Limits  docs/kernels/linear_tiled.md
#include "common/gemm_f16.cuh"
#include "common/gemm_int8.cuh"
#include "common/linear_out.cuh"
#include "common/silu.cuh"

template <class Block, int kAct, int kRows, int kTokens> struct gemm_step_of;
template <class Block, int kRows, int kTokens> struct gemm_step_of<Block, 8, kRows, kTokens> {
    using type = gemm_int8<Block, kRows, kTokens>;
};
template <class Block, int kRows, int kTokens> struct gemm_step_of<Block, 16, kRows, kTokens> {
    using type = gemm_f16<Block, kRows, kTokens>;
};

template <class Block, int kAct, int kGlu, int kRows, int kTokens, int kRowWarps, int kTokenWarps, int kStages, int kBlocks, int kWarps>
struct linear_gemm_smem {
    using step = typename gemm_step_of<Block, kAct, kRows, kTokens>::type;
    struct stage {
        typename step::weights w[kRows * kRowWarps];
        typename step::activations x[kTokens * kTokenWarps];
    };
    alignas(128) stage stages[kStages];
    mbarrier full[kStages], empty[kStages];
    uint32_t last;
};

// The steps of a block of threads: tiles of y one after the other, of each a range of steps. `steps` for each of `tiles`, dealt
// out to `blocks` as evenly as can be.
struct linear_share {
    uint32_t steps, tiles, blocks;
    bool cut; // within tiles

    INTRIN uint32_t begin(uint32_t block) const {
        if (!cut) return static_cast<uint32_t>(uint64_t{tiles} * block / blocks) * steps;
        return static_cast<uint32_t>(uint64_t{steps * tiles} * block / blocks);
    }
    // The block of threads that has a step, of tiles that are cut.
    INTRIN uint32_t owner(uint32_t step) const {
        uint32_t block = static_cast<uint32_t>(uint64_t{step} * blocks / (steps * tiles));
        while (begin(block + 1) <= step) ++block;
        while (begin(block) > step) --block;
        return block;
    }
};

// How the tiles of y lie: slab after slab, in each group after group, in each row after row; those of a row share weights.
template <int kParts, int kRowTiles, int kTokens> struct gemm_tiles {
    static constexpr int kTokenTiles = kTokens;
    const linear_gemm_params &p;
    uint32_t token_tiles, across;

    INTRIN explicit gemm_tiles(const linear_gemm_params &p)
        : p(p), token_tiles((p.m + TILE_TOKENS - 1) / TILE_TOKENS), across((token_tiles + kTokenTiles - 1) / kTokenTiles) {}
    INTRIN uint32_t row_tiles(uint32_t group) const { return (p.groups[group].n + TILE_ROWS - 1) / TILE_ROWS; }
    INTRIN uint32_t down(uint32_t group) const { return (row_tiles(group) + kRowTiles / kParts - 1) / (kRowTiles / kParts); }
    INTRIN uint32_t of_slab() const {
        uint32_t sum = 0;
        for (uint32_t group = 0; group < p.n_groups; group += kParts) sum += down(group);
        return sum * across;
    }
    struct place_type {
        uint32_t slab, group, row_tile, token_tile; // the first of each
    };
    INTRIN place_type at(uint32_t tile) const {
        const uint32_t all = of_slab();
        place_type at{tile / all, 0, 0, tile % all % across * kTokenTiles};
        uint32_t row = tile % all / across;
        for (; row >= down(at.group); at.group += kParts) row -= down(at.group);
        at.row_tile = row * (kRowTiles / kParts);
        return at;
    }
};

// A step of the copying thread.
template <class Tiles> struct gemm_cursor {
    const Tiles &tiles;
    uint32_t tile, k; // of y, and along it
    typename Tiles::place_type place;
    uint32_t row_tiles, tokens; // rows of the group, tiles of tokens that there are

    INTRIN gemm_cursor(const Tiles &tiles, uint32_t step) : tiles(tiles), tile(step / tiles.p.k_tiles), k(step % tiles.p.k_tiles) {
        locate();
    }
    INTRIN void locate() {
        place = tiles.at(tile);
        row_tiles = tiles.row_tiles(place.group);
        tokens = min(tiles.token_tiles - place.token_tile, uint32_t{Tiles::kTokenTiles});
    }
    INTRIN void next() {
        if (++k < tiles.p.k_tiles) return;
        k = 0, ++tile;
        if (tile < tiles.p.slabs * tiles.of_slab()) locate();
    }
};

// A place in a ring, and the parity of the rounds.
template <int kSlots> struct ring_place {
    int slot = 0;
    unsigned round = 0;

    INTRIN void next() {
        if (++slot == kSlots) slot = 0, round ^= 1;
    }
};

template <class Block, int kAct, int kGlu, int kRows, int kTokens, int kRowWarps, int kTokenWarps, int kStages, int kBlocks, int kWarps>
__device__ __forceinline__ void linear_gemm(const linear_gemm_params &p) {
    constexpr int kMultiplying = kRowWarps * kTokenWarps;
    // Of a group of four warps that copies only one does; the others have given up their registers.
    constexpr bool kGroup = kWarps == kMultiplying + 4;
    static_assert(kGroup || kWarps == kMultiplying + 1, "a warp for each part, and those that copy");
    static_assert(kRows % (1 + kGlu) == 0, "gate and up in the same warp");
    using smem_type = linear_gemm_smem<Block, kAct, kGlu, kRows, kTokens, kRowWarps, kTokenWarps, kStages, kBlocks, kWarps>;
    using step_type = typename smem_type::step;
    using weights = typename step_type::weights;
    using activations = typename step_type::activations;
    constexpr int kParts = 1 + kGlu, kRowTiles = kRows * kRowWarps, kTokenTiles = kTokens * kTokenWarps;
    auto &shared = smem<smem_type>();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const gemm_tiles<kParts, kRowTiles, kTokenTiles> tiles(p);
    const linear_share share{p.k_tiles, p.slabs * tiles.of_slab(), gridDim.x, p.cut != 0};
    const uint32_t first = share.begin(blockIdx.x), end = share.begin(blockIdx.x + 1), steps = end - first;

    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            mbarrier_init(shared.full[s], 1);
            mbarrier_init(shared.empty[s], kMultiplying * 32);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    griddep_launch_dependents();

    if (warp >= kMultiplying) {
        if constexpr (kGroup) registers_fewer<40>();
        if (warp > kMultiplying || lane != 0 || steps == 0) {
            griddep_wait(); // no thread may end before the kernels before this one
            return;
        }
        // Weights do not depend on the kernels before this one: those of the first steps are on their way while these still run.
        gemm_cursor<decltype(tiles)> w_at(tiles, first), x_at(tiles, first);
        const auto copy_w = [&](int slot) {
            mbarrier_arrive_expect_tx(shared.full[slot], kRowTiles * sizeof(weights) + w_at.tokens * sizeof(activations));
            const auto &at = w_at.place;
#pragma unroll
            for (int r = 0; r < kRowTiles; ++r) { // behind the end of a matrix its last rows, whose results are not stored
                const uint64_t row = uint64_t{at.slab} * w_at.row_tiles + min(at.row_tile + r / kParts, w_at.row_tiles - 1);
                const weights *from = static_cast<const weights *>(p.groups[at.group + r % kParts].w) + row * p.k_tiles + w_at.k;
                cp_async_bulk(&shared.stages[slot].w[r], from, sizeof(weights), shared.full[slot]);
            }
            w_at.next();
        };
        for (uint32_t step = 0; step < min(steps, uint32_t{kStages}); ++step) copy_w(static_cast<int>(step));
        griddep_wait();
        ring_place<kStages> to;
        for (uint32_t step = 0; step < steps; ++step, to.next()) {
            if (step >= kStages) {
                mbarrier_wait(shared.empty[to.slot], to.round ^ 1);
                copy_w(to.slot);
            }
            // Only tokens that there are: what stands in the place of others is not stored either.
            const uint64_t column = uint64_t{x_at.place.slab} * p.k_tiles + x_at.k;
            const activations *from = static_cast<const activations *>(p.x) + column * tiles.token_tiles + x_at.place.token_tile;
            cp_async_bulk(shared.stages[to.slot].x, from, x_at.tokens * sizeof(activations), shared.full[to.slot]);
            x_at.next();
        }
        return;
    }
    if constexpr (kGroup) registers_more<232>();
    griddep_wait();

    const int row_warp = warp % kRowWarps * kRows, token_warp = warp / kRowWarps * kTokens;
    ring_place<kStages> from;
    for (uint32_t begin = first; begin < end;) {
        const uint32_t y_tile = begin / p.k_tiles, tile_begin = y_tile * p.k_tiles, tile_end = tile_begin + p.k_tiles;
        const uint32_t until = min(tile_end, end);
        step_type step;
        step.clear();
#pragma unroll 1
        for (uint32_t left = until - begin; left > 0; --left, from.next()) {
            mbarrier_wait(shared.full[from.slot], from.round);
            const auto &stage = shared.stages[from.slot];
            step.add(stage.w + row_warp, stage.x + token_warp, lane);
            if (left == 1) step.take_scales(stage.x + token_warp, lane);
            mbarrier_arrive(shared.empty[from.slot]);
        }
        const auto place = tiles.at(y_tile);
        const uint32_t token_tile = place.token_tile + token_warp;
        step.finish();

        const auto each = [&](auto &&use) { // sums of this thread with their places among those of the block
#pragma unroll
            for (int r = 0; r < kRows; ++r)
#pragma unroll
                for (int t = 0; t < kTokens; ++t) use(step.sums[r][t], ((warp * kRows + r) * kTokens + t) * 32 + lane);
        };
        const bool whole = begin == tile_begin && until == tile_end;
        begin = until;
        if (!whole) {
            // Two places for each block of threads: for a piece at the beginning of its share and for one at the end.
            constexpr int kSums = kRowTiles * kTokenTiles * 32;
            // (A share within one tile has one piece; where it begins decides.)
            const auto part_of = [&](uint32_t block) {
                return p.partial + (uint64_t{block} * 2 + (share.begin(block) > tile_begin ? 0 : 1)) * kSums * 4;
            };
            each([&](float (&sum)[4], int i) {
                reinterpret_cast<float4 *>(part_of(blockIdx.x))[i] = make_float4(sum[0], sum[1], sum[2], sum[3]);
            });
            // Of the tiles that begin in one share only the last can be shared, so its first owner stands for it.
            const uint32_t owner = share.owner(tile_begin), last_owner = share.owner(tile_end - 1);
            bar_sync(1, kMultiplying * 32);
            if (threadIdx.x == 0) {
                const bool last = atomic_add_acq_rel(p.arrived + owner, 1) == last_owner - owner;
                if (last) p.arrived[owner] = 0; // for the next launch
                shared.last = last;
            }
            bar_sync(1, kMultiplying * 32);
            if (shared.last == 0) continue;
            step.clear();
            constexpr int kAtOnce = kRows * kTokens < 8 ? 8 / (kRows * kTokens) : 1; // parts whose loads are on their way at a time
#pragma unroll kAtOnce
            for (uint32_t block = owner; block <= last_owner; ++block) {
                const float4 *parts = reinterpret_cast<const float4 *>(part_of(block));
                each([&](float (&sum)[4], int i) {
                    const float4 part = parts[i];
                    sum[0] = __fadd_rn(sum[0], part.x), sum[1] = __fadd_rn(sum[1], part.y);
                    sum[2] = __fadd_rn(sum[2], part.z), sum[3] = __fadd_rn(sum[3], part.w);
                });
            }
        }
        const linear_group &group = p.groups[place.group];
        float *y = group.y + uint64_t{place.slab} * p.y_slab;
#pragma unroll
        for (int r = 0; r < kRows; r += kParts)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32_t row = (place.row_tile + (row_warp + r) / kParts) * TILE_ROWS + tile_row(lane, 2 * half);
                const linear_out<kGlu == 0> out(group, y, row, p.m);
                float values[2 * kTokens];
#pragma unroll
                for (int i = 0; i < 2 * kTokens; ++i) {
                    values[i] = step.sums[r][i / 2][2 * half + i % 2];
                    if constexpr (kGlu) values[i] = __fmul_rn(silu(values[i]), step.sums[r + 1][i / 2][2 * half + i % 2]);
                }
                const auto token_of = [&](int i) { return (token_tile + i / 2) * TILE_TOKENS + tile_token(lane, i % 2); };
                if (kGlu == 0 && out.turns) {
                    float2 angles[2 * kTokens];
#pragma unroll
                    for (int i = 0; i < 2 * kTokens; ++i) angles[i] = out.angle(token_of(i));
#pragma unroll
                    for (int i = 0; i < 2 * kTokens; ++i) values[i] = out.turned(values[i], angles[i]);
                }
#pragma unroll
                for (int i = 0; i < 2 * kTokens; ++i) out.store(token_of(i), values[i]);
            }
    }
}

// The same, for tiles that need more shared memory than sm_120 has.
template <class Block, int kAct, int kGlu, int kRows, int kTokens, int kRowWarps, int kTokenWarps, int kStages, int kBlocks, int kWarps>
using linear_gemm_wide_smem = linear_gemm_smem<Block, kAct, kGlu, kRows, kTokens, kRowWarps, kTokenWarps, kStages, kBlocks, kWarps>;

template <class Block, int kAct, int kGlu, int kRows, int kTokens, int kRowWarps, int kTokenWarps, int kStages, int kBlocks, int kWarps>
__device__ __forceinline__ void linear_gemm_wide(const linear_gemm_params &p) {
    linear_gemm<Block, kAct, kGlu, kRows, kTokens, kRowWarps, kTokenWarps, kStages, kBlocks, kWarps>(p);
}
