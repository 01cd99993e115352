// copy: dst = src. Measures what a kernel that reads and writes can get out of memory.
//
// Math    none
// Shapes  src, dst [n_vecs] of 16 bytes
// Tiling  tiles of kUnroll * kThreads vectors, dealt to blocks in turn; lanes take neighbouring vectors
// Floor   32 n_vecs bytes. 256 MiB each way: 0.30 ms at 1.79 TB/s.
// Limits  kUnroll loads in flight per thread; below a few MB the launch dominates
#include "common/intrin.cuh"
#include "params/roofs.h"

template <int kUnroll, int kWarps>
__device__ __forceinline__ void copy(const copy_params &p) {
    constexpr int kThreads = 32 * kWarps;
    constexpr int kTile = kUnroll * kThreads;
    const uint4 *src = static_cast<const uint4 *>(p.src);
    uint4 *dst = static_cast<uint4 *>(p.dst);

    // Whole tiles, without a condition that could hold a load back. All loads come before the first store: the compiler may
    // not move them past it, since it cannot know that src and dst are apart.
    const uint64_t n_tiles = p.n_vecs / kTile;
#pragma unroll 1 // more than kUnroll at a time would cost registers, and a division to count the iterations
    for (uint64_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        const uint64_t first = tile * kTile + threadIdx.x;
        uint4 vec[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) vec[u] = src[first + u * kThreads];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) dst[first + u * kThreads] = vec[u];
    }

    // The rest, less than a tile.
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * kThreads;
    const uint64_t first_left = n_tiles * kTile + static_cast<uint64_t>(blockIdx.x) * kThreads;
    for (uint64_t i = first_left + threadIdx.x; i < p.n_vecs; i += stride) dst[i] = src[i];
}
