// moe_sort: the pairs of token and slot of a routing, sorted by expert, and the tiles of them that grouped products take. One launch;
// the host learns nothing. moe_sort_few: by one block of threads, for few pairs; moe_sort: by many, for any number.
//
// Math    stable counting sort of ids; pairs of no expert of this stack (padding, other shards) have no place. Tiles of at most `height`
//         places; experts with most rows first, of equals the lower one
// Shapes  ids, sorted, places [n]; offsets [n_experts + 1]; tiles [n / height + min(n, n_experts)]; n_experts <= kExperts
// Tiling  moe_sort_few: a warp has kSteps * 32 neighbouring pairs at most, finds equals by match and counts them in shared memory.
//         moe_sort: a block of threads has kOwn experts and reads all ids twice, to count and to place; a warp has neighbouring pieces of
//         128. The last block to count the pairs before its experts makes the tiles.
// Floor   a launch; of many pairs the ids, twice for each block of threads, at what an SM takes from L2: 2 x 256 KB of 65,536 pairs, 5 us.
// Limits  below 2^23 pairs, as ranks of experts are keys of 32 bits. Blocks of threads do not share what they count.
#include "common/pairs.cuh"

INTRIN uint32_t lanes_before() { return (1u << threadIdx.x % 32) - 1; }

// The sum over the lanes up to this one.
INTRIN uint32_t sum_upto(uint32_t x) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t lanes = 1; lanes < 32; lanes *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, x, lanes);
        if (lane >= lanes) x += other;
    }
    return x;
}

// A pair whose id is outside of this stack, which lies `local` behind its first one.
INTRIN void leave_out(const moe_sort_params &p, uint32_t pair, uint32_t local) {
    if (p.strict != 0 && local + p.first_expert != kNone) __trap();
    p.places[pair] = kNone;
}

template <int kExperts> struct moe_tiles_smem {
    uint4 keys[kExperts / 4];
    uint32_t offsets[kExperts + 1]; // of experts that are not there: all pairs
    uint32_t experts[kExperts];     // by rank
    uint32_t begins[kExperts + 1];
    uint32_t sums[32];
};

// The list of tiles, by a block of threads, which has a barrier between `offsets` and this.
template <int kExperts, int kThreads> INTRIN void list_tiles(const moe_sort_params &p, moe_tiles_smem<kExperts> &s) {
    constexpr uint32_t kParts = kThreads / kExperts; // threads that compare one expert with others
    static_assert(kParts > 0 && 32 % kParts == 0 && kExperts <= MOE_EXPERTS, "a thread for each expert");
    const uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    // Larger for experts that come first, and never equal.
    const auto key = [&](uint32_t e) { return (s.offsets[e + 1] - s.offsets[e]) * MOE_EXPERTS + (MOE_EXPERTS - 1 - e); };
    if (thread < kExperts / 4)
        s.keys[thread] = make_uint4(key(4 * thread), key(4 * thread + 1), key(4 * thread + 2), key(4 * thread + 3));
    __syncthreads();
    uint32_t rank = 0;
    const uint32_t own = key(thread / kParts);
#pragma unroll 8
    for (uint32_t i = thread % kParts; i < kExperts / 4; i += kParts) {
        const uint4 other = s.keys[i];
        rank += (other.x > own) + (other.y > own) + (other.z > own) + (other.w > own);
    }
#pragma unroll
    for (uint32_t lanes = 1; lanes < kParts; lanes *= 2) rank += __shfl_xor_sync(0xffffffffu, rank, static_cast<int>(lanes));
    if (thread % kParts == 0) s.experts[rank] = thread / kParts;
    __syncthreads();
    // Where the tiles of each begin.
    uint32_t tiles = 0, upto = 0;
    if (thread < kExperts) {
        const uint32_t e = s.experts[thread], rows = s.offsets[e + 1] - s.offsets[e];
        tiles = (rows + p.height - 1) / p.height;
        upto = sum_upto(tiles);
        if (lane == 31) s.sums[warp] = upto;
    }
    __syncthreads();
    if (thread < kExperts) {
        upto += __reduce_add_sync(0xffffffffu, lane < warp ? s.sums[lane] : 0);
        s.begins[thread] = upto - tiles;
        if (thread == kExperts - 1) s.begins[kExperts] = upto;
    }
    __syncthreads();
    const uint32_t all = s.begins[kExperts];
    for (uint32_t i = thread; i < all; i += kThreads) {
        uint32_t rank = 0; // the last that begins here or before: those without tiles are at the end
#pragma unroll
        for (uint32_t step = kExperts / 2; step > 0; step /= 2)
            if (s.begins[rank + step] <= i) rank += step;
        const uint32_t e = s.experts[rank], begin = s.begins[rank], first = (i - begin) * p.height;
        const uint32_t rows = min(s.offsets[e + 1] - s.offsets[e] - first, p.height);
        // A moe_tile in one store.
        *reinterpret_cast<uint4 *>(p.tiles + i) =
            make_uint4(s.offsets[e] + first, e | rows << 16, begin, s.begins[rank + 1] - begin);
    }
    if (thread < MOE_COUNTERS) p.counters[thread] = thread == 0 ? all : 0;
}

template <int kExperts, int kSteps, int kBlocks, int kWarps> struct moe_sort_few_smem {
    moe_tiles_smem<kExperts> tiles;
    uint32_t counts[kWarps][kExperts]; // pairs of a warp; then those of warps before it
};

template <int kExperts, int kSteps, int kBlocks, int kWarps> __device__ __forceinline__ void moe_sort_few(const moe_sort_params &p) {
    auto &s = smem<moe_sort_few_smem<kExperts, kSteps, kBlocks, kWarps>>();
    const uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    // Warps have as few steps as all pairs allow.
    const uint32_t steps = max((p.n + 32 * kWarps - 1) / (32 * kWarps), 1u), warps = (p.n + 32 * steps - 1) / (32 * steps);
    const auto pair = [&](uint32_t step) { return (warp * steps + step) * 32 + lane; };
    for (uint32_t e = lane; e < kExperts; e += 32) s.counts[warp][e] = 0;
    griddep_wait();
    griddep_launch_dependents();

    uint32_t local[kSteps], rank[kSteps] = {};
#pragma unroll
    for (uint32_t i = 0; i < kSteps; ++i) {
        local[i] = kNone;
        if (i < steps && pair(i) < p.n) local[i] = p.ids[pair(i)] - p.first_expert;
    }
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < kSteps; ++i) {
        if (i >= steps) break;
        const bool in = local[i] < p.n_experts;
        const uint32_t equals = __match_any_sync(0xffffffffu, local[i]);
        const uint32_t before = in ? s.counts[warp][local[i]] : 0;
        rank[i] = before + __popc(equals & lanes_before());
        __syncwarp();
        if (in && (equals & lanes_before()) == 0) s.counts[warp][local[i]] = before + __popc(equals);
        __syncwarp();
    }
    __syncthreads();
    uint32_t rows = 0, upto = 0;
    if (thread < kExperts) {
#pragma unroll 8
        for (uint32_t w = 0; w < warps; ++w) {
            const uint32_t count = s.counts[w][thread];
            s.counts[w][thread] = rows;
            rows += count;
        }
        upto = sum_upto(rows);
        if (lane == 31) s.tiles.sums[warp] = upto;
    }
    __syncthreads();
    if (thread < kExperts) {
        upto += __reduce_add_sync(0xffffffffu, lane < warp ? s.tiles.sums[lane] : 0);
        s.tiles.offsets[thread] = upto - rows;
        if (thread == kExperts - 1) s.tiles.offsets[kExperts] = upto;
        if (thread < p.n_experts) p.offsets[thread] = upto - rows;
        if (thread == p.n_experts - 1) p.offsets[p.n_experts] = upto;
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < kSteps; ++i) {
        if (i >= steps || pair(i) >= p.n) break;
        if (local[i] < p.n_experts) {
            const uint32_t place = s.tiles.offsets[local[i]] + s.counts[warp][local[i]] + rank[i];
            p.sorted[place] = pair(i);
            p.places[pair(i)] = place;
        } else {
            leave_out(p, pair(i), local[i]);
        }
    }
    list_tiles<kExperts, 32 * kWarps>(p, s.tiles);
}

template <int kExperts, int kOwn, int kBlocks, int kWarps> struct moe_sort_smem {
    moe_tiles_smem<kExperts> tiles;
    uint32_t below[kWarps]; // pairs of experts before those of this block of threads
    uint32_t own[kOwn][kWarps];
    uint32_t last;
};

template <int kExperts, int kOwn, int kBlocks, int kWarps> __device__ __forceinline__ void moe_sort(const moe_sort_params &p) {
    static_assert(kWarps == 32 && kOwn <= 4, "a lane for each warp, a byte for each expert");
    auto &s = smem<moe_sort_smem<kExperts, kOwn, kBlocks, kWarps>>();
    const uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const uint32_t base = blockIdx.x * kOwn, n_own = min(p.n_experts - base, uint32_t{kOwn});
    griddep_wait();
    griddep_launch_dependents();

    // Pieces of 128 ids, those that are whole and a rest.
    const uint32_t share = (p.n / 128 + kWarps - 1) / kWarps;
    const uint32_t first = min(warp * share, p.n / 128), end = min(first + share, p.n / 128);
    const bool has_rest = p.n % 128 != 0 && warp == kWarps - 1;
    const auto whole = [&](uint32_t piece, uint32_t (&local)[4]) {
        const uint4 ids = reinterpret_cast<const uint4 *>(p.ids)[piece * 32 + lane];
        local[0] = ids.x - p.first_expert, local[1] = ids.y - p.first_expert;
        local[2] = ids.z - p.first_expert, local[3] = ids.w - p.first_expert;
    };
    const auto rest = [&](uint32_t (&local)[4]) {
        const uint32_t pair = p.n / 128 * 128 + 4 * lane;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) local[i] = pair + i < p.n ? p.ids[pair + i] - p.first_expert : kNone;
    };

    uint32_t below = 0;
    uint64_t own = 0; // 16 bits for each: a thread has 2^13 pairs at most
    const auto count = [&](uint32_t piece, const uint32_t (&local)[4]) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            below += local[i] < base;
            if (local[i] - base < n_own) own += uint64_t{1} << 16 * (local[i] - base);
            const uint32_t pair = piece * 128 + 4 * lane + i;
            if (blockIdx.x == 0 && local[i] >= p.n_experts && pair < p.n) leave_out(p, pair, local[i]);
        }
    };
#pragma unroll 4
    for (uint32_t piece = first; piece < end; ++piece) {
        uint32_t local[4];
        whole(piece, local);
        count(piece, local);
    }
    if (has_rest) {
        uint32_t local[4];
        rest(local);
        count(p.n / 128, local);
    }
    below = __reduce_add_sync(0xffffffffu, below);
    if (lane == 0) s.below[warp] = below;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
        const uint32_t rows = __reduce_add_sync(0xffffffffu, static_cast<uint32_t>(own >> 16 * j) & 0xffffu);
        if (lane == 0) s.own[j][warp] = rows;
    }
    __syncthreads();
    uint32_t next[kOwn]; // where this warp's pairs of each expert go
    uint32_t start = __reduce_add_sync(0xffffffffu, s.below[lane]);
#pragma unroll
    for (uint32_t j = 0; j < kOwn; ++j) {
        const uint32_t rows = s.own[j][lane];
        next[j] = start + __reduce_add_sync(0xffffffffu, lane < warp ? rows : 0);
        const uint32_t end = start + __reduce_add_sync(0xffffffffu, rows);
        if (thread == 0 && j < n_own) p.offsets[base + j] = start;
        if (thread == 0 && base + j == p.n_experts - 1) p.offsets[p.n_experts] = end;
        start = end;
    }
    if (thread == 0) {
        const bool last = atomic_add_acq_rel(p.arrived, 1) == gridDim.x - 1;
        if (last) *p.arrived = 0; // for the next launch
        s.last = last;
    }

    const auto place = [&](uint32_t piece, const uint32_t (&local)[4]) {
        uint32_t counts = 0; // a byte for each expert, 128 at most
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (local[i] - base < n_own) counts += 1u << 8 * (local[i] - base);
        if (!__any_sync(0xffffffffu, counts != 0)) return;
        const uint32_t upto = sum_upto(counts), all = __shfl_sync(0xffffffffu, upto, 31);
        uint32_t before = upto - counts;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t mine = local[i] - base;
            if (mine >= n_own) continue;
            uint32_t at = next[0];
#pragma unroll
            for (uint32_t j = 1; j < kOwn; ++j) at = mine == j ? next[j] : at;
            at += before >> 8 * mine & 0xffu;
            before += 1u << 8 * mine;
            const uint32_t pair = piece * 128 + 4 * lane + i;
            p.sorted[at] = pair;
            p.places[pair] = at;
        }
#pragma unroll
        for (int j = 0; j < kOwn; ++j) next[j] += all >> 8 * j & 0xffu;
    };
#pragma unroll 2
    for (uint32_t piece = first; piece < end; ++piece) {
        uint32_t local[4];
        whole(piece, local);
        place(piece, local);
    }
    if (has_rest) {
        uint32_t local[4];
        rest(local);
        place(p.n / 128, local);
    }
    __syncthreads();
    if (s.last == 0) return;
    for (uint32_t e = thread; e <= kExperts; e += 32 * kWarps) s.tiles.offsets[e] = p.offsets[min(e, p.n_experts)];
    __syncthreads();
    list_tiles<kExperts, 32 * kWarps>(p, s.tiles);
}
