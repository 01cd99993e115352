// rope_angles: cosines and sines of the rotary embedding for the rows of a step; one table serves all layers.
//
// Math    phi = position * base^(-2i / dim); cos phi and sin phi, good to 1.5e-7 at any position below 2^32
// Shapes  positions [m], angles [m, pairs] of (cos, sin)
// Tiling  a warp for each row, a lane for each pair
// Floor   8 m pairs bytes; a launch
// Limits  two operations in f64 for each pair, of which sm_120 does 1 for 64 in f32: 2048 rows of 32 are 0.2 us
#include "common/rotate.cuh"
#include "params/rope.h"

template <int kWarps> __device__ __forceinline__ void rope_angles(const rope_angles_params &p) {
    const uint32_t row = blockIdx.x * kWarps + threadIdx.x / 32;
    griddep_launch_dependents();
    griddep_wait();
    if (row >= p.m) return;
    const uint32_t position = p.positions[row];
    float2 *angles = reinterpret_cast<float2 *>(p.angles) + uint64_t{row} * p.pairs;
    for (uint32_t pair = threadIdx.x % 32; pair < p.pairs; pair += 32) angles[pair] = cos_sin_of(position, p.quarters[pair]);
}
