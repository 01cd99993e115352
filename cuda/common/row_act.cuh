// row_act.cuh: int8 activations of a token as rows (params/tiles.h): how a block of 32 columns is written.
#pragma once
#include "act.cuh"
#include "silu.cuh"
#include "params/tiles.h"

// Of a block of 32 values what one of the four lanes has that share it.
struct act_part {
    uint32_t quants[2]; // of its eight values
    float2 scale;
    float sum; // of the block: scale times quants
};

// By whole warps: a lane has eight neighbouring values, four lanes a block.
INTRIN act_part act_of(const float (&x)[2][4]) {
    uint32_t amax = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) amax = max(amax, f32_bits(x[i / 4][i % 4]) & 0x7fffffffu);
    amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
    amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
    act_part part;
    part.scale = act_scale(amax);
    int sum = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        part.quants[h] = act_quants4(x[h], part.scale.y);
        sum = __dp4a(static_cast<int>(part.quants[h]), 0x01010101, sum);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    part.sum = __fmul_rn(part.scale.x, static_cast<float>(sum));
    return part;
}

// Scale of a block, of eight, and scale times the sum of its quants.
INTRIN void store_scale(row_act &to, int block, float scale, float sum) {
    *reinterpret_cast<float2 *>(to.scales[block]) = make_float2(scale, __fmul_rn(scale, -kActShift));
    // The lower halves of words are those of even blocks.
    uint16_t *sums = reinterpret_cast<uint16_t *>(to.sums[block / 2]) + block % 2;
    const uint16_t upper = f32_to_bf16(sum);
    sums[0] = upper;
    sums[2] = f32_to_bf16(__fsub_rn(sum, bf16_to_f32(upper)));
}

// All of it; `quarter` numbers the lanes that share it.
INTRIN void store_block(row_act &to, int block, int quarter, const act_part &part) {
    // Columns 4 c and on of a block are word c / 4 of lane c % 4.
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int c = 2 * quarter + h;
        to.qs[block / 2][c % 4][2 * (block % 2) + c / 4] = part.quants[h];
    }
    if (quarter == 0) store_scale(to, block, part.scale.x, part.sum);
}

// Behind the last block of a row, of fewer than eight: scales of zero, so that whatever stands there adds nothing. Types with minimums, which meet
// sums, have whole tiles.
INTRIN void end_row(row_act &to, int last) {
#pragma unroll 1
    for (int block = last + 1; block < 8; ++block) *reinterpret_cast<float2 *>(to.scales[block]) = make_float2(0.f, 0.f);
}

// Of a block of 32 rows of one product, each of which is a column to round, what one lane has for one of its two tokens.
struct act_column_part {
    uint32_t word; // columns 4 (lane / 4) and on
    float2 scale;
    float sum; // scale times quants
};

// By whole warps: `v` has columns lane / 4 + 8 j of the token, which lanes that are equal modulo 4 share.
INTRIN act_column_part act_of_columns(const float (&v)[4]) {
    const int of = threadIdx.x % 32 / 4;
    uint32_t amax = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) amax = max(amax, f32_bits(v[j]) & 0x7fffffffu);
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, lanes));
    act_column_part part{0, act_scale(amax), 0.f};
    const uint32_t quants = act_quants4(v, part.scale.y); // byte j: column lane / 4 + 8 j
    int sum = __dp4a(static_cast<int>(quants), 0x01010101, 0);
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    part.sum = __fmul_rn(part.scale.x, static_cast<float>(sum));
    // Columns 8 j + 4 h to 8 j + 4 h + 3 are bytes of four lanes: lane / 4 = 2 j + h has the word.
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        const uint32_t other = __shfl_sync(0xffffffffu, quants, (of % 2 * 4 + c) * 4 + threadIdx.x % 4);
        part.word |= (other >> 8 * (of / 2) & 0xffu) << 8 * c;
    }
    return part;
}

// A block of h = silu(gate) * up of up to eight rows, rounded: by a warp that has gate and up of two row tiles each (tile_row) as
// sums(part, register), into rows `stride` apart. `last`: of a row.
template <class F> INTRIN void store_h(uint32_t stride, row_act *to, int block, bool last, uint32_t rows, F &&sums) {
    const int lane = threadIdx.x % 32, of = lane / 4;
#pragma unroll 1
    for (int i = 0; i < 2; ++i) { // of the two tokens of a lane
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = __fmul_rn(silu(sums(j / 2, i + j % 2 * 2)), sums(2 + j / 2, i + j % 2 * 2));
        const act_column_part part = act_of_columns(v);
        const uint32_t token = lane % 4 + 4 * i;
        if (token >= rows) continue;
        row_act &row = to[uint64_t{token} * stride];
        row.qs[block / 2][of % 4][2 * (block % 2) + of / 4] = part.word; // word `of` of the block
        if (of != 0) continue;
        store_scale(row, block, part.scale.x, part.sum);
        if (last) end_row(row, block);
    }
}
