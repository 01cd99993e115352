// dequantize.cuh: a tile of blocks from global memory to values in global memory; the body of dequantize and embed.
//
// Blocks are aligned to 2 bytes at worst (MXFP4: 1), so a thread cannot load its own in wide pieces. The tile comes to
// shared memory by asynchronous copies of 16 bytes and is read from there as each type needs.
#pragma once
#include "blocks.cuh"

// Shared memory for the blocks of kTile values that begin anywhere, and for their scales.
template <class Block, int kTile, bool kScales = kScaleDecoded<Block>> struct dequantize_stage {
    static_assert(kTile % QK_K == 0, "whole blocks of every type");
    // The first vector of 16 bytes may begin before the tile, the last may end behind it.
    alignas(16) unsigned char bytes[kTile / decode<Block>::kElems * sizeof(Block) + 16];
};
template <class Block, int kTile> struct dequantize_stage<Block, kTile, true> : dequantize_stage<Block, kTile, false> {
    scale_t<Block> scales[kTile / decode<Block>::kScaleElems];
};

INTRIN void store_values(float *out, const float (&v)[4]) { *reinterpret_cast<float4 *>(out) = {v[0], v[1], v[2], v[3]}; }
INTRIN void store_values(bf16 *out, const float (&v)[8]) {
    *reinterpret_cast<uint4 *>(out) = {pack_bf16x2(v[0], v[1]), pack_bf16x2(v[2], v[3]), pack_bf16x2(v[4], v[5]),
                                       pack_bf16x2(v[6], v[7])};
}
INTRIN void store_values(f16 *out, const float (&v)[8]) {
    *reinterpret_cast<uint4 *>(out) = {pack_f16x2(v[0], v[1]), pack_f16x2(v[2], v[3]), pack_f16x2(v[4], v[5]),
                                       pack_f16x2(v[6], v[7])};
}
INTRIN void store_value(float *out, float v) { *out = v; }
INTRIN void store_value(bf16 *out, float v) { out->bits = f32_to_bf16(v); }
INTRIN void store_value(f16 *out, float v) { out->bits = f32_to_f16(v); }

// Writes the `n` <= kTile values of the blocks that begin at byte `first` of `src`, an array of `src_bytes` aligned to 16,
// to `out`. By the whole block, once.
template <class Block, class Out, int kTile, int kThreads>
INTRIN void dequantize_tile(dequantize_stage<Block, kTile> &stage, const void *src, uint64_t src_bytes, uint64_t first,
                            int n, Out *out) {
    constexpr int kOnce = 16 / sizeof(Out); // values of one store
    static_assert(kTile % (kThreads * kOnce) == 0, "the same number of stores for each thread");

    // The vectors around the tile; what lies before `first` belongs to the array. Nothing is read behind its end: a last
    // vector that reaches beyond comes byte by byte, as far as it exists.
    const int shift = static_cast<int>(first % 16);
    const int end = shift + n / decode<Block>::kElems * static_cast<int>(sizeof(Block));
    const unsigned char *from = static_cast<const unsigned char *>(src) + (first - shift);
    const uint64_t in_array = (src_bytes - (first - shift)) / 16 * 16;
    const int whole = static_cast<int>(min(in_array, static_cast<uint64_t>((end + 15) / 16 * 16)));
    constexpr int kCopies = (sizeof(stage.bytes) + kThreads * 16 - 1) / (kThreads * 16); // 1 to 3 for most types
#pragma unroll
    for (int u = 0; u < kCopies; ++u) {
        const int at = (u * kThreads + static_cast<int>(threadIdx.x)) * 16;
        if (at < whole) cp_async<16>(stage.bytes + at, from + at);
    }
    if (const int at = whole + static_cast<int>(threadIdx.x); at < end) stage.bytes[at] = from[at];
    cp_async_wait_all();
    __syncthreads();

    // A warp takes neighbouring values: every step of a lane then finds its values at the same place of other blocks, so
    // that addresses and shifts are computed once, and nobody but the warp waits for the scales, each decoded by one lane.
    // Scales behind the end are made of whatever lies there, and not used.
    constexpr int kWarpValues = kTile / kThreads * 32, kStep = 32 * kOnce;
    static_assert(kWarpValues % QK_K == 0, "whole blocks for each warp");
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Block *blocks = reinterpret_cast<const Block *>(stage.bytes + shift) + warp * (kWarpValues / decode<Block>::kElems);
    const auto step = [&](int u, float (&v)[kOnce]) {
        const Block *from_block = blocks + u * kStep / decode<Block>::kElems;
        const unsigned at = u * kStep % decode<Block>::kElems + lane * kOnce;
        if constexpr (kScaleDecoded<Block>) {
            constexpr unsigned kScaleElems = decode<Block>::kScaleElems;
            const auto *scales = stage.scales + warp * (kWarpValues / kScaleElems);
            values(from_block, at, scales[u * kStep / kScaleElems + lane * kOnce / kScaleElems], v);
        } else {
            values(from_block, at, v);
        }
    };
    if constexpr (kScaleDecoded<Block>) {
        constexpr unsigned kScales = kWarpValues / decode<Block>::kScaleElems;
#pragma unroll
        for (unsigned g = lane; g < kScales; g += 32) stage.scales[warp * kScales + g] = scale_at(blocks, g);
        __syncwarp();
    }

    // Lanes take neighbouring vectors of the output.
    const int i0 = static_cast<int>(warp * kWarpValues + lane * kOnce);
    out += i0;
    const bool aligned = reinterpret_cast<uintptr_t>(out) % 16 == 0; // not so in rows of odd widths
    if (n == kTile && aligned) {
#pragma unroll
        for (int u = 0; u < kWarpValues / kStep; ++u) {
            float v[kOnce];
            step(u, v);
            store_values(out + u * kStep, v);
        }
    } else {
#pragma unroll 1
        for (int u = 0; u < kWarpValues / kStep; ++u) {
            const int left = n - (i0 + u * kStep);
            if (left <= 0) return;
            float v[kOnce];
            step(u, v);
            if (aligned && left >= kOnce) {
                store_values(out + u * kStep, v);
                continue;
            }
#pragma unroll
            for (int k = 0; k < kOnce; ++k)
                if (k < left) store_value(out + u * kStep + k, v[k]);
        }
    }
}
