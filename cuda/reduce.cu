// reduce: one sum per block over what the block read. Measures what a kernel that only reads can get out of memory.
//
// Math    partial[b] = sum of the 64-bit words that block b read, mod 2^64; the sum of partial is that of src
// Shapes  src [n_vecs] of 16 bytes, partial [gridDim.x]
// Tiling  tiles of kUnroll * kThreads vectors, dealt to blocks in turn; lanes take neighbouring vectors
// Floor   16 n_vecs bytes. 256 MiB: 0.15 ms at 1.79 TB/s.
// Limits  kUnroll loads in flight per thread; below a few MB the launch dominates
#include "common/intrin.cuh"
#include "params/roofs.h"

template <int kUnroll, int kWarps>
struct reduce_smem {
    uint64_t warp_sum[kWarps];
};

template <int kUnroll, int kWarps>
__device__ __forceinline__ void reduce(const reduce_params &p) {
    constexpr int kThreads = 32 * kWarps;
    constexpr int kTile = kUnroll * kThreads;
    const ulonglong2 *src = static_cast<const ulonglong2 *>(p.src);
    auto &shared = smem<reduce_smem<kUnroll, kWarps>>();
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;

    // Integers, so that the order of blocks and lanes cannot show, and so that the adds hide behind the loads.
    unsigned long long sum = 0;
    const uint64_t n_tiles = p.n_vecs / kTile;
#pragma unroll 1 // more than kUnroll at a time would cost registers, and a division to count the iterations
    for (uint64_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        const uint64_t first = tile * kTile + threadIdx.x;
        ulonglong2 vec[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) vec[u] = src[first + u * kThreads];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) sum += vec[u].x + vec[u].y;
    }

    // The rest, less than a tile.
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * kThreads;
    const uint64_t first_left = n_tiles * kTile + static_cast<uint64_t>(blockIdx.x) * kThreads;
    for (uint64_t i = first_left + threadIdx.x; i < p.n_vecs; i += stride)
        sum += src[i].x + src[i].y;

    // Warps, then the block.
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (lane == 0) shared.warp_sum[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < kWarps; ++w) sum += shared.warp_sum[w];
        p.partial[blockIdx.x] = sum;
    }
}
