// norm_quantize: residual step, RMSNorm, and the int8 activations for the linear layers that follow; each part is optional.
//
// Math    x += r;  y = x / sqrt(mean(x^2) + eps) * w;  per kBlock values of y: d = amax / 127, q = round(y / d), halves to
//         even, and the sum of each 16 q. A subnormal d gives zeros, a value that is not finite the scale NaN and zeros.
// Shapes  x, r, y, q [n_rows, n], w [n], scales [n_rows, n / kBlock], sums [n_rows, n / 16];  n <= 128 kVecs kWarps, and a
//         multiple of kBlock if q is asked for
// Tiling  one block of threads per row, which stays in registers (row.cuh); one barrier, for the sum of the squares. The
//         values of a scale lie in one warp.
// Floor   1 row of 6144: 72 KB into one SM, 0.6 us at its 127 GB/s from L2, and 0.5 us for the launch in a graph. 8192 rows
//         with r and q: 13.4 bytes a value, 0.67 GB, 0.38 ms at 1.79 TB/s.
// Limits  few rows use few SMs. Squares are added in f32: values beyond 1e17 overflow.
#include "common/act.cuh"
#include "common/row.cuh"
#include "params.h"

template <class Out, int kBlock, int kLoad, int kVecs, int kWarps>
struct norm_quantize_smem {
    float partial[kWarps];
};

template <class Out, int kBlock, int kLoad, int kVecs, int kWarps>
__device__ __forceinline__ void norm_quantize(const norm_quantize_params &p) {
    static_assert(kBlock == 32 || (kBlock == 256 && kVecs % 2 == 0), "the values of a scale lie in one warp");
    constexpr int kPieces = kBlock == 256 ? 2 : 1; // of 128 columns that take part in one exchange
    const int lane = threadIdx.x % 32;
    const int n = static_cast<int>(p.n);
    const uint64_t row = blockIdx.x;
    const float inverse_n = __frcp_rn(static_cast<float>(n));
    float *x_row = p.x + row * p.x_stride;

    // All loads first: they are the time of a single row. For the longest rows there are not registers enough. The weights do
    // not depend on what runs before, so they need not wait for it.
    constexpr bool kWeightsFirst = kVecs <= 4;
    float x[kVecs][4], r[kVecs][4], w[kVecs][4];
#pragma unroll
    for (int v = 0; v < kVecs; ++v)
        if constexpr (kWeightsFirst) load_const_cols<kLoad>(p.w, row_col<kVecs>(v), n, w[v]);
    griddep_launch_dependents();
    griddep_wait();
#pragma unroll
    for (int v = 0; v < kVecs; ++v) load_cols<kLoad>(x_row, row_col<kVecs>(v), n, x[v]);
    if (p.r) {
#pragma unroll
        for (int v = 0; v < kVecs; ++v) load_cols<kLoad>(p.r + row * n, row_col<kVecs>(v), n, r[v]);
    }

    if (p.r) {
#pragma unroll
        for (int v = 0; v < kVecs; ++v) {
#pragma unroll
            for (int k = 0; k < 4; ++k) x[v][k] = __fadd_rn(x[v][k], r[v][k]);
            store_cols<kLoad>(x_row, row_col<kVecs>(v), n, x[v]);
        }
    }
    float squares = 0.f;
#pragma unroll
    for (int v = 0; v < kVecs; ++v)
#pragma unroll
        for (int k = 0; k < 4; ++k) squares = __fmaf_rn(x[v][k], x[v][k], squares);
    if constexpr (kWarps == 1) squares = warp_sum(squares);
    else squares = block_sum(squares, smem<norm_quantize_smem<Out, kBlock, kLoad, kVecs, kWarps>>().partial);
    const float s = rsqrt_approx(__fmaf_rn(squares, inverse_n, p.eps));

    float y[kVecs][4];
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
        if constexpr (!kWeightsFirst) load_const_cols<kLoad>(p.w, row_col<kVecs>(v), n, w[v]);
#pragma unroll
        for (int k = 0; k < 4; ++k) y[v][k] = __fmul_rn(__fmul_rn(x[v][k], s), w[v][k]);
    }
    if (p.y) {
        Out *y_row = static_cast<Out *>(p.y) + row * p.y_stride;
#pragma unroll
        for (int v = 0; v < kVecs; ++v) store_cols<kLoad>(y_row, row_col<kVecs>(v), n, y[v]);
    }
    if (!p.qs) return;

    // Quants. All lanes take part in the exchanges; columns behind the end are zeros, in blocks of their own.
    int8_t *qs_row = p.qs + row * n;
    float *scales_row = p.scales + row * (n / kBlock);
    int16_t *sums_row = p.sums + row * (n / 16);
#pragma unroll
    for (int first = 0; first < kVecs; first += kPieces) {
        uint32_t amax = 0;
#pragma unroll
        for (int v = first; v < first + kPieces; ++v)
#pragma unroll
            for (int k = 0; k < 4; ++k) amax = max(amax, f32_bits(y[v][k]) & 0x7fffffffu);
#pragma unroll
        for (int lanes = kBlock / (8 * kPieces); lanes > 0; lanes /= 2)
            amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, lanes));
        const float2 scale = act_scale(amax);
        const int block_col = row_col<kVecs>(first);
        if (block_col < n && lane % (kBlock / (4 * kPieces)) == 0) scales_row[block_col / kBlock] = scale.x;
#pragma unroll
        for (int v = first; v < first + kPieces; ++v) {
            const int col = row_col<kVecs>(v);
            const uint32_t quants = act_quants4(y[v], scale.y);
            int sum = __dp4a(static_cast<int>(quants), 0x01010101, 0);
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (col >= n) continue;
            *reinterpret_cast<uint32_t *>(qs_row + col) = quants;
            if (lane % 4 == 0) sums_row[col / 16] = static_cast<int16_t>(sum);
        }
    }
}
