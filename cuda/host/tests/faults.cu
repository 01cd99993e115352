// faults.cu: the entries of the kernels with and without planted faults. test_faults.cpp runs them; nvcc compiles them
// too.
#include "gemm.cuh"
#include "pipeline.cuh"
#include "small.cuh"

#define GEMM(fault) KERNEL_ENTRY(gemm_##fault, gemm_params, 128, Gemm<GemmFault::fault>::run)
GEMM(None)
GEMM(NoBarrierBeforeUse)
GEMM(NoBarrierBeforeOverwrite)
GEMM(NoWait)
GEMM(WaitOneTooFew)
GEMM(SwappedFragment)
GEMM(TailRow)
GEMM(TailK)
GEMM(LdmatrixRow)

#define PIPELINE(fault) KERNEL_ENTRY(pipeline_##fault, pipeline_params, 160, Pipeline<PipelineFault::fault>::run)
PIPELINE(None)
PIPELINE(NoFullWait)
PIPELINE(NoEmptyWait)
PIPELINE(NoBarrierAfterInit)
PIPELINE(TooManyBytesExpected)
PIPELINE(TooFewBytesExpected)
PIPELINE(WrongParity)
PIPELINE(NoArrive)
PIPELINE(TooManyArrivals)
PIPELINE(NamedBarrierTooSmall)
PIPELINE(NamedBarrierTooLarge)
PIPELINE(NamedBarrierMismatch)
PIPELINE(NoNamedBarrier)

#define HISTOGRAM(fault) KERNEL_ENTRY(histogram_##fault, histogram_params, 128, Histogram<HistogramFault::fault>::run)
HISTOGRAM(None)
HISTOGRAM(NoBarrierAfterClear)
HISTOGRAM(NoBarrierBeforeRead)
HISTOGRAM(PlainAdd)
HISTOGRAM(PlainMixed)

#define SCAN(fault) KERNEL_ENTRY(scan_##fault, scan_params, 128, Scan<ScanFault::fault>::run)
SCAN(None)
SCAN(NoBarrierAfterRead)
SCAN(NoBarrierAfterWrite)
SCAN(DivergentBarrier)
SCAN(BarrierInHalfWarp)

#define NORM(fault) KERNEL_ENTRY(norm_##fault, norm_params, 128, Norm<NormFault::fault>::run)
NORM(None)
NORM(EarlyLaneExit)
NORM(OneLaneTooShort)
NORM(DivergentShuffle)
NORM(TailColumn)
NORM(WarpExchange)
