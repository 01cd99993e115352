// pipeline: sums the rows of a matrix; one warp brings rows by cp.async.bulk through a ring of mbarriers, others add.
// The shape of a warp-specialized kernel, with faults.
//
// Math    y[r] = sum_c x[r][c]
// Shapes  x [rows, 64] f32, y [rows]; block b owns rows b, b + gridDim.x, ...
// Tiling  warp 0 copies; warps 1 to 4 add 16 columns each by lanes 0 to 15, then meet at a named barrier of 128 threads
#pragma once
#include "common/intrin.cuh"

typedef struct {
    const float *x;
    float *y;
    int32_t rows;
} pipeline_params;

enum class PipelineFault {
    None,
    NoFullWait,           // consumers do not wait for the bytes
    NoEmptyWait,          // the producer overwrites rows that are still read
    NoBarrierAfterInit,   // mbarriers used before they are there
    TooManyBytesExpected, // the phase never completes
    TooFewBytesExpected,  // completes early, or counts below zero
    WrongParity,          // consumers wait for the phase before
    NoArrive,             // consumers never free a stage
    TooManyArrivals,      // every lane arrives where one per warp was meant
    NamedBarrierTooSmall, // 96 of 128 threads expected
    NamedBarrierTooLarge, // 160 of 128 threads expected
    NamedBarrierMismatch, // one warp expects another number
    NoNamedBarrier,       // partial sums read before they are there
};

template <PipelineFault kFault> struct Pipeline {
    static constexpr int kColumns = 64, kStages = 2, kConsumers = 4, kThreads = 32 * (1 + kConsumers);
    static constexpr unsigned kBytes = kColumns * sizeof(float);
    struct Smem {
        alignas(16) float row[kStages][kColumns];
        float partial[kStages][kConsumers];
        mbarrier full[kStages], empty[kStages];
    };

    static __device__ __forceinline__ void produce(const pipeline_params &p, Smem &s) {
        if (threadIdx.x != 0) return;
        int i = 0;
        for (int row = blockIdx.x; row < p.rows; row += gridDim.x, ++i) {
            const int stage = i % kStages, round = i / kStages;
            // The first round finds the stages empty: the phase "before the first" counts as complete.
            if (kFault != PipelineFault::NoEmptyWait) mbarrier_wait(s.empty[stage], (round + 1) % 2);
            const unsigned expected = kFault == PipelineFault::TooManyBytesExpected  ? kBytes + 16
                                      : kFault == PipelineFault::TooFewBytesExpected ? kBytes - 16
                                                                                     : kBytes;
            mbarrier_arrive_expect_tx(s.full[stage], expected);
            cp_async_bulk(s.row[stage], p.x + (size_t)row * kColumns, kBytes, s.full[stage]);
        }
    }

    static __device__ __forceinline__ void consume(const pipeline_params &p, Smem &s) {
        const int warp = threadIdx.x / 32 - 1, lane = threadIdx.x % 32;
        int i = 0;
        for (int row = blockIdx.x; row < p.rows; row += gridDim.x, ++i) {
            const int stage = i % kStages, round = i / kStages;
            const unsigned parity = kFault == PipelineFault::WrongParity ? (round + 1) % 2 : round % 2;
            if (kFault != PipelineFault::NoFullWait) mbarrier_wait(s.full[stage], parity);
            float sum = lane < 16 ? s.row[stage][16 * warp + lane] : 0.f;
            __syncwarp(); // all lanes have read before one of them frees the stage
            if (kFault == PipelineFault::TooManyArrivals) mbarrier_arrive(s.empty[stage]);
            else if (lane == 0 && kFault != PipelineFault::NoArrive) mbarrier_arrive(s.empty[stage]);
            for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
            if (lane == 0) s.partial[stage][warp] = sum;

            const unsigned threads = kFault == PipelineFault::NamedBarrierTooSmall                ? 96
                                     : kFault == PipelineFault::NamedBarrierTooLarge              ? 160
                                     : kFault == PipelineFault::NamedBarrierMismatch && warp == 2 ? 96
                                                                                                  : 128;
            if (kFault != PipelineFault::NoNamedBarrier) bar_sync(1, threads);
            // Two stages of partial sums: the next row's go elsewhere, so one barrier per row is enough.
            if (threadIdx.x == 32) {
                float total = 0.f;
                for (int w = 0; w < kConsumers; ++w) total += s.partial[stage][w];
                p.y[row] = total;
            }
        }
    }

    static __device__ __forceinline__ void run(const pipeline_params &p) {
        Smem &s = smem<Smem>();
        if (threadIdx.x == 0) {
            for (int i = 0; i < kStages; ++i) {
                mbarrier_init(s.full[i], 1);
                mbarrier_init(s.empty[i], kConsumers);
            }
            mbarrier_init_fence();
        }
        if (kFault != PipelineFault::NoBarrierAfterInit) __syncthreads();
        if (threadIdx.x < 32) produce(p, s);
        else consume(p, s);
    }
};
