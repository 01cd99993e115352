// moe.cuh: what the kernels of experts for few rows share (moe_rows, moe_down): the list of experts that have rows, how tiles of weights
// are dealt out to blocks of threads, and how a warp has them copied.
//
// Work is a sequence of units, a unit some rows of a matrix (of gate and up both, or of down of all experts) and all columns of it: tiles
// of weights one after the other. Blocks of threads share the sequence by bytes, whatever units that cuts; the warps of a block take every
// kWarps-th tile. Sums of a unit meet in shared memory in the order of the warps, and those of a unit that was cut in global memory in the
// order of the blocks, where the last one to come adds them up. So the same bits come out every time.
#pragma once
#include "multiply_tile.cuh"
#include "params/moe.h"

constexpr uint32_t kNoExpert = 0xffffffffu;

// Tiles of fewer bytes are multiplied in one piece where four tokens are at most: then which bits are a scale is known when it is compiled,
// 70 instructions less of 380. Of others, or of more tokens, the loads of all of a tile take more registers than there are.
constexpr int kSmall = 3000;

// Experts that have rows -------------------------------------------------------------------------------------------------

// Up to eight rows of an expert, in a word.
struct moe_entry {
    uint32_t bits; // 9 of the expert, 3 of the rows less one, 20 of the first place

    static INTRIN moe_entry of(uint32_t expert, uint32_t first, uint32_t rows) { return {expert | (rows - 1) << 9 | first << 12}; }
    INTRIN uint32_t expert() const { return bits & 511; }
    INTRIN uint32_t rows() const { return (bits >> 9 & 7) + 1; }
    INTRIN uint32_t first() const { return bits >> 12; }
};

template <int kWarps> struct moe_list {
    uint32_t entries[MOE_EXPERTS];
    uint32_t counts[4 * kWarps]; // of warps
    uint32_t n, n_light; // entries, and how many of them come first because they have four rows at most

    INTRIN moe_entry at(uint32_t i) const { return {entries[i]}; }
    // Of a list of few pairs, which leaves room behind its entries: the pairs by place, and the expert of each.
    static_assert(MOE_EXPERTS >= 3 * MOE_PAIRS, "room");
    INTRIN uint32_t *sorted() { return entries + MOE_PAIRS; }
    INTRIN const uint32_t *sorted() const { return entries + MOE_PAIRS; }
    INTRIN uint32_t *keys() { return entries + 2 * MOE_PAIRS; }
};

// How many of the threads of lower number, of those of the block and round, say yes: by all warps, of which each writes its part of
// `counts`.
template <int kWarps> INTRIN uint32_t count_before(bool yes, uint32_t (&counts)[4 * kWarps], int round, uint32_t &all) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t ballot = __ballot_sync(0xffffffffu, yes);
    if (lane == 0) counts[round * kWarps + warp] = __popc(ballot);
    __syncthreads();
    uint32_t before = 0;
    all = 0;
    for (int w = 0; w < kWarps; ++w) {
        if (w < warp) before += counts[round * kWarps + w];
        all += counts[round * kWarps + w];
    }
    return before + __popc(ballot & ((1u << lane) - 1));
}

// Of few pairs: sorts them. An entry ends where the expert does, or with a second row of a token: then its rows are of distinct tokens. Up to
// 32 pairs are sorted by one warp, which waits for no others. Thread 0 has written `list.n`; a barrier follows before others read the list.
template <int kWarps> INTRIN void list_pairs(const moe_pairs &p, moe_list<kWarps> &list) {
    static_assert(MOE_PAIRS <= 32 * kWarps, "a thread for each pair");
    const uint32_t n = p.m * p.top_k, i = threadIdx.x;
    const bool alone = n <= 32;
    if (alone && i >= 32) return;
    const auto sync = [&] {
        if (alone) __syncwarp();
        else __syncthreads();
    };
    uint32_t key = kNoExpert;
    if (i < n) {
        const uint32_t id = ld_relaxed(p.ids + i);
        const bool there = id - p.first < p.n_experts && id != kNoExpert;
        if (!there && id != kNoExpert && p.strict != 0) __trap();
        if (there) key = id - p.first;
        list.keys()[i] = key;
    }
    sync();
    uint32_t place = 0;
    if (i < n)
        for (uint32_t j = 0; j < n; ++j) place += list.keys()[j] < key || (list.keys()[j] == key && j < i);
    sync();
    if (i < n) list.sorted()[place] = i, list.keys()[place] = key;
    sync();
    bool begins = false; // an entry, at place i
    if (i < n && list.keys()[i] != kNoExpert)
        begins = i == 0 || list.keys()[i - 1] != list.keys()[i] || list.sorted()[i - 1] / p.top_k == list.sorted()[i] / p.top_k;
    uint32_t all, entry;
    if (alone) {
        const uint32_t ballot = __ballot_sync(0xffffffffu, begins);
        all = __popc(ballot), entry = __popc(ballot & ((1u << i) - 1));
    } else {
        entry = count_before<kWarps>(begins, list.counts, 0, all);
    }
    if (begins) {
        uint32_t rows = 1;
        while (i + rows < n && list.keys()[i + rows] == list.keys()[i] && list.sorted()[i + rows - 1] / p.top_k != list.sorted()[i + rows] / p.top_k)
            ++rows;
        list.entries[entry] = moe_entry::of(list.keys()[i], i, rows).bits;
    }
    if (i == 0) list.n = list.n_light = all;
}

// Of pairs that were sorted: experts with few rows, those with the fewest first, as their tiles take less time. As list_pairs, without the
// barrier behind it.
template <int kWarps> INTRIN void list_experts(const moe_pairs &p, moe_list<kWarps> &list) {
    static_assert(MOE_EXPERTS <= 2 * 32 * kWarps, "two experts for each thread");
    uint32_t first[2], rows[2], n = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t expert = i * 32 * kWarps + threadIdx.x;
        first[i] = rows[i] = 0;
        if (expert < p.n_experts) first[i] = p.offsets[expert], rows[i] = p.offsets[expert + 1] - first[i];
    }
#pragma unroll
    for (int round = 0; round < 4; ++round) {
        const int i = round % 2;
        const bool light = rows[i] - 1 < MOE_ROWS / 2, is = round < 2 ? light : !light && rows[i] - 1 < MOE_ROWS;
        uint32_t all;
        const uint32_t entry = n + count_before<kWarps>(is, list.counts, round, all);
        if (is) list.entries[entry] = moe_entry::of(i * 32 * kWarps + threadIdx.x, first[i], rows[i]).bits;
        n += all;
        if (round == 1 && threadIdx.x == 0) list.n_light = n;
    }
    if (threadIdx.x == 0) list.n = n;
}

// What a block of threads has to do --------------------------------------------------------------------------------------

INTRIN constexpr uint32_t tiles_bytes(tiles_type ty) {
    return ty == TILES_Q4_K   ? sizeof(tile_q4_K)
           : ty == TILES_Q5_K ? sizeof(tile_q5_K)
           : ty == TILES_Q6_K ? sizeof(tile_q6_K)
           : ty == TILES_Q5_0 ? sizeof(tile_q5_0)
                              : sizeof(tile_q8_0);
}

// How much longer an entry with more than four rows takes for a tile: kHeavy / kLight.
constexpr uint32_t kLight = 5, kHeavy = 8;

// A sequence of pieces of work: `periods` times `a` of one size, then `b` of another. Dealt out to workers by size: worker i has those that
// begin at i times the quota or behind, up to that of the next. A quota is a piece at least: then of the workers between those that have the ends of
// a unit each has a part of it. All sizes together are below 2^32.
struct moe_share {
    uint32_t a, b, size_a, size_b, periods, of_period, quota;

    moe_share() = default;
    INTRIN moe_share(uint32_t a, uint32_t size_a, uint32_t b, uint32_t size_b, uint32_t periods, uint32_t workers)
        : a(a), b(b), size_a(size_a), size_b(size_b), periods(periods), of_period(a * size_a + b * size_b),
          quota(max((of_period * periods + workers - 1) / workers, max(a > 0 ? size_a : 0, b > 0 ? size_b : 0))) {}
    // Tiles, in pieces of 16 bytes, and blocks of threads.
    INTRIN moe_share(uint32_t a, tiles_type ty_a, uint32_t b, tiles_type ty_b, uint32_t periods)
        : moe_share(a, tiles_bytes(ty_a) / 16, b, tiles_bytes(ty_b) / 16, periods, gridDim.x) {}
    // The first piece of a worker.
    INTRIN uint32_t begin(uint32_t worker) const {
        const uint32_t at = min(worker * quota, of_period * periods);
        if (at == 0) return 0;
        const uint32_t rest = at % of_period, all_a = a * size_a;
        const uint32_t piece = rest < all_a ? (rest + size_a - 1) / size_a : a + (rest - all_a + size_b - 1) / size_b;
        return at / of_period * (a + b) + piece;
    }
    // Where a piece begins.
    INTRIN uint32_t at(uint32_t piece) const {
        const uint32_t i = piece % (a + b);
        return piece / (a + b) * of_period + min(i, a) * size_a + (i > a ? i - a : 0) * size_b;
    }
};

// A warp's tiles in shared memory, all of one type: one is read, others are on their way.
template <class Tile, int kBytes> struct tile_ring {
    static constexpr int kRoom = kBytes / sizeof(Tile), kMost = 4;
    static constexpr int kStages = kRoom < kMost ? kRoom : kMost;
    static_assert(kStages >= 2 && sizeof(Tile) % 16 == 0, "one is read, others come; whole copies");
    unsigned char *tiles;
    int reading = 0;

    // To the place of the tile that was read last, or of tile `to` at the beginning; once for each tile that is read, also behind the last.
    INTRIN void copy(const void *from, bool there) { copy(from, there, reading == 0 ? kStages - 1 : reading - 1); }
    INTRIN void copy(const void *from, bool there, int to) {
        constexpr int kChunks = sizeof(Tile) / 16;
        const int lane = threadIdx.x % 32;
        if (there) {
            unsigned char *dst = tiles + to * sizeof(Tile) + lane * 16;
            const unsigned char *src = static_cast<const unsigned char *>(from) + lane * 16;
#pragma unroll
            for (int c = 0; c < (kChunks + 31) / 32; ++c)
                if (kChunks % 32 == 0 || c * 32 + lane < kChunks) cp_async<16>(dst + c * 512, src + c * 512);
        }
        cp_async_commit();
    }
    // The oldest tile is there, and all lanes have read the one before.
    INTRIN const Tile &wait() const {
        cp_async_wait<kStages - 2>();
        __syncwarp();
        return *reinterpret_cast<const Tile *>(tiles + reading * sizeof(Tile));
    }
    INTRIN void next() { reading = reading + 1 == kStages ? 0 : reading + 1; }
};

// Sums of the warps of a block of threads over a unit: kParts results of 16 by 8. One warp, in turn, adds them up.
template <int kParts, int kWarps> struct moe_sums {
    float partial[kParts][kWarps][4][32];
    mbarrier full, empty;

    INTRIN void init() { mbarrier_init(full, kWarps * 32), mbarrier_init(empty, 32); }
    // Before the first sums of a unit are put.
    INTRIN void room(unsigned turn) {
        if (turn > 0) mbarrier_wait(empty, (turn - 1) % 2);
    }
    INTRIN void put(int part, const float (&acc)[4]) {
#pragma unroll
        for (int r = 0; r < 4; ++r) partial[part][threadIdx.x / 32][r][threadIdx.x % 32] = acc[r];
    }
    INTRIN void put_all() { mbarrier_arrive(full); }
    static INTRIN bool mine(unsigned turn) { return threadIdx.x / 32 == turn % kWarps; }
    // By that warp: from here to release() a lane has its sums of all warps at(), which takes no registers of those that multiply.
    INTRIN void take(unsigned turn) {
        mbarrier_wait(full, turn % 2);
#pragma unroll 2
        for (int part = 0; part < kParts; ++part)
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                float sum = at(part, r);
#pragma unroll
                for (int w = 1; w < kWarps; ++w) sum = __fadd_rn(sum, partial[part][w][r][threadIdx.x % 32]);
                at(part, r) = sum;
            }
    }
    INTRIN float &at(int part, int r) { return partial[part][0][r][threadIdx.x % 32]; }
    INTRIN void release() { mbarrier_arrive(empty); }
};

// By a warp: counts itself at `counter`, after what it wrote. True for the last of `all`, which then sees what the others wrote and has set
// the counter back.
INTRIN bool last_warp(uint32_t *counter, uint32_t all) {
    __syncwarp();
    uint32_t before = 0;
    if (threadIdx.x % 32 == 0) {
        before = atomic_add_acq_rel(counter, 1);
        if (before == all - 1) *counter = 0;
    }
    before = __shfl_sync(0xffffffffu, before, 0);
    __syncwarp();
    return before == all - 1;
}

// Sums of a unit that several blocks of threads share: by the warp that added up those of this one, `from` the first tile of the unit to
// `until`. False for all but the last, which has them all.
template <int kParts, int kWarps>
INTRIN bool meet(const moe_share &share, uint32_t from, uint32_t until, float *partial, uint32_t *arrived, moe_sums<kParts, kWarps> &sums) {
    const uint32_t lane = threadIdx.x % 32, at = share.at(from), owner = at / share.quota, last_owner = share.at(until - 1) / share.quota;
    // Two places for each block of threads: for a piece at the beginning of its share and for one at the end.
    const auto part_of = [&](uint32_t block) {
        return partial + (uint64_t{block} * 2 + (block * share.quota > at ? 0 : 1)) * (kParts * 128) + lane * 4;
    };
#pragma unroll 1
    for (int part = 0; part < kParts; ++part)
        *reinterpret_cast<float4 *>(part_of(blockIdx.x) + part * 128) =
            make_float4(sums.at(part, 0), sums.at(part, 1), sums.at(part, 2), sums.at(part, 3));
    // Of the units that begin in one share only the last can be shared, so its first owner stands for it.
    if (!last_warp(arrived + owner, last_owner - owner + 1)) return false;
#pragma unroll 2
    for (int part = 0; part < kParts; ++part) {
        float4 all = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 4
        for (uint32_t block = owner; block <= last_owner; ++block) {
            const float4 v = vector_at<float4>(part_of(block) + part * 128);
            all.x = __fadd_rn(all.x, v.x), all.y = __fadd_rn(all.y, v.y), all.z = __fadd_rn(all.z, v.z), all.w = __fadd_rn(all.w, v.w);
        }
        sums.at(part, 0) = all.x, sums.at(part, 1) = all.y, sums.at(part, 2) = all.z, sums.at(part, 3) = all.w;
    }
    return true;
}

// A type, and a number, as arguments.
template <class T> struct type_of {
    using type = T;
};
template <int kN> struct columns_of {
    static constexpr int kValue = kN;
};

// Calls `use` with the blocks that tiles were made of.
template <class F> INTRIN void with_type(tiles_type ty, F &&use) {
    switch (ty) {
    case TILES_Q4_K: return use(type_of<block_q4_K>{});
    case TILES_Q5_K: return use(type_of<block_q5_K>{});
    case TILES_Q6_K: return use(type_of<block_q6_K>{});
    case TILES_Q5_0: return use(type_of<block_q5_0>{});
    case TILES_Q8_0: return use(type_of<block_q8_0>{});
    }
}
