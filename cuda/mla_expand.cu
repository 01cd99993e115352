// mla_gather: rows of a paged cache, one behind the other, in bf16. mla_expand: keys or values of all heads from them.
//
// Math    k[h][s] = [k_b[h]^T c_s | k_pe_s], v[h][s] = v_b[h] c_s; rows, weights and results in bf16, sums in f32
// Shapes  cache [slots, 576]; rows [keys, 512 + 64]; k_b [n_heads, 512, 192], v_b [n_heads, 256, 512]; tiles [keys / 32, n_heads]
// Tiling  a block of threads for 128 keys of a head, keys or values: a warp has 64 keys and a quarter of the columns; steps of 64 latent values,
//         the next one on its way. The result goes through shared memory, where it gets the order that mla_prefill copies.
// Floor   2 x 512 x (192 + 256) operations for each head and key
// Limits  one block of threads on an SM
#include "common/pages.cuh"
#include "params/mla_prefill.h"
#include "params/cache.h"

constexpr uint32_t kStep = 64; // latent values of a step
constexpr uint32_t kRowBytes = 2 * PREFILL_WIDTH;
constexpr uint32_t kKeyBytes = 2 * PREFILL_HEAD;
constexpr uint32_t kHalf = PREFILL_TILE / 2;
constexpr float kLargest = 3.38953139e38f; // of bf16
static_assert(PREFILL_HEAD == PREFILL_VALUE, "keys and values alike");

// Eight values of a row, from 8 `part` on, as bf16. f16 and f32 are rounded; of fp8 each value is a bf16.
template <int kType> INTRIN uint4 eight_values(const void *cache, uint32_t slot, uint32_t part) {
    if constexpr (kType == CACHE_BF16) {
        return vector_at<uint4>(static_cast<const unsigned char *>(cache) + uint64_t{slot} * kRowBytes + 16 * part);
    } else if constexpr (kType == CACHE_F16) {
        const auto v = vector_at<uint4>(static_cast<const unsigned char *>(cache) + uint64_t{slot} * kRowBytes + 16 * part);
        const auto pair = [](uint32_t bits) { return pack_bf16x2(f16_to_f32(bits & 0xffff), f16_to_f32(bits >> 16)); };
        return {pair(v.x), pair(v.y), pair(v.z), pair(v.w)};
    } else if constexpr (kType == CACHE_F32) {
        const float *from = static_cast<const float *>(cache) + uint64_t{slot} * PREFILL_WIDTH + 8 * part;
        const auto a = vector_at<float4>(from), b = vector_at<float4>(from + 4);
        return {pack_bf16x2(a.x, a.y), pack_bf16x2(a.z, a.w), pack_bf16x2(b.x, b.y), pack_bf16x2(b.z, b.w)};
    } else {
        static_assert(kType == CACHE_FP8, "types that latent rows have");
        // 512 e4m3, a scale for each 128, 64 bf16: 164 words, of which no more than four bytes are aligned to.
        const uint32_t *row = static_cast<const uint32_t *>(cache) + uint64_t{slot} * (PREFILL_LATENT / 128 * 33 + 32);
        if (part >= PREFILL_LATENT / 8) {
            const uint32_t *from = row + PREFILL_LATENT / 128 * 33 + 4 * (part - PREFILL_LATENT / 8);
            return {from[0], from[1], from[2], from[3]};
        }
        const float scale = f32_from_bits(row[PREFILL_LATENT / 4 + part / 16]);
        const auto pair = [&](uint32_t bits) {
            const uint32_t v = e4m3x2_to_f16x2(static_cast<uint16_t>(bits));
            return pack_bf16x2(__fmul_rn(f16_to_f32(v & 0xffff), scale), __fmul_rn(f16_to_f32(v >> 16), scale));
        };
        const uint32_t a = row[2 * part], b = row[2 * part + 1];
        return {pair(a), pair(a >> 16), pair(b), pair(b >> 16)};
    }
}

// A block of threads for 64 keys, which are of one page.
template <int kCache, int kWarps> __device__ __forceinline__ void mla_gather(const mla_gather_params &p) {
    constexpr uint32_t kParts = PREFILL_WIDTH / 8;
    griddep_launch_dependents();
    griddep_wait();
    const uint32_t first = p.begin + PAGE_ROWS * blockIdx.x;
    uint32_t slot = 0, there = 0;
    for (uint32_t i = 0; i < p.sequences.n; ++i) {
        const prefill_sequence &at = p.sequences.at[i];
        if (first - at.first >= at.keys) continue; // also those that begin later
        there = min(at.keys - (first - at.first), static_cast<uint32_t>(PAGE_ROWS));
        slot = slot_of(p.rows, at.row, first - at.first);
    }
    auto *out = reinterpret_cast<uint4 *>(p.out) + uint64_t{blockIdx.x} * PAGE_ROWS * kParts;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < PAGE_ROWS * kParts; i += 32 * kWarps)
        out[i] = i / kParts < there ? eight_values<kCache>(p.cache, slot + i / kParts, i % kParts) : uint4{0, 0, 0, 0};
}

template <int kValues> struct mla_expand_stage {
    static constexpr uint32_t kCols = kValues ? PREFILL_VALUE : PREFILL_NOPE;
    alignas(128) unsigned char rows[PREFILL_EXPAND * 2 * kStep];
    unsigned char weights[kCols * 2 * kStep];
};
template <int kValues, int kBlocks, int kWarps> union mla_expand_smem {
    mla_expand_stage<kValues> stages[2];
    unsigned char result[PREFILL_EXPAND * kKeyBytes];
};

// Sixteen bytes `part` of row `row` of `kBytes`, which is a multiple of 128.
template <uint32_t kBytes> INTRIN uint32_t place(uint32_t row, uint32_t part) { return row * kBytes + 16 * (part ^ row % 8); }

template <int kValues, int kBlocks, int kWarps> __device__ __forceinline__ void mla_expand(const mla_expand_params &p) {
    static_assert(kWarps == 8, "two halves of the keys, four quarters of the columns");
    using Stage = mla_expand_stage<kValues>;
    constexpr uint32_t kCols = Stage::kCols, kThreads = 32 * kWarps, kSteps = kCols / 64; // of 16 columns, of a warp
    constexpr uint32_t kWeightRow = 2 * (kValues ? kStep : kCols); // bytes of a row of weights in a stage
    auto &shared = smem<mla_expand_smem<kValues, kBlocks, kWarps>>();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, row0 = warp / 4 * 64, col0 = warp % 4 * (kCols / 4);
    griddep_launch_dependents();
    griddep_wait();
    // Blocks that run at a time have the same keys and several heads.
    const uint32_t head = blockIdx.x % p.n_heads, keys = blockIdx.x / p.n_heads;
    const auto *rows = reinterpret_cast<const unsigned char *>(p.rows) + uint64_t{keys} * PREFILL_EXPAND * kRowBytes;
    const auto *weights = reinterpret_cast<const unsigned char *>(p.weights) + uint64_t{head} * PREFILL_LATENT * kCols * 2;
    const auto copy = [&](uint32_t step) {
        Stage &to = shared.stages[step % 2];
#pragma unroll
        for (uint32_t i = threadIdx.x; i < PREFILL_EXPAND * 8; i += kThreads)
            cp_async<16>(to.rows + place<2 * kStep>(i / 8, i % 8), rows + i / 8 * kRowBytes + 16 * (8 * step + i % 8));
#pragma unroll
        for (uint32_t i = threadIdx.x; i < kCols * kStep / 8; i += kThreads) {
            constexpr uint32_t kParts = kWeightRow / 16;
            const uint32_t row = i / kParts, part = i % kParts;
            const unsigned char *from = kValues ? weights + row * (2 * PREFILL_LATENT) + 16 * (8 * step + part)
                                                : weights + (step * kStep + row) * kWeightRow + 16 * part;
            cp_async<16>(to.weights + place<kWeightRow>(row, part), from);
        }
        cp_async_commit();
    };
    float sums[4][2 * kSteps][4] = {};
    copy(0);
    for (uint32_t step = 0; step < PREFILL_LATENT / kStep; ++step) {
        cp_async_wait<0>();
        __syncthreads(); // the step is there, and nobody reads the one before it
        if (step + 1 < PREFILL_LATENT / kStep) copy(step + 1);
        const Stage &stage = shared.stages[step % 2];
#pragma unroll
        for (uint32_t k = 0; k < kStep / 16; ++k) {
            uint32_t a[4][4];
#pragma unroll
            for (uint32_t i = 0; i < 4; ++i)
                ldmatrix_x4(a[i], stage.rows + place<2 * kStep>(row0 + 16 * i + lane % 16, 2 * k + lane / 16));
#pragma unroll
            for (uint32_t n = 0; n < kSteps; ++n) {
                uint32_t b[4];
                if constexpr (kValues)
                    ldmatrix_x4(b, stage.weights + place<kWeightRow>(col0 + 16 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
                else
                    ldmatrix_x4_trans(b, stage.weights + place<kWeightRow>(16 * k + lane / 8 % 2 * 8 + lane % 8, col0 / 8 + 2 * n + lane / 16));
#pragma unroll
                for (uint32_t i = 0; i < 4; ++i) {
                    mma_m16n8k16_bf16(sums[i][2 * n], a[i], {b[0], b[1]});
                    mma_m16n8k16_bf16(sums[i][2 * n + 1], a[i], {b[2], b[3]});
                }
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i)
#pragma unroll
        for (uint32_t n = 0; n < 2 * kSteps; ++n)
#pragma unroll
            for (uint32_t r = 0; r < 2; ++r) {
                const uint32_t row = row0 + 16 * i + lane / 4 + 8 * r;
                float x = sums[i][n][2 * r], y = sums[i][n][2 * r + 1];
                // A weight of 0 must be nothing of a value, whatever that is. Rows that see a key which is not finite learn it from its dot product.
                if constexpr (kValues) x = fminf(fmaxf(x, -kLargest), kLargest), y = fminf(fmaxf(y, -kLargest), kLargest);
                *reinterpret_cast<uint32_t *>(shared.result + place<kKeyBytes>(row, col0 / 8 + n) + 4 * (lane % 4)) = pack_bf16x2(x, y);
            }
    if constexpr (!kValues) // the rotated part is that of the row
        for (uint32_t i = threadIdx.x; i < PREFILL_EXPAND * 8; i += kThreads)
            *reinterpret_cast<uint4 *>(shared.result + place<kKeyBytes>(i / 8, PREFILL_NOPE / 8 + i % 8)) =
                vector_at<uint4>(rows + i / 8 * kRowBytes + 2 * PREFILL_LATENT + 16 * (i % 8));
    __syncthreads();
    auto *tiles = static_cast<unsigned char *>(p.tiles) + kValues * kHalf;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < PREFILL_EXPAND * kKeyBytes / 16; i += kThreads) {
        const uint64_t tile = uint64_t{keys} * (PREFILL_EXPAND / PREFILL_KEYS) + i / (kHalf / 16);
        *reinterpret_cast<uint4 *>(tiles + (tile * p.n_heads + head) * PREFILL_TILE + i % (kHalf / 16) * 16) =
            vector_at<uint4>(shared.result + 16 * i);
    }
}
