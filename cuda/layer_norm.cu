// layer_norm: LayerNorm of each row in place (the key of the indexer).
//
// Math    x = (x - mean) / sqrt(var + eps) * w + b, with the biased variance
// Shapes  x [n_rows, n], w, b [n];  n <= 128 kVecs kWarps
// Tiling  one block of threads per row, which stays in registers (row.cuh)
// Floor   8 n_rows n bytes; a row of 128 is a launch, 8192 of them 8.4 MB, 4.7 us at 1.79 TB/s
// Limits  two sums in a row, so two barriers where there is more than one warp
#include "common/row.cuh"
#include "params/norm.h"

template <int kLoad, int kVecs, int kWarps>
struct layer_norm_smem {
    float sum[kWarps], deviation[kWarps], square[kWarps];
};

template <int kLoad, int kVecs, int kWarps>
__device__ __forceinline__ void layer_norm(const layer_norm_params &p) {
    const int n = static_cast<int>(p.n);
    float *row = p.x + static_cast<uint64_t>(blockIdx.x) * n;
    const float inverse_n = __frcp_rn(static_cast<float>(n));
    const auto total = [&](float x, float (layer_norm_smem<kLoad, kVecs, kWarps>::*partial)[kWarps]) {
        if constexpr (kWarps == 1) return warp_sum(x);
        else return block_sum(x, smem<layer_norm_smem<kLoad, kVecs, kWarps>>().*partial);
    };
    using smem_type = layer_norm_smem<kLoad, kVecs, kWarps>;

    // What does not depend on the kernels before need not wait for them, if there are registers for it.
    constexpr bool kWeightsFirst = kVecs <= 2;
    float w[kVecs][4], b[kVecs][4];
    const auto load_weights = [&](int v) {
        load_const_cols<kLoad>(p.w, row_col<kVecs>(v), n, w[v]);
        load_const_cols<kLoad>(p.b, row_col<kVecs>(v), n, b[v]);
    };
#pragma unroll
    for (int v = 0; v < kVecs; ++v)
        if constexpr (kWeightsFirst) load_weights(v);
    griddep_launch_dependents();
    griddep_wait();

    float x[kVecs][4];
    float sum = 0.f;
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
        load_cols<kLoad>(row, row_col<kVecs>(v), n, x[v]);
#pragma unroll
        for (int k = 0; k < 4; ++k) sum = __fadd_rn(sum, x[v][k]);
    }
    const float mean = __fmul_rn(total(sum, &smem_type::sum), inverse_n);

    // Deviations from a mean that is off by its rounding. Their own mean is that error: without it a mean far from zero
    // would leave the variance few digits.
    float deviation = 0.f, square = 0.f;
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
        const int col = row_col<kVecs>(v);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            x[v][k] = col + k < n ? __fsub_rn(x[v][k], mean) : 0.f;
            deviation = __fadd_rn(deviation, x[v][k]);
            square = __fmaf_rn(x[v][k], x[v][k], square);
        }
    }
    const float off = __fmul_rn(total(deviation, &smem_type::deviation), inverse_n);
    const float variance = __fmaf_rn(-off, off, __fmul_rn(total(square, &smem_type::square), inverse_n));
    const float s = rsqrt_approx(__fadd_rn(variance, p.eps));

#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
        if constexpr (!kWeightsFirst) load_weights(v);
#pragma unroll
        for (int k = 0; k < 4; ++k) x[v][k] = __fmaf_rn(__fmul_rn(__fsub_rn(x[v][k], off), s), w[v][k], b[v][k]);
        store_cols<kLoad>(row, row_col<kVecs>(v), n, x[v]);
    }
}
