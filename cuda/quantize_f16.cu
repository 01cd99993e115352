// quantize_f16: activations to f16 tiles (params/tiles.h), the input of linear_gemm.
//
// Math    per token the power of two 2^e that takes the largest |x| to [2^9, 2^10); f16(x 2^e), and the sums of 32 of these
//         (act_f16.cuh)
// Shapes  x [m, slabs, k] f32; out [slabs, ceil(k / 256), ceil(m / 8)] tiles, zeros behind the end
// Tiling  a block of threads for each token and slab: once over the row for the largest value, once more to round it
// Floor   6 bytes a value
// Limits  the second reading of the row meets L1 or L2
#include "common/act_f16.cuh"
#include "params/quantize.h"

template <int kWarps> struct quantize_f16_smem {
    uint32_t amax[kWarps];
};

template <int kWarps>
__device__ __forceinline__ void quantize_f16(const quantize_f16_params &p) {
    auto &shared = smem<quantize_f16_smem<kWarps>>();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t token = blockIdx.x, tiles = (p.m + TILE_TOKENS - 1) / TILE_TOKENS;
    const uint32_t k_tiles = (p.k + TILE_COLS - 1) / TILE_COLS;
    const bool there = token < p.m;
    const float *row = p.x + uint64_t{token} * p.x_stride + blockIdx.y * p.x_slab;
    griddep_launch_dependents();
    griddep_wait();

    uint32_t amax = 0; // bits without the sign: magnitudes order as they do, NaN last
    if (there)
        for (uint32_t col = threadIdx.x * 4; col < p.k; col += kWarps * 128) {
            const float4 x = vector_at<float4>(row + col);
            amax = max(amax, max(max(f32_bits(x.x) & 0x7fffffffu, f32_bits(x.y) & 0x7fffffffu),
                                 max(f32_bits(x.z) & 0x7fffffffu, f32_bits(x.w) & 0x7fffffffu)));
        }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, lanes));
    if (lane == 0) shared.amax[warp] = amax;
    __syncthreads();
#pragma unroll
    for (int other = 0; other < kWarps; ++other) amax = max(amax, shared.amax[other]);

    const act_f16_unit unit = act_f16_unit_of(amax);
    const int g = tile_column(token % TILE_TOKENS);
    for (uint32_t col = threadIdx.x * 8; col < k_tiles * TILE_COLS; col += kWarps * 256) {
        float x[2][4] = {};
        if (there && col < p.k) { // k is a multiple of 32, so all eight are there
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float4 v = vector_at<float4>(row + col + 4 * h);
                x[h][0] = v.x, x[h][1] = v.y, x[h][2] = v.z, x[h][3] = v.w;
            }
        }
        act_f16_store(p.out[(uint64_t{blockIdx.y} * k_tiles + col / TILE_COLS) * tiles + token / TILE_TOKENS], g, unit, x);
    }
}
