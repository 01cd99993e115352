// dsa_select, dsa_select_int8: the k keys that a query likes best of those that it sees, exactly, as ascending positions: dsa_indexer and dsa_topk
// for few rows, in one launch, without scores in memory.
//
// Math    the scores of dsa_indexer, bit for bit, and of them what dsa_topk selects
// Shapes  as those of dsa_indexer with a row in a group, and of dsa_topk
// Tiling  a row has `parts` blocks of threads, to which tiles of kKeys keys are dealt in turn. Each scores its tiles into shared memory, lists the
//         largest in global memory, and selects from what all of them listed. If that does not prove the result, the scores go to global memory,
//         and the blocks count together.
// Floor   bytes of the keys: 128k of 256 bytes 33.5 MB, 8.2 us at 4.1 TB/s; int8 17.3 MB, 4.2 us; and a meeting
// Limits  as of dsa_indexer and dsa_topk: if blocks of a row cannot run together, the last of them scores and selects alone.
#include "common/indexer.cuh"
#include "common/topk.cuh"
#include "params/dsa_select.h"

template <class Key, int kTerms, int kHeld, int kKeys, int kBlocks, int kWarps> struct dsa_select_smem {
    indexer_query<Key, kTerms> query;
    topk_counts<kWarps> counts;
    uint32_t keys[kHeld]; // of scores, as integers
};

// Calls store(own, place, score) for the keys of tiles `part`, `part + parts` and so on: `own` numbers those of this block.
template <class Key, int kTerms, int kKeys, int kWarps, class Store>
INTRIN void score_tiles(const dsa_indexer_params &p, uint32_t t, uint32_t visible, uint32_t part, uint32_t parts,
                        const indexer_query<Key, kTerms> &query, indexer_keys<Key, kKeys> &keys, Store store) {
    const uint32_t warp = threadIdx.x / 32, step = parts * kWarps, tiles = (visible + kKeys - 1) / kKeys;
    uint32_t tile = warp * parts + part, next = 0;
    if (tile + step < tiles) next = slot_of(p.rows, t, (tile + step) * kKeys);
#pragma unroll 1
    for (uint32_t own = warp * kKeys + key_of_lane(); tile < tiles; own += kWarps * kKeys) {
        float mine[kKeys / 32];
        score_keys(keys, query, p.heads, mine);
        const uint32_t at = tile * kKeys + key_of_lane();
        tile += step;
        if (tile < tiles) {
            keys.load(p.keys, next);
            if (tile + step < tiles) next = slot_of(p.rows, t, (tile + step) * kKeys);
        }
#pragma unroll
        for (uint32_t i = 0; i < kKeys / 32; ++i)
            if (at + 32 * i < visible) store(own + 32 * i, at + 32 * i, mine[i] * p.scale);
    }
    __syncthreads();
}

template <class Key, int kTerms, int kHeld, int kKeys, int kBlocks, int kWarps> __device__ __forceinline__ void dsa_select(const dsa_select_params &p) {
    auto &s = smem<dsa_select_smem<Key, kTerms, kHeld, kKeys, kBlocks, kWarps>>();
    const dsa_indexer_params &of = p.of;
    const uint32_t warp = threadIdx.x / 32, row = blockIdx.x / p.sharing.parts, part = blockIdx.x % p.sharing.parts, t = of.first + row, k = p.k;
    const uint32_t visible = min(of.rows.positions[t] + 1, static_cast<uint32_t>(of.stride));
    const uint32_t tile = warp * p.sharing.parts + part;
    const bool some = visible > k && tile * kKeys < visible;
    const uint32_t slot = some ? slot_of(of.rows, t, tile * kKeys) : 0;
    griddep_wait();
    griddep_launch_dependents();
    if (part == 0 && threadIdx.x == 0) p.lens[row] = min(visible, k);
    if (visible <= k) {
        uint32_t *indices = p.indices + uint64_t{row} * k;
        for (uint32_t i = part * (32 * kWarps) + threadIdx.x; i < visible; i += p.sharing.parts * (32 * kWarps)) indices[i] = i;
        return;
    }
    // The query is asked for first, and split while keys come.
    const float *q = of.q + uint64_t{t} * of.heads * INDEXER_DIM, *w = of.w + uint64_t{t} * of.heads;
    query_part<Key, kTerms> mine;
    indexer_keys<Key, kKeys> keys;
    mine.load(q, w, of.heads, warp % kQueryParts);
    if (some) keys.load(of.keys, slot);
    split_query(mine, q, w, of.heads, warp, kWarps, s.query);
    for (uint32_t i = threadIdx.x; i < TOPK_BINS; i += 32 * kWarps) s.counts.bins[i] = 0;
    __syncthreads();
    score_tiles<Key, kTerms, kKeys, kWarps>(of, t, visible, part, p.sharing.parts, s.query, keys, [&](uint32_t own, uint32_t, float score) {
        s.keys[own] = topk_key(score);
    });
    float *scores = of.scores + row * of.stride;
    topk_shared<kWarps, kKeys> block{s.counts, p.shared + row, p.sharing, part, k, visible, p.indices + uint64_t{row} * k};
    const uint32_t n = block.own();
    block.template list<8>(n, [&](uint32_t i) { return s.keys[i]; });
    bool met = block.meet();
    if (met) {
        if (block.choose()) return;
        for (uint32_t i = threadIdx.x; i < n; i += 32 * kWarps) scores[block.place_of(i)] = topk_score(s.keys[i]);
        met = block.meet();
    }
    if ((met && block.by_counts(scores, s.keys, kHeld)) || !block.is_last()) return;
    // A block gave up: alone, which does not fail.
    block.part = 0, block.parts = 1;
    block.clear_bins();
    indexer_keys<Key, kKeys> again;
    again.load(of.keys, slot_of(of.rows, t, min(warp * kKeys, visible - 1) / kKeys * kKeys));
    score_tiles<Key, kTerms, kKeys, kWarps>(of, t, visible, 0, 1, s.query, again, [&](uint32_t, uint32_t place, float score) { scores[place] = score; });
    block.by_counts(scores, s.keys, kHeld);
}

template <int kHeld, int kKeys, int kBlocks, int kWarps> using dsa_select_int8_smem = dsa_select_smem<int8_key, 1, kHeld, kKeys, kBlocks, kWarps>;

template <int kHeld, int kKeys, int kBlocks, int kWarps> __device__ __forceinline__ void dsa_select_int8(const dsa_select_params &p) {
    dsa_select<int8_key, 1, kHeld, kKeys, kBlocks, kWarps>(p);
}
