// cuda_names.hpp: the words and functions of CUDA C++ itself, for a host compiler. What needs PTX is in
// common/intrin.cuh.
//
// Only what kernels here use, or will plainly use; a missing one is a compile error and is added here with a test.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "atomics.hpp"
#include "barrier.hpp"
#include "grid.hpp"
#include "warp.hpp"

#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __align__(n) alignas(n)
#define __constant__ // initialized tables only; nothing copies to symbols
// Static shared memory would escape the one struct whose size is known and which is poisoned.
#define __shared__ use_one_struct_Smem_and_the_function_smem_instead

// Macros because a variable would need writing at each switch, and a property type would break `auto`.
#define threadIdx (::emu::self().index)
#define blockIdx (::emu::self().block->index)
#define blockDim (::emu::t_grid->block_dim)
#define gridDim (::emu::t_grid->grid_dim)
constexpr int warpSize = 32;

// Vector types: aligned as on the device, so that a misaligned one is undefined behaviour that UBSan sees here too.
#define EMU_VECTOR2(name, type, alignment)                                                                             \
    struct alignas(alignment) name {                                                                                   \
        type x, y;                                                                                                     \
    };                                                                                                                 \
    inline name make_##name(type x, type y) { return {x, y}; }
#define EMU_VECTOR4(name, type, alignment)                                                                             \
    struct alignas(alignment) name {                                                                                   \
        type x, y, z, w;                                                                                               \
    };                                                                                                                 \
    inline name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }
EMU_VECTOR2(char2, signed char, 2)
EMU_VECTOR2(uchar2, unsigned char, 2)
EMU_VECTOR2(short2, short, 4)
EMU_VECTOR2(ushort2, unsigned short, 4)
EMU_VECTOR2(int2, int, 8)
EMU_VECTOR2(uint2, unsigned, 8)
EMU_VECTOR2(float2, float, 8)
EMU_VECTOR2(longlong2, long long, 16)
EMU_VECTOR2(ulonglong2, unsigned long long, 16)
EMU_VECTOR4(char4, signed char, 4)
EMU_VECTOR4(uchar4, unsigned char, 4)
EMU_VECTOR4(short4, short, 8)
EMU_VECTOR4(ushort4, unsigned short, 8)
EMU_VECTOR4(int4, int, 16)
EMU_VECTOR4(uint4, unsigned, 16)
EMU_VECTOR4(float4, float, 16)
#undef EMU_VECTOR2
#undef EMU_VECTOR4

// Barriers and fences -----------------------------------------------------------------------------

inline void __syncthreads(emu::Site site = emu::Site::here()) {
    emu::barrier(0, emu::t_grid->threads, emu::Arrival::Sync, false, "__syncthreads", site);
}
inline int __syncthreads_count(int predicate, emu::Site site = emu::Site::here()) {
    return emu::barrier(0, emu::t_grid->threads, emu::Arrival::Sync, predicate != 0, "__syncthreads_count", site);
}
inline int __syncthreads_and(int predicate, emu::Site site = emu::Site::here()) {
    const int n = emu::barrier(0, emu::t_grid->threads, emu::Arrival::Sync, predicate != 0, "__syncthreads_and", site);
    return n == static_cast<int>(emu::t_grid->threads);
}
inline int __syncthreads_or(int predicate, emu::Site site = emu::Site::here()) {
    return emu::barrier(0, emu::t_grid->threads, emu::Arrival::Sync, predicate != 0, "__syncthreads_or", site) > 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, emu::Site site = emu::Site::here()) { emu::sync_warp(mask, site); }
inline void __threadfence() { emu::fence(); }
inline void __threadfence_block() { emu::fence(); }
inline void __trap(emu::Site site = emu::Site::here()) { emu::fail(EMU_TRAP, "__trap at %s:%d", site.file, site.line); }

// Warp collectives --------------------------------------------------------------------------------

template <class T> T __shfl_sync(unsigned mask, T value, int lane, int width = 32, emu::Site site = emu::Site::here()) {
    return emu::shuffle_as(mask, value, emu::Shuffle::Index, lane, width, "__shfl_sync", site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, emu::Site site = emu::Site::here()) {
    return emu::shuffle_as(mask, value, emu::Shuffle::Up, static_cast<int>(delta), width, "__shfl_up_sync", site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, emu::Site site = emu::Site::here()) {
    return emu::shuffle_as(mask, value, emu::Shuffle::Down, static_cast<int>(delta), width, "__shfl_down_sync", site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, emu::Site site = emu::Site::here()) {
    return emu::shuffle_as(mask, value, emu::Shuffle::Xor, lanes, width, "__shfl_xor_sync", site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, emu::Site site = emu::Site::here()) {
    return emu::ballot(mask, predicate != 0, "__ballot_sync", site);
}
inline int __any_sync(unsigned mask, int predicate, emu::Site site = emu::Site::here()) {
    return emu::ballot(mask, predicate != 0, "__any_sync", site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, emu::Site site = emu::Site::here()) {
    return emu::ballot(mask, predicate != 0, "__all_sync", site) == mask;
}
template <class T> unsigned __match_any_sync(unsigned mask, T value, emu::Site site = emu::Site::here()) {
    return emu::match_any(mask, emu::match_bits(value), site);
}
template <class T>
unsigned __match_all_sync(unsigned mask, T value, int *predicate, emu::Site site = emu::Site::here()) {
    return emu::match_all(mask, emu::match_bits(value), predicate, site);
}
#define EMU_REDUCE(name, type, kind)                                                                                   \
    inline type name(unsigned mask, type value, emu::Site site = emu::Site::here()) {                                  \
        return static_cast<type>(                                                                                      \
            emu::reduce(mask, static_cast<std::uint32_t>(value), emu::Reduce::kind, type(-1) < type(0), #name, site)); \
    }
EMU_REDUCE(__reduce_add_sync, unsigned, Add)
EMU_REDUCE(__reduce_add_sync, int, Add)
EMU_REDUCE(__reduce_min_sync, unsigned, Min)
EMU_REDUCE(__reduce_min_sync, int, Min)
EMU_REDUCE(__reduce_max_sync, unsigned, Max)
EMU_REDUCE(__reduce_max_sync, int, Max)
EMU_REDUCE(__reduce_and_sync, unsigned, And)
EMU_REDUCE(__reduce_or_sync, unsigned, Or)
EMU_REDUCE(__reduce_xor_sync, unsigned, Xor)
#undef EMU_REDUCE

// Atomics: relaxed, as on the device --------------------------------------------------------------

#define EMU_ATOMIC(name, type, kind)                                                                                   \
    inline type name(type *p, type value, emu::Site site = emu::Site::here()) {                                        \
        return emu::atomic(emu::Atomic::kind, emu::Order::Relaxed, p, value, decltype(value)(), site);                 \
    }
#define EMU_ATOMIC_CAS(type)                                                                                           \
    inline type atomicCAS(type *p, type compare, type value, emu::Site site = emu::Site::here()) {                     \
        return emu::atomic(emu::Atomic::CompareExchange, emu::Order::Relaxed, p, value, compare, site);                \
    }
#define EMU_ATOMICS(type)                                                                                              \
    EMU_ATOMIC(atomicAdd, type, Add)                                                                                   \
    EMU_ATOMIC(atomicExch, type, Exchange)
EMU_ATOMICS(int)
EMU_ATOMICS(unsigned)
EMU_ATOMICS(unsigned long long)
EMU_ATOMICS(float)
#define EMU_ATOMICS_INTEGER(type)                                                                                      \
    EMU_ATOMIC(atomicMin, type, Min)                                                                                   \
    EMU_ATOMIC(atomicMax, type, Max)                                                                                   \
    EMU_ATOMIC(atomicAnd, type, And)                                                                                   \
    EMU_ATOMIC(atomicOr, type, Or)                                                                                     \
    EMU_ATOMIC(atomicXor, type, Xor)                                                                                   \
    EMU_ATOMIC_CAS(type)
EMU_ATOMICS_INTEGER(int)
EMU_ATOMICS_INTEGER(unsigned)
EMU_ATOMICS_INTEGER(unsigned long long)
#undef EMU_ATOMIC
#undef EMU_ATOMIC_CAS
#undef EMU_ATOMICS
#undef EMU_ATOMICS_INTEGER

// Loads and stores with cache hints: hints do not change values -----------------------------------

template <class T> T __ldg(const T *p) { return *p; }
template <class T> T __ldca(const T *p) { return *p; }
template <class T> T __ldcg(const T *p) { return *p; }
template <class T> T __ldcs(const T *p) { return *p; }
template <class T> void __stcg(T *p, T value) { *p = value; }
template <class T> void __stcs(T *p, T value) { *p = value; }

#include "cuda_math.hpp"
