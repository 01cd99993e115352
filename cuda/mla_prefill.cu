// mla_prefill: causal attention of the rows of a prompt to keys and values of their own for each head, which mla_expand made.
//
// Math    l[s] = q . k[h][s] over the keys s that a row sees, p = 2^l / sum 2^l, out = sum_s p[s] v[h][s]; scale q rounded to bf16, p rounded
//         before it meets values; sums, maxima and the sum of p in f32
// Shapes  q [m, n_heads, 192 + 64], tiles [keys / 32, n_heads] of 32 keys and values of 256, out [m, n_heads, 256]
// Tiling  a block of threads for 128 rows of a sequence and a head, a warp for 16 rows: q and sums in registers, keys and values of a tile by one
//         bulk copy, two tiles ahead. What lies behind all rows of a warp is left out. Launches follow each other over blocks of keys: sums
//         wait in `out`, maxima in `state`.
// Floor   2 x (256 + 256) operations for each head, row and key
// Limits  shared memory: a tile is read by each of 8 warps, 32 kB for 64 matrix instructions of 16 x 8 x 16 in each half
#include "common/intrin.cuh"
#include "params/mla_prefill.h"

constexpr int kStages = 3;
constexpr uint32_t kKeyBytes = 2 * PREFILL_HEAD;
constexpr uint32_t kValuesAt = PREFILL_KEYS * kKeyBytes;
constexpr uint32_t kAll = 0xffffffffu;
// Sums are brought to a new maximum when it has grown by more than this, in base 2; so weights are at most 2^8.
constexpr float kGrown = 8.f;
static_assert(PREFILL_HEAD == PREFILL_VALUE && PREFILL_HEAD == 256 && PREFILL_KEYS == 32, "steps of the loops below");

// What a block of threads does: from shared memory where it is asked for, since registers are few.
struct prefill_work {
    uint64_t first;            // row and head of its first row
    const unsigned char *next; // the next tile to copy
    uint32_t rows, n_heads;
    uint32_t position;   // of the first row
    uint32_t begin, end; // positions of the first key, and behind the last that a row sees
    bool begun, ends;    // whether there are keys before those of the launch, and none behind
};

template <int kBlocks, int kWarps> struct mla_prefill_smem {
    alignas(1024) unsigned char tiles[kStages][PREFILL_TILE];
    mbarrier full[kStages], empty[kStages];
    prefill_work work;
};

INTRIN float minus_infinity() { return f32_from_bits(0xff800000u); }

// Where a lane reads of four matrices: of eight keys, or of the next eight, the first or the second sixteen bytes of 32; those number 2 i and on are
// at `^ 32 i` for the first 128 bytes.
INTRIN uint32_t lane_place() {
    const uint32_t lane = threadIdx.x % 32, key = lane % 16;
    return key * kKeyBytes + 16 * (lane / 16 ^ key % 8);
}

// Dot products of 16 rows and 32 keys: column 8 n + 2 t + e of row g + 8 r is scores[n][2 r + e].
INTRIN void multiply_keys(const unsigned char *keys, const uint32_t (&q)[16][4], float (&scores)[4][4]) {
    const uint32_t at = lane_place();
#pragma unroll
    for (int k = 0; k < 16; ++k)
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            uint32_t b[4];
            ldmatrix_x4(b, keys + (at ^ 32 * (k % 4)) + 128 * (k / 4) + 16 * n * kKeyBytes);
            if (k == 0) {
                mma_m16n8k16_bf16_zero(scores[2 * n], q[k], {b[0], b[2]});
                mma_m16n8k16_bf16_zero(scores[2 * n + 1], q[k], {b[1], b[3]});
            } else {
                mma_m16n8k16_bf16(scores[2 * n], q[k], {b[0], b[2]});
                mma_m16n8k16_bf16(scores[2 * n + 1], q[k], {b[1], b[3]});
            }
        }
}

// Weighted values; weights as multiply_keys left the scores.
INTRIN void multiply_values(const unsigned char *values, const float (&weights)[4][4], float (&out)[32][4]) {
    const uint32_t at = lane_place();
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        uint32_t a[4];
#pragma unroll
        for (int r = 0; r < 4; ++r)
            a[r] = pack_bf16x2(weights[2 * k + r / 2][2 * (r % 2)], weights[2 * k + r / 2][2 * (r % 2) + 1]);
#pragma unroll
        for (int n = 0; n < 16; ++n) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, values + (at ^ 32 * (n % 4)) + 128 * (n / 4) + 16 * k * kKeyBytes);
            mma_m16n8k16_bf16(out[2 * n], a, {b[0], b[1]});
            mma_m16n8k16_bf16(out[2 * n + 1], a, {b[2], b[3]});
        }
    }
}

// Rows of a warp: what they have of the keys so far. Lanes of a row have the same base, and each the sum over its own keys.
struct prefill_sums {
    float base[2], sum[2], out[32][4];
};

// Scores to weights relative to the base, which grows as it must.
INTRIN void weigh(float (&scores)[4][4], prefill_sums &sums) {
    bool same = true;
    float factor[2], base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float top = minus_infinity();
#pragma unroll
        for (int n = 0; n < 4; ++n) top = fmaxf(top, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
        top = fmaxf(top, __shfl_xor_sync(kAll, top, 1));
        top = fmaxf(top, __shfl_xor_sync(kAll, top, 2));
        // The first key brings it up from -inf.
        const bool grown = top > __fadd_rn(sums.base[r], kGrown);
        base[r] = grown ? top : sums.base[r];
        factor[r] = grown ? ex2_approx(__fsub_rn(sums.base[r], top)) : 1.f;
        same = same && !grown;
        sums.base[r] = base[r];
        if (base[r] == minus_infinity()) base[r] = 0.f; // all logits are
    }
    if (!__all_sync(kAll, same)) {
#pragma unroll
        for (int r = 0; r < 2; ++r) sums.sum[r] = __fmul_rn(sums.sum[r], factor[r]);
#pragma unroll
        for (int n = 0; n < 32; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) sums.out[n][i] = __fmul_rn(sums.out[n][i], factor[i / 2]);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            scores[n][i] = ex2_approx(__fsub_rn(scores[n][i], base[i / 2]));
            sums.sum[i / 2] = __fadd_rn(sums.sum[i / 2], scores[n][i]);
        }
}

// The rows of a warp.
struct prefill_rows {
    uint64_t first; // row and head of the first
    uint32_t n, n_heads;
    INTRIN explicit prefill_rows(const prefill_work &work) {
        const uint32_t before = threadIdx.x / 32 * 16;
        n_heads = work.n_heads, first = work.first + uint64_t{before} * n_heads, n = min(work.rows - before, 16u);
    }
    // Row and head of row `g + 8 r`, or of the last, in place of which nothing is written.
    INTRIN uint64_t at(int r) const { return first + uint64_t{min(threadIdx.x % 32 / 4 + 8 * r, n - 1)} * n_heads; }
    INTRIN bool has(int r) const { return threadIdx.x % 32 / 4 + 8 * r < n; }
};

// q of 16 rows as A: register r of step k of the 16 along a head.
INTRIN void load_q(const mla_prefill_params &p, const prefill_rows &rows, uint32_t (&q)[16][4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float *from = p.q + rows.at(r) * PREFILL_HEAD + 2 * (threadIdx.x % 4);
#pragma unroll
        for (int k = 0; k < 16; ++k)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const auto v = vector_at<float2>(from + 16 * k + 8 * h);
                q[k][r + 2 * h] = pack_bf16x2(__fmul_rn(v.x, p.scale), __fmul_rn(v.y, p.scale));
            }
    }
}

// Nothing, or what a launch before this one left.
INTRIN void begin_sums(const mla_prefill_params &p, const prefill_rows &rows, bool begun, prefill_sums &sums) {
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) sums.base[r] = minus_infinity(), sums.sum[r] = 0.f;
#pragma unroll
    for (int n = 0; n < 32; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums.out[n][i] = 0.f;
    if (!begun) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const uint64_t at = rows.at(r);
        const auto was = vector_at<float2>(p.state + 8 * at + 2 * t);
        sums.base[r] = was.x, sums.sum[r] = was.y;
#pragma unroll
        for (int n = 0; n < 32; ++n) {
            const auto v = vector_at<float2>(p.out + at * PREFILL_VALUE + 8 * n + 2 * t);
            sums.out[n][2 * r] = v.x, sums.out[n][2 * r + 1] = v.y;
        }
    }
}

// For the next launch, or the result.
INTRIN void end_sums(const mla_prefill_params &p, const prefill_rows &rows, bool ends, prefill_sums &sums) {
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const uint64_t at = rows.at(r);
        float sum = __fadd_rn(sums.sum[r], __shfl_xor_sync(kAll, sums.sum[r], 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(kAll, sum, 2));
        if (!rows.has(r)) continue;
        if (!ends) *reinterpret_cast<float2 *>(p.state + 8 * at + 2 * t) = {sums.base[r], sums.sum[r]};
        else if (p.lse != nullptr && t == 0) p.lse[at] = __fmul_rn(__fadd_rn(sums.base[r], log2f(sum)), 0.693147180559945309f);
        const float factor = ends ? __fdiv_rn(1.f, sum) : 1.f;
#pragma unroll
        for (int n = 0; n < 32; ++n)
            *reinterpret_cast<float2 *>(p.out + at * PREFILL_VALUE + 8 * n + 2 * t) = {__fmul_rn(sums.out[n][2 * r], factor),
                                                                                     __fmul_rn(sums.out[n][2 * r + 1], factor)};
    }
}

template <int kBlocks, int kWarps> __device__ __forceinline__ void mla_prefill(const mla_prefill_params &p) {
    static_assert(16 * kWarps == PREFILL_ROWS, "16 rows for each warp");
    auto &shared = smem<mla_prefill_smem<kBlocks, kWarps>>();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    griddep_launch_dependents();
    griddep_wait();

    // Blocks that run at a time have neighbouring tiles of rows, whose keys are the same, the longest first.
    const uint32_t head = blockIdx.x / p.row_tiles;
    uint32_t tile = p.row_tiles - 1 - blockIdx.x % p.row_tiles, i = 0;
    for (; tile >= (p.sequences.at[i].rows + PREFILL_ROWS - 1) / PREFILL_ROWS; ++i)
        tile -= (p.sequences.at[i].rows + PREFILL_ROWS - 1) / PREFILL_ROWS;
    const prefill_sequence at = p.sequences.at[i];
    const uint32_t rows = min(at.rows - tile * PREFILL_ROWS, static_cast<uint32_t>(PREFILL_ROWS));
    const uint32_t position = at.keys - at.rows + tile * PREFILL_ROWS; // of the first row
    const uint32_t begin = max(p.begin, at.first), all = at.first + position + rows, end = min(p.end, all);
    if (begin >= end) return;
    const uint32_t active = (rows + 15) / 16;

    if (threadIdx.x == 0) {
#pragma unroll
        for (int s = 0; s < kStages; ++s) mbarrier_init(shared.full[s], 1), mbarrier_init(shared.empty[s], active * 32);
        mbarrier_init_fence();
        prefill_work &work = shared.work;
        work.first = uint64_t{at.row + tile * PREFILL_ROWS} * p.n_heads + head, work.rows = rows, work.n_heads = p.n_heads, work.position = position;
        work.next = static_cast<const unsigned char *>(p.tiles) +
                    (uint64_t{(begin - p.begin) / PREFILL_KEYS} * p.n_heads + head) * PREFILL_TILE;
        work.begin = begin - at.first, work.end = end - at.first, work.begun = begin > at.first, work.ends = end == all;
    }
    __syncthreads();
    if (warp >= active) return;
    prefill_work &work = shared.work;
    const auto copy = [&](uint32_t stage) {
        mbarrier_arrive_expect_tx(shared.full[stage], PREFILL_TILE);
        cp_async_bulk(shared.tiles[stage], work.next, PREFILL_TILE, shared.full[stage]);
        work.next += uint64_t{work.n_heads} * PREFILL_TILE;
    };
    // The last warp has the most keys.
    const bool copies = warp == active - 1 && lane == 0;
    if (copies)
        for (uint32_t stage = 0; stage < kStages - 1 && work.begin + stage * PREFILL_KEYS < work.end; ++stage) copy(stage);

    prefill_sums sums;
    uint32_t q[16][4];
    {
        const prefill_rows mine(work);
        begin_sums(p, mine, work.begun, sums);
        load_q(p, mine, q);
    }

    uint32_t stage = 0, phase = 0;
    for (uint32_t key = work.begin; key < work.end; key += PREFILL_KEYS) {
        const unsigned char *keys = shared.tiles[stage];
        float scores[4][4];
        mbarrier_wait(shared.full[stage], phase);
        const uint32_t own = work.position + 16 * warp, last = min(own + 15, work.position + work.rows - 1); // positions of the warp's rows
        const bool some = key <= last;
        if (some) multiply_keys(keys, q, scores);
        if (copies && key + (kStages - 1) * PREFILL_KEYS < work.end) {
            const uint32_t to = stage == 0 ? kStages - 1 : stage - 1; // where the tile before this one was
            if (key > work.begin) mbarrier_wait(shared.empty[to], stage == 0 ? phase ^ 1 : phase);
            copy(to);
        }
        if (some) {
            if (key + PREFILL_KEYS - 1 > own) { // of some rows keys are hidden
                const int seen = static_cast<int>(own - key) + static_cast<int>(lane / 4 - lane % 4 * 2);
#pragma unroll
                for (int n = 0; n < 4; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        if (8 * n + i % 2 - 8 * (i / 2) > seen) scores[n][i] = minus_infinity();
            }
            weigh(scores, sums);
            multiply_values(keys + kValuesAt, scores, sums.out);
        }
        __syncwarp();
        mbarrier_arrive(shared.empty[stage]); // each thread, not one of each warp: racecheck can follow
        if (++stage == kStages) stage = 0, phase ^= 1;
    }

    end_sums(p, prefill_rows(work), work.ends, sums);
}
