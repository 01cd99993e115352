// mma: one matrix instruction over and over, on registers. Measures what the matrix units give through mma.sync.
//
// Math    d[w] = steps * a b[w]:  a [16, K] and b [kTiles, K, 8] fragments, the same for every warp; K is 16 f16 or 32 s8
// Shapes  a [4, 32], b [kTiles, 2, 32] registers by lane (intrin.cuh); d [gridDim.x, kWarps, kTiles, 4, 32], f32 or s32
// Tiling  kTiles independent accumulators per warp, so that no instruction waits for the one before it
// Floor   2 * 16 * 8 * K * kTiles * steps operations per warp
// Limits  power: a chip that is busy with nothing else lowers its clock after some milliseconds
#include "common/intrin.cuh"
#include "params/roofs.h"

INTRIN void mma_step(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_m16n8k16_f16(d, a, b); }
INTRIN void mma_step(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_m16n8k32_s8(d, a, b); }

template <class Acc, int kTiles, int kWarps>
__device__ __forceinline__ void mma_loop(const mma_params &p) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    uint32_t a[4], b[kTiles][2];
#pragma unroll
    for (int r = 0; r < 4; ++r) a[r] = p.a[r * 32 + lane];
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int r = 0; r < 2; ++r) b[t][r] = p.b[(t * 2 + r) * 32 + lane];

    Acc d[kTiles][4] = {};
#pragma unroll 1
    for (uint32_t step = 0; step < p.steps; ++step)
#pragma unroll
        for (int t = 0; t < kTiles; ++t) mma_step(d[t], a, b[t]);

    Acc *out = static_cast<Acc *>(p.d) + (static_cast<uint64_t>(blockIdx.x) * kWarps + warp) * kTiles * 128;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int r = 0; r < 4; ++r) out[(t * 4 + r) * 32 + lane] = d[t][r];
}

template <int kTiles, int kWarps>
__device__ __forceinline__ void mma_f16(const mma_params &p) {
    mma_loop<float, kTiles, kWarps>(p);
}

template <int kTiles, int kWarps>
__device__ __forceinline__ void mma_s8(const mma_params &p) {
    mma_loop<int32_t, kTiles, kWarps>(p);
}
