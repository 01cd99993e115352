// swiglu: the activation of a feed-forward layer, where gate and up were multiplied by launches of their own.
//
// Math    y[i] = silu(gate[i]) up[i], silu(z) = z / (1 + e^-z), in f32
// Shapes  gate, up, y [n]; y may be gate or up
// Tiling  a thread has kUnroll times four neighbouring values
// Floor   bytes read and written: 4096 x 2048 of f32 101 MB, 25 us at 4 TB/s; a few tokens: a launch
// Limits  exact division and expf, about 30 instructions a value
#include "common/silu.cuh"
#include "params/swiglu.h"

template <int kUnroll, int kWarps> __device__ __forceinline__ void swiglu(const swiglu_params &p) {
    griddep_wait();
    griddep_launch_dependents();
    const uint64_t first = uint64_t{blockIdx.x} * (128 * kWarps * kUnroll) + 4 * threadIdx.x;
    const auto at = [&](int i) { return first + uint64_t{128 * kWarps} * i; };
    float4 gate[kUnroll], up[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i)
        if (at(i) + 4 <= p.n) {
            gate[i] = *reinterpret_cast<const float4 *>(p.gate + at(i));
            up[i] = *reinterpret_cast<const float4 *>(p.up + at(i));
        }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
        if (at(i) + 4 <= p.n) {
            *reinterpret_cast<float4 *>(p.y + at(i)) =
                make_float4(__fmul_rn(silu(gate[i].x), up[i].x), __fmul_rn(silu(gate[i].y), up[i].y),
                            __fmul_rn(silu(gate[i].z), up[i].z), __fmul_rn(silu(gate[i].w), up[i].w));
        } else {
            for (uint64_t j = at(i); j < p.n; ++j) p.y[j] = __fmul_rn(silu(p.gate[j]), p.up[j]);
        }
    }
}
