// row.cuh: one row of a matrix in the registers of a block of threads, and sums over it.
//
// Each warp has kVecs pieces of 128 neighbouring columns, each lane 4 neighbouring columns of each piece: loads and stores
// of a warp are whole lines, and 16, 32 or 256 neighbouring values lie in one warp.
#pragma once
#include "intrin.cuh"

// First of the four columns of piece `v` of this thread.
template <int kVecs> INTRIN int row_col(int v) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return (warp * kVecs + v) * 128 + lane * 4;
}

// Four columns of a row of n, zeros behind its end. kLoad 4: the row is aligned to 16 and n a multiple of 4; 1: any.
template <int kLoad> INTRIN void load_cols(const float *row, int col, int n, float (&v)[4]) {
    if constexpr (kLoad == 4) {
        float4 vec = make_float4(0.f, 0.f, 0.f, 0.f);
        if (col < n) vec = *reinterpret_cast<const float4 *>(row + col);
        v[0] = vec.x, v[1] = vec.y, v[2] = vec.z, v[3] = vec.w;
    } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) v[k] = col + k < n ? row[col + k] : 0.f;
    }
}

// The same of weights, which no kernel writes that may still run (Buffer::as_prologue_ptr), so that the load may be moved ahead of
// stores and of griddep_wait().
template <int kLoad> INTRIN void load_const_cols(const float *row, int col, int n, float (&v)[4]) {
    if constexpr (kLoad == 4) {
        float4 vec = make_float4(0.f, 0.f, 0.f, 0.f);
        if (col < n) vec = __ldg(reinterpret_cast<const float4 *>(row + col));
        v[0] = vec.x, v[1] = vec.y, v[2] = vec.z, v[3] = vec.w;
    } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) v[k] = col + k < n ? __ldg(row + col + k) : 0.f;
    }
}

INTRIN void store_one(float *at, float v) { *at = v; }
INTRIN void store_one(bf16 *at, float v) { at->bits = f32_to_bf16(v); }
INTRIN void store_four(float *at, const float (&v)[4]) {
    *reinterpret_cast<float4 *>(at) = make_float4(v[0], v[1], v[2], v[3]);
}
INTRIN void store_four(bf16 *at, const float (&v)[4]) {
    *reinterpret_cast<uint2 *>(at) = make_uint2(pack_bf16x2(v[0], v[1]), pack_bf16x2(v[2], v[3]));
}

template <int kLoad, class Out> INTRIN void store_cols(Out *row, int col, int n, const float (&v)[4]) {
    if constexpr (kLoad == 4) {
        if (col < n) store_four(row + col, v);
    } else {
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if (col + k < n) store_one(row + col + k, v[k]);
    }
}

// The sum over all lanes, in all lanes, the same bits in each: both sides of an exchange add the same two numbers.
INTRIN float warp_sum(float x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    return x;
}

// The sum over the block, in all threads, the same bits in each. `partial` is for this sum alone. `meanwhile` runs before
// the warps wait for each other.
template <int kWarps, class F> INTRIN float block_sum(float x, float (&partial)[kWarps], F meanwhile) {
    static_assert(kWarps > 1 && kWarps <= 32, "one warp adds up the warps");
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    x = warp_sum(x);
    if (lane == 0) partial[warp] = x;
    meanwhile();
    __syncthreads();
    // Every warp for itself, so there is no second barrier. Every eighth of the sums by each lane, as loads that do not wait
    // for each other, then three exchanges; with all of them in every lane the loads would take longer.
    constexpr int kLanes = kWarps < 8 ? kWarps : 8;
    static_assert((kLanes & (kLanes - 1)) == 0, "lanes in pairs");
    float sum = partial[lane % kLanes];
#pragma unroll
    for (int w = kLanes; w < kWarps; w += kLanes) {
        const int from = w + lane % kLanes;
        sum = __fadd_rn(sum, w + kLanes <= kWarps || from < kWarps ? partial[from] : 0.f);
    }
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, lanes));
    return sum;
}
template <int kWarps> INTRIN float block_sum(float x, float (&partial)[kWarps]) {
    return block_sum(x, partial, [] {});
}
