// small: three little kernels for faults that the larger ones have no place for.
#pragma once
#include "common/intrin.cuh"

// histogram: counts[v] = how many x[i] are v, 0 <= v < 64, one block of 128 threads; shared atomics.
typedef struct {
    const int32_t *x;
    uint32_t *counts; /* [64] */
    int32_t n;
} histogram_params;

enum class HistogramFault {
    None,
    NoBarrierAfterClear, // counts before all bins are zero
    NoBarrierBeforeRead, // reads before all have counted
    PlainAdd,            // ++ instead of atomicAdd
    PlainMixed,          // one warp adds plainly, the others atomically
};

template <HistogramFault kFault> struct Histogram {
    struct Smem {
        unsigned bins[64];
    };
    static __device__ __forceinline__ void run(const histogram_params &p) {
        Smem &s = smem<Smem>();
        if (threadIdx.x < 64) s.bins[threadIdx.x] = 0;
        if (kFault != HistogramFault::NoBarrierAfterClear) __syncthreads();
        for (int i = threadIdx.x; i < p.n; i += 128) {
            const bool plain =
                kFault == HistogramFault::PlainAdd || (kFault == HistogramFault::PlainMixed && threadIdx.x < 32);
            if (plain) s.bins[p.x[i]] += 1;
            else atomicAdd(&s.bins[p.x[i]], 1u);
        }
        if (kFault != HistogramFault::NoBarrierBeforeRead) __syncthreads();
        if (threadIdx.x < 64) p.counts[threadIdx.x] = s.bins[threadIdx.x];
    }
};

// scan: y = inclusive prefix sums of x within rows of n <= 128 columns, one block per row; two values exchanged through
// shared memory per step, so two barriers per step.
typedef struct {
    const int32_t *x;
    int32_t *y;
    int32_t n;
} scan_params;

enum class ScanFault {
    None,
    NoBarrierAfterRead,  // writes while others read
    NoBarrierAfterWrite, // reads what was not yet written
    DivergentBarrier,    // only threads inside the row reach one of the barriers
    BarrierInHalfWarp,   // half of each warp takes another one
};

template <ScanFault kFault> struct Scan {
    struct Smem {
        int sum[128];
    };
    static __device__ __forceinline__ void run(const scan_params &p) {
        Smem &s = smem<Smem>();
        const int t = threadIdx.x;
        const size_t at = (size_t)blockIdx.x * p.n + t;
        s.sum[t] = t < p.n ? p.x[at] : 0;
        __syncthreads();
        for (int o = 1; o < 128; o *= 2) {
            const int add = t >= o ? s.sum[t - o] : 0;
            if (kFault == ScanFault::DivergentBarrier) {
                if (t < p.n) __syncthreads();
            } else if (kFault == ScanFault::BarrierInHalfWarp) {
                if (t % 32 < 16) __syncthreads();
                else __syncthreads();
            } else if (kFault != ScanFault::NoBarrierAfterRead) {
                __syncthreads();
            }
            s.sum[t] += add;
            if (kFault != ScanFault::NoBarrierAfterWrite) __syncthreads();
        }
        if (t < p.n) p.y[at] = s.sum[t];
    }
};

// norm: y = x / sqrt(sum x^2) for rows of n columns, one warp per row; lane l owns columns l, l + 32, ...
typedef struct {
    const float *x;
    float *y;
    int32_t rows, n;
} norm_params;

enum class NormFault {
    None,
    EarlyLaneExit,    // lanes without a column leave before the full-mask shuffle
    OneLaneTooShort,  // mask names half of the lanes, all call
    DivergentShuffle, // two halves of the warp call different collectives
    TailColumn,       // n + 1 columns are written
    WarpExchange,     // passes the sum through shared memory without __syncwarp
    ReadsEarly,       // what an earlier kernel wrote, before griddep_wait
    WritesEarly,
    NeverWaits,
};

template <NormFault kFault> struct Norm {
    struct Smem {
        float sum[4];
    };
    static __device__ __forceinline__ void run(const norm_params &p) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x * 4 + warp;
        if (kFault == NormFault::WritesEarly && row < p.rows && lane < p.n) p.y[(size_t)row * p.n + lane] = 0.f;
        if (kFault != NormFault::ReadsEarly && kFault != NormFault::NeverWaits) griddep_wait();
        if (row >= p.rows) { // whole warps
            if (kFault == NormFault::ReadsEarly) griddep_wait();
            return;
        }
        if (kFault == NormFault::EarlyLaneExit && lane >= p.n) return;
        const float *x = p.x + (size_t)row * p.n;
        float sum = 0.f;
        for (int c = lane; c < p.n; c += 32) sum += x[c] * x[c];
        const unsigned mask = kFault == NormFault::OneLaneTooShort ? 0xffffu : ~0u;
        for (int o = 16; o > 0; o /= 2) {
            if (kFault == NormFault::DivergentShuffle && lane >= 16) sum += __shfl_down_sync(mask, sum, o);
            else sum += __shfl_xor_sync(mask, sum, o);
        }
        if (kFault == NormFault::ReadsEarly) griddep_wait();
        Smem &s = smem<Smem>();
        if (lane == 31) s.sum[warp] = sum;
        if (kFault != NormFault::WarpExchange) __syncwarp();
        const float scale = 1.f / sqrtf(s.sum[warp]);
        const int columns = kFault == NormFault::TailColumn ? p.n + 1 : p.n;
        for (int c = lane; c < columns; c += 32) p.y[(size_t)row * p.n + c] = scale * (c < p.n ? x[c] : 1.f);
    }
};
