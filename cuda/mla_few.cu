// mla_few: mla_decode for few query heads, where bytes bind and little is multiplied.
//
// Math    as mla_decode has it; weights are relative to the largest logit so far
// Shapes  as there
// Tiling  tiles of 32 keys for 16 heads of a row, in order of rows, groups of heads, keys: a block of threads takes an equal share, wherever that
//         begins and ends. Scores: a warp has a quarter of the 36 steps along a row for half of the keys, so that q stays in
//         registers and keys are read once; weights by heads; values: a warp has 64 columns. One after the other; two blocks share an SM.
// Floor   bytes of the keys: 2048 of 64 rows 151 MB, 36 us at 4.2 TB/s
// Limits  more than 16 heads read the keys again
#include "common/mla_share.cuh"

constexpr uint32_t kRowBytes = 2 * MLA_WIDTH;
constexpr int kPieces = 4;      // of the steps along a row
constexpr int kSteps = 9;       // of a piece
constexpr int kPitch = 40;      // of scores and weights: rows of eight neighbours meet all banks
constexpr int kChunk = 8;       // tiles whose slots are looked up at a time: a key for each thread

template <class T, int kFp8, int kHeads, int kBlocks, int kWarps> struct mla_few_smem {
    alignas(128) unsigned char keys[2][MLA_FEW_KEYS * kRowBytes];
    alignas(16) float scores[kPieces][kHeads][kPitch];
    alignas(16) uint16_t weights[kHeads][kPitch];
    float rescale[kHeads];
    float unscale[kHeads];
    float2 sums[kHeads];
    alignas(16) uint32_t slots[2][kChunk * MLA_FEW_KEYS];
    uint32_t scan[kWarps];
    uint32_t row, row_first; // the row in which the block begins, and its first tile
};

INTRIN uint32_t pack(float lo, float hi, bf16) { return pack_bf16x2(lo, hi); }
INTRIN uint32_t pack(float lo, float hi, f16) { return pack_f16x2(lo, hi); }
INTRIN void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bf16) { mma_m16n8k16_bf16(d, a, b); }
INTRIN void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], f16) { mma_m16n8k16_f16(d, a, b); }
template <class T> struct is_f16 { static constexpr bool value = false; };
template <> struct is_f16<f16> { static constexpr bool value = true; };

// Keys of a tile to shared memory, those that there are not as zeros: eight threads for each key. Sixteen bytes of a row go to the place of the
// same 128 bytes whose number differs by that of the key, so that eight rows meet all banks.
INTRIN void copy_keys(const void *cache, const uint32_t *slots, unsigned char *to) {
    const uint32_t key = threadIdx.x / 8, part = threadIdx.x % 8, slot = slots[key];
    const bool there = slot != kNoKey;
    const auto *from = static_cast<const unsigned char *>(cache) + uint64_t{there ? slot : 0} * kRowBytes + 16 * part;
    unsigned char *place = to + key * kRowBytes + 16 * (part ^ key % 8);
#pragma unroll
    for (uint32_t i = 0; i < kRowBytes / 128; ++i) cp_async_zfill<16>(place + 128 * i, from + 128 * i, there ? 16 : 0);
}

// A thread's part of a tile of keys in fp8, on its way to shared memory as bf16, a half at a time: of each 128 latent values those of sixteen
// bytes; with the second half sixteen bytes of the rotated ones. All zeros if there is no key.
struct fp8_part {
    uint4 quants[2], rotated;
    float scales[2];
};
template <uint32_t kHalf> INTRIN void load_fp8(const void *cache, const uint32_t *slots, fp8_part &to) {
    constexpr uint32_t kBytes = MLA_LATENT + MLA_LATENT / 128 * 4 + MLA_ROPE * 2;
    const uint32_t part = threadIdx.x % 8, slot = slots[threadIdx.x / 8];
    const bool there = slot != kNoKey;
    const auto *row = static_cast<const unsigned char *>(cache) + uint64_t{there ? slot : 0} * kBytes;
    const uint4 none = make_uint4(0, 0, 0, 0);
    const auto sixteen = [&](uint32_t at) { return there ? vector_at<uint4>(row + at) : none; };
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) to.quants[i] = sixteen(128 * (2 * kHalf + i) + 16 * part);
    const float2 scales = there ? vector_at<float2>(row + MLA_LATENT + 8 * kHalf) : make_float2(0.f, 0.f);
    to.scales[0] = scales.x, to.scales[1] = scales.y;
    if (kHalf == 1) to.rotated = sixteen(kBytes - MLA_ROPE * 2 + 16 * part);
}

// Two e4m3 times a power of two: exact, but for what is below the range of bf16.
INTRIN uint32_t fp8_pair(uint32_t pair, float scale) {
    const uint32_t halves = e4m3x2_to_f16x2(static_cast<uint16_t>(pair));
    return pack_bf16x2(__fmul_rn(f16_to_f32(static_cast<uint16_t>(halves)), scale),
                       __fmul_rn(f16_to_f32(static_cast<uint16_t>(halves >> 16)), scale));
}

// To where copy_keys has them.
template <uint32_t kHalf> INTRIN void store_fp8(const fp8_part &from, unsigned char *to) {
    const uint32_t key = threadIdx.x / 8, part = threadIdx.x % 8;
    unsigned char *row = to + key * kRowBytes;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t words[4] = {from.quants[i].x, from.quants[i].y, from.quants[i].z, from.quants[i].w};
        const float scale = from.scales[i];
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) {
            const uint32_t a = words[2 * j], b = words[2 * j + 1], sixteen = 2 * part + j; // of the 256 bytes that 128 values become
            *reinterpret_cast<uint4 *>(row + 256 * (2 * kHalf + i) + 128 * (sixteen / 8) + 16 * (sixteen % 8 ^ key % 8)) =
                make_uint4(fp8_pair(a, scale), fp8_pair(a >> 16, scale), fp8_pair(b, scale), fp8_pair(b >> 16, scale));
        }
    }
    if (kHalf == 1) *reinterpret_cast<uint4 *>(row + 2 * MLA_LATENT + 16 * (part ^ key % 8)) = from.rotated;
}

// q of a group of heads as A, those that there are not as zeros: register r of step j of rows 16 i and on.
template <class T, int kHeads, int kWarps, class Smem>
INTRIN void load_q(const mla_decode_params &p, uint32_t row, uint32_t group, Smem &shared, uint32_t (&q)[kHeads / 16][kSteps][4]) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const uint32_t heads = min(static_cast<uint32_t>(kHeads), p.n_heads - group * kHeads);
    const float *from = p.q + (uint64_t{row} * p.n_heads + group * kHeads) * MLA_WIDTH;
    if constexpr (is_f16<T>::value) {
        // The largest magnitude of a head to 2^14 and on: products are exact in f32, and what is smaller by 2^28 or less keeps eleven bits.
        for (uint32_t head = warp; head < kHeads; head += kWarps) {
            float largest = 0.f;
            if (head < heads)
#pragma unroll
                for (uint32_t i = 0; i < MLA_WIDTH / 32; ++i) largest = fmaxf(largest, fabsf(from[head * MLA_WIDTH + 32 * i + lane]));
            const uint32_t exponent = __reduce_max_sync(kAll, f32_bits(largest) >> 23);
            if (lane == 0) shared.unscale[head] = f32_from_bits((max(exponent, 15u) - 14) << 23);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kHeads / 16; ++i) {
        uint32_t half[2];
        float scale[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            half[r] = 16 * i + g + 8 * r;
            // 1 / unscale, exactly.
            scale[r] = is_f16<T>::value ? f32_from_bits((254u << 23) - f32_bits(shared.unscale[half[r]])) : 1.f;
        }
#pragma unroll
        for (int j = 0; j < kSteps; ++j)
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const uint32_t head = half[r % 2], col = 16 * (kPieces * j + warp % kPieces) + 2 * t + 8 * (r / 2);
                float2 v{0.f, 0.f};
                if (head < heads) v = vector_at<float2>(from + head * MLA_WIDTH + col);
                if (is_f16<T>::value) v = {__fmul_rn(v.x, scale[r % 2]), __fmul_rn(v.y, scale[r % 2])};
                q[i][j][r] = pack(v.x, v.y, T{});
            }
    }
}

// Dot products of the warp's quarter of the steps for its half of the keys.
template <class T, int kHeads, class Smem>
INTRIN void multiply_keys(const unsigned char *keys, const uint32_t (&q)[kHeads / 16][kSteps][4], Smem &shared) {
    const uint32_t lane = threadIdx.x % 32, piece = threadIdx.x / 32 % kPieces, half = threadIdx.x / 32 / kPieces;
    const uint32_t key = 16 * half + lane / 16 * 8 + lane % 8;
    const unsigned char *from = keys + key * kRowBytes + 16 * ((2 * piece + lane / 8 % 2) ^ key % 8);
    float scores[kHeads / 16][2][4] = {};
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
        uint32_t b[4];
        ldmatrix_x4(b, from + 128 * j);
#pragma unroll
        for (int i = 0; i < kHeads / 16; ++i)
#pragma unroll
            for (int n = 0; n < 2; ++n) multiply(scores[i][n], q[i][j], {b[2 * n], b[2 * n + 1]}, T{});
    }
#pragma unroll
    for (int i = 0; i < kHeads / 16; ++i)
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float *to = &shared.scores[piece][16 * i + lane / 4 + 8 * r][16 * half + 8 * n + 2 * (lane % 4)];
                *reinterpret_cast<float2 *>(to) = {scores[i][n][2 * r], scores[i][n][2 * r + 1]};
            }
}

// Weights of a tile: a head has 256 / kHeads lanes, a lane some neighbouring keys. The largest logit so far is that of the head, the sum that
// of the lane's keys.
template <class T, int kHeads, class Smem>
INTRIN void weigh_keys(const mla_decode_params &p, const uint32_t *slots, Smem &shared, float &largest, float &sum) {
    constexpr uint32_t kLanes = 256 / kHeads, kOwn = MLA_FEW_KEYS / kLanes;
    const uint32_t head = threadIdx.x / kLanes, key = threadIdx.x % kLanes * kOwn;
    const float scale = is_f16<T>::value ? __fmul_rn(p.scale, shared.unscale[head]) : p.scale;
    struct alignas(4 * kOwn) floats { float x[kOwn]; };
    struct alignas(4 * kOwn) words { uint32_t x[kOwn]; };
    floats dots = vector_at<floats>(&shared.scores[0][head][key]);
#pragma unroll
    for (int piece = 1; piece < kPieces; ++piece) {
        const auto more = vector_at<floats>(&shared.scores[piece][head][key]);
#pragma unroll
        for (uint32_t i = 0; i < kOwn; ++i) dots.x[i] = __fadd_rn(dots.x[i], more.x[i]);
    }
    const auto there = vector_at<words>(slots + key);
    float logits[kOwn], top = minus_infinity();
#pragma unroll
    for (uint32_t i = 0; i < kOwn; ++i) {
        logits[i] = there.x[i] == kNoKey ? minus_infinity() : __fmul_rn(dots.x[i], scale);
        top = fmaxf(top, logits[i]);
    }
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) top = fmaxf(top, __shfl_xor_sync(kAll, top, lanes));
    top = fmaxf(top, largest);
    const float base = top == minus_infinity() ? 0.f : top; // no key yet: all weights are 0
    const float rescale = ex2_approx(__fsub_rn(largest, base));
    largest = top, sum = __fmul_rn(sum, rescale);
    if (key == 0) shared.rescale[head] = rescale;
#pragma unroll
    for (uint32_t i = 0; i < kOwn; ++i) logits[i] = ex2_approx(__fsub_rn(logits[i], base)), sum = __fadd_rn(sum, logits[i]);
#pragma unroll
    for (uint32_t i = 0; i < kOwn; i += 2)
        *reinterpret_cast<uint32_t *>(&shared.weights[head][key + i]) = pack(logits[i], logits[i + 1], T{});
}

// Weighted values, for 64 columns of all heads.
template <class T, int kHeads, class Smem>
INTRIN void multiply_values(const unsigned char *keys, Smem &shared, float (&out)[kHeads / 16][8][4]) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    bool same = true;
    float rescale[kHeads / 16][2];
#pragma unroll
    for (int i = 0; i < kHeads / 16; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            rescale[i][r] = shared.rescale[16 * i + lane / 4 + 8 * r];
            same = same && rescale[i][r] == 1.f;
        }
    if (!__all_sync(kAll, same)) {
#pragma unroll
        for (int i = 0; i < kHeads / 16; ++i)
#pragma unroll
            for (int n = 0; n < 8; ++n)
#pragma unroll
                for (int r = 0; r < 4; ++r) out[i][n][r] = __fmul_rn(out[i][n][r], rescale[i][r / 2]);
    }
    const uint32_t key = lane / 8 % 2 * 8 + lane % 8;
    const unsigned char *from = keys + key * kRowBytes + 128 * warp;
#pragma unroll
    for (int k = 0; k < MLA_FEW_KEYS / 16; ++k) {
        uint32_t a[kHeads / 16][4];
#pragma unroll
        for (int i = 0; i < kHeads / 16; ++i) ldmatrix_x4(a[i], &shared.weights[16 * i + lane % 16][16 * k + lane / 16 * 8]);
#pragma unroll
        for (uint32_t n = 0; n < 4; ++n) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, from + 16 * k * kRowBytes + 16 * ((2 * n + lane / 16) ^ key % 8));
#pragma unroll
            for (int i = 0; i < kHeads / 16; ++i)
#pragma unroll
                for (int h = 0; h < 2; ++h) multiply(out[i][2 * n + h], a[i], {b[2 * h], b[2 * h + 1]}, T{});
        }
    }
}

// What the block has of a unit: all of it, or a piece.
template <class T, int kHeads, int kWarps, class Smem>
INTRIN void finish_unit(const mla_decode_params &p, const mla_cursor<MLA_FEW_KEYS> &at, const mla_share &share, uint32_t groups, uint32_t end, Smem &shared,
                        float largest, float sum, const float (&out)[kHeads / 16][8][4]) {
    constexpr uint32_t kLanes = 256 / kHeads;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = threadIdx.x / kLanes;
    const uint32_t heads = min(static_cast<uint32_t>(kHeads), p.n_heads - at.group * kHeads);
    const uint64_t first_head = uint64_t{at.row} * p.n_heads + at.group * kHeads;
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kAll, sum, lanes));
    if (threadIdx.x % kLanes == 0) shared.sums[head] = {largest, sum};
    __syncthreads();
    const bool begun = at.first >= share.first, ended = end == at.first + at.tiles, whole = begun && ended;
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
    float *to = whole ? p.out + first_head * MLA_LATENT : p.partial + piece * MLA_LATENT;
#pragma unroll
    for (int i = 0; i < kHeads / 16; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const uint32_t h = 16 * i + lane / 4 + 8 * r;
            if (h >= heads) continue;
            const float all = shared.sums[h].y, factor = !whole || all == 0.f ? 1.f : __fdiv_rn(1.f, all);
#pragma unroll
            for (int n = 0; n < 8; ++n)
                *reinterpret_cast<float2 *>(to + h * MLA_LATENT + 64 * warp + 8 * n + 2 * (lane % 4)) = {
                    __fmul_rn(out[i][n][2 * r], factor), __fmul_rn(out[i][n][2 * r + 1], factor)};
        }
}

template <class T, int kFp8, int kHeads, int kBlocks, int kWarps> __device__ __forceinline__ void mla_few(const mla_decode_params &p) {
    static_assert(kWarps == 8 && kHeads == 16, "a warp for 64 columns; lanes of a head are of one warp");
    static_assert(!kFp8 || !is_f16<T>::value, "what rows of fp8 become has their range");
    auto &shared = smem<mla_few_smem<T, kFp8, kHeads, kBlocks, kWarps>>();
    const uint32_t groups = (p.n_heads + kHeads - 1) / kHeads, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    griddep_launch_dependents();
    griddep_wait();
    const mla_share share = share_of<MLA_FEW_KEYS, kWarps>(p, groups, shared);
    if (threadIdx.x == 0 && p.rows.m * groups > gridDim.x) p.cuts[blockIdx.x].pieces = 0;
    if (share.n == 0) return;
    mla_cursor<MLA_FEW_KEYS> at{};
    at.row = shared.row, at.first = shared.row_first;
    at.enter(p);
    at.seek(p, groups, share.first);

    // A warp looks up the keys of every eighth tile.
    mla_cursor<MLA_FEW_KEYS> ahead = at;
    const auto position_of = [&](uint32_t tile) {
        if (tile >= share.n) return kNoKey;
        ahead.seek(p, groups, share.first + tile);
        const uint32_t i = (share.first + tile - ahead.first) * MLA_FEW_KEYS + lane;
        return i < ahead.keys ? key_position(p.selected, ahead.row, ahead.visible, i) : kNoKey;
    };
    const auto slot_of_position = [&](uint32_t position) { return position == kNoKey ? kNoKey : slot_in(p.rows, ahead.table, position); };
    shared.slots[0][threadIdx.x] = slot_of_position(position_of(warp));
    __syncthreads();
    const auto slots_of = [&](uint32_t tile) { return shared.slots[tile / kChunk % 2] + tile % kChunk * MLA_FEW_KEYS; };
    fp8_part part;
    if constexpr (kFp8) {
        load_fp8<0>(p.cache, slots_of(0), part);
        store_fp8<0>(part, shared.keys[0]);
        load_fp8<1>(p.cache, slots_of(0), part);
        store_fp8<1>(part, shared.keys[0]);
    } else {
        for (uint32_t tile = 0; tile < 2; ++tile) {
            if (tile < share.n) copy_keys(p.cache, slots_of(tile), shared.keys[tile]);
            cp_async_commit();
        }
    }

    uint32_t q[kHeads / 16][kSteps][4], found = kNoKey;
    float out[kHeads / 16][8][4], largest = minus_infinity(), sum = 0.f;
    for (uint32_t tile = 0; tile < share.n; ++tile) {
        if (tile == 0 || share.first + tile == at.first) {
            load_q<T, kHeads, kWarps>(p, at.row, at.group, shared, q);
            largest = minus_infinity(), sum = 0.f;
#pragma unroll
            for (int i = 0; i < kHeads / 16; ++i)
#pragma unroll
                for (int n = 0; n < 8; ++n)
#pragma unroll
                    for (int r = 0; r < 4; ++r) out[i][n][r] = 0.f;
        }
        if constexpr (!kFp8) {
            if (tile == 0) cp_async_wait<1>();
            else cp_async_wait<0>();
        }
        __syncthreads(); // the tile is there, and nobody reads the one before it
        const bool more = tile + 1 < share.n;
        unsigned char *next_keys = shared.keys[(tile + 1) % 2];
        if constexpr (kFp8) {
            if (more) load_fp8<0>(p.cache, slots_of(tile + 1), part);
        } else {
            if (tile > 0 && more) copy_keys(p.cache, slots_of(tile + 1), next_keys);
            cp_async_commit();
        }
        // Of the next chunk; one load at a time, so that nobody waits for it.
        const uint32_t next = (tile / kChunk + 1) * kChunk;
        if (next < share.n) {
            if (tile % kChunk == 0) found = position_of(next + warp);
            if (tile % kChunk == 2) found = slot_of_position(found);
            if (tile % kChunk == 4) shared.slots[next / kChunk % 2][threadIdx.x] = found;
        }
        const unsigned char *keys = shared.keys[tile % 2];
        multiply_keys<T, kHeads>(keys, q, shared);
        if constexpr (kFp8)
            if (more) store_fp8<0>(part, next_keys), load_fp8<1>(p.cache, slots_of(tile + 1), part);
        __syncthreads();
        weigh_keys<T, kHeads>(p, slots_of(tile), shared, largest, sum);
        __syncthreads();
        multiply_values<T, kHeads>(keys, shared, out);
        if constexpr (kFp8)
            if (more) store_fp8<1>(part, next_keys);
        const uint32_t end = share.first + tile + 1;
        if (more && end != at.first + at.tiles) continue;
        finish_unit<T, kHeads, kWarps>(p, at, share, groups, end, shared, largest, sum, out);
        if (more) at.seek(p, groups, end);
    }
}
