// cuda_math.hpp: CUDA C++'s integer, bit and float functions for the host.
//
// Functions that the device rounds correctly (fmaf, sqrtf, the _rn forms, conversions) give the same bits here. The
// approximate ones (exp2f, rsqrtf, __expf, ...) are computed as well as the host can and may differ in the last places.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

// Bits --------------------------------------------------------------------------------------------

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; ++i) y |= (x >> i & 1) << (31 - i);
    return y;
}
// Byte i of the result is byte (selector nibble i & 7) of the eight bytes y:x. prmt itself replicates a sign for bit 3 of
// the nibble; the intrinsic masks that bit (seen on an H200).
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned long long bytes = static_cast<unsigned long long>(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned nibble = selector >> 4 * i & 7;
        result |= (static_cast<unsigned>(bytes >> 8 * nibble) & 0xff) << 8 * i;
    }
    return result;
}
// Shifts of the 64-bit hi:lo; l and r take the shift modulo 32, lc and rc clamp it to 32.
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(hi) << 32 | lo) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(hi) << 32 | lo) >> (shift & 31));
}
inline unsigned __funnelshift_lc(unsigned lo, unsigned hi, unsigned shift) {
    return shift >= 32 ? lo : __funnelshift_l(lo, hi, shift);
}
inline unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned shift) {
    return shift >= 32 ? hi : __funnelshift_r(lo, hi, shift);
}

// Integer arithmetic ------------------------------------------------------------------------------

inline int __dp4a(int a, int b, int c) {
    unsigned sum = static_cast<unsigned>(c); // wraps
    for (int i = 0; i < 4; ++i)
        sum += static_cast<unsigned>(static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i));
    return static_cast<int>(sum);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 0xff) * (b >> 8 * i & 0xff);
    return c;
}
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline int min(int a, int b) { return b < a ? b : a; }
inline int max(int a, int b) { return b > a ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
inline unsigned max(unsigned a, unsigned b) { return b > a ? b : a; }
inline unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
inline unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
inline unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
inline unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
inline long long min(long long a, long long b) { return b < a ? b : a; }
inline long long max(long long a, long long b) { return b > a ? b : a; }
inline unsigned long long min(unsigned long long a, unsigned long long b) { return b < a ? b : a; }
inline unsigned long long max(unsigned long long a, unsigned long long b) { return b > a ? b : a; }
// size_t and int64_t are `long` types on these hosts and need their own.
inline long min(long a, long b) { return b < a ? b : a; }
inline long max(long a, long b) { return b > a ? b : a; }
inline unsigned long min(unsigned long a, unsigned long b) { return b < a ? b : a; }
inline unsigned long max(unsigned long a, unsigned long b) { return b > a ? b : a; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

// Reinterpretation and conversion -----------------------------------------------------------------

inline int __float_as_int(float x) {
    int bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline unsigned __float_as_uint(float x) { return static_cast<unsigned>(__float_as_int(x)); }
inline float __int_as_float(int bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
inline float __uint_as_float(unsigned bits) { return __int_as_float(static_cast<int>(bits)); }
// Saturating, NaN to zero, as cvt does; a plain cast out of range is undefined in C++.
inline int emu_saturate_int(float x) {
    if (!(x == x)) return 0;
    if (x >= 2147483648.f) return 0x7fffffff;
    if (x <= -2147483648.f) return -0x7fffffff - 1;
    return static_cast<int>(x);
}
inline int __float2int_rn(float x) { return emu_saturate_int(rintf(x)); }
inline int __float2int_rz(float x) { return emu_saturate_int(truncf(x)); }
inline int __float2int_rd(float x) { return emu_saturate_int(floorf(x)); }
inline int __float2int_ru(float x) { return emu_saturate_int(ceilf(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }

// Floats, correctly rounded -----------------------------------------------------------------------

// The _rn forms are never contracted into fused operations; kernels are compiled with -ffp-contract=off.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __saturatef(float x) { return x > 0.f ? (x < 1.f ? x : 1.f) : 0.f; } // NaN gives 0

// Floats, approximate on the device ---------------------------------------------------------------

inline float rsqrtf(float x) { return static_cast<float>(1.0 / sqrt(static_cast<double>(x))); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
// As the device does it: the product with log2(e) rounds, so the error grows with |x| (about 1.2 |x| ulp).
inline float __expf(float x) { return exp2f(x * 1.44269504f); }
inline float __exp2f(float x) { return exp2f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __fdividef(float a, float b) { return a / b; }
