// intrin.cuh: what CUDA C++ has no word for. The only file with inline PTX and the only one that knows whether it is
// compiled by nvcc or, for the emulator, by a host compiler; kernels include it and contain no #ifdef.
//
// Each wrapper names its PTX and, beside it, the twin that computes the same on the host (cuda/host/). Twins check what
// the hardware leaves undefined: alignment, masks, uninitialized barriers. docs/emulator.md says what is not modelled.
//
// Pointers to shared memory are ordinary pointers; the wrappers convert them to shared addresses, which costs nothing
// once inlined. `asm volatile` with a "memory" clobber is on everything that orders or moves memory.
// clang-format off: one line of operands per asm reads better than the five that the formatter makes
#pragma once
#include "num.cuh"

#ifdef __CUDACC__
#define PTX_OR_TWIN(ptx, twin) ptx
// Where in the source a wrapper was called, for reports of the emulator; no parameter on the device.
#define SITE_ONLY
#define AND_SITE
#else
#include "../host/async.hpp"
#include "../host/cuda_names.hpp"
#include "../host/half.hpp"
#include "../host/launch.hpp"
#include "../host/mma.hpp"
#define PTX_OR_TWIN(ptx, twin) twin
#define SITE_ONLY emu::Site site = emu::Site::here()
#define AND_SITE , emu::Site site = emu::Site::here()
#endif

#define INTRIN __device__ __forceinline__

// Entries and shared memory -----------------------------------------------------------------------

// KERNEL_ENTRY(name, PARAMS, THREADS, function): the kernel `name`, which runs `function(const PARAMS &)` with THREADS
// threads per block. On the host `emu_name(params, launch)`, see cuda/host/emu.h. The function comes last so that its
// template arguments may contain commas.
// KERNEL_ENTRY_BLOCKS: the same with registers for BLOCKS blocks on an SM.
#ifdef __CUDACC__
#define KERNEL_ENTRY(name, PARAMS, THREADS, ...)                                                                       \
    static_assert((THREADS) % 32 == 0 && (THREADS) <= 1024 && sizeof(PARAMS) <= 4096, "whole warps, small params");    \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ PARAMS p) { __VA_ARGS__(p); }
#define KERNEL_ENTRY_BLOCKS(name, PARAMS, THREADS, BLOCKS, ...)                                                        \
    static_assert((THREADS) % 32 == 0 && (THREADS) <= 1024 && sizeof(PARAMS) <= 4096, "whole warps, small params");    \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                      \
        name(const __grid_constant__ PARAMS p) { __VA_ARGS__(p); }
#else
#define KERNEL_ENTRY_BLOCKS(name, PARAMS, THREADS, BLOCKS, ...) KERNEL_ENTRY(name, PARAMS, THREADS, __VA_ARGS__)
#define KERNEL_ENTRY(name, PARAMS, THREADS, ...)                                                                       \
    static_assert((THREADS) % 32 == 0 && (THREADS) <= 1024 && sizeof(PARAMS) <= 4096, "whole warps, small params");    \
    extern "C" int emu_##name(const void *params, const emu_launch *launch) {                                          \
        static constexpr emu::Kernel kernel{#name, THREADS, sizeof(PARAMS),                                            \
                                            [](const void *p) { __VA_ARGS__(*static_cast<const PARAMS *>(p)); }};      \
        return emu::launch(kernel, params, launch);                                                                    \
    }
#endif

// The block's dynamic shared memory as one struct. Contents are undefined at the start (poison in the emulator).
template <class Smem> INTRIN Smem &smem() {
#ifdef __CUDACC__
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    return *reinterpret_cast<Smem *>(smem_bytes);
#else
    return *static_cast<Smem *>(emu::shared_memory(sizeof(Smem), alignof(Smem)));
#endif
}

#ifdef __CUDACC__
INTRIN uint32_t smem_address(const void *p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
#endif

// What lies at `p` as one vector, aligned to its size: one load. (A copy on the host, whose compilers may take it amiss that
// memory is read as another type.)
template <class V> INTRIN V vector_at(const void *p) {
    V v;
    PTX_OR_TWIN(v = *static_cast<const V *>(p), memcpy(&v, __builtin_assume_aligned(p, sizeof(V)), sizeof(V)));
    return v;
}

// Conversions -------------------------------------------------------------------------------------

INTRIN float bf16_to_f32(uint16_t bits) { return bf16_to_f32_soft(bits); } // a shift on both sides

INTRIN float f16_to_f32(uint16_t bits) {
    float x;
    PTX_OR_TWIN(asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits)), x = f16_to_f32_soft(bits));
    return x;
}

INTRIN uint16_t f32_to_f16(float x) {
    uint16_t bits;
    PTX_OR_TWIN(asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)), bits = f32_to_f16_soft(x));
    return bits;
}

INTRIN uint16_t f32_to_bf16(float x) {
    uint16_t bits;
    PTX_OR_TWIN(asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x)), bits = f32_to_bf16_soft(x));
    return bits;
}

// Two values in one register, `lo` in the lower half: half of an mma fragment's register pair.
INTRIN uint32_t pack_f16x2(float lo, float hi) {
    uint32_t bits;
    PTX_OR_TWIN(asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(hi), "f"(lo)),
                bits = f32_to_f16_soft(lo) | (uint32_t)f32_to_f16_soft(hi) << 16);
    return bits;
}

INTRIN uint32_t pack_bf16x2(float lo, float hi) {
    uint32_t bits;
    PTX_OR_TWIN(asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(hi), "f"(lo)),
                bits = f32_to_bf16_soft(lo) | (uint32_t)f32_to_bf16_soft(hi) << 16);
    return bits;
}

// Differences of two pairs of bf16, each rounded.
INTRIN uint32_t sub_bf16x2(uint32_t a, uint32_t b) {
    uint32_t d;
    PTX_OR_TWIN(asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(b), "r"(0xbf80bf80u), "r"(a)), // b * -1 + a
                (d = f32_to_bf16_soft(bf16_to_f32_soft((uint16_t)a) - bf16_to_f32_soft((uint16_t)b)),
                 d |= (uint32_t)f32_to_bf16_soft(bf16_to_f32_soft(a >> 16) - bf16_to_f32_soft(b >> 16)) << 16));
    return d;
}

// Two f16 at a time; products are exact before the sum or the rounding.
INTRIN uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    PTX_OR_TWIN(asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c)), d = emu::fma_f16x2(a, b, c));
    return d;
}
INTRIN uint32_t mul_f16x2(uint32_t a, uint32_t b) {
    uint32_t d;
    PTX_OR_TWIN(asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b)), d = emu::fma_f16x2(a, b, 0x80008000u));
    return d;
}
INTRIN uint32_t add_f16x2(uint32_t a, uint32_t b) {
    uint32_t d;
    PTX_OR_TWIN(asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b)), d = emu::fma_f16x2(a, 0x3c003c00u, b));
    return d;
}

INTRIN uint16_t pack_e4m3x2(float lo, float hi) {
    uint16_t bits;
    PTX_OR_TWIN(asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(hi), "f"(lo)),
                bits = (uint16_t)(f32_to_e4m3_soft(lo) | f32_to_e4m3_soft(hi) << 8));
    return bits;
}

// Exact: every e4m3 is an f16.
INTRIN uint32_t e4m3x2_to_f16x2(uint16_t pair) {
    uint32_t bits;
    PTX_OR_TWIN(asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(bits) : "h"(pair)),
                bits = f32_to_f16_soft(e4m3_to_f32_soft((uint8_t)pair)) |
                       (uint32_t)f32_to_f16_soft(e4m3_to_f32_soft((uint8_t)(pair >> 8))) << 16);
    return bits;
}

INTRIN uint8_t f32_to_e4m3(float x) { return (uint8_t)pack_e4m3x2(x, 0.f); }
INTRIN float e4m3_to_f32(uint8_t bits) { return f16_to_f32((uint16_t)e4m3x2_to_f16x2(bits)); }

INTRIN float to_f32(f16 x) { return f16_to_f32(x.bits); }
INTRIN float to_f32(bf16 x) { return bf16_to_f32(x.bits); }
INTRIN float to_f32(e4m3 x) { return e4m3_to_f32(x.bits); }

// Nearest integer, ties to even, clamped to [-128, 127]; NaN gives 0.
INTRIN int f32_to_s8(float x) {
    int value;
    PTX_OR_TWIN(asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(value) : "f"(x)),
                value = max(-128, min(127, __float2int_rn(x))));
    return value;
}

// Byte k of four as a signed integer. ptxas makes one I2F.S8 of a byte of the register out of this pair; given a shift and
// a cast it shifts and masks too, for sm_90.
INTRIN float s8_to_f32(uint32_t bytes, int k) {
    float x;
    PTX_OR_TWIN(asm("{.reg .s32 byte; bfe.s32 byte, %1, %2, 8; cvt.rn.f32.s32 %0, byte;}" : "=f"(x) : "r"(bytes), "r"(8 * k)),
                x = static_cast<float>(static_cast<int8_t>(bytes >> 8 * k)));
    return x;
}

// Approximate functions: one instruction, relative error about 2^-22; subnormal arguments and results are zero.
#ifndef __CUDACC__
inline float flush(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.f, x) : x; }
#endif

INTRIN float ex2_approx(float x) {
    float y;
    PTX_OR_TWIN(asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)), y = flush(exp2f(flush(x))));
    return y;
}

INTRIN float rcp_approx(float x) {
    float y;
    PTX_OR_TWIN(asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)), y = flush(1.f / flush(x)));
    return y;
}

INTRIN float rsqrt_approx(float x) {
    float y;
    PTX_OR_TWIN(asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)), y = rsqrtf(flush(x)));
    return y;
}

// Matrix instructions -----------------------------------------------------------------------------
//
// Lane l = 4 g + t. Fragments (e counts the elements of a register from the low bits):
//   A  register r: row g + 8 (r % 2),  columns p t + e + 4 p (r / 2)     p = elements per register: 1, 2 or 4
//   B  register r: rows p t + e + 4 p r,  column g
//   D  register r: row g + 8 (r / 2),  column 2 t + r % 2
// All are collective over a full warp.

// D(16x8) += A(16x16) B(16x8)
INTRIN void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] AND_SITE) {
    PTX_OR_TWIN(asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])),
                emu::mma_m16n8k16_bf16(d, a, b, site));
}

INTRIN void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] AND_SITE) {
    PTX_OR_TWIN(asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])),
                emu::mma_m16n8k16_f16(d, a, b, site));
}

// D(16x8) += A(16x8) B(8x8) of tf32: the upper 19 bits of f32, which have 11 bits of the significand; the lower 13 are ignored.
INTRIN void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] AND_SITE) {
    PTX_OR_TWIN(asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])),
                emu::mma_m16n8k8_tf32(d, a, b, site));
}

// D(16x8) += A(16x32) B(32x8). Native on sm_120; sm_90 unpacks to f16.
INTRIN void mma_m16n8k32_e4m3(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] AND_SITE) {
    PTX_OR_TWIN(asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
                             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])),
                emu::mma_m16n8k32_e4m3(d, a, b, site));
}

// D = A B, with f32 in place of a register of zeros.
INTRIN void mma_m16n8k16_bf16_zero(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] AND_SITE) {
    PTX_OR_TWIN(asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
                             : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.f)),
                (d[0] = d[1] = d[2] = d[3] = 0.f, emu::mma_m16n8k16_bf16(d, a, b, site)));
}

INTRIN void mma_m16n8k8_tf32_zero(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] AND_SITE) {
    PTX_OR_TWIN(asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
                             : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.f)),
                (d[0] = d[1] = d[2] = d[3] = 0.f, emu::mma_m16n8k8_tf32(d, a, b, site)));
}

INTRIN void mma_m16n8k16_f16_zero(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] AND_SITE) {
    PTX_OR_TWIN(asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
                             : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.f)),
                (d[0] = d[1] = d[2] = d[3] = 0.f, emu::mma_m16n8k16_f16(d, a, b, site)));
}

// D = c + A B: sums that begin with the same number need no registers for it.
INTRIN void mma_m16n8k32_s8_from(int32_t c, int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] AND_SITE) {
    PTX_OR_TWIN(asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
                             : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c)),
                (d[0] = d[1] = d[2] = d[3] = c, emu::mma_m16n8k32_s8(d, a, b, site)));
}
INTRIN void mma_m16n8k16_s8_from(int32_t c, int32_t (&d)[4], const uint32_t (&a)[2], const uint32_t (&b)[1] AND_SITE) {
    PTX_OR_TWIN(asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 "
                             "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
                             : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                             : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(c)),
                (d[0] = d[1] = d[2] = d[3] = c, emu::mma_m16n8k16_s8(d, a, b, site)));
}

// The accumulator wraps at 32 bits.
INTRIN void mma_m16n8k32_s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] AND_SITE) {
    PTX_OR_TWIN(asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                             : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])),
                emu::mma_m16n8k32_s8(d, a, b, site));
}

// Half of it along K, for quantization groups of 16.
INTRIN void mma_m16n8k16_s8(int32_t (&d)[4], const uint32_t (&a)[2], const uint32_t (&b)[1] AND_SITE) {
    PTX_OR_TWIN(asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 "
                             "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                             : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                             : "r"(a[0]), "r"(a[1]), "r"(b[0])),
                emu::mma_m16n8k16_s8(d, a, b, site));
}

// Loads 8x8 matrices of 16-bit elements from shared memory: lanes 8 i to 8 i + 7 give the row addresses of matrix i, 16
// bytes each, and lane 4 g + t receives elements 2 t and 2 t + 1 of row g (of column g with _trans).
INTRIN void ldmatrix_x1(uint32_t (&d)[1], const void *row AND_SITE) {
    PTX_OR_TWIN(asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                             : "=r"(d[0]) : "r"(smem_address(row)) : "memory"),
                emu::ldmatrix(d, row, 1, false, site));
}
INTRIN void ldmatrix_x2(uint32_t (&d)[2], const void *row AND_SITE) {
    PTX_OR_TWIN(asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                             : "=r"(d[0]), "=r"(d[1]) : "r"(smem_address(row)) : "memory"),
                emu::ldmatrix(d, row, 2, false, site));
}
INTRIN void ldmatrix_x4(uint32_t (&d)[4], const void *row AND_SITE) {
    PTX_OR_TWIN(asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(smem_address(row)) : "memory"),
                emu::ldmatrix(d, row, 4, false, site));
}
INTRIN void ldmatrix_x1_trans(uint32_t (&d)[1], const void *row AND_SITE) {
    PTX_OR_TWIN(asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                             : "=r"(d[0]) : "r"(smem_address(row)) : "memory"),
                emu::ldmatrix(d, row, 1, true, site));
}
INTRIN void ldmatrix_x2_trans(uint32_t (&d)[2], const void *row AND_SITE) {
    PTX_OR_TWIN(asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                             : "=r"(d[0]), "=r"(d[1]) : "r"(smem_address(row)) : "memory"),
                emu::ldmatrix(d, row, 2, true, site));
}
INTRIN void ldmatrix_x4_trans(uint32_t (&d)[4], const void *row AND_SITE) {
    PTX_OR_TWIN(asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(smem_address(row)) : "memory"),
                emu::ldmatrix(d, row, 4, true, site));
}

// Cache policies and hints ------------------------------------------------------------------------

// For data read once (weights): the first to leave L2. A value, because the instructions take it in a register.
struct l2_policy {
    uint64_t bits;
};
INTRIN l2_policy l2_evict_first() {
    l2_policy policy{0};
    PTX_OR_TWIN(asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy.bits)), (void)0);
    return policy;
}
INTRIN l2_policy l2_evict_last() {
    l2_policy policy{0};
    PTX_OR_TWIN(asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy.bits)), (void)0);
    return policy;
}

// Reads of data that nobody writes during the kernel and that is read once: past L1, 256 bytes at a time into L2.
// Volatile, so that none moves above griddep_wait().
INTRIN uint4 ld_stream(const uint4 *p) {
    uint4 v;
    PTX_OR_TWIN(asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                             : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p)),
                v = *p);
    return v;
}
INTRIN uint2 ld_stream(const uint2 *p) {
    uint2 v;
    PTX_OR_TWIN(asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v2.u32 {%0,%1}, [%2];"
                             : "=r"(v.x), "=r"(v.y) : "l"(p)),
                v = *p);
    return v;
}
INTRIN uint32_t ld_stream(const uint32_t *p) {
    uint32_t v;
    PTX_OR_TWIN(asm volatile("ld.global.nc.L1::no_allocate.L2::256B.u32 %0, [%1];" : "=r"(v) : "l"(p)), v = *p);
    return v;
}
INTRIN uint4 ld_stream(const uint4 *p, l2_policy policy) {
    uint4 v;
    PTX_OR_TWIN(asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
                             : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p), "l"(policy.bits)),
                ((void)policy, v = *p));
    return v;
}
INTRIN void prefetch_l2(const void *p) {
    PTX_OR_TWIN(asm volatile("prefetch.global.L2 [%0];" : : "l"(p)), (void)p);
}

// Acquire, release --------------------------------------------------------------------------------

// Of what another launch wrote: from L2, whatever this SM's L1 held of it before.
INTRIN uint32_t ld_relaxed(const uint32_t *p) {
    uint32_t v;
    PTX_OR_TWIN(asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"), v = *p);
    return v;
}

INTRIN uint32_t ld_acquire(uint32_t *p AND_SITE) {
    uint32_t v;
    PTX_OR_TWIN(asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"),
                v = emu::atomic<uint32_t>(emu::Atomic::Load, emu::Order::Acquire, p, 0, 0, site));
    return v;
}
INTRIN void st_release(uint32_t *p, uint32_t value AND_SITE) {
    PTX_OR_TWIN(asm volatile("st.release.gpu.u32 [%0], %1;" : : "l"(p), "r"(value) : "memory"),
                emu::atomic<uint32_t>(emu::Atomic::Store, emu::Order::Release, p, value, 0, site));
}
// Returns the old value. With it the last of several blocks knows that it is last and sees what the others wrote.
INTRIN uint32_t atomic_add_acq_rel(uint32_t *p, uint32_t value AND_SITE) {
    uint32_t old;
    PTX_OR_TWIN(asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(value) : "memory"),
                old = emu::atomic<uint32_t>(emu::Atomic::Add, emu::Order::AcqRel, p, value, 0, site));
    return old;
}
INTRIN void red_add_release(uint32_t *p, uint32_t value AND_SITE) {
    PTX_OR_TWIN(asm volatile("red.release.gpu.add.u32 [%0], %1;" : : "l"(p), "r"(value) : "memory"),
                emu::atomic<uint32_t>(emu::Atomic::Add, emu::Order::Release, p, value, 0, site));
}

// Barriers ----------------------------------------------------------------------------------------

// Named barrier `id` (0 is __syncthreads) of `threads` threads, whole warps. bar_arrive does not wait.
INTRIN void bar_sync(unsigned id, unsigned threads AND_SITE) {
    PTX_OR_TWIN(asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory"),
                emu::barrier(id, threads, emu::Arrival::Sync, false, "bar.sync", site));
}
INTRIN void bar_arrive(unsigned id, unsigned threads AND_SITE) {
    PTX_OR_TWIN(asm volatile("bar.arrive %0, %1;" : : "r"(id), "r"(threads) : "memory"),
                emu::barrier(id, threads, emu::Arrival::Arrive, false, "bar.arrive", site));
}

// The same value, computed at this place: compilers sink it to its first use otherwise, from a time in which a kernel waits for
// memory to a time in which all wait for the value.
INTRIN float computed_here(float x) {
    PTX_OR_TWIN(asm volatile("mov.f32 %0, %0;" : "+f"(x) : : "memory"), (void)0);
    return x;
}

// Programmatic dependent launch: wait for the kernels before this one to finish (and read nothing of theirs earlier);
// let the next kernel start. A kernel that waits before it lets the next one start promises it that all before itself have finished: of
// these the next one may read before its own wait, by ld_relaxed. In the emulator kernels run one after the other, and what comes too early
// is reported.
INTRIN void griddep_wait() { PTX_OR_TWIN(asm volatile("griddepcontrol.wait;" : : : "memory"), emu::griddep_wait()); }
INTRIN void griddep_launch_dependents() {
    PTX_OR_TWIN(asm volatile("griddepcontrol.launch_dependents;" : : : "memory"), emu::griddep_launch_dependents());
}

// Registers a thread may use from here on: 24 to 256, in eights; more are there once others have given them up. By all warps of a
// group of four. sm_90a; nothing to the emulator.
template <int kRegisters> INTRIN void registers_fewer() {
    PTX_OR_TWIN(asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kRegisters)), (void)0);
}
template <int kRegisters> INTRIN void registers_more() {
    PTX_OR_TWIN(asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kRegisters)), (void)0);
}

// cp.async: per-thread asynchronous copies, global to shared memory -------------------------------

// kBytes is 4, 8 or 16; both sides aligned to it. Of 16 bytes L1 keeps nothing (.cg). With _zfill only `src_bytes` are
// read (they may be 0) and the rest is zero: the way to load tails.
template <int kBytes> INTRIN void cp_async(void *dst, const void *src AND_SITE) {
    static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "what the instruction offers");
#ifdef __CUDACC__
    if constexpr (kBytes == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
                     : : "r"(smem_address(dst)), "l"(src) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                     : : "r"(smem_address(dst)), "l"(src), "n"(kBytes) : "memory");
#else
    emu::cp_async(dst, src, kBytes, kBytes, site);
#endif
}
template <int kBytes> INTRIN void cp_async_zfill(void *dst, const void *src, unsigned src_bytes AND_SITE) {
    static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "what the instruction offers");
#ifdef __CUDACC__
    if constexpr (kBytes == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                     : : "r"(smem_address(dst)), "l"(src), "r"(src_bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     : : "r"(smem_address(dst)), "l"(src), "n"(kBytes), "r"(src_bytes) : "memory");
#else
    emu::cp_async(dst, src, kBytes, src_bytes, site);
#endif
}
INTRIN void cp_async16(void *dst, const void *src, l2_policy policy AND_SITE) {
    PTX_OR_TWIN(asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
                             : : "r"(smem_address(dst)), "l"(src), "l"(policy.bits) : "memory"),
                ((void)policy, emu::cp_async(dst, src, 16, 16, site)));
}
// Closes a group; empty ones count. wait<N>: at most the N newest groups are still in flight. Other threads see the
// data after a barrier that follows the wait.
INTRIN void cp_async_commit() {
    PTX_OR_TWIN(asm volatile("cp.async.commit_group;" : : : "memory"), emu::cp_async_commit());
}
template <int kPending> INTRIN void cp_async_wait() {
    PTX_OR_TWIN(asm volatile("cp.async.wait_group %0;" : : "n"(kPending) : "memory"),
                emu::cp_async_wait_group(kPending));
}
INTRIN void cp_async_wait_all() {
    PTX_OR_TWIN(asm volatile("cp.async.wait_all;" : : : "memory"), emu::cp_async_wait_all());
}

// mbarrier and cp.async.bulk ----------------------------------------------------------------------

// A barrier object in shared memory: a phase completes after `count` arrivals and all announced bytes; then the next
// begins. Phases are told apart by parity, the first is 0.
struct alignas(8) mbarrier {
    uint64_t opaque;
};

// By one thread; then mbarrier_init_fence() and a block barrier before anyone else uses it.
INTRIN void mbarrier_init(mbarrier &bar, unsigned count AND_SITE) {
    PTX_OR_TWIN(asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                             : : "r"(smem_address(&bar)), "r"(count) : "memory"),
                emu::mbarrier_init(&bar.opaque, count, site));
}
// Needed before the memory of an mbarrier is used for anything else.
INTRIN void mbarrier_inval(mbarrier &bar AND_SITE) {
    PTX_OR_TWIN(asm volatile("mbarrier.inval.shared::cta.b64 [%0];" : : "r"(smem_address(&bar)) : "memory"),
                emu::mbarrier_inval(&bar.opaque, site));
}
// Makes initialized mbarriers visible to the copy engine.
INTRIN void mbarrier_init_fence() {
    PTX_OR_TWIN(asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory"), (void)0);
}
// Orders this thread's ordinary accesses to shared memory before later bulk copies. Not modelled by the emulator.
INTRIN void fence_proxy_async() {
    PTX_OR_TWIN(asm volatile("fence.proxy.async.shared::cta;" : : : "memory"), (void)0);
}
INTRIN void mbarrier_arrive(mbarrier &bar AND_SITE) {
    PTX_OR_TWIN(asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(smem_address(&bar)) : "memory"),
                emu::mbarrier_arrive(&bar.opaque, 1, site));
}
// One arrival, and `bytes` more that the phase waits for.
INTRIN void mbarrier_arrive_expect_tx(mbarrier &bar, unsigned bytes AND_SITE) {
    PTX_OR_TWIN(asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                             : : "r"(smem_address(&bar)), "r"(bytes) : "memory"),
                emu::mbarrier_arrive_expect_tx(&bar.opaque, bytes, site));
}
// Arrives when all cp.asyncs that this thread issued so far have landed; counts as one of the `count` arrivals.
INTRIN void cp_async_mbarrier_arrive(mbarrier &bar AND_SITE) {
    PTX_OR_TWIN(asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
                             : : "r"(smem_address(&bar)) : "memory"),
                emu::cp_async_mbarrier_arrive(&bar.opaque, site));
}
// True once the phase of this parity is complete. May wait a little, may say false for no reason.
INTRIN bool mbarrier_try_wait(mbarrier &bar, unsigned parity AND_SITE) {
    uint32_t done;
    PTX_OR_TWIN(asm volatile("{\n.reg .pred p;\n"
                             "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                             "selp.u32 %0, 1, 0, p;\n}"
                             : "=r"(done) : "r"(smem_address(&bar)), "r"(parity) : "memory"),
                done = emu::mbarrier_test_wait(&bar.opaque, parity, site));
    return done != 0;
}
INTRIN void mbarrier_wait(mbarrier &bar, unsigned parity AND_SITE) {
    PTX_OR_TWIN(while (!mbarrier_try_wait(bar, parity)) {}, emu::mbarrier_wait(&bar.opaque, parity, site));
}

// One thread copies `bytes` (a multiple of 16, both sides aligned to 16) and they count on `bar`.
INTRIN void cp_async_bulk(void *dst, const void *src, unsigned bytes, mbarrier &bar AND_SITE) {
    PTX_OR_TWIN(asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                             : : "r"(smem_address(dst)), "l"(src), "r"(bytes), "r"(smem_address(&bar)) : "memory"),
                emu::cp_async_bulk(dst, src, bytes, &bar.opaque, site));
}
INTRIN void cp_async_bulk(void *dst, const void *src, unsigned bytes, mbarrier &bar, l2_policy policy AND_SITE) {
    PTX_OR_TWIN(asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                             "[%0], [%1], %2, [%3], %4;"
                             : : "r"(smem_address(dst)), "l"(src), "r"(bytes), "r"(smem_address(&bar)), "l"(policy.bits)
                             : "memory"),
                ((void)policy, emu::cp_async_bulk(dst, src, bytes, &bar.opaque, site)));
}
// Brings bytes to L2, for instance weights before griddep_wait().
INTRIN void bulk_prefetch_l2(const void *src, unsigned bytes AND_SITE) {
    PTX_OR_TWIN(asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(src), "r"(bytes) : "memory"),
                emu::bulk_prefetch(src, bytes, site));
}
