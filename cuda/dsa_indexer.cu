// dsa_indexer: how much each query likes each key that it sees, for the selection of keys. dsa_indexer_int8: keys in int8. dsa_indexer_any: the
// same for any heads, widths and types.
//
// Math    scores[t][s] = scale sum_a w[t][a] relu(q[t][a] . key[s])
// Shapes  q [m, heads, dim], w [m, heads], keys [slots, dim] in pages, scores [m, stride]; dsa_indexer: 128 wide, up to 32 heads, bf16 or f16
// Tiling  a warp has 32 keys in registers, and queries of kRows rows lie in shared memory (common/indexer.cuh). Rows of one sequence share
//         what is loaded; tiles beyond what a row sees are skipped.
//         dsa_indexer_any: a lane has a key, 32 of its columns at a time, and sums of 32 heads; FMAs in f32.
// Floor   bytes of the keys: 128k of 256 bytes 33.5 MB, 8.2 us at 4.1 TB/s; int8 17.3 MB, 4.2 us. Many rows: 8192 operations for a row and a
//         key, twice that if a query is two numbers of 16 bits: 2048 rows of 128k keys 3.7 and 7.3 ms at 600 TFLOPS, int8 1.7 ms at 1290 TOPS.
// Limits  A query loses of each of its values 2^-18 with bf16 keys and 2^-24 with f16 as two numbers, 2^-9 and 2^-12 as one, and half a step of
//         its head in int8. dsa_indexer_any reads keys again for every 32 heads.
#include "common/indexer.cuh"

INTRIN float key_value(float x) { return x; }
template <class Key> INTRIN float key_value(Key x) { return to_f32(x); }

// relu lets NaN pass.
INTRIN float liked(float dot, float w) { return (dot < 0.f ? 0.f : dot) * w; }

// Keys that a row sees: not more than its scores have room for, whatever a graph finds when it runs again.
INTRIN uint32_t seen(const dsa_indexer_params &p, uint32_t t) {
    return static_cast<uint32_t>(min(uint64_t{p.rows.positions[t]} + 1, p.stride));
}

// Minus infinity in the columns behind what a row sees.
INTRIN void hide_later_keys(const dsa_indexer_params &p, uint32_t t, uint32_t visible, uint32_t thread, uint32_t threads) {
    float *scores = p.scores + (t - p.first) * p.stride;
    for (uint32_t s = visible + thread; s < p.fill; s += threads) scores[s] = -INFINITY;
}

template <class Key, int kTerms, int kRows> struct indexer_rows_smem {
    indexer_query<Key, kTerms> query[kRows];
    uint32_t visible[kRows];
};

// A row by itself: blocks of threads share its keys.
template <class Key, int kTerms, int kKeys, int kWarps> INTRIN void indexer_row(const dsa_indexer_params &p) {
    auto &s = smem<indexer_rows_smem<Key, kTerms, 1>>();
    const uint32_t warp = threadIdx.x / 32, worker = blockIdx.x % p.workers, t = p.first + blockIdx.x / p.workers;
    const uint32_t step = p.workers * kWarps, visible = seen(p, t), scored = visible > p.least ? visible : 0;
    const uint32_t tiles = (scored + kKeys - 1) / kKeys;
    const auto slot_at = [&](uint32_t tile) { return tile < tiles ? slot_of(p.rows, t, tile * kKeys) : 0; };
    uint32_t tile = worker * kWarps + warp;
    const uint32_t slot = slot_at(tile);
    uint32_t next = slot_at(tile + step); // read ahead: keys are asked for as soon as the scores before are done
    griddep_wait();
    griddep_launch_dependents();
    if (p.fill > 0) hide_later_keys(p, t, visible, worker * 32 * kWarps + threadIdx.x, step * 32);
    if (tiles == 0) return;
    // The query is asked for first, since it would come behind all keys that the SM asks for, and is split while they come.
    const float *q = p.q + uint64_t{t} * p.heads * INDEXER_DIM, *w = p.w + uint64_t{t} * p.heads;
    query_part<Key, kTerms> part;
    part.load(q, w, p.heads, warp % kQueryParts);
    indexer_keys<Key, kKeys> keys;
    if (tile < tiles) keys.load(p.keys, slot);
    split_query(part, q, w, p.heads, warp, kWarps, s.query[0]);
    __syncthreads();
    float *scores = p.scores + (t - p.first) * p.stride;
    while (tile < tiles) {
        float mine[kKeys / 32];
        score_keys(keys, s.query[0], p.heads, mine);
        const uint32_t at = tile * kKeys + key_of_lane();
        tile += step;
        if (tile < tiles) keys.load(p.keys, next);
        next = slot_at(tile + step);
#pragma unroll
        for (uint32_t i = 0; i < kKeys / 32; ++i)
            if (at + 32 * i < visible) scores[at + 32 * i] = mine[i] * p.scale;
    }
}

// kRows rows, which share keys if they are of one sequence; if not, one sequence after the other.
template <class Key, int kTerms, int kKeys, int kRows, int kWarps> INTRIN void indexer_rows(const dsa_indexer_params &p) {
    auto &s = smem<indexer_rows_smem<Key, kTerms, kRows>>();
    const uint32_t warp = threadIdx.x / 32;
    // Those that see most come first.
    const uint32_t group = (gridDim.x - 1 - blockIdx.x) / p.workers, worker = blockIdx.x % p.workers, step = p.workers * kWarps;
    const uint32_t begin = p.first + group * kRows, rows = min(uint32_t{kRows}, p.first + p.m - begin);
    uint32_t most = 0;
    for (uint32_t row = 0; row < rows; ++row) most = max(most, p.rows.positions[begin + row] + 1);
    if (threadIdx.x < rows) {
        const uint32_t visible = seen(p, begin + threadIdx.x);
        s.visible[threadIdx.x] = visible > p.least ? visible : 0;
    }
    griddep_wait();
    griddep_launch_dependents();
    if (p.fill > 0)
        for (uint32_t row = 0; row < rows; ++row)
            hide_later_keys(p, begin + row, p.rows.positions[begin + row] + 1, worker * 32 * kWarps + threadIdx.x, step * 32);
    if (most <= p.least) return;
    for (uint32_t i = warp; i < rows * kQueryParts; i += kWarps) {
        const uint64_t t = begin + i / kQueryParts;
        query_part<Key, kTerms> part;
        part.load(p.q + t * p.heads * INDEXER_DIM, p.w + t * p.heads, p.heads, i % kQueryParts);
        part.split(s.query[i / kQueryParts], i % kQueryParts);
    }
    __syncthreads();
    for (uint32_t first = 0, last; first < rows; first = last) {
        const uint32_t table = p.rows.table_starts[begin + first];
        // Of one sequence the last row sees most.
        uint32_t sees = s.visible[first];
        for (last = first + 1; last < rows && p.rows.table_starts[begin + last] == table; ++last) {
            if (p.rows.positions[begin + last] <= p.rows.positions[begin + last - 1]) break;
            sees = s.visible[last];
        }
        for (uint32_t tile = worker * kWarps + warp; tile * kKeys < sees; tile += step) {
            indexer_keys<Key, kKeys> keys;
            keys.load(p.keys, slot_in(p.rows, table, tile * kKeys));
            const uint32_t at = tile * kKeys + key_of_lane();
#pragma unroll 1
            for (uint32_t row = first; row < last; ++row) {
                const uint32_t visible = s.visible[row];
                if (visible <= tile * kKeys) continue;
                float mine[kKeys / 32];
                score_keys(keys, s.query[row], p.heads, mine);
                float *scores = p.scores + (begin + row - p.first) * p.stride;
#pragma unroll
                for (uint32_t i = 0; i < kKeys / 32; ++i)
                    if (at + 32 * i < visible) scores[at + 32 * i] = mine[i] * p.scale;
            }
        }
    }
}

template <class Key, int kTerms, int kRows, int kKeys, int kBlocks, int kWarps> using dsa_indexer_smem = indexer_rows_smem<Key, kTerms, kRows>;

template <class Key, int kTerms, int kRows, int kKeys, int kBlocks, int kWarps>
__device__ __forceinline__ void dsa_indexer(const dsa_indexer_params &p) {
    if constexpr (kRows == 1) indexer_row<Key, kTerms, kKeys, kWarps>(p);
    else indexer_rows<Key, kTerms, kKeys, kRows, kWarps>(p);
}

template <int kRows, int kKeys, int kBlocks, int kWarps> using dsa_indexer_int8_smem = indexer_rows_smem<int8_key, 1, kRows>;

template <int kRows, int kKeys, int kBlocks, int kWarps> __device__ __forceinline__ void dsa_indexer_int8(const dsa_indexer_params &p) {
    dsa_indexer<int8_key, 1, kRows, kKeys, kBlocks, kWarps>(p);
}

constexpr int kAnyHeads = 32, kAnyCols = 32;

template <class Key, int kBlocks, int kWarps> struct dsa_indexer_any_smem {
    float q[kAnyHeads][kAnyCols];
    float w[kAnyHeads];
};

template <class Key, int kBlocks, int kWarps> __device__ __forceinline__ void dsa_indexer_any(const dsa_indexer_params &p) {
    auto &s = smem<dsa_indexer_any_smem<Key, kBlocks, kWarps>>();
    constexpr uint32_t kThreads = 32 * kWarps;
    const uint32_t group = blockIdx.x / p.workers, worker = blockIdx.x % p.workers, t = p.first + group;
    griddep_wait();
    griddep_launch_dependents();
    const uint32_t visible = seen(p, t);
    if (p.fill > 0) hide_later_keys(p, t, visible, worker * kThreads + threadIdx.x, p.workers * kThreads);
    if (visible <= p.least) return;
    for (uint32_t base = worker * kThreads; base < visible; base += p.workers * kThreads) {
        const uint32_t at = base + threadIdx.x;
        const Key *key = static_cast<const Key *>(p.keys) + uint64_t{slot_of(p.rows, t, min(at, visible - 1))} * p.dim;
        float score = 0.f;
        for (uint32_t head = 0; head < p.heads; head += kAnyHeads) {
            float dot[kAnyHeads] = {};
            for (uint32_t col = 0; col < p.dim; col += kAnyCols) {
                __syncthreads(); // the columns before are not needed any more
                for (uint32_t i = threadIdx.x; i < kAnyHeads * kAnyCols; i += kThreads) {
                    const uint32_t h = head + i / kAnyCols, c = col + i % kAnyCols;
                    s.q[i / kAnyCols][i % kAnyCols] = h < p.heads && c < p.dim ? p.q[(uint64_t{t} * p.heads + h) * p.dim + c] : 0.f;
                }
                for (uint32_t i = threadIdx.x; i < kAnyHeads; i += kThreads) s.w[i] = head + i < p.heads ? p.w[uint64_t{t} * p.heads + head + i] : 0.f;
                float k[kAnyCols];
#pragma unroll
                for (uint32_t i = 0; i < kAnyCols; ++i) k[i] = col + i < p.dim ? key_value(key[col + i]) : 0.f;
                __syncthreads();
#pragma unroll
                for (int h = 0; h < kAnyHeads; ++h)
#pragma unroll
                    for (int i = 0; i < kAnyCols; i += 4) {
                        const float4 q = *reinterpret_cast<const float4 *>(&s.q[h][i]);
                        dot[h] = __fmaf_rn(q.x, k[i], __fmaf_rn(q.y, k[i + 1], __fmaf_rn(q.z, k[i + 2], __fmaf_rn(q.w, k[i + 3], dot[h]))));
                    }
            }
#pragma unroll
            for (uint32_t h = 0; h < kAnyHeads; ++h)
                if (head + h < p.heads) score += liked(dot[h], s.w[h]);
        }
        if (at < visible) p.scores[(t - p.first) * p.stride + at] = score * p.scale;
    }
}
