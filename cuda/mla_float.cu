// mla_float: absorbed latent attention in f32 arithmetic, for f32 caches and for heads of any widths.
//
// Math    l[s] = scale q . row[s] over the keys s of a row, p = softmax(l), out = sum_s p[s] row[s][..latent], lse = log sum_s exp l[s]
// Shapes  q [m, n_heads, width], cache [slots, width], out [m, n_heads, latent]; width <= 576
// Tiling  a block of threads for a row and a head; a warp has every eighth key, and a lane every 32nd value of it
// Floor   bytes of the keys, from L2 for all heads but one: 64 heads of 576 f32 read 147 kB for each key
// Limits  what exactness takes, not what speed does: keys are not shared by heads, nor cut among blocks of threads
#include "common/mla.cuh"

template <class T, int kFp8, int kWarps> struct mla_float_smem {
    float q[MLA_WIDTH];
    float out[kWarps][MLA_LATENT + MLA_ROPE];
    float largest[kWarps];
    float sum[kWarps];
};

INTRIN float lanes_sum(float x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    return x;
}

INTRIN float value_at(const float *p) { return *p; }
template <class T> INTRIN float value_at(const T *p) { return to_f32(*p); }

// A row of the cache; of fp8: e4m3 of all but 64 values, an f32 scale for each 128 of them, then 64 of the type.
template <class T, int kFp8> struct float_row {
    const unsigned char *at;
    uint32_t latent; // of fp8
    INTRIN float_row(const void *cache, uint32_t slot, uint32_t width) : latent(width - MLA_ROPE) {
        const uint32_t bytes = kFp8 ? latent / 128 * 132 + 2 * MLA_ROPE : width * static_cast<uint32_t>(sizeof(T));
        at = static_cast<const unsigned char *>(cache) + uint64_t{slot} * bytes;
    }
    INTRIN float operator[](uint32_t i) const {
        if constexpr (kFp8) {
            const auto *scales = reinterpret_cast<const float *>(at + latent);
            if (i < latent) return __fmul_rn(value_at(reinterpret_cast<const e4m3 *>(at) + i), scales[i / 128]);
            return value_at(reinterpret_cast<const T *>(scales + latent / 128) + (i - latent));
        } else {
            return value_at(reinterpret_cast<const T *>(at) + i);
        }
    }
};

template <class T, int kFp8, int kWarps> __device__ __forceinline__ void mla_float(const mla_float_params &p) {
    constexpr int kValues = MLA_WIDTH / 32; // of a lane
    auto &shared = smem<mla_float_smem<T, kFp8, kWarps>>();
    const float none = f32_from_bits(0xff800000u);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t row = blockIdx.x / p.n_heads;
    griddep_launch_dependents();
    griddep_wait();
    for (uint32_t i = threadIdx.x; i < p.width; i += 32 * kWarps) shared.q[i] = p.q[uint64_t{blockIdx.x} * p.width + i];
    __syncthreads();
    float q[kValues], sums[kValues];
#pragma unroll
    for (int j = 0; j < kValues; ++j) q[j] = 32 * j + lane < p.width ? shared.q[32 * j + lane] : 0.f, sums[j] = 0.f;

    const uint32_t keys = attended(p.rows, p.selected, row), visible = p.rows.positions[row] + 1;
    float largest = none, sum = 0.f;
    for (uint32_t i = warp; i < keys; i += kWarps) {
        const uint32_t position = key_position(p.selected, row, visible, i);
        if (position == kNoKey) continue;
        const float_row<T, kFp8> key(p.cache, slot_of(p.rows, row, position), p.width);
        float values[kValues], dot = 0.f;
#pragma unroll
        for (int j = 0; j < kValues; ++j) values[j] = 32 * j + lane < p.width ? key[32 * j + lane] : 0.f;
#pragma unroll
        for (int j = 0; j < kValues; ++j) dot = __fmaf_rn(q[j], values[j], dot);
        const float logit = __fmul_rn(lanes_sum(dot), p.scale);
        if (logit > largest) { // the same for all lanes
            const float factor = largest == none ? 0.f : expf(__fsub_rn(largest, logit));
            sum = __fmul_rn(sum, factor);
#pragma unroll
            for (int j = 0; j < kValues; ++j) sums[j] = __fmul_rn(sums[j], factor);
            largest = logit;
        }
        const float weight = expf(__fsub_rn(logit, largest == none ? 0.f : largest));
        sum = __fadd_rn(sum, weight);
#pragma unroll
        for (int j = 0; j < kValues; ++j) sums[j] = __fmaf_rn(weight, values[j], sums[j]);
    }
#pragma unroll
    for (int j = 0; j < kValues; ++j) shared.out[warp][32 * j + lane] = sums[j];
    if (lane == 0) shared.largest[warp] = largest, shared.sum[warp] = sum;
    __syncthreads();

    float top = none, total = 0.f, factors[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, shared.largest[w]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
        factors[w] = top == none ? 1.f : expf(__fsub_rn(shared.largest[w], top));
        total = __fmaf_rn(factors[w], shared.sum[w], total);
    }
    const bool empty = total == 0.f; // not so with NaN
    for (uint32_t i = threadIdx.x; i < p.latent; i += 32 * kWarps) {
        float x = 0.f;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) x = __fmaf_rn(factors[w], shared.out[w][i], x);
        p.out[uint64_t{blockIdx.x} * p.latent + i] = empty ? 0.f : __fdiv_rn(x, total);
    }
    if (p.lse != nullptr && threadIdx.x == 0) p.lse[blockIdx.x] = empty ? none : __fadd_rn(top, logf(total));
}
