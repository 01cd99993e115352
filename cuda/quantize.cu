// quantize: activations to int8 tiles (params/tiles.h), the input of linear layers in tiles for few tokens (linear_decode).
//
// Math    per 32 columns d = amax / 127 (22 bits), q = round(x / d), and d times the sum of q
// Shapes  x [m, k] f32; out [ceil(k / 256), ceil(m / 8)] tiles, zeros behind the end
// Tiling  a warp for each token of a tile, a lane for 8 neighbouring columns; blocks of 32 are 4 lanes
// Floor   5.5 bytes a value: 8 tokens of 6144, a launch
// Limits  a token writes pieces of 4 bytes, which the tokens of the tile together make whole lines of
#include "common/act.cuh"
#include "common/places.cuh"
#include "params/quantize.h"

template <int kWarps>
__device__ __forceinline__ void quantize(const quantize_params &p) {
    static_assert(kWarps == TILE_TOKENS, "a warp for each token");
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t k_tiles = (p.k + TILE_COLS - 1) / TILE_COLS;
    const uint32_t token = blockIdx.x / k_tiles * TILE_TOKENS + warp;
    const uint32_t col = blockIdx.x % k_tiles * TILE_COLS + lane * 8;
    tile_act &out = p.out[uint64_t{blockIdx.x % k_tiles} * ((p.m + TILE_TOKENS - 1) / TILE_TOKENS) + blockIdx.x / k_tiles];
    griddep_launch_dependents();
    griddep_wait();

    float x[2][4] = {};
    if (token < p.m && col < p.k) { // k is a multiple of 32, so all eight are there
        const float4 *row = reinterpret_cast<const float4 *>(p.x + uint64_t{token} * p.k + col);
        const float4 a = row[0], b = row[1];
        x[0][0] = a.x, x[0][1] = a.y, x[0][2] = a.z, x[0][3] = a.w;
        x[1][0] = b.x, x[1][1] = b.y, x[1][2] = b.z, x[1][3] = b.w;
    }
    uint32_t amax = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) amax = max(amax, f32_bits(x[i / 4][i % 4]) & 0x7fffffffu);
    amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
    amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
    const float2 scale = act_scale(amax);

    // Columns 4 c and on of a block are word c / 4 of lane 4 g + c % 4.
    const int g = tile_column(warp);
    const int block = lane / 4, i = block / 2, s = block % 2;
    int sum = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const uint32_t quants = act_quants4(x[h], scale.y);
        const int c = lane % 4 * 2 + h;
        out.qs[i][4 * g + c % 4][2 * s + c / 4] = quants;
        sum = __dp4a(static_cast<int>(quants), 0x01010101, sum);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);

    if (lane % 4 == 0) *reinterpret_cast<float2 *>(out.scales[block][g]) = {scale.x, __fmul_rn(scale.x, -kActShift)};
    // Neighbouring blocks share words.
    const float weighted = __fmul_rn(scale.x, static_cast<float>(sum));
    const float other = __shfl_down_sync(0xffffffffu, weighted, 4);
    if (lane % 8 == 0) {
        const uint32_t upper = pack_bf16x2(weighted, other);
        const float rest = __fsub_rn(weighted, bf16_to_f32(static_cast<uint16_t>(upper)));
        const float other_rest = __fsub_rn(other, bf16_to_f32(static_cast<uint16_t>(upper >> 16)));
        uint32_t *sums = out.sums[4 * g + lane / 8];
        sums[0] = upper, sums[1] = pack_bf16x2(rest, other_rest);
    }
}
