// tile.cuh: weights in tiles of 16 rows and 256 columns (params/tiles.h), as operands of the integer matrix instruction.
//
// A value of these types is scale * q, or scale * q - m * dmin, with q an int8. Of each type, for 64 columns i of a tile:
//
//   kGroups                                 scales per 32 columns: 1, or 2 for 16 columns each
//   kMins                                   whether there are minimums
//   fragments(tile, i, lane, a)             registers of A for columns 64 i and on and for 32 further, as int8
//   row, load(tile, r)                      what a row has besides its quants, in registers
//   scales(row, i, s)                       its scales for those columns, in their order
//   mins(row, t), dmin(row)                 minimums of blocks 2 t and 2 t + 1 as two bf16, and what they are multiplied by
//
// Tiles lie in shared memory. All numbers are exact: an f16 times an integer of 6 or 8 bits is an f32.
#pragma once
#include "q5_0.cuh"
#include "q5k.cuh"
#include "q6k.cuh"
#include "q8_0.cuh"
#include "params/tiles.h"

template <class Block> struct tile;

// Register r of columns s * 32 and on from nibbles.
INTRIN uint32_t tile_nibbles(uint32_t word, int s) { return word >> 4 * s & 0x0f0f0f0fu; }

// The same of five bits.
template <class Tile> INTRIN void tile_fives(const Tile &w, int i, int lane, uint32_t (&a)[2][4]) {
    const uint4 qs = vector_at<uint4>(w.qs[i][lane]);
    const uint32_t words[4] = {qs.x, qs.y, qs.z, qs.w};
    const uint32_t high = w.qh[i][lane];
#pragma unroll
    for (int s = 0; s < 2; ++s)
#pragma unroll
        for (int r = 0; r < 4; ++r) a[s][r] = tile_nibbles(words[r], s) | (high >> (4 * s + r) & 0x01010101u) << 4;
}

// Bytes 2 i and 2 i + 1, below 128, as two bf16.
INTRIN uint32_t bytes_to_bf16x2(uint32_t bytes, int i) {
    // 0x43xx is 128 + x: bf16 has 8 bits, so the difference is exact.
    return sub_bf16x2(__byte_perm(bytes, 0x43434343u, i == 0 ? 0x4140 : 0x4342), 0x43004300u);
}

// What Q4_K and Q5_K share: 6-bit scales and minimums of 8 blocks.
template <class Tile> struct tile_k4 {
    using type = Tile;
    static constexpr int kGroups = 1;
    static constexpr bool kMins = true;

    using row = uint4; // a tile_head_k4
    static INTRIN row load(const Tile &w, int r) { return vector_at<uint4>(&w.heads[r]); }
    static INTRIN void scales(row head, int i, float (&s)[2]) {
        const float d = f16_to_f32(static_cast<uint16_t>(head.x));
        const uint32_t four = i < 2 ? head.y & 0x3f3f3f3fu : (head.w & 0x0f0f0f0fu) | (head.y >> 2 & 0x30303030u);
#pragma unroll
        for (int j = 0; j < 2; ++j) s[j] = __fmul_rn(d, static_cast<float>(four >> (16 * (i % 2) + 8 * j) & 0xffu));
    }
    static INTRIN uint32_t mins(row head, int t) {
        const uint32_t four = t < 2 ? head.z & 0x3f3f3f3fu : (head.w >> 4 & 0x0f0f0f0fu) | (head.z >> 2 & 0x30303030u);
        return bytes_to_bf16x2(four, t % 2);
    }
    static INTRIN float dmin(row head) { return f16_to_f32(static_cast<uint16_t>(head.x >> 16)); }
};

template <> struct tile<block_q4_K> : tile_k4<tile_q4_K> {
    static INTRIN void fragments(const tile_q4_K &w, int i, int lane, uint32_t (&a)[2][4]) {
        const uint4 qs = vector_at<uint4>(w.qs[i][lane]);
        const uint32_t words[4] = {qs.x, qs.y, qs.z, qs.w};
#pragma unroll
        for (int s = 0; s < 2; ++s)
#pragma unroll
            for (int r = 0; r < 4; ++r) a[s][r] = tile_nibbles(words[r], s);
    }
};

template <> struct tile<block_q5_K> : tile_k4<tile_q5_K> {
    static INTRIN void fragments(const tile_q5_K &w, int i, int lane, uint32_t (&a)[2][4]) { tile_fives(w, i, lane, a); }
};

template <> struct tile<block_q6_K> {
    using type = tile_q6_K;
    static constexpr int kGroups = 2;
    static constexpr bool kMins = false;

    static INTRIN void fragments(const tile_q6_K &w, int i, int lane, uint32_t (&a)[2][4]) {
        const uint4 qs = vector_at<uint4>(w.qs[i][lane]);
        const uint2 qh = vector_at<uint2>(w.qh[i][lane]);
        const uint32_t words[4] = {qs.x, qs.y, qs.z, qs.w}, high[2] = {qh.x, qh.y};
#pragma unroll
        for (int s = 0; s < 2; ++s)
#pragma unroll
            for (int r = 0; r < 4; ++r)
                a[s][r] = minus4<32>(tile_nibbles(words[r], s) | (high[s] >> 2 * r & 0x03030303u) << 4);
    }
    struct row {
        uint4 scales;
        float d;
    };
    static INTRIN row load(const tile_q6_K &w, int r) {
        return {vector_at<uint4>(w.scales[r]), f16_to_f32(w.d[r])};
    }
    static INTRIN void scales(const row &head, int i, float (&s)[4]) {
        const uint32_t four = i == 0 ? head.scales.x : i == 1 ? head.scales.y : i == 2 ? head.scales.z : head.scales.w;
#pragma unroll
        for (int j = 0; j < 4; ++j) s[j] = __fmul_rn(head.d, s8_to_f32(four, j));
    }
};

// What Q5_0 and Q8_0 share: a scale for each of 8 blocks.
template <class Tile> struct tile_scaled {
    using type = Tile;
    static constexpr int kGroups = 1;
    static constexpr bool kMins = false;

    using row = uint4; // eight f16
    static INTRIN row load(const Tile &w, int r) { return vector_at<uint4>(w.d[r]); }
    static INTRIN void scales(row head, int i, float (&s)[2]) {
        const uint32_t two = i == 0 ? head.x : i == 1 ? head.y : i == 2 ? head.z : head.w;
        s[0] = f16_to_f32(static_cast<uint16_t>(two)), s[1] = f16_to_f32(static_cast<uint16_t>(two >> 16));
    }
};

template <> struct tile<block_q5_0> : tile_scaled<tile_q5_0> {
    static INTRIN void fragments(const tile_q5_0 &w, int i, int lane, uint32_t (&a)[2][4]) {
        tile_fives(w, i, lane, a);
#pragma unroll
        for (int s = 0; s < 2; ++s)
#pragma unroll
            for (int r = 0; r < 4; ++r) a[s][r] = minus4<16>(a[s][r]);
    }
};

template <> struct tile<block_q8_0> : tile_scaled<tile_q8_0> {
    static INTRIN void fragments(const tile_q8_0 &w, int i, int lane, uint32_t (&a)[2][4]) {
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            const uint4 qs = vector_at<uint4>(w.qs[2 * i + s][lane]);
            a[s][0] = qs.x, a[s][1] = qs.y, a[s][2] = qs.z, a[s][3] = qs.w;
        }
    }
};
