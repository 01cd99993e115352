// quantize_rows: activations to int8 rows (params/tiles.h), which the experts of a layer gather.
//
// Math    as quantize
// Shapes  x [m, k] f32; out [m, ceil(k / 256)], zeros behind the end; or x [tokens, k] and out by place, those that there are
// Tiling  a warp for 256 columns of a token, a lane for 8 neighbouring ones; blocks of 32 are 4 lanes
// Floor   5.4 bytes a value: 8 tokens of 6144, a launch
// Limits  a warp's stores are pieces of 4 and 8 bytes, of 352 neighbouring bytes
#include "common/row_act.cuh"
#include "params/quantize.h"

template <int kWarps>
__device__ __forceinline__ void quantize_rows(const quantize_rows_params &p) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t k_tiles = (p.k + TILE_COLS - 1) / TILE_COLS;
    const uint64_t row = uint64_t{blockIdx.x} * kWarps + warp; // of 256 columns
    griddep_wait();
    griddep_launch_dependents(); // only now, for moe_rows, which reads before its own wait what was there before this kernel
    if (row >= uint64_t{p.m} * k_tiles) return;
    uint32_t token = static_cast<uint32_t>(row / k_tiles);
    if (p.places != nullptr && token >= *p.places) return;
    if (p.sorted != nullptr) token = p.sorted[token] / p.top_k;
    const uint32_t col = static_cast<uint32_t>(row % k_tiles) * TILE_COLS + lane * 8;
    float x[2][4] = {};
    if (col < p.k) { // k is a multiple of 32, so all eight are there
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float4 v = vector_at<float4>(p.x + uint64_t{token} * p.k + col + 4 * h);
            x[h][0] = v.x, x[h][1] = v.y, x[h][2] = v.z, x[h][3] = v.w;
        }
    }
    store_block(p.out[row], lane / 4, lane % 4, act_of(x));
}
