// rope: rotary embedding of neighbouring pairs, in place or to other rows.
//
// Math    (a, b) to (a cos - b sin, a sin + b cos), each operation rounded: the CPU's bits for the same angles
// Shapes  x, y f32 rows with heads at any distance, angles [m, pairs] of (cos, sin)
// Tiling  a thread for kPairs pairs of one head; a block of threads for a piece of a row
// Floor   16 m pairs heads bytes; 2048 rows of 64 heads of 64 values 67 MB, 17 us at 3.9 TB/s. One row: a launch
// Limits  angles are read again for each head, from L1. Queries are rotated by the linear layers that make them (linear_out.cuh)
#include "common/rotate.cuh"
#include "params/rope.h"

template <int kPairs, int kWarps> __device__ __forceinline__ void rope(const rope_params &p) {
    static_assert(kPairs == 1 || kPairs == 2, "one load");
    const uint32_t groups = p.pairs / kPairs, of_row = p.heads * groups;
    const uint32_t chunks = (of_row + 32 * kWarps - 1) / (32 * kWarps);
    const uint32_t row = blockIdx.x / chunks, i = blockIdx.x % chunks * (32 * kWarps) + threadIdx.x;
    griddep_launch_dependents();
    griddep_wait();
    if (i >= of_row) return;
    const uint32_t group = i % groups, head = i / groups;
    const float *angles = p.angles + (uint64_t{row} * p.pairs + group * kPairs) * 2;
    const float *x = p.x + (row * p.x_stride + uint64_t{head} * p.x_head + group * kPairs * 2);
    float *y = p.y + (row * p.y_stride + uint64_t{head} * p.y_head + group * kPairs * 2);
    if constexpr (kPairs == 2) {
        const float4 v = vector_at<float4>(x), a = vector_at<float4>(angles);
        const float2 first = rotated(v.x, v.y, a.x, a.y), other = rotated(v.z, v.w, a.z, a.w);
        *reinterpret_cast<float4 *>(y) = make_float4(first.x, first.y, other.x, other.y);
    } else {
        const float2 v = rotated(x[0], x[1], angles[0], angles[1]);
        y[0] = v.x, y[1] = v.y;
    }
}
