// cache_write, cache_write_fp8, cache_write_int8: rows of f32 to their slots in a paged cache, rounded to its type.
//
// Math    round to nearest, halves to even; fp8 and int8 with scales, as cache_row.cuh says
// Shapes  x [m, width], slots [m], cache [slots, width]
// Tiling  a warp for 32 kLoad neighbouring values of a row; in fp8 for the 128 values of a scale or the 64 rotated ones, in int8 for a key
// Floor   4 + sizeof(Out) bytes a value: 2048 rows of 576 to bf16 7.1 MB, 1.8 us at 3.9 TB/s
// Limits  the last piece of a row of 576 is half empty
#include "common/cache_row.cuh"
#include "params/cache.h"

template <class Out, int kLoad, int kWarps> __device__ __forceinline__ void cache_write(const cache_write_params &p) {
    const uint32_t pieces = (p.width + 32 * kLoad - 1) / (32 * kLoad), unit = blockIdx.x * kWarps + threadIdx.x / 32;
    const uint32_t row = unit / pieces, col = unit % pieces * (32 * kLoad) + threadIdx.x % 32 * kLoad;
    griddep_launch_dependents();
    griddep_wait();
    if (row >= p.m || col >= p.width) return;
    const float *x = p.x + uint64_t{row} * p.width + col;
    Out *to = static_cast<Out *>(p.cache) + uint64_t{p.slots[row]} * p.width + col;
    if constexpr (kLoad == 4) {
        const float4 v = vector_at<float4>(x);
        store_four(to, {v.x, v.y, v.z, v.w});
    } else {
        store_one(to, *x);
    }
}

template <int kWarps> __device__ __forceinline__ void cache_write_fp8(const cache_write_params &p) {
    const uint32_t latent = p.width - 64, pieces = latent / 128 + 1, unit = blockIdx.x * kWarps + threadIdx.x / 32;
    const uint32_t row = unit / pieces, block = unit % pieces, col = threadIdx.x % 32 * 4;
    griddep_launch_dependents();
    griddep_wait();
    if (row >= p.m) return;
    const float *from = p.x + uint64_t{row} * p.width + block * 128;
    uint32_t *to = fp8_row(p.cache, latent, p.slots[row]);
    float x[4];
    load_cols<4>(from, static_cast<int>(col), block * 128 < latent ? 128 : 64, x);
    if (block * 128 < latent) fp8_store_block(to, latent, block, x);
    else if (col < 64) fp8_store_rotated(to, latent, col, x);
}

template <int kWarps> __device__ __forceinline__ void cache_write_int8(const cache_write_params &p) {
    const uint32_t row = blockIdx.x * kWarps + threadIdx.x / 32;
    griddep_launch_dependents();
    griddep_wait();
    if (row >= p.m) return;
    float x[4];
    load_cols<4>(p.x + uint64_t{row} * 128, static_cast<int>(threadIdx.x % 32 * 4), 128, x);
    int8_store_key(p.cache, p.slots[row], x);
}
