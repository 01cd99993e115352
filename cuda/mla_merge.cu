// mla_merge: puts together what several blocks of threads have of a row (mla_decode).
//
// Math    out = sum_i 2^(base_i - base) partial_i / sum, sum = sum_i 2^(base_i - base) sum_i, base = max_i base_i: over the pieces of a unit
// Shapes  partial [blocks, 2, heads, 512], sums [blocks, 2, heads, 2], cuts; out [m, n_heads, 512]
// Tiling  half of the columns of a head for 64 threads, four columns for each; with few such halves for a block of threads, a quarter of the pieces for
//         each 64
// Floor   bytes of the pieces, which lie in L2: at most two for each block of threads of mla_decode, 128 KB of 64 heads
// Limits  latency: what is cut, sums, and values follow one another
#include "common/mla.cuh"

constexpr uint32_t kAll = 0xffffffffu;

template <int kHeads, int kSplit, int kBlocks, int kWarps> struct mla_merge_smem {
    float4 sums[kWarps / 2][64]; // of the columns, by part of the pieces
};

// Half of the columns of a head for 64 threads, of which each has four columns of all pieces; or, kSplit, for a block of threads, of which a thread has
// every fourth piece.
template <int kHeads, int kSplit, int kBlocks, int kWarps> __device__ __forceinline__ void mla_merge(const mla_merge_params &p) {
    static_assert(kWarps == 8, "four times 64 threads");
    constexpr uint32_t kParts = kWarps / 2, kOwn = kSplit ? 8 : 2;
    auto &shared = smem<mla_merge_smem<kHeads, kSplit, kBlocks, kWarps>>();
    const uint32_t group = threadIdx.x / 64, col = threadIdx.x % 64, lane = threadIdx.x % 32;
    const uint32_t item = kSplit ? blockIdx.x : blockIdx.x * kParts + group, part = kSplit ? group : 0, step = kSplit ? kParts : 1;
    const uint32_t half = item % 2, head = item / 2 % kHeads;
    griddep_launch_dependents();
    griddep_wait();
    const mla_cut cut = p.cuts[item / 2 / kHeads];
    if (cut.pieces == 0 || cut.group * kHeads + head >= p.n_heads) return;
    // The first piece ends behind the block's tiles, the others begin before theirs.
    const auto place = [&](uint32_t i) { return (2 * uint64_t{cut.first + i} + (i == 0)) * kHeads + head; };
    const auto *sums = reinterpret_cast<const float2 *>(p.sums);
    const auto values_of = [&](uint32_t i) {
        return vector_at<float4>(p.partial + place(i) * MLA_LATENT + half * (MLA_LATENT / 2) + 4 * col);
    };
    // All that a thread has of the first pieces are on their way while the largest logit is found.
    float4 first[kOwn];
    float tops[kOwn];
#pragma unroll
    for (uint32_t i = 0; i < kOwn; ++i) {
        first[i] = {0.f, 0.f, 0.f, 0.f}, tops[i] = minus_infinity();
        if (part + i * step < cut.pieces) first[i] = values_of(part + i * step), tops[i] = sums[place(part + i * step)].x;
    }
    float largest = minus_infinity(), sum = 0.f;
    for (uint32_t i = lane; i < cut.pieces; i += 32) largest = fmaxf(largest, sums[place(i)].x);
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, lanes));
    const float base = largest == minus_infinity() ? 0.f : largest;
    for (uint32_t i = lane; i < cut.pieces; i += 32) {
        const float2 of_piece = sums[place(i)];
        sum = __fmaf_rn(ex2_approx(__fsub_rn(of_piece.x, base)), of_piece.y, sum);
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kAll, sum, lanes));
    float4 values{0.f, 0.f, 0.f, 0.f};
    const auto add = [&](float top, float4 v) {
        const float factor = ex2_approx(__fsub_rn(top, base));
        values.x = __fmaf_rn(factor, v.x, values.x), values.y = __fmaf_rn(factor, v.y, values.y);
        values.z = __fmaf_rn(factor, v.z, values.z), values.w = __fmaf_rn(factor, v.w, values.w);
    };
#pragma unroll
    for (uint32_t i = 0; i < kOwn; ++i)
        if (part + i * step < cut.pieces) add(tops[i], first[i]);
#pragma unroll kOwn
    for (uint32_t i = part + kOwn * step; i < cut.pieces; i += step) add(sums[place(i)].x, values_of(i));
    if (kSplit) {
        shared.sums[part][col] = values;
        __syncthreads();
        if (part > 0) return;
#pragma unroll
        for (uint32_t i = 1; i < kParts; ++i) {
            const float4 v = shared.sums[i][col];
            values.x = __fadd_rn(values.x, v.x), values.y = __fadd_rn(values.y, v.y);
            values.z = __fadd_rn(values.z, v.z), values.w = __fadd_rn(values.w, v.w);
        }
    }
    const uint64_t to = uint64_t{cut.row} * p.n_heads + cut.group * kHeads + head;
    const float factor = sum == 0.f ? 1.f : __fdiv_rn(1.f, sum);
    *reinterpret_cast<float4 *>(p.out + to * MLA_LATENT + half * (MLA_LATENT / 2) + 4 * col) = {
        __fmul_rn(values.x, factor), __fmul_rn(values.y, factor), __fmul_rn(values.z, factor), __fmul_rn(values.w, factor)};
    if (p.lse != nullptr && half == 0 && col == 0) p.lse[to] = lse_of({largest, sum});
}
