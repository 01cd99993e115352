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
#include "params/norm.h"

template <class Out, int kBlock, int kLoad, int kVecs, int kWarps>
struct norm_quantize_smem {
    float partial[kWarps];
};

template <class Out, int kBlock, int kLoad, int kVecs, int kWarps>
__device__ __forceinline__ void norm_quantize(const norm_quantize_params &p) {
    static_assert((kBlock == 32 || kBlock == 256) && kVecs % 2 == 0, "the values of a scale lie in two pieces of one warp");
    const int lane = threadIdx.x % 32;
    const int n = static_cast<int>(p.n);
    const uint64_t row = blockIdx.x;
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
    // In the time of the loads.
    const float inverse_n = computed_here(__frcp_rn(static_cast<float>(n)));

    if (p.r) {
#pragma unroll
        for (int v = 0; v < kVecs; ++v)
#pragma unroll
            for (int k = 0; k < 4; ++k) x[v][k] = __fadd_rn(x[v][k], r[v][k]);
    }
    float squares = 0.f;
#pragma unroll
    for (int v = 0; v < kVecs; ++v) { // pieces apart, which do not wait for each other
        float of_piece = __fmul_rn(x[v][0], x[v][0]);
#pragma unroll
        for (int k = 1; k < 4; ++k) of_piece = __fmaf_rn(x[v][k], x[v][k], of_piece);
        squares = v == 0 ? of_piece : __fadd_rn(squares, of_piece);
    }
    // Shuffles and stores share a pipe: x goes back while the warps wait for the last of them.
    const auto store_x = [&] {
        if (!p.r) return;
#pragma unroll
        for (int v = 0; v < kVecs; ++v) store_cols<kLoad>(x_row, row_col<kVecs>(v), n, x[v]);
    };
    if constexpr (kWarps == 1) {
        squares = warp_sum(squares);
        store_x();
    } else {
        squares = block_sum(squares, smem<norm_quantize_smem<Out, kBlock, kLoad, kVecs, kWarps>>().partial, store_x);
    }
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

    // Quants, two pieces of 128 columns at a time. All lanes take part in the exchanges; columns behind the end are zeros, in
    // blocks of their own. Of what the lanes of a block share, even lanes have that of the first piece, odd ones that of
    // the second, so each exchange and each store serves both.
    int8_t *qs_row = p.qs + row * n;
    float *scales_row = p.scales + row * (n / kBlock);
    int16_t *sums_row = p.sums + row * (n / 16);
    const bool odd = lane % 2 != 0;
#pragma unroll
    for (int first = 0; first < kVecs; first += 2) {
        uint32_t amax[2] = {0, 0};
#pragma unroll
        for (int v = 0; v < 2; ++v)
#pragma unroll
            for (int k = 0; k < 4; ++k) amax[v] = max(amax[v], f32_bits(y[first + v][k]) & 0x7fffffffu);
        const int own_piece = row_col<kVecs>(first) - 4 * lane + (odd ? 128 : 0);
        float inverse[2];
        float2 scale;
        if constexpr (kBlock == 32) {
            uint32_t own = max(odd ? amax[1] : amax[0], __shfl_xor_sync(0xffffffffu, odd ? amax[0] : amax[1], 1));
            own = max(own, __shfl_xor_sync(0xffffffffu, own, 2));
            own = max(own, __shfl_xor_sync(0xffffffffu, own, 4));
            scale = act_scale(own);
            const float other = __shfl_xor_sync(0xffffffffu, scale.y, 1);
            inverse[0] = odd ? other : scale.y, inverse[1] = odd ? scale.y : other;
        } else {
            uint32_t both = max(amax[0], amax[1]);
#pragma unroll
            for (int lanes = 16; lanes > 0; lanes /= 2) both = max(both, __shfl_xor_sync(0xffffffffu, both, lanes));
            scale = act_scale(both);
            inverse[0] = inverse[1] = scale.y;
        }

        // Sums of 16 quants are below 2^11, two of them fit in a register.
        int sums = 0;
#pragma unroll
        for (int v = 0; v < 2; ++v) {
            const uint32_t quants = act_quants4(y[first + v], inverse[v]);
            sums += __dp4a(static_cast<int>(quants), 0x01010101, 0) * (v == 0 ? 1 : 65536);
            const int col = row_col<kVecs>(first + v);
            if (col < n) *reinterpret_cast<uint32_t *>(qs_row + col) = quants;
        }
        sums += __shfl_xor_sync(0xffffffffu, sums, 1);
        sums += __shfl_xor_sync(0xffffffffu, sums, 2);
        const int scale_col = kBlock == 32 ? own_piece + lane / 8 * 32 : row_col<kVecs>(first);
        if (lane % (kBlock / 4) < (kBlock == 32 ? 2 : 1) && scale_col < n) scales_row[scale_col / kBlock] = scale.x;
        const int col = own_piece + lane / 4 * 16;
        // The upper half lacks what the lower one borrowed from it.
        if (lane % 4 < 2 && col < n) sums_row[col / 16] = static_cast<int16_t>(odd ? (sums + 0x8000) >> 16 : sums);
    }
}
