// twins.cu: every wrapper of intrin.cuh and every CUDA function with a twin, applied to arbitrary words. The host tests
// compare the emulator with scalar definitions; the GPU comparison runs the same kernels on a device.
#include "common/intrin.cuh"
#include "host/tests/twins.h"

// Words of this lane.
struct Lane {
    const uint32_t *in;
    uint32_t *out;
    __device__ __forceinline__ Lane(const twins_params &p, int words_in, int words_out)
        : in(p.in + (size_t)blockIdx.x * words_in * 32 + threadIdx.x),
          out(p.out + (size_t)blockIdx.x * words_out * 32 + threadIdx.x) {}
    __device__ __forceinline__ uint32_t word(int i) const { return in[32 * i]; }
    __device__ __forceinline__ float value(int i) const { return __uint_as_float(word(i)); }
    __device__ __forceinline__ void put(int i, uint32_t v) const { out[32 * i] = v; }
    __device__ __forceinline__ void put(int i, int v) const { out[32 * i] = (uint32_t)v; }
    __device__ __forceinline__ void put(int i, float v) const { out[32 * i] = __float_as_uint(v); }
};

// `words_out` is 8 with a form that begins at zero, `mma_zero`: its sums are the upper four.
template <class Mma, class MmaZero>
__device__ __forceinline__ void run_mma_f32(const twins_params &p, int words_out, Mma mma, MmaZero mma_zero) {
    const Lane lane(p, 10, words_out);
    const uint32_t a[4] = {lane.word(0), lane.word(1), lane.word(2), lane.word(3)}, b[2] = {lane.word(4), lane.word(5)};
    float d[4] = {lane.value(6), lane.value(7), lane.value(8), lane.value(9)};
    mma(d, a, b);
    for (int i = 0; i < 4; ++i) lane.put(i, d[i]);
    if (words_out == 4) return;
    mma_zero(d, a, b);
    for (int i = 0; i < 4; ++i) lane.put(4 + i, d[i]);
}

#define MMA(function) [](float(&d)[4], const uint32_t(&a)[4], const uint32_t(&b)[2]) { function(d, a, b); }
__device__ __forceinline__ void mma_bf16(const twins_params &p) {
    run_mma_f32(p, 8, MMA(mma_m16n8k16_bf16), MMA(mma_m16n8k16_bf16_zero));
}
__device__ __forceinline__ void mma_f16(const twins_params &p) {
    run_mma_f32(p, 8, MMA(mma_m16n8k16_f16), MMA(mma_m16n8k16_f16_zero));
}
__device__ __forceinline__ void mma_tf32(const twins_params &p) {
    run_mma_f32(p, 8, MMA(mma_m16n8k8_tf32), MMA(mma_m16n8k8_tf32_zero));
}
__device__ __forceinline__ void mma_e4m3(const twins_params &p) {
    run_mma_f32(p, 4, MMA(mma_m16n8k32_e4m3), MMA(mma_m16n8k32_e4m3));
}
#undef MMA

__device__ __forceinline__ void mma_s8_k32(const twins_params &p) {
    const Lane lane(p, 10, 8);
    const uint32_t a[4] = {lane.word(0), lane.word(1), lane.word(2), lane.word(3)}, b[2] = {lane.word(4), lane.word(5)};
    int32_t d[4] = {(int)lane.word(6), (int)lane.word(7), (int)lane.word(8), (int)lane.word(9)};
    mma_m16n8k32_s8(d, a, b);
    for (int i = 0; i < 4; ++i) lane.put(i, d[i]);
    mma_m16n8k32_s8_from(TWINS_FROM, d, a, b);
    for (int i = 0; i < 4; ++i) lane.put(4 + i, d[i]);
}

__device__ __forceinline__ void mma_s8_k16(const twins_params &p) {
    const Lane lane(p, 7, 8);
    const uint32_t a[2] = {lane.word(0), lane.word(1)}, b[1] = {lane.word(2)};
    int32_t d[4] = {(int)lane.word(3), (int)lane.word(4), (int)lane.word(5), (int)lane.word(6)};
    mma_m16n8k16_s8(d, a, b);
    for (int i = 0; i < 4; ++i) lane.put(i, d[i]);
    mma_m16n8k16_s8_from(TWINS_FROM, d, a, b);
    for (int i = 0; i < 4; ++i) lane.put(4 + i, d[i]);
}

// 32 rows of 16 bytes; word 4 chooses each lane's row.
__device__ __forceinline__ void ldmatrix(const twins_params &p) {
    struct Smem {
        uint4 rows[32];
    };
    const Lane lane(p, 5, 14);
    Smem &s = smem<Smem>();
    s.rows[threadIdx.x] = make_uint4(lane.word(0), lane.word(1), lane.word(2), lane.word(3));
    __syncthreads();
    const uint4 *row = &s.rows[lane.word(4) % 32];
    uint32_t x1[1], x2[2], x4[4], t1[1], t2[2], t4[4];
    ldmatrix_x1(x1, row);
    ldmatrix_x2(x2, row);
    ldmatrix_x4(x4, row);
    ldmatrix_x1_trans(t1, row);
    ldmatrix_x2_trans(t2, row);
    ldmatrix_x4_trans(t4, row);
    lane.put(0, x1[0]);
    for (int i = 0; i < 2; ++i) lane.put(1 + i, x2[i]);
    for (int i = 0; i < 4; ++i) lane.put(3 + i, x4[i]);
    lane.put(7, t1[0]);
    for (int i = 0; i < 2; ++i) lane.put(8 + i, t2[i]);
    for (int i = 0; i < 4; ++i) lane.put(10 + i, t4[i]);
}

// Words: value, operand (its low bits; the same for all lanes where CUDA asks for that), upper half for 64 bits.
__device__ __forceinline__ void shuffles(const twins_params &p) {
    const Lane lane(p, 3, 13);
    const uint32_t v = lane.word(0);
    const int source = lane.word(1) % 32;                                 // any lane, per lane
    const int delta = (int)(__shfl_sync(~0u, lane.word(1), 0) / 32 % 32); // uniform
    const unsigned long long wide = (unsigned long long)lane.word(2) << 32 | v;
    lane.put(0, __shfl_sync(~0u, v, source));
    lane.put(1, __shfl_sync(~0u, v, source, 8));
    lane.put(2, __shfl_up_sync(~0u, v, delta));
    lane.put(3, __shfl_up_sync(~0u, v, delta, 16));
    lane.put(4, __shfl_down_sync(~0u, v, delta));
    lane.put(5, __shfl_down_sync(~0u, v, delta, 4));
    lane.put(6, __shfl_xor_sync(~0u, v, delta));
    lane.put(7, __shfl_xor_sync(~0u, v, delta, 8));
    lane.put(8, __shfl_xor_sync(~0u, __uint_as_float(v), 1));
    const unsigned long long got = __shfl_sync(~0u, wide, source);
    lane.put(9, (uint32_t)got);
    lane.put(10, (uint32_t)(got >> 32));
    // Two halves of the warp on their own.
    const unsigned half = threadIdx.x < 16 ? 0xffffu : 0xffff0000u;
    lane.put(11, __shfl_xor_sync(half, v, delta % 16));
    __syncwarp(half);
    lane.put(12, __shfl_sync(half, v, (int)(threadIdx.x & 16) + source % 16));
}

__device__ __forceinline__ void votes(const twins_params &p) {
    const Lane lane(p, 2, 13);
    const uint32_t v = lane.word(0), small = lane.word(1) % 4;
    const unsigned half = threadIdx.x < 16 ? 0xffffu : 0xffff0000u;
    int all_same = -1;
    lane.put(0, __ballot_sync(~0u, v & 1));
    lane.put(1, __any_sync(half, small == 3));
    lane.put(2, __all_sync(half, small < 3));
    lane.put(3, __match_any_sync(~0u, small));
    lane.put(4, __match_all_sync(half, small, &all_same));
    lane.put(5, all_same);
    lane.put(6, __reduce_add_sync(~0u, v));
    lane.put(7, __reduce_min_sync(half, (int)v));
    lane.put(8, __reduce_max_sync(~0u, v));
    lane.put(9, __reduce_max_sync(~0u, (int)v));
    lane.put(10, __reduce_and_sync(half, v | 0xff));
    lane.put(11, __reduce_or_sync(half, v & 0xff00ff00u));
    lane.put(12, __reduce_xor_sync(~0u, v));
}

__device__ __forceinline__ void conversions(const twins_params &p) {
    const Lane lane(p, 2, 11);
    const float x = lane.value(0), y = lane.value(1);
    const uint16_t bits = (uint16_t)lane.word(0);
    lane.put(0, (uint32_t)f32_to_f16(x));
    lane.put(1, (uint32_t)f32_to_bf16(x));
    lane.put(2, pack_f16x2(x, y));
    lane.put(3, pack_bf16x2(x, y));
    lane.put(4, (uint32_t)pack_e4m3x2(x, y));
    lane.put(5, e4m3x2_to_f16x2(bits));
    lane.put(6, f16_to_f32(bits));
    lane.put(7, to_f32(bf16{bits}));
    lane.put(8, to_f32(e4m3{(uint8_t)bits}));
    lane.put(9, f32_to_s8(x));
    lane.put(10, (uint32_t)f32_to_e4m3(y));
}

__device__ __forceinline__ void integers(const twins_params &p) {
    const Lane lane(p, 3, 16);
    const uint32_t a = lane.word(0), b = lane.word(1), c = lane.word(2);
    lane.put(0, __dp4a((int)a, (int)b, (int)c));
    lane.put(1, __dp4a(a, b, c));
    lane.put(2, __byte_perm(a, b, c));
    lane.put(3, __funnelshift_l(a, b, c));
    lane.put(4, __funnelshift_r(a, b, c));
    lane.put(5, __funnelshift_lc(a, b, c % 64));
    lane.put(6, __funnelshift_rc(a, b, c % 64));
    lane.put(7, __popc(a));
    lane.put(8, __clz((int)(a >> b % 32)));
    lane.put(9, __ffs((int)(a << b % 32)));
    lane.put(10, __brev(a));
    lane.put(11, __mulhi((int)a, (int)b));
    lane.put(12, __umulhi(a, b));
    lane.put(13, __popcll((unsigned long long)a << 32 | b));
    lane.put(14, __clzll((long long)(((unsigned long long)a << 32 | b) >> c % 64)));
    lane.put(15, __ffsll((long long)(((unsigned long long)a << 32 | b) << c % 64)));
}

__device__ __forceinline__ void floats(const twins_params &p) {
    const Lane lane(p, 3, 10);
    const float a = lane.value(0), b = lane.value(1), c = lane.value(2);
    lane.put(0, __fmaf_rn(a, b, c));
    lane.put(1, __fadd_rn(a, b));
    lane.put(2, __fmul_rn(a, b));
    lane.put(3, __fdiv_rn(a, b));
    lane.put(4, __frcp_rn(b));
    lane.put(5, __fsqrt_rn(c));
    lane.put(6, __float2int_rn(a));
    lane.put(7, __float2int_rz(b));
    lane.put(8, __int2float_rn((int)lane.word(0)));
    lane.put(9, __saturatef(a));
}

// Pairs of f16 and bf16, the results as f32, lower one first.
__device__ __forceinline__ void pairs(const twins_params &p) {
    const Lane lane(p, 3, 8);
    const uint32_t a = lane.word(0), b = lane.word(1), c = lane.word(2);
    const uint32_t f16s[3] = {fma_f16x2(a, b, c), mul_f16x2(a, b), add_f16x2(a, b)};
    for (int i = 0; i < 3; ++i) {
        lane.put(2 * i, f16_to_f32((uint16_t)f16s[i]));
        lane.put(2 * i + 1, f16_to_f32((uint16_t)(f16s[i] >> 16)));
    }
    const uint32_t difference = sub_bf16x2(a, b);
    lane.put(6, difference << 16);
    lane.put(7, difference & 0xffff0000u);
}

__device__ __forceinline__ void approximations(const twins_params &p) {
    const Lane lane(p, 1, 7);
    const float x = lane.value(0);
    lane.put(0, ex2_approx(x));
    lane.put(1, rcp_approx(x));
    lane.put(2, rsqrt_approx(x));
    lane.put(3, exp2f(x));
    lane.put(4, rsqrtf(x));
    lane.put(5, __expf(x));
    lane.put(6, __fdividef(1.f, x));
}

// Each lane copies 4, 8 and 16 bytes, whole and with a zero-filled tail. Words 0 to 3 of all lanes are the source,
// which lies lane after lane in `in` (word-major, so 128 bytes per word): any aligned place will do.
__device__ __forceinline__ void cp_async_sizes(const twins_params &p) {
    struct Smem {
        uint4 whole16[32], tail16[32];
        uint2 whole8[32], tail8[32];
        uint32_t whole4[32], tail4[32];
    };
    const Lane lane(p, 10, 14);
    Smem &s = smem<Smem>();
    const int t = threadIdx.x;
    const uint32_t *source = p.in + (size_t)blockIdx.x * 10 * 32;
    cp_async<16>(&s.whole16[t], source + 4 * t);
    cp_async<8>(&s.whole8[t], source + 128 + 2 * t);
    cp_async<4>(&s.whole4[t], source + 192 + t);
    cp_async_commit();
    cp_async_zfill<16>(&s.tail16[t], source + 4 * t, lane.word(7) % 17);
    cp_async_zfill<8>(&s.tail8[t], source + 128 + 2 * t, lane.word(8) % 9);
    cp_async_zfill<4>(&s.tail4[t], source + 192 + t, lane.word(9) % 5);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    const int other = 31 - t;
    lane.put(0, s.whole16[other].x);
    lane.put(1, s.whole16[other].y);
    lane.put(2, s.whole16[other].z);
    lane.put(3, s.whole16[other].w);
    lane.put(4, s.whole8[other].x);
    lane.put(5, s.whole8[other].y);
    lane.put(6, s.whole4[other]);
    cp_async_wait_all();
    __syncthreads();
    lane.put(7, s.tail16[other].x);
    lane.put(8, s.tail16[other].y);
    lane.put(9, s.tail16[other].z);
    lane.put(10, s.tail16[other].w);
    lane.put(11, s.tail8[other].x);
    lane.put(12, s.tail8[other].y);
    lane.put(13, s.tail4[other]);
}

// cp.async announced through an mbarrier, with an L2 policy.
__device__ __forceinline__ void cp_async_arrival(const twins_params &p) {
    struct Smem {
        uint4 data[32];
        mbarrier full;
    };
    const Lane lane(p, 4, 4);
    Smem &s = smem<Smem>();
    const int t = threadIdx.x;
    if (t == 0) {
        mbarrier_init(s.full, 32);
        mbarrier_init_fence();
    }
    __syncthreads();
    cp_async16(&s.data[t], p.in + (size_t)blockIdx.x * 128 + 4 * t, l2_evict_first());
    cp_async_mbarrier_arrive(s.full);
    mbarrier_wait(s.full, 0);
    const uint4 v = s.data[31 - t];
    lane.put(0, v.x);
    lane.put(1, v.y);
    lane.put(2, v.z);
    lane.put(3, v.w);
}

// Two phases of one mbarrier: half of the words each, the second with an L2 policy and an extra arrival of each lane.
__device__ __forceinline__ void bulk_copy(const twins_params &p) {
    struct Smem {
        uint4 data[32];
        mbarrier full, both;
    };
    const Lane lane(p, 4, 4);
    Smem &s = smem<Smem>();
    const int t = threadIdx.x;
    const uint32_t *source = p.in + (size_t)blockIdx.x * 128;
    if (t == 0) {
        mbarrier_init(s.full, 1);
        mbarrier_init(s.both, 33);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (t == 0) {
        bulk_prefetch_l2(source, 512);
        mbarrier_arrive_expect_tx(s.full, 256);
        cp_async_bulk(&s.data[0], source, 256, s.full);
        mbarrier_arrive_expect_tx(s.both, 256);
        cp_async_bulk(&s.data[16], source + 64, 256, s.both, l2_evict_last());
    }
    mbarrier_arrive(s.both);
    mbarrier_wait(s.full, 0);
    while (!mbarrier_try_wait(s.both, 0)) {
    }
    const uint4 v = s.data[31 - t];
    lane.put(0, v.x);
    lane.put(1, v.y);
    lane.put(2, v.z);
    lane.put(3, v.w);
    __syncthreads();
    if (t == 0) {
        mbarrier_inval(s.full);
        mbarrier_inval(s.both);
        fence_proxy_async();
    }
}

__device__ __forceinline__ void loads(const twins_params &p) {
    const Lane lane(p, 4, 12);
    const int t = threadIdx.x;
    const uint32_t *source = p.in + (size_t)blockIdx.x * 128;
    griddep_launch_dependents();
    prefetch_l2(source + 4 * t);
    griddep_wait();
    const uint4 a = ld_stream(reinterpret_cast<const uint4 *>(source) + t);
    const uint4 b = ld_stream(reinterpret_cast<const uint4 *>(source) + (31 - t), l2_evict_first());
    const uint2 c = ld_stream(reinterpret_cast<const uint2 *>(source) + t);
    lane.put(0, a.x);
    lane.put(1, a.y);
    lane.put(2, a.z);
    lane.put(3, a.w);
    lane.put(4, b.x);
    lane.put(5, b.w);
    lane.put(6, c.x);
    lane.put(7, c.y);
    lane.put(8, ld_stream(source + t));
    lane.put(9, __ldg(source + 32 + t));
    lane.put(10, __ldcs(source + 64 + t));
    __stcs(&lane.out[32 * 11], __ldcg(source + 96 + t));
}

// Final values only: what each lane saw depends on the order.
__device__ __forceinline__ void atomics(const twins_params &p) {
    struct Smem {
        unsigned add, max, min, bits_or, bits_and, bits_xor, cas, flag, counter, sum;
        int least;
        unsigned long long wide;
    };
    const Lane lane(p, 2, 12);
    Smem &s = smem<Smem>();
    const unsigned v = lane.word(0), w = lane.word(1);
    if (threadIdx.x == 0) {
        s.add = s.max = s.bits_or = s.bits_xor = s.cas = s.flag = s.counter = s.sum = 0;
        s.min = s.bits_and = ~0u;
        s.least = 0x7fffffff;
        s.wide = 0;
    }
    __syncthreads();
    atomicAdd(&s.add, v);
    atomicMax(&s.max, v);
    atomicMin(&s.min, v);
    atomicMin(&s.least, (int)v);
    atomicOr(&s.bits_or, v & w);
    atomicAnd(&s.bits_and, v | w);
    atomicXor(&s.bits_xor, v);
    atomicAdd(&s.wide, (unsigned long long)v << 20);
    // A sum by compare and swap.
    for (unsigned seen = 0;;) {
        const unsigned old = atomicCAS(&s.cas, seen, seen + w);
        if (old == seen) break;
        seen = old;
    }
    // The last lane to come publishes, all wait for it.
    red_add_release(&s.sum, w);
    if (atomic_add_acq_rel(&s.counter, 1) == 31) {
        atomicExch(&s.counter, 0u);
        st_release(&s.flag, s.sum | 1);
    }
    __syncthreads();
    lane.put(0, s.add);
    lane.put(1, s.max);
    lane.put(2, s.min);
    lane.put(3, s.least);
    lane.put(4, s.bits_or);
    lane.put(5, s.bits_and);
    lane.put(6, s.bits_xor);
    lane.put(7, (uint32_t)s.wide);
    lane.put(8, (uint32_t)(s.wide >> 32));
    lane.put(9, s.cas);
    lane.put(10, ld_acquire(&s.flag));
    lane.put(11, s.counter);
}

#define TWIN(name, words_in, words_out, how) KERNEL_ENTRY(twin_##name, twins_params, TWINS_THREADS, name)
TWINS(TWIN)
#undef TWIN
