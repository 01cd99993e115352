// norm_tiles: residual step, RMSNorm, and what linear layers in tiles and experts take of it; each part is optional.
//
// Math    x += r;  y = x / sqrt(mean(x^2) + eps) * w, with the bits of norm_quantize on as many threads; tiles and rows with those that
//         quantize, quantize_f16 and quantize_rows make of y
// Shapes  x, r, y [n_rows, n], w [n]; tiles [ceil(n / 256), ceil(n_rows / 8)], rows [n_rows, ceil(n / 256)];  n <= 128 kVecs kWarps
// Tiling  one block of threads per row, which stays in registers (row.cuh), a warp with whole tiles of it; one barrier for the sum of the
//         squares, and one more for the largest value, of f16. Rows that a tile has room for are blocks of threads, too
// Floor   as norm_quantize: 1 row of 6144, 72 KB into one SM, 0.6 us at its 127 GB/s from L2, and 0.5 us for the launch in a graph
// Limits  few rows use few SMs
#include "common/act_pieces.cuh"
#include "common/row.cuh"
#include "params/norm.h"

template <int kVecs, int kWarps> struct norm_tiles_smem {
    float partial[kWarps];
    uint32_t amax[kWarps];
};

template <int kVecs, int kWarps> __device__ __forceinline__ void norm_tiles(const norm_tiles_params &p) {
    static_assert(kVecs % 2 == 0, "a warp has whole tiles");
    auto &shared = smem<norm_tiles_smem<kVecs, kWarps>>();
    const int n = static_cast<int>(p.n), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t row = blockIdx.x;
    const bool there = row < p.n_rows; // the same for all threads

    // All loads first: they are the time of a single row. For the longest rows there are not registers enough.
    constexpr bool kWeightsFirst = kVecs <= 4;
    float w[kVecs][4], y[kVecs][4] = {};
#pragma unroll
    for (int v = 0; v < kVecs; ++v)
        if constexpr (kWeightsFirst) load_const_cols<4>(p.w, row_col<kVecs>(v), n, w[v]);
    griddep_launch_dependents();
    griddep_wait();
    if (there) {
        float x[kVecs][4], r[kVecs][4];
        float *x_row = p.x + uint64_t{row} * n;
#pragma unroll
        for (int v = 0; v < kVecs; ++v) load_cols<4>(x_row, row_col<kVecs>(v), n, x[v]);
        if (p.r) {
#pragma unroll
            for (int v = 0; v < kVecs; ++v) load_cols<4>(p.r + uint64_t{row} * n, row_col<kVecs>(v), n, r[v]);
        }
        const float inverse_n = computed_here(__frcp_rn(static_cast<float>(n))); // in the time of the loads
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
        squares = block_sum(squares, shared.partial, [&] {
            if (!p.r) return;
#pragma unroll
            for (int v = 0; v < kVecs; ++v) store_cols<4>(x_row, row_col<kVecs>(v), n, x[v]);
        });
        const float s = rsqrt_approx(__fmaf_rn(squares, inverse_n, p.eps));
#pragma unroll
        for (int v = 0; v < kVecs; ++v) {
            if (row_col<kVecs>(v) >= n) continue; // zeros, whatever s is: a tile has blocks there
            if constexpr (!kWeightsFirst) load_const_cols<4>(p.w, row_col<kVecs>(v), n, w[v]);
#pragma unroll
            for (int k = 0; k < 4; ++k) y[v][k] = __fmul_rn(__fmul_rn(x[v][k], s), w[v][k]);
            if (p.y) store_cols<4>(p.y + uint64_t{row} * n, row_col<kVecs>(v), n, y[v]);
        }
    }
    act_f16_unit unit{0.f, 0.f, true};
    if (p.tiles && p.f16_tiles) {
        uint32_t amax = 0; // bits without the sign: magnitudes order as they do, NaN last
#pragma unroll
        for (int i = 0; i < 4 * kVecs; ++i) amax = max(amax, f32_bits(y[i / 4][i % 4]) & 0x7fffffffu);
#pragma unroll
        for (int lanes = 16; lanes > 0; lanes /= 2) amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, lanes));
        if (lane == 0) shared.amax[warp] = amax;
        __syncthreads();
#pragma unroll
        for (int other = 0; other < kWarps; ++other) amax = max(amax, shared.amax[other]);
        unit = act_f16_unit_of(amax);
    }

    const uint32_t k_tiles = (p.n + TILE_COLS - 1) / TILE_COLS, token_tiles = (p.n_rows + TILE_TOKENS - 1) / TILE_TOKENS;
    const int g = tile_column(row % TILE_TOKENS);
#pragma unroll
    for (int first = 0; first < kVecs; first += 2) {
        const uint32_t k = static_cast<uint32_t>(warp * kVecs + first) / 2;
        if (k >= k_tiles) break;
        const float(&two)[2][4] = reinterpret_cast<const float(&)[2][4]>(y[first]);
        const uint64_t tile = uint64_t{k} * token_tiles + row / TILE_TOKENS;
        tile_act *int8 = p.tiles && !p.f16_tiles ? static_cast<tile_act *>(p.tiles) + tile : nullptr;
        row_act *as_row = p.rows && there ? p.rows + (uint64_t{row} * k_tiles + k) : nullptr;
        if (int8 != nullptr || as_row != nullptr) act_pieces_int8(int8, g, as_row, two);
        if (p.tiles && p.f16_tiles) act_pieces_f16(static_cast<tile_act_f16 *>(p.tiles)[tile], g, unit, two);
    }
}
