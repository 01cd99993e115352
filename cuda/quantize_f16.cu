// quantize_f16: activations to f16 tiles (params/tiles.h), the input of linear_gemm.
//
// Math    per token the power of two 2^e that takes the largest |x| to [2^9, 2^10); f16(x 2^e), and the sums of 32 of these. Below
//         2^-24 of it (2^-34 of the largest value) nothing is left of a value, and above that at least half of an ulp is right.
//         32 times 2^10 is within f16, so that sums are two f16 as well.
// Shapes  x [m, slabs, k] f32; out [slabs, ceil(k / 256), ceil(m / 8)] tiles, zeros behind the end
// Tiling  a block of threads for each token and slab: once over the row for the largest value, once more to round it
// Floor   6 bytes a value
// Limits  the second reading of the row meets L1 or L2
#include "common/places.cuh"
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

    // 2^e and 2^-e are normal; what is smaller than 2^-117 need not come as far up.
    const int e = min(9 + 127 - static_cast<int>(amax >> 23), 126);
    const bool finite = amax < 0x7f800000u;
    const float up = finite ? f32_from_bits(static_cast<uint32_t>(e + 127) << 23) : 0.f;
    const float scale = finite ? f32_from_bits(static_cast<uint32_t>(127 - e) << 23) : f32_from_bits(0x7fc00000u);

    // Eight columns a thread, four threads a block of 32.
    const int g = tile_column(token % TILE_TOKENS);
    for (uint32_t col = threadIdx.x * 8; col < k_tiles * TILE_COLS; col += kWarps * 256) {
        uint32_t words[2][2] = {};
        float sum = 0.f;
        if (there && finite && col < p.k) { // k is a multiple of 32, so all eight are there
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float4 x = vector_at<float4>(row + col + 4 * h);
                const float y[4] = {__fmul_rn(x.x, up), __fmul_rn(x.y, up), __fmul_rn(x.z, up), __fmul_rn(x.w, up)};
                words[h][0] = pack_f16x2(y[0], y[2]), words[h][1] = pack_f16x2(y[1], y[3]);
#pragma unroll
                for (int i = 0; i < 4; ++i) sum = __fadd_rn(sum, f16_to_f32(static_cast<uint16_t>(words[h][i % 2] >> 16 * (i / 2))));
            }
        }
        tile_act_f16 &tile = p.out[(uint64_t{blockIdx.y} * k_tiles + col / TILE_COLS) * tiles + token / TILE_TOKENS];
        const int block = col % TILE_COLS / 32, in_block = col % 32; // columns 16 h' + 4 t and on are words 2 h' and on of lane t
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            uint32_t *to = &tile.x[block][4 * g + in_block % 16 / 4 + h][in_block / 16 * 2];
            *reinterpret_cast<uint2 *>(to) = make_uint2(words[h][0], words[h][1]);
        }
        if (lane == 0) tile.scales[g] = scale;
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
        const float other = __shfl_down_sync(0xffffffffu, sum, 4); // neighbouring blocks share words
        if (lane % 8 == 0) {
            const uint32_t upper = pack_f16x2(sum, other);
            const float rest = __fsub_rn(sum, f16_to_f32(static_cast<uint16_t>(upper)));
            const float other_rest = __fsub_rn(other, f16_to_f32(static_cast<uint16_t>(upper >> 16)));
            *reinterpret_cast<uint2 *>(tile.sums[4 * g + block / 2]) = make_uint2(upper, pack_f16x2(rest, other_rest));
        }
    }
}
