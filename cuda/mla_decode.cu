// mla_decode: absorbed latent attention over paged caches of bf16, f16 or fp8, by matrix instructions. What several
// blocks of threads have of a row, mla_merge puts together.
//
// Math    l[s] = scale q . row[s] over the keys s of a row, p = softmax(l), out = sum_s p[s] row[s][..512]; q rounded to the type of the cache
//         (f16: scaled into its range by a power of two for each head; rows of fp8 become bf16), p rounded to it before it meets values; sums,
//         maxima and the sum of p in f32
// Shapes  q [m, n_heads, 576], cache [slots, 576], out [m, n_heads, 512]
// Tiling  tiles of 16 keys for kHeads heads of a row, in order of rows, groups of heads, keys: a block of threads takes an equal share, wherever
//         that begins and ends. Scores: a warp has a quarter of the 36 steps along a row for some of the heads, so that q stays in
//         registers. Then weights by heads, while values of the tile before are multiplied, of which a warp has 64 columns.
// Floor   bytes of the keys: 2048 of 64 rows 151 MB, 36 us at 4.2 TB/s; 64 heads 2 x (576 + 512) operations for each key and head
// Limits  one block of threads of 64 heads on an SM: 8 warps hold q and sums in registers
#include "common/mla_share.cuh"

constexpr uint32_t kRowBytes = 2 * MLA_WIDTH;
constexpr uint32_t kFp8Bytes = MLA_LATENT + MLA_LATENT / 128 * 4 + MLA_ROPE * 2; // of a row
constexpr uint32_t kKeyPitch = kRowBytes + 16; // so that eight neighbouring keys meet all banks
constexpr int kTiles = 4;      // of keys: one whose values are multiplied, one whose scores are, two on their way
constexpr int kPieces = 4;     // of the steps along a row
constexpr int kSteps = 9;      // of a piece
constexpr int kPitch = 24;     // of weights: eight neighbouring rows meet all banks
constexpr int kOutPitch = 72;  // of sums on their way out: eight bytes of four neighbouring rows meet all banks
constexpr float kSlack = 8.f;  // a logit may be so much above the base of weights, which then are 2^8 at most
constexpr int kChunk = 16;     // tiles whose slots are looked up at a time: a key for each thread

template <class T, int kFp8, int kHeads, int kBlocks, int kWarps> struct mla_decode_smem {
    alignas(128) unsigned char keys[kTiles][MLA_KEYS * kKeyPitch];
    float4 scores[kPieces][kHeads / 8][32]; // of eight heads: lane 4 g + t has head g, keys 2 t, 2 t + 1, and those 8 further
    alignas(16) uint16_t weights[2][kHeads][kPitch];
    float rescale[2][kHeads];
    alignas(8) uint8_t grown[2][kHeads / 8]; // whether eight heads have any that is not 1
    float unscale[kHeads];
    float2 sums[kHeads];
    float factors[kHeads];
    mbarrier scores_read, landed[2]; // the latter for tiles of either parity
    uint32_t slots[2][kChunk * MLA_KEYS];
    uint32_t there[2][kChunk]; // which keys of a tile there are
    uint32_t scan[kWarps];
    uint32_t row, row_first; // the row in which the block begins, and its first tile
    mla_cursor<MLA_KEYS> at;           // the unit whose keys are multiplied
};

INTRIN uint32_t pack(float lo, float hi, bf16) { return pack_bf16x2(lo, hi); }
INTRIN uint32_t pack(float lo, float hi, f16) { return pack_f16x2(lo, hi); }
INTRIN void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bf16) { mma_m16n8k16_bf16(d, a, b); }
INTRIN void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], f16) { mma_m16n8k16_f16(d, a, b); }
template <class T> struct is_f16 { static constexpr bool value = false; };
template <> struct is_f16<f16> { static constexpr bool value = true; };

// What a warp has of the scores of a tile: a quarter of the steps along a row, for kM times 16 heads.
template <int kHeads> struct mla_scores {
    static constexpr int kM = kHeads / 32;
    static INTRIN uint32_t piece() { return threadIdx.x / 32 % kPieces; }
    static INTRIN uint32_t head() { return threadIdx.x / 32 / kPieces * (16 * kM); }
};

// Where a lane reads and writes: found once. A compiler that has few registers left would find it again in every tile, which takes a fifth of the
// instructions; what comes by an exchange it cannot find by itself. Not if there are too few registers, !kKeep.
template <int kHeads, bool kKeep> struct mla_lane {
    using mine = mla_scores<kHeads>;
    uint32_t thread, own_keys, own_scores, values, weights, own_weights;
    static INTRIN uint32_t kept(uint32_t x) { return kKeep ? __shfl_sync(kAll, x, threadIdx.x % 32) : x; }
    INTRIN mla_lane() {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        thread = kHeads == 64 ? threadIdx.x : kept(threadIdx.x);
        const uint32_t key = lane / 16 * 8 + lane % 8;
        own_keys = kept(key * kKeyPitch + 32 * mine::piece() + lane / 8 % 2 * 16);
        own_scores = kept(16 * (32 * (mine::piece() * (kHeads / 8) + mine::head() / 8) + lane));
        values = kept(lane % 16 * kKeyPitch + 128 * warp + lane / 16 * 16);
        weights = kept(2 * (lane % 16 * kPitch + lane / 16 * 8));
        own_weights = kept(2 * (threadIdx.x / 4 * kPitch + 2 * (lane % 4)));
    }
};

// Keys of a tile to shared memory, those that there are not as zeros: eight threads for each key, by half of the warps.
INTRIN void copy_keys(const void *cache, const uint32_t *slots, unsigned char *to, uint32_t thread) {
    const uint32_t key = thread / 8, part = thread % 8, slot = slots[key];
    const bool there = slot != kNoKey;
    const auto *row = static_cast<const unsigned char *>(cache) + uint64_t{there ? slot : 0} * kRowBytes + 16 * part;
    unsigned char *place = to + key * kKeyPitch + 16 * part;
#pragma unroll
    for (uint32_t i = 0; i < kRowBytes / 128; ++i) cp_async_zfill<16>(place + 128 * i, row + 128 * i, there ? 16 : 0);
}

// A thread's part of a tile of keys in fp8, on its way to shared memory as bf16: of each 256 latent values those of sixteen bytes, and four of the
// rotated ones. All zeros if there is no key.
struct fp8_part {
    uint4 quants[2];
    uint2 rotated;
    float scales[2];
};
INTRIN void load_fp8(const void *cache, const uint32_t *slots, uint32_t thread, fp8_part &to) {
    const uint32_t part = thread % 16, slot = slots[thread / 16];
    const bool there = slot != kNoKey;
    const auto *row = static_cast<const unsigned char *>(cache) + uint64_t{there ? slot : 0} * kFp8Bytes;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
        to.quants[i] = there ? vector_at<uint4>(row + 256 * i + 16 * part) : make_uint4(0, 0, 0, 0);
        to.scales[i] = there ? vector_at<float>(row + MLA_LATENT + 8 * i + part / 8 * 4) : 0.f;
    }
    to.rotated = there ? vector_at<uint2>(row + kFp8Bytes - MLA_ROPE * 2 + 8 * part) : make_uint2(0, 0);
}

// Two e4m3 times a power of two: exact, but for what is below the range of bf16.
INTRIN uint32_t fp8_pair(uint32_t pair, float scale) {
    const uint32_t halves = e4m3x2_to_f16x2(static_cast<uint16_t>(pair));
    return pack_bf16x2(__fmul_rn(f16_to_f32(static_cast<uint16_t>(halves)), scale),
                       __fmul_rn(f16_to_f32(static_cast<uint16_t>(halves >> 16)), scale));
}

// To where copy_keys has them.
INTRIN void store_fp8(const fp8_part &from, uint32_t thread, unsigned char *to) {
    unsigned char *place = to + thread / 16 * kKeyPitch;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
        const uint4 q = from.quants[i];
        const float scale = from.scales[i];
        auto *values = reinterpret_cast<uint4 *>(place + 512 * i + 32 * (thread % 16));
        values[0] = make_uint4(fp8_pair(q.x, scale), fp8_pair(q.x >> 16, scale), fp8_pair(q.y, scale), fp8_pair(q.y >> 16, scale));
        values[1] = make_uint4(fp8_pair(q.z, scale), fp8_pair(q.z >> 16, scale), fp8_pair(q.w, scale), fp8_pair(q.w >> 16, scale));
    }
    *reinterpret_cast<uint2 *>(place + 2 * MLA_LATENT + 8 * (thread % 16)) = from.rotated;
}

// q of a warp's heads, as A, those that there are not as zeros: rows come to shared memory rounded, 32 of them at a time, in place of the tiles behind
// those that are on their way. By all threads; when it returns, that room is free.
template <class T, int kHeads, class Lane, class Smem, int kM>
INTRIN void load_q(const Lane &lanes, const mla_decode_params &p, const mla_cursor<MLA_KEYS> &at, uint32_t tile, Smem &shared, uint32_t (&q)[kM][kSteps][4]) {
    constexpr uint32_t kRows = 32, kOwn = kRows / 8, kVectors = (MLA_WIDTH / 4 + 31) / 32;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t heads = min(static_cast<uint32_t>(kHeads), p.n_heads - at.group * kHeads);
    const float *from = p.q + (uint64_t{at.row} * p.n_heads + at.group * kHeads) * MLA_WIDTH;
    const auto row_at = [&](uint32_t row) { return shared.keys[(tile + 2 + row / 16) % kTiles] + row % 16 * kKeyPitch; };
#pragma unroll
    for (uint32_t first = 0; first < kHeads; first += kRows) {
        float4 values[kOwn][kVectors];
#pragma unroll
        for (uint32_t i = 0; i < kOwn; ++i)
#pragma unroll
            for (uint32_t j = 0; j < kVectors; ++j) {
                const uint32_t head = first + warp * kOwn + i, col = 4 * (32 * j + lane);
                values[i][j] = make_float4(0.f, 0.f, 0.f, 0.f);
                if (head < heads && col < MLA_WIDTH) values[i][j] = vector_at<float4>(from + head * MLA_WIDTH + col);
            }
        if (first > 0) __syncthreads(); // the rows before were taken
#pragma unroll
        for (uint32_t i = 0; i < kOwn; ++i) {
            const uint32_t row = warp * kOwn + i;
            float scale = 1.f;
            if constexpr (is_f16<T>::value) {
                // The largest magnitude of a head to 2^14 and on: products are exact in f32, and what is smaller by 2^28 or less keeps eleven bits.
                uint32_t largest = 0;
#pragma unroll
                for (uint32_t j = 0; j < kVectors; ++j) {
                    const float4 v = values[i][j];
                    largest = max(largest, f32_bits(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)))));
                }
                const uint32_t exponent = max(__reduce_max_sync(kAll, largest >> 23), 15u) - 14;
                scale = f32_from_bits((254 - exponent) << 23); // 1 / unscale, exactly
                if (lane == 0) shared.unscale[first + row] = f32_from_bits(exponent << 23);
            }
#pragma unroll
            for (uint32_t j = 0; j < kVectors; ++j) {
                const float4 v = values[i][j];
                if (4 * (32 * j + lane) < MLA_WIDTH)
                    *reinterpret_cast<uint2 *>(row_at(row) + 8 * (32 * j + lane)) = {pack(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale), T{}),
                                                                                    pack(__fmul_rn(v.z, scale), __fmul_rn(v.w, scale), T{})};
            }
        }
        __syncthreads();
        const uint32_t own = mla_scores<kHeads>::head();
        if (own / kRows * kRows == first) {
#pragma unroll
            for (int i = 0; i < kM; ++i)
#pragma unroll
                for (int j = 0; j < kSteps; ++j)
                    ldmatrix_x4(q[i][j], row_at(own % kRows + 16 * i + lane % 16) + 32 * (kPieces * j + mla_scores<kHeads>::piece()) + lane / 16 * 16);
        }
    }
    __syncthreads();
}

// Dot products of the warp's quarter of the steps, to where those of the tile before have been read: a phase of the barrier for each tile.
template <class T, int kHeads, class Lane, class Smem, int kM>
INTRIN void multiply_keys(const Lane &at, const unsigned char *keys, const uint32_t (&q)[kM][kSteps][4], Smem &shared, uint32_t tile) {
    const unsigned char *from = keys + at.own_keys;
    float scores[kM][2][4] = {};
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
        uint32_t b[4];
        ldmatrix_x4(b, from + 128 * j);
#pragma unroll
        for (int i = 0; i < kM; ++i)
#pragma unroll
            for (int n = 0; n < 2; ++n) multiply(scores[i][n], q[i][j], {b[2 * n], b[2 * n + 1]}, T{});
    }
    mbarrier_wait(shared.scores_read, tile % 2 ^ 1);
    unsigned char *to = reinterpret_cast<unsigned char *>(shared.scores) + at.own_scores;
#pragma unroll
    for (int i = 0; i < kM; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r, to += sizeof(shared.scores[0][0]))
            *reinterpret_cast<float4 *>(to) = {scores[i][0][2 * r], scores[i][0][2 * r + 1], scores[i][1][2 * r], scores[i][1][2 * r + 1]};
}

// Four scores, of the first warps: pieces of them.
struct mla_dots {
    float4 pieces[kPieces];
    template <int kHeads, class Lane, class Smem> INTRIN void load(const Lane &at, Smem &shared) {
        const float4 *scores = &shared.scores[0][0][0] + at.thread;
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) pieces[piece] = scores[piece * (kHeads / 8) * 32];
    }
    INTRIN float4 sum() const {
        float4 dots = pieces[0];
#pragma unroll
        for (int i = 1; i < kPieces; ++i) {
            const float4 more = pieces[i];
            dots.x = __fadd_rn(dots.x, more.x), dots.y = __fadd_rn(dots.y, more.y), dots.z = __fadd_rn(dots.z, more.z), dots.w = __fadd_rn(dots.w, more.w);
        }
        return dots;
    }
};

// Weights of a tile, by the first warps: four lanes for each head. They are relative to a base, the largest logit but for slack, which is that of
// the head; the sum is that of the lane's keys. In four steps, between which others multiply.
template <class T> struct mla_weights {
    float4 logits;
    float top, base, sum;

    template <class Lane, class Smem> INTRIN void find_logits(const Lane &at, const mla_decode_params &p, uint32_t there, float4 dots, Smem &shared) {
        const float scale = is_f16<T>::value ? __fmul_rn(p.scale, shared.unscale[at.thread / 4]) : p.scale;
        logits = {__fmul_rn(dots.x, scale), __fmul_rn(dots.y, scale), __fmul_rn(dots.z, scale), __fmul_rn(dots.w, scale)};
        if (there != (1u << MLA_KEYS) - 1) {
            there >>= at.thread % 4 * 2;
            if (!(there & 1)) logits.x = minus_infinity();
            if (!(there & 2)) logits.y = minus_infinity();
            if (!(there & 256)) logits.z = minus_infinity();
            if (!(there & 512)) logits.w = minus_infinity();
        }
        top = fmaxf(fmaxf(logits.x, logits.y), fmaxf(logits.z, logits.w));
        top = fmaxf(top, __shfl_xor_sync(kAll, top, 2));
    }
    template <class Lane, class Smem> INTRIN void find_base(const Lane &at, Smem &shared, uint32_t buffer) {
        top = fmaxf(top, __shfl_xor_sync(kAll, top, 1));
        const bool grown = top > __fadd_rn(base, kSlack); // also of the first key
        const bool any = __any_sync(kAll, grown);
        if (any) {
            const float rescale = grown ? ex2_approx(__fsub_rn(base, top)) : 1.f;
            if (grown) base = top;
            sum = __fmul_rn(sum, rescale);
            if (at.thread % 4 == 0) shared.rescale[buffer][at.thread / 4] = rescale;
        }
        if (at.thread % 32 == 0) shared.grown[buffer][at.thread / 32] = any;
    }
    INTRIN void find_weights() {
        const float from = base == minus_infinity() ? 0.f : base; // no key yet: all weights are 0
        logits = {ex2_approx(__fsub_rn(logits.x, from)), ex2_approx(__fsub_rn(logits.y, from)), ex2_approx(__fsub_rn(logits.z, from)),
                  ex2_approx(__fsub_rn(logits.w, from))};
    }
    template <class Lane, class Smem> INTRIN void store(const Lane &at, Smem &shared, uint32_t buffer) {
        unsigned char *to = reinterpret_cast<unsigned char *>(shared.weights[buffer]) + at.own_weights;
        *reinterpret_cast<uint32_t *>(to) = pack(logits.x, logits.y, T{});
        *reinterpret_cast<uint32_t *>(to + 16) = pack(logits.z, logits.w, T{});
        sum = __fadd_rn(sum, __fadd_rn(__fadd_rn(logits.x, logits.y), __fadd_rn(logits.z, logits.w)));
    }
};

// Whether any head has a rescale that is not 1.
template <int kHeads> INTRIN bool any_grown(const uint8_t (&grown)[kHeads / 8]) {
    if constexpr (kHeads == 64) {
        const auto flags = vector_at<uint2>(grown);
        return (flags.x | flags.y) != 0;
    }
    return vector_at<uint32_t>(grown) != 0;
}

// Weighted values, for 64 columns of all heads; meanwhile(0) to meanwhile(3) run between the products.
template <class T, int kHeads, class Lane, class Smem, class F>
INTRIN void multiply_values(const Lane &at, const unsigned char *keys, Smem &shared, uint32_t buffer, float (&out)[kHeads / 16][8][4], F meanwhile) {
    const bool grown = any_grown<kHeads>(shared.grown[buffer]);
    const unsigned char *from = keys + at.values, *weights = reinterpret_cast<const unsigned char *>(shared.weights[buffer]) + at.weights;
    uint32_t a[kHeads / 16][4], b[2][4];
    ldmatrix_x4_trans(b[0], from);
#pragma unroll
    for (int i = 0; i < kHeads / 16; ++i) ldmatrix_x4(a[i], weights + 32 * i * kPitch);
    if (grown) {
#pragma unroll
        for (int i = 0; i < kHeads / 16; ++i)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                if (shared.grown[buffer][2 * i + r] == 0) continue;
                const float rescale = shared.rescale[buffer][16 * i + at.thread % 32 / 4 + 8 * r];
#pragma unroll
                for (int n = 0; n < 8; ++n)
                    out[i][n][2 * r] = __fmul_rn(out[i][n][2 * r], rescale), out[i][n][2 * r + 1] = __fmul_rn(out[i][n][2 * r + 1], rescale);
            }
    }
#pragma unroll
    for (uint32_t n = 0; n < 4; ++n) {
        if (n < 3) ldmatrix_x4_trans(b[(n + 1) % 2], from + 32 * (n + 1));
        const uint32_t(&now)[4] = b[n % 2];
#pragma unroll
        for (int i = 0; i < kHeads / 16; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) multiply(out[i][2 * n + h], a[i], {now[2 * h], now[2 * h + 1]}, T{});
        meanwhile(n);
    }
}

// What the block has of a unit: all of it, or a piece. Sums go by way of shared memory, in place of two tiles, so that whole lines are written.
template <int kHeads, class Smem>
INTRIN void finish_unit(const mla_decode_params &p, const mla_cursor<MLA_KEYS> &at, const mla_share &share, uint32_t groups, uint32_t tile, Smem &shared,
                        float base, float sum, const float (&out)[kHeads / 16][8][4]) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, end = share.first + tile;
    const uint32_t heads = min(static_cast<uint32_t>(kHeads), p.n_heads - at.group * kHeads);
    const uint64_t first_head = uint64_t{at.row} * p.n_heads + at.group * kHeads;
    const bool begun = at.first >= share.first, ended = end == at.first + at.tiles, whole = begun && ended;
    sum = __fadd_rn(sum, __shfl_xor_sync(kAll, sum, 2));
    sum = __fadd_rn(sum, __shfl_xor_sync(kAll, sum, 1));
    if (warp < kHeads / 8 && lane % 4 == 0) {
        shared.sums[threadIdx.x / 4] = {base, sum};
        shared.factors[threadIdx.x / 4] = !whole || sum == 0.f ? 1.f : __fdiv_rn(1.f, sum);
    }
    __syncthreads();
    const uint64_t piece = (2 * uint64_t{blockIdx.x} + begun) * kHeads; // the first head of a piece
    if (threadIdx.x < heads) {
        const float2 sums = shared.sums[threadIdx.x];
        if (!whole) reinterpret_cast<float2 *>(p.sums)[piece + threadIdx.x] = sums;
        else if (p.lse != nullptr) p.lse[first_head + threadIdx.x] = lse_of(sums);
    }
    const uint32_t units = p.rows.m * groups;
    if (threadIdx.x == 0 && begun && (!ended || units <= gridDim.x)) {
        const uint32_t pieces = (at.first + at.tiles - 1) / share.per - blockIdx.x + 1;
        p.cuts[units <= gridDim.x ? at.row * groups + at.group : blockIdx.x] = {at.row, at.group, blockIdx.x, whole ? 0 : pieces};
    }
    float *to = (whole ? p.out + first_head * MLA_LATENT : p.partial + piece * MLA_LATENT) + 64 * warp + lane % 16 * 4;
    auto *room = reinterpret_cast<float *>(shared.keys[(tile + 2 + warp / 4) % kTiles]) + warp % 4 * (16 * kOutPitch); // of 16 heads
#pragma unroll
    for (int i = 0; i < kHeads / 16; ++i) {
        __syncwarp();
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int n = 0; n < 8; ++n)
                *reinterpret_cast<float2 *>(room + (lane / 4 + 8 * r) * kOutPitch + 8 * n + 2 * (lane % 4)) = {out[i][n][2 * r], out[i][n][2 * r + 1]};
        __syncwarp();
#pragma unroll
        for (uint32_t row = lane / 16; row < 16; row += 2) {
            const uint32_t head = 16 * i + row;
            if (head >= heads) continue;
            const float4 v = vector_at<float4>(room + row * kOutPitch + lane % 16 * 4);
            const float factor = shared.factors[head];
            *reinterpret_cast<float4 *>(to + head * MLA_LATENT) = {__fmul_rn(v.x, factor), __fmul_rn(v.y, factor), __fmul_rn(v.z, factor), __fmul_rn(v.w, factor)};
        }
    }
}

template <class T, int kFp8, int kHeads, int kBlocks, int kWarps> __device__ __forceinline__ void mla_decode(const mla_decode_params &p) {
    static_assert(kWarps == 8 && (kHeads == 32 || kHeads == 64), "a warp for 64 columns; four lanes for each head");
    static_assert(!kFp8 || !is_f16<T>::value, "what rows of fp8 become has their range");
    auto &shared = smem<mla_decode_smem<T, kFp8, kHeads, kBlocks, kWarps>>();
    const uint32_t groups = (p.n_heads + kHeads - 1) / kHeads, warp = threadIdx.x / 32;
    griddep_launch_dependents();
    griddep_wait();
    const mla_share share = share_of<MLA_KEYS, kWarps>(p, groups, shared);
    if (threadIdx.x == 0 && p.rows.m * groups > gridDim.x) p.cuts[blockIdx.x].pieces = 0;
    if (share.n == 0) return;
    mla_cursor<MLA_KEYS> begun{};
    begun.row = shared.row, begun.first = shared.row_first;
    begun.enter(p);
    begun.seek(p, groups, share.first);
    if (threadIdx.x == 0) {
        shared.at = begun;
        mbarrier_init(shared.scores_read, kWarps * 32); // of each thread, not of each warp: racecheck can follow
        for (mbarrier &landed : shared.landed) mbarrier_init(landed, kWarps / 2 * 32);
        mbarrier_init_fence();
    }

    // Each thread looks up a key of a chunk of tiles.
    uint32_t found, table; // its position, and where the page table of its sequence begins, or its page
    const auto find_position = [&](uint32_t chunk, mla_cursor<MLA_KEYS> ahead) {
        const uint32_t tile = chunk + threadIdx.x / MLA_KEYS;
        found = kNoKey, table = 0;
        if (tile >= share.n) return;
        ahead.seek(p, groups, share.first + tile);
        table = ahead.table;
        const uint32_t i = (share.first + tile - ahead.first) * MLA_KEYS + threadIdx.x % MLA_KEYS;
        if (i < ahead.keys) found = key_position(p.selected, ahead.row, ahead.visible, i);
    };
    const auto find_page = [&] { table = found == kNoKey ? 0 : p.rows.tables[table + found / PAGE_ROWS]; };
    const auto store_slot = [&](uint32_t chunk) {
        shared.slots[chunk / kChunk % 2][threadIdx.x] = found == kNoKey ? kNoKey : table * PAGE_ROWS + found % PAGE_ROWS;
        const uint32_t there = __ballot_sync(kAll, found != kNoKey);
        if (threadIdx.x % 32 < 2) shared.there[chunk / kChunk % 2][2 * warp + threadIdx.x % 32] = threadIdx.x % 32 == 0 ? there & 0xffffu : there >> 16;
    };
    const auto slots_of = [&](uint32_t tile) { return shared.slots[tile / kChunk % 2] + tile % kChunk * MLA_KEYS; };
    find_position(0, begun);
    find_page();
    store_slot(0);
    __syncthreads();
    fp8_part part;
    for (uint32_t tile = 0; tile < 2; ++tile) {
        if constexpr (kFp8) {
            load_fp8(p.cache, slots_of(tile), threadIdx.x, part);
            store_fp8(part, threadIdx.x, shared.keys[tile]);
        } else if (warp / 4 == tile) {
            if (tile < share.n) copy_keys(p.cache, slots_of(tile), shared.keys[tile], threadIdx.x % 128);
            cp_async_mbarrier_arrive(shared.landed[tile]);
        }
    }

    const mla_lane<kHeads, !(kHeads == 64 && (kFp8 || is_f16<T>::value))> at;
    for (uint32_t tile = 0;;) { // units
        uint32_t q[mla_scores<kHeads>::kM][kSteps][4];
        load_q<T, kHeads>(at, p, shared.at, tile, shared, q);
        float out[kHeads / 16][8][4];
        mla_weights<T> weights;
        weights.base = minus_infinity(), weights.sum = 0.f;
#pragma unroll
        for (int i = 0; i < kHeads / 16; ++i)
#pragma unroll
            for (int n = 0; n < 8; ++n)
#pragma unroll
                for (int r = 0; r < 4; ++r) out[i][n][r] = 0.f;
        const uint32_t begin = tile, end = min(share.n, shared.at.first + shared.at.tiles - share.first);
        if constexpr (!kFp8) mbarrier_wait(shared.landed[tile % 2], tile / 2 % 2);
        multiply_keys<T, kHeads>(at, shared.keys[tile % kTiles], q, shared, tile);
        // Of a tile the weights, of the one before the values, of the next one the scores.
#pragma unroll 1
        for (; tile < end; ++tile) {
            __syncthreads(); // scores of this tile and weights of the one before are there; nobody reads the tile before that
            mla_dots dots;
            if (kHeads == 64 || warp < kHeads / 8) dots.load<kHeads>(at, shared);
            const uint32_t ahead = tile + 2;
            unsigned char *ahead_keys = shared.keys[ahead % kTiles];
            if (!kFp8 && ahead < share.n && warp / 4 == ahead % 2) {
                copy_keys(p.cache, slots_of(ahead), ahead_keys, at.thread % 128);
                cp_async_mbarrier_arrive(shared.landed[ahead % 2]);
            }
            float4 sums{};
            if (kHeads == 64 || warp < kHeads / 8) sums = dots.sum();
            mbarrier_arrive(shared.scores_read);
            // Of the next chunk; one load at a time, so that nobody waits for it.
            const uint32_t next = (tile / kChunk + 1) * kChunk;
            if (next < share.n) {
                if (tile % kChunk == 0) find_position(next, shared.at);
                if (tile % kChunk == 4) find_page();
                if (tile % kChunk == 8) store_slot(next);
            }
            const uint32_t there = shared.there[tile / kChunk % 2][tile % kChunk];
            const auto weigh = [&](uint32_t step) {
                if (kHeads < 64 && warp >= kHeads / 8) return;
                if (step == 0) weights.find_logits(at, p, there, sums, shared);
                if (step == 1) weights.find_base(at, shared, tile % 2);
                if (step == 2) weights.find_weights();
                if (step == 3) weights.store(at, shared, tile % 2);
            };
            if (tile > begin) {
                multiply_values<T, kHeads>(at, shared.keys[(tile - 1) % kTiles], shared, (tile - 1) % 2, out, weigh);
            } else {
#pragma unroll
                for (uint32_t step = 0; step < 4; ++step) weigh(step);
            }
            if (kFp8 && kHeads < 64 && ahead < share.n) load_fp8(p.cache, slots_of(ahead), at.thread, part);
            if (tile + 1 < end) {
                if constexpr (!kFp8) mbarrier_wait(shared.landed[(tile + 1) % 2], (tile + 1) / 2 % 2);
                multiply_keys<T, kHeads>(at, shared.keys[(tile + 1) % kTiles], q, shared, tile + 1);
            }
            // With 64 heads there are no registers in which values could wait: they come from L2, and the other warps go on.
            if (kFp8 && ahead < share.n) {
                if (kHeads == 64) load_fp8(p.cache, slots_of(ahead), at.thread, part);
                store_fp8(part, at.thread, ahead_keys);
            }
        }
        __syncthreads();
        multiply_values<T, kHeads>(at, shared.keys[(tile - 1) % kTiles], shared, (tile - 1) % 2, out, [](uint32_t) {});
        finish_unit<kHeads>(p, shared.at, share, groups, end, shared, weights.base, weights.sum, out);
        if (end == share.n) break;
        __syncthreads(); // nobody needs the unit any more
        if (threadIdx.x == 0) {
            mla_cursor<MLA_KEYS> next = shared.at;
            next.seek(p, groups, share.first + end);
            shared.at = next;
        }
        __syncthreads();
    }
}
