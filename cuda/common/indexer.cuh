// indexer.cuh: scores of a warp's keys, which lie in its registers as B fragments, against queries in shared memory as A fragments.
//
// Which columns meet in a product is free as long as both sides agree: a lane loads 16 bytes of a key, four lanes 64, and these are its
// registers for two products, as they lie. (As A fragments keys would have to be moved, four registers for each product.)
#pragma once
#include "cache_row.cuh"
#include "pages.cuh"
#include "params/dsa_indexer.h"

// A key of a cache in int8: 128 values that were rotated, and a scale.
struct int8_key {};

// What multiplies keys of a type: numbers of 16 bits. A sum that is NaN is a positive one, as matrix units make it; so a maximum of integers is
// a relu that lets NaN pass.
template <class Key> struct indexer_format;
template <> struct indexer_format<bf16> {
    using sum = float;
    static constexpr int kChunks = 4; // of 64 bytes in a key, two products each
    static constexpr bool kScaled = false;
    static INTRIN uint32_t pack(float lo, float hi) { return pack_bf16x2(lo, hi); }
    static INTRIN float value(uint32_t bits) { return bf16_to_f32(static_cast<uint16_t>(bits)); }
    static INTRIN void first(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_m16n8k16_bf16_zero(d, a, b); }
    static INTRIN void more(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_m16n8k16_bf16(d, a, b); }
    static INTRIN float relu(float x) { return __int_as_float(max(__float_as_int(x), 0)); }
};
template <> struct indexer_format<f16> {
    using sum = float;
    static constexpr int kChunks = 4;
    static constexpr bool kScaled = true; // the range is small, so that heads are brought to the same
    static INTRIN uint32_t pack(float lo, float hi) { return pack_f16x2(lo, hi); }
    static INTRIN float value(uint32_t bits) { return f16_to_f32(static_cast<uint16_t>(bits)); }
    static INTRIN void first(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_m16n8k16_f16_zero(d, a, b); }
    static INTRIN void more(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_m16n8k16_f16(d, a, b); }
    static INTRIN float relu(float x) { return __int_as_float(max(__float_as_int(x), 0)); }
};
// Sums begin with 1.5 * 2^23 as an f32, at which one is the last place: so they are that number and the sum, exactly, as long as it is below
// 2^22. One FMA that saturates makes of it the relu times 2^-22; weights have the rest.
template <> struct indexer_format<int8_key> {
    using sum = int32_t;
    static constexpr int kChunks = 2;
    static constexpr float kWeight = 4194304.f;
    static INTRIN void first(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_m16n8k32_s8_from(0x4b400000, d, a, b); }
    static INTRIN void more(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_m16n8k32_s8(d, a, b); }
    static INTRIN float relu(int32_t x) { return __saturatef(__fmaf_rn(__int_as_float(x), 1.f / kWeight, -3.f)); }
};

// A row's query, each value as the sum of `kTerms` numbers of the type of keys: fragments of 16 heads for each product, and weights, of heads
// g, g + 8, g + 16, g + 24 side by side.
template <class Key, int kTerms> struct indexer_query {
    uint4 q[INDEXER_HEADS / 16][2 * indexer_format<Key>::kChunks][kTerms][32];
    float4 w[8];
};

// Two values as numbers of 16 bits, and what is left of them as such; nothing if the first is not finite.
template <class Key> INTRIN uint2 split_pair(float x, float y) {
    using F = indexer_format<Key>;
    const uint32_t upper = F::pack(x, y);
    const float x_rest = x - F::value(upper), y_rest = y - F::value(upper >> 16);
    return make_uint2(upper, F::pack(fabsf(x_rest) < INFINITY ? x_rest : 0.f, fabsf(y_rest) < INFINITY ? y_rest : 0.f));
}

// Four values that lie side by side, or zeros.
INTRIN float4 query_values(const float *q, bool there) {
    const uint4 v = there ? ld_stream(reinterpret_cast<const uint4 *>(q)) : make_uint4(0, 0, 0, 0);
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}

// Parts of a query, four heads each, for a warp: it may load its part, then keys, and split the part while they come. Heads that are not there are
// zeros.
constexpr uint32_t kQueryParts = INDEXER_HEADS / 4;

// Eight lanes have a head: of two chunks of 64 bytes of a key, what one of four lanes has.
template <class Key, int kTerms> struct query_part {
    float4 x[2][2];
    float w;

    // Of the query at `q` and `w`.
    INTRIN void load(const float *q, const float *weights, uint32_t heads, uint32_t part) {
        const uint32_t head = 4 * part + threadIdx.x % 32 / 8, u = threadIdx.x % 8;
        const float *at = q + head * INDEXER_DIM + u / 4 * 32 + u % 4 * 8;
#pragma unroll
        for (int i = 0; i < 2; ++i) x[i][0] = query_values(at + 64 * i, head < heads), x[i][1] = query_values(at + 64 * i + 4, head < heads);
        w = head < heads ? weights[head] : 0.f;
    }

    INTRIN void split(indexer_query<Key, kTerms> &query, uint32_t part) const {
        const uint32_t head = 4 * part + threadIdx.x % 32 / 8, u = threadIdx.x % 8;
        float up = 1.f, weight = w;
        if constexpr (indexer_format<Key>::kScaled) {
            // The largest value of the head to 2^12 by a power of two.
            float size = 0.f;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float4 &v = x[i / 2][i % 2];
                size = fmaxf(fmaxf(fmaxf(size, fabsf(v.x)), fmaxf(fabsf(v.y), fabsf(v.z))), fabsf(v.w));
            }
#pragma unroll
            for (int lanes = 1; lanes < 8; lanes *= 2) size = fmaxf(size, __shfl_xor_sync(0xffffffffu, size, lanes));
            const int exponent = static_cast<int>(__float_as_uint(size) >> 23) - 127;
            const int by = size > 0.f && exponent < 128 ? max(-100, min(100, 12 - exponent)) : 0;
            up = __uint_as_float(static_cast<uint32_t>(127 + by) << 23);
            weight *= __uint_as_float(static_cast<uint32_t>(127 - by) << 23);
        }
        if (u == 0) reinterpret_cast<float *>(&query.w[head % 8])[head / 8] = weight;
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int word = 0; word < 4; ++word) {
                const float4 &v = x[i][word / 2];
                const uint2 pair = word % 2 == 0 ? split_pair<Key>(v.x * up, v.y * up) : split_pair<Key>(v.z * up, v.w * up);
                auto &step = query.q[head / 16][2 * (u / 4 + 2 * i) + word / 2];
                const auto store = [&](int term, uint32_t bits) {
                    reinterpret_cast<uint32_t *>(&step[term][head % 8 * 4 + u % 4])[head / 8 % 2 + word % 2 * 2] = bits;
                };
                store(0, pair.x);
                if constexpr (kTerms == 2) store(1, pair.y);
            }
    }
};

// Rotated and rounded as keys are; weights take their scales. A lane has four neighbouring values of each head.
template <> struct query_part<int8_key, 1> {
    float4 x[4];
    float w[4];

    INTRIN void load(const float *q, const float *weights, uint32_t heads, uint32_t part) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t head = 4 * part + i;
            x[i] = query_values(q + head * INDEXER_DIM + threadIdx.x % 32 * 4, head < heads);
            w[i] = head < heads ? weights[head] : 0.f;
        }
    }

    INTRIN void split(indexer_query<int8_key, 1> &query, uint32_t part) const {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t head = 4 * part + i;
            float v[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
            const rotated_int8 rotated = rotate_to_int8(v);
            // Values 4 lane and on: a word of the 16 bytes that lane / 4 % 4 of four lanes has of half a key.
            auto &fragment = query.q[head / 16][lane / 16 * 2 + lane % 4 / 2][0][head % 8 * 4 + lane / 4 % 4];
            reinterpret_cast<uint32_t *>(&fragment)[head / 8 % 2 + lane % 2 * 2] = rotated.quants;
            const float scaled = __fmul_rn(__fmul_rn(w[i], rotated.scale), indexer_format<int8_key>::kWeight);
            if (lane == 0) reinterpret_cast<float *>(&query.w[head % 8])[head / 8] = scaled;
        }
    }
};

// The query of row `t`, of which the warp has loaded part `warp`, by all warps of a block, which wait for each other before they score.
template <class Key, int kTerms>
INTRIN void split_query(const query_part<Key, kTerms> &mine, const float *q, const float *w, uint32_t heads, uint32_t warp, uint32_t warps,
                        indexer_query<Key, kTerms> &query) {
    if (warp < kQueryParts) mine.split(query, warp);
    for (uint32_t part = warp + warps; part < kQueryParts; part += warps) {
        query_part<Key, kTerms> more;
        more.load(q, w, heads, part);
        more.split(query, part);
    }
}

// Of 32 keys, the one whose score a lane gets.
INTRIN uint32_t key_of_lane() { return threadIdx.x % 32 / 8 * 8 + threadIdx.x % 4 * 2 + threadIdx.x / 4 % 2; }

// Neighbouring keys of a page: of each eight, a lane has one's 16 bytes of each 64.
template <class Key, int kKeys = INDEXER_KEYS> struct indexer_keys {
    static_assert(kKeys == 32 || kKeys == PAGE_ROWS, "they lie in a page");
    static constexpr int kChunks = indexer_format<Key>::kChunks;
    uint4 b[kKeys / 8][kChunks];
    float scale[kKeys / 32]; // int8: of the keys whose scores the lane gets

    // Int8: the page of a slot, quants and then scales.
    static INTRIN const uint8_t *page(const void *keys, uint32_t slot) {
        return static_cast<const uint8_t *>(keys) + uint64_t{slot / PAGE_ROWS} * (PAGE_ROWS * (INDEXER_DIM + 4));
    }
    static INTRIN const uint4 *row(const void *keys, uint32_t slot) {
        if constexpr (sizeof(Key) == 2) return static_cast<const uint4 *>(keys) + uint64_t{slot} * (4 * kChunks);
        else return reinterpret_cast<const uint4 *>(page(keys, slot)) + slot % PAGE_ROWS * (4 * kChunks);
    }

    // Those from `slot` on.
    INTRIN void load(const void *keys, uint32_t slot) {
        const uint32_t lane = threadIdx.x % 32, g = lane / 4, t4 = lane % 4;
        const uint4 *rows = row(keys, slot);
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
            for (int c = 0; c < kChunks; ++c) b[j][c] = ld_stream(rows + (j * 8 + g) * (4 * kChunks) + c * 4 + t4);
        if constexpr (sizeof(Key) == 1) {
            const uint32_t *scales = reinterpret_cast<const uint32_t *>(page(keys, slot) + PAGE_ROWS * INDEXER_DIM) + slot % PAGE_ROWS;
#pragma unroll
            for (int i = 0; i < kKeys / 32; ++i) scale[i] = __uint_as_float(ld_stream(scales + 32 * i + key_of_lane()));
        }
    }
};

// Sums of a lane for eight keys, over the eight lanes that have the same keys: one for each.
INTRIN float indexer_total(const float *sum) {
    const uint32_t lane = threadIdx.x % 32;
    float four[4], two[2];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const float other = __shfl_xor_sync(0xffffffffu, lane & 16 ? sum[k] : sum[k + 4], 16);
        four[k] = __fadd_rn(lane & 16 ? sum[k + 4] : sum[k], other);
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        const float other = __shfl_xor_sync(0xffffffffu, lane & 8 ? four[k] : four[k + 2], 8);
        two[k] = __fadd_rn(lane & 8 ? four[k + 2] : four[k], other);
    }
    const float other = __shfl_xor_sync(0xffffffffu, lane & 4 ? two[0] : two[1], 4);
    return __fadd_rn(lane & 4 ? two[1] : two[0], other);
}

// Heads 16 `half` and on, of which there are `heads` in all, with weights of g and g + 8.
template <bool kWhole, class Key, int kTerms, int kKeys>
INTRIN void score_heads(const indexer_keys<Key, kKeys> &keys, const indexer_query<Key, kTerms> &query, uint32_t heads, uint32_t half,
                        float2 w, float (&sum)[kKeys / 4]) {
    using F = indexer_format<Key>;
    const uint32_t lane = threadIdx.x % 32, head = 16 * half + lane / 4;
    typename F::sum dot[kKeys / 8][4];
#pragma unroll
    for (int step = 0; step < 2 * F::kChunks; ++step)
#pragma unroll
        for (int term = 0; term < kTerms; ++term) {
            const uint4 q = query.q[half][step][term][lane];
            const uint32_t a[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int j = 0; j < kKeys / 8; ++j) {
                const uint4 &key = keys.b[j][step / 2];
                const uint32_t b[2] = {step % 2 == 0 ? key.x : key.z, step % 2 == 0 ? key.y : key.w};
                if (step == 0 && term == 0) F::first(dot[j], a, b);
                else F::more(dot[j], a, b);
            }
        }
    // A head that is not there adds nothing, even if a key is not finite.
    const bool one = kWhole || head < heads, other = kWhole || head + 8 < heads;
#pragma unroll
    for (int k = 0; k < kKeys / 4; ++k) {
        if (one) sum[k] = __fmaf_rn(F::relu(dot[k / 2][k % 2]), w.x, sum[k]);
        if (other) sum[k] = __fmaf_rn(F::relu(dot[k / 2][k % 2 + 2]), w.y, sum[k]);
    }
}

// Scores but for the scale of all: of each 32 keys the lane gets that of key_of_lane().
template <class Key, int kTerms, int kKeys>
INTRIN void score_keys(const indexer_keys<Key, kKeys> &keys, const indexer_query<Key, kTerms> &query, uint32_t heads,
                       float (&scores)[kKeys / 32]) {
    const float4 w = query.w[threadIdx.x % 32 / 4];
    float sum[kKeys / 4] = {};
    if (heads == INDEXER_HEADS) {
        score_heads<true>(keys, query, heads, 0, make_float2(w.x, w.y), sum);
        score_heads<true>(keys, query, heads, 1, make_float2(w.z, w.w), sum);
    } else {
#pragma unroll 1
        for (uint32_t half = 0; half * 16 < heads; ++half)
            score_heads<false>(keys, query, heads, half, half == 0 ? make_float2(w.x, w.y) : make_float2(w.z, w.w), sum);
    }
#pragma unroll
    for (int i = 0; i < kKeys / 32; ++i) {
        scores[i] = indexer_total(sum + 8 * i);
        if constexpr (sizeof(Key) == 1) scores[i] = __fmul_rn(scores[i], keys.scale[i]);
    }
}
