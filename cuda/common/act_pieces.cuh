// act_pieces.cuh: activations rounded by a warp that has the 256 columns of a tile in two pieces of 128 (row.cuh), four neighbouring
// columns to a lane: the bits of quantize.cu, quantize_rows.cu and quantize_f16.cu.
#pragma once
#include "act_f16.cuh"
#include "row_act.cuh"

// Rounded to int8, of a token of column g in `tile`, as a row to `row`; either may be null.
INTRIN void act_pieces_int8(tile_act *tile, int g, row_act *row, const float (&y)[2][4]) {
    const int lane = threadIdx.x % 32, c = lane % 8;
    uint32_t amax[2] = {0, 0};
#pragma unroll
    for (int v = 0; v < 2; ++v)
#pragma unroll
        for (int k = 0; k < 4; ++k) amax[v] = max(amax[v], f32_bits(y[v][k]) & 0x7fffffffu);
#pragma unroll
    for (int lanes = 1; lanes < 8; lanes *= 2)
#pragma unroll
        for (int v = 0; v < 2; ++v) amax[v] = max(amax[v], __shfl_xor_sync(0xffffffffu, amax[v], lanes));
#pragma unroll
    for (int v = 0; v < 2; ++v) {
        const int block = 4 * v + lane / 8;
        const float2 scale = act_scale(amax[v]);
        const uint32_t quants = act_quants4(y[v], scale.y);
        int sum = __dp4a(static_cast<int>(quants), 0x01010101, 0);
#pragma unroll
        for (int lanes = 1; lanes < 8; lanes *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
        const float weighted = __fmul_rn(scale.x, static_cast<float>(sum));
        const float other = __shfl_down_sync(0xffffffffu, weighted, 8); // neighbouring blocks share words
        const uint32_t upper = pack_bf16x2(weighted, other);
        const float rest = __fsub_rn(weighted, bf16_to_f32(static_cast<uint16_t>(upper)));
        const float other_rest = __fsub_rn(other, bf16_to_f32(static_cast<uint16_t>(upper >> 16)));
        const auto store = [&](uint32_t(&qs)[4], float(&scales)[2], uint32_t(&sums)[2]) {
            qs[block % 2 * 2 + c / 4] = quants;
            if (c == 0) *reinterpret_cast<float2 *>(scales) = make_float2(scale.x, __fmul_rn(scale.x, -kActShift));
            if (lane % 16 == 0) *reinterpret_cast<uint2 *>(sums) = make_uint2(upper, pack_bf16x2(rest, other_rest));
        };
        if (tile != nullptr) store(tile->qs[block / 2][4 * g + c % 4], tile->scales[block][g], tile->sums[4 * g + block / 2]);
        if (row != nullptr) store(row->qs[block / 2][c % 4], row->scales[block], row->sums[block / 2]);
    }
}

// The same to f16, whose sums are those of eight neighbouring values, added up one after the other.
INTRIN void act_pieces_f16(tile_act_f16 &tile, int g, const act_f16_unit &unit, const float (&y)[2][4]) {
    const int lane = threadIdx.x % 32, c = lane % 8;
    if (lane == 0) tile.scales[g] = unit.scale;
#pragma unroll
    for (int v = 0; v < 2; ++v) {
        const int block = 4 * v + lane / 8;
        uint32_t words[2] = {0, 0};
        if (unit.finite) {
            words[0] = pack_f16x2(__fmul_rn(y[v][0], unit.up), __fmul_rn(y[v][2], unit.up));
            words[1] = pack_f16x2(__fmul_rn(y[v][1], unit.up), __fmul_rn(y[v][3], unit.up));
        }
        *reinterpret_cast<uint2 *>(&tile.x[block][4 * g + c % 4][c / 4 * 2]) = make_uint2(words[0], words[1]);
        const auto add_to = [&](float sum) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum = __fadd_rn(sum, f16_to_f32(static_cast<uint16_t>(words[i % 2] >> 16 * (i / 2))));
            return sum;
        };
        float sum = add_to(__shfl_xor_sync(0xffffffffu, add_to(0.f), 1)); // of eight in odd lanes, of no use in even ones
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 4));
        const float other = __shfl_down_sync(0xffffffffu, sum, 8);
        if (lane % 16 == 1) {
            const uint32_t upper = pack_f16x2(sum, other);
            const float rest = __fsub_rn(sum, f16_to_f32(static_cast<uint16_t>(upper)));
            const float other_rest = __fsub_rn(other, f16_to_f32(static_cast<uint16_t>(upper >> 16)));
            *reinterpret_cast<uint2 *>(tile.sums[4 * g + block / 2]) = make_uint2(upper, pack_f16x2(rest, other_rest));
        }
    }
}
