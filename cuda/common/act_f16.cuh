// act_f16.cuh: f16 activations (tile_act_f16), how a token gets its power of two and how its values are written.
//
// Below 2^-24 of the power of two (2^-34 of the largest value) nothing is left of a value, and above that at least half of an ulp is right.
// 32 times 2^10 is within f16, so that sums of blocks are two f16 as well.
#pragma once
#include "places.cuh"
#include "params/tiles.h"

// The power of two that takes the largest magnitude of a token to [2^9, 2^10), and its inverse.
struct act_f16_unit {
    float up, scale; // 0 and NaN for values of which one is not finite
    bool finite;
};

// Of the bits without the sign of the largest magnitude, as they order, NaN last.
INTRIN act_f16_unit act_f16_unit_of(uint32_t amax) {
    // 2^e and 2^-e are normal; what is smaller than 2^-117 need not come as far up.
    const int e = min(9 + 127 - static_cast<int>(amax >> 23), 126);
    if (amax >= 0x7f800000u) return {0.f, f32_from_bits(0x7fc00000u), false};
    return {f32_from_bits(static_cast<uint32_t>(e + 127) << 23), f32_from_bits(static_cast<uint32_t>(127 - e) << 23), true};
}

// Columns 8 lane and on of a tile, of a token of column g; by whole warps. Of values that are not finite zeros are left, and the scale.
INTRIN void act_f16_store(tile_act_f16 &tile, int g, const act_f16_unit &unit, const float (&x)[2][4]) {
    // Eight columns a lane, four lanes a block of 32: columns 16 h' + 4 t and on are words 2 h' and on of lane t.
    const int lane = threadIdx.x % 32, block = lane / 4, in_block = lane % 4 * 8;
    float sum = 0.f;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        uint32_t words[2] = {0, 0};
        if (unit.finite) {
            const float y[4] = {__fmul_rn(x[h][0], unit.up), __fmul_rn(x[h][1], unit.up), __fmul_rn(x[h][2], unit.up),
                                __fmul_rn(x[h][3], unit.up)};
            words[0] = pack_f16x2(y[0], y[2]), words[1] = pack_f16x2(y[1], y[3]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sum = __fadd_rn(sum, f16_to_f32(static_cast<uint16_t>(words[i % 2] >> 16 * (i / 2))));
        uint32_t *to = &tile.x[block][4 * g + in_block % 16 / 4 + h][in_block / 16 * 2];
        *reinterpret_cast<uint2 *>(to) = make_uint2(words[0], words[1]);
    }
    if (lane == 0) tile.scales[g] = unit.scale;
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
