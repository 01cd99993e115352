// dsa_indexer: how much each query likes each key that it sees, for the selection of keys. dsa_indexer_any: the same for any heads, widths and types.
//
// Math    scores[t][s] = scale sum_a w[t][a] relu(q[t][a] . key[s])
// Shapes  q [m, heads, dim], w [m, heads], keys [slots, dim] in pages, scores [m, stride]; dsa_indexer: 128 wide, up to 32 heads, bf16 or f16
// Tiling  a warp has 32 keys in registers as A fragments, loaded as they lie: the order of columns within a product is free as long as queries
//         have the same. Queries of kRows rows are B fragments in shared memory. Heads are columns of the result, so that a lane adds up most of
//         them by itself. Rows of one sequence share what is loaded; tiles beyond what a row sees are skipped.
//         dsa_indexer_any: a lane has a key, 32 of its columns at a time, and sums of 32 heads; FMAs in f32.
// Floor   bytes of the keys: 128k of 256 bytes 33.5 MB, 8.2 us at 4.1 TB/s. Many rows: 16,384 operations for a row and a key, twice what the
//         formula has, as a query is two numbers of 16 bits: 2048 rows of 128k keys 7.3 ms at 600 TFLOPS.
// Limits  A query loses 2^-18 of each of its values with bf16 keys, 2^-24 with f16. dsa_indexer_any reads keys again for every 32 heads.
#include "common/pages.cuh"
#include "params/dsa_indexer.h"

INTRIN float key_value(float x) { return x; }
template <class Key> INTRIN float key_value(Key x) { return to_f32(x); }

// relu lets NaN pass.
INTRIN float liked(float dot, float w) { return (dot < 0.f ? 0.f : dot) * w; }

// Rows `first` to `end` of the launch are of one sequence; gives the end of those that begin at `first`.
INTRIN uint32_t sequence_end(const ragged_rows &rows, uint32_t first, uint32_t end) {
    uint32_t t = first + 1;
    while (t < end && rows.table_starts[t] == rows.table_starts[first] && rows.positions[t] > rows.positions[t - 1]) ++t;
    return t;
}

// Minus infinity in the columns that rows `first` to `end` do not see.
INTRIN void hide_later_keys(const dsa_indexer_params &p, uint32_t first, uint32_t end, uint32_t thread, uint32_t threads) {
    for (uint32_t t = first; t < end; ++t) {
        float *scores = p.scores + (t - p.first) * p.stride;
        for (uint32_t s = p.rows.positions[t] + 1 + thread; s < p.fill; s += threads) scores[s] = -INFINITY;
    }
}

// A query's values as the sum of two numbers of 16 bits, by pairs. The second is nothing if the first is not finite.
template <class Key> struct split;
template <> struct split<bf16> {
    static constexpr bool kScaled = false;
    static INTRIN uint32_t pack(float lo, float hi) { return pack_bf16x2(lo, hi); }
    static INTRIN float value(uint32_t bits) { return bf16_to_f32(static_cast<uint16_t>(bits)); }
    static INTRIN void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_m16n8k16_bf16(d, a, b); }
};
template <> struct split<f16> {
    static constexpr bool kScaled = true; // the range is small, so that heads are brought to the same
    static INTRIN uint32_t pack(float lo, float hi) { return pack_f16x2(lo, hi); }
    static INTRIN float value(uint32_t bits) { return f16_to_f32(static_cast<uint16_t>(bits)); }
    static INTRIN void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_m16n8k16_f16(d, a, b); }
};
template <class Key> INTRIN void split_pair(float x, float y, uint32_t &upper, uint32_t &rest) {
    using S = split<Key>;
    upper = S::pack(x, y);
    const float x_rest = x - S::value(upper), y_rest = y - S::value(upper >> 16);
    rest = S::pack(fabsf(x_rest) < INFINITY ? x_rest : 0.f, fabsf(y_rest) < INFINITY ? y_rest : 0.f);
}

constexpr int kHeadTiles = INDEXER_HEADS / 8, kSteps = INDEXER_DIM / 16, kRowVectors = INDEXER_DIM / 8;

template <class Key, int kRows, int kBlocks, int kWarps> struct dsa_indexer_smem {
    uint4 q[kRows][kHeadTiles][kSteps][32]; // of each lane: B fragments of the first number, of the second
    float w[kRows][INDEXER_HEADS];
};

template <class Key, int kRows, int kBlocks, int kWarps> __device__ __forceinline__ void dsa_indexer(const dsa_indexer_params &p) {
    auto &s = smem<dsa_indexer_smem<Key, kRows, kBlocks, kWarps>>();
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t4 = lane % 4;
    const uint32_t group = blockIdx.x / p.workers, worker = blockIdx.x % p.workers;
    const uint32_t begin = p.first + group * kRows, end = min(begin + kRows, p.first + p.m);
    const uint32_t first_tile = worker * kWarps + warp, step = p.workers * kWarps;
    const uint4 *keys = static_cast<const uint4 *>(p.keys);

    uint4 a[4][4]; // rows g, g + 8, g + 16, g + 24 of 32 keys: 16 bytes of each 64
    const auto load = [&](uint32_t t, uint32_t tile) {
        const uint4 *rows = keys + (uint64_t{slot_of(p.rows, t, tile * INDEXER_KEYS)} + g) * kRowVectors + t4;
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int c = 0; c < 4; ++c) a[i][c] = ld_stream(rows + i * 8 * kRowVectors + c * 4);
    };

    griddep_wait();
    griddep_launch_dependents();
    // Nothing of a group that sees too little. Of one sequence the last row sees most; there may be several.
    uint32_t most = 0;
    for (uint32_t t = begin; t < end; ++t) most = max(most, p.rows.positions[t] + 1);
    if (p.fill == 0 && most <= p.least) return;
    // One row's first keys are on their way while its query is split.
    bool loaded = kRows == 1 && most > p.least && first_tile * INDEXER_KEYS < most;
    if (loaded) load(begin, first_tile);

    for (uint32_t i = warp; i < (end - begin) * kHeadTiles; i += kWarps) {
        const uint32_t row = i / kHeadTiles, tile = i % kHeadTiles, head = tile * 8 + g, t = begin + row;
        const bool there = head < p.heads;
        const float4 *at = reinterpret_cast<const float4 *>(p.q + (uint64_t{t} * p.heads + head) * INDEXER_DIM) + 2 * t4;
        float4 v[kSteps];
#pragma unroll
        for (int c = 0; c < kSteps / 2; ++c) {
            v[2 * c] = there ? at[8 * c] : make_float4(0.f, 0.f, 0.f, 0.f);
            v[2 * c + 1] = there ? at[8 * c + 1] : make_float4(0.f, 0.f, 0.f, 0.f);
        }
        float up = 1.f, down = 1.f;
        if constexpr (split<Key>::kScaled) {
            float size = 0.f;
#pragma unroll
            for (int c = 0; c < kSteps; ++c)
                size = fmaxf(fmaxf(fmaxf(size, fabsf(v[c].x)), fmaxf(fabsf(v[c].y), fabsf(v[c].z))), fabsf(v[c].w));
            size = fmaxf(size, __shfl_xor_sync(0xffffffffu, size, 1));
            size = fmaxf(size, __shfl_xor_sync(0xffffffffu, size, 2));
            // The largest to 2^12, by a power of two.
            const int exponent = static_cast<int>(__float_as_uint(size) >> 23) - 127;
            const int by = size > 0.f && exponent < 128 ? max(-100, min(100, 12 - exponent)) : 0;
            up = __uint_as_float(static_cast<uint32_t>(127 + by) << 23), down = __uint_as_float(static_cast<uint32_t>(127 - by) << 23);
        }
        if (t4 == 0) s.w[row][head] = there ? p.w[uint64_t{t} * p.heads + head] * down : 0.f;
#pragma unroll
        for (int c = 0; c < kSteps; ++c) {
            uint4 b;
            split_pair<Key>(v[c].x * up, v[c].y * up, b.x, b.z);
            split_pair<Key>(v[c].z * up, v[c].w * up, b.y, b.w);
            s.q[row][tile][c][lane] = b;
        }
    }
    __syncthreads();

    const uint32_t tiles_of_heads = (p.heads + 7) / 8;
    for (uint32_t first = begin; first < end;) {
        const uint32_t last = kRows == 1 ? end : sequence_end(p.rows, first, end);
        const uint32_t sees = p.rows.positions[last - 1] + 1;
        if (p.fill > 0) hide_later_keys(p, first, last, worker * 32 * kWarps + threadIdx.x, step * 32);
        for (uint32_t tile = first_tile; sees > p.least && tile * INDEXER_KEYS < sees; tile += step) {
            const uint32_t key = tile * INDEXER_KEYS;
            if (!loaded) load(first, tile);
            loaded = false;
#pragma unroll 1
            for (uint32_t t = first; t < last; ++t) {
                const uint32_t visible = p.rows.positions[t] + 1;
                if (visible <= key || visible <= p.least) continue;
                const uint32_t row = t - begin;
                float sum[4] = {}; // keys g, g + 8, g + 16, g + 24
#pragma unroll 1
                for (uint32_t i = 0; i < tiles_of_heads; ++i) {
                    float dot[2][4] = {};
#pragma unroll
                    for (int c = 0; c < kSteps; ++c) {
                        const uint4 q = s.q[row][i][c][lane];
                        const uint32_t upper[2] = {q.x, q.y}, rest[2] = {q.z, q.w};
#pragma unroll
                        for (int half = 0; half < 2; ++half) {
                            const uint4 &low = a[2 * half][c / 2], &high = a[2 * half + 1][c / 2];
                            const uint32_t fragment[4] = {c % 2 == 0 ? low.x : low.z, c % 2 == 0 ? high.x : high.z,
                                                          c % 2 == 0 ? low.y : low.w, c % 2 == 0 ? high.y : high.w};
                            split<Key>::multiply(dot[half], fragment, upper);
                            split<Key>::multiply(dot[half], fragment, rest);
                        }
                    }
                    const uint32_t head = i * 8 + 2 * t4;
                    const float2 w = *reinterpret_cast<const float2 *>(&s.w[row][head]);
                    const bool one = head < p.heads, both = head + 1 < p.heads;
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        if (one) sum[k] += liked(dot[k / 2][k % 2 * 2], w.x);
                        if (both) sum[k] += liked(dot[k / 2][k % 2 * 2 + 1], w.y);
                    }
                }
                float mine = 0.f;
#pragma unroll
                for (uint32_t k = 0; k < 4; ++k) {
                    sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], 1);
                    sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], 2);
                    if (k == t4) mine = sum[k];
                }
                const uint32_t at = key + t4 * 8 + g;
                if (at < visible) p.scores[(t - p.first) * p.stride + at] = mine * p.scale;
            }
        }
        first = last;
    }
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
    const uint32_t visible = p.rows.positions[t] + 1;
    if (p.fill > 0) hide_later_keys(p, t, t + 1, worker * kThreads + threadIdx.x, p.workers * kThreads);
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
