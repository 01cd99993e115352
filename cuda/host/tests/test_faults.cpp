// test_faults.cpp: correct kernels pass for every seed; each planted fault is caught, by a report of the emulator or by
// a wrong or misplaced result, for nearly every seed.
#include <cmath>

#include "check.hpp"
#include "gemm.cuh"
#include "pipeline.cuh"
#include "small.cuh"

extern "C" emu_kernel emu_gemm_None, emu_gemm_NoBarrierBeforeUse, emu_gemm_NoBarrierBeforeOverwrite, emu_gemm_NoWait,
    emu_gemm_WaitOneTooFew, emu_gemm_SwappedFragment, emu_gemm_TailRow, emu_gemm_TailK, emu_gemm_LdmatrixRow;
extern "C" emu_kernel emu_pipeline_None, emu_pipeline_NoFullWait, emu_pipeline_NoEmptyWait,
    emu_pipeline_NoBarrierAfterInit, emu_pipeline_TooManyBytesExpected, emu_pipeline_TooFewBytesExpected,
    emu_pipeline_WrongParity, emu_pipeline_NoArrive, emu_pipeline_TooManyArrivals, emu_pipeline_NamedBarrierTooSmall,
    emu_pipeline_NamedBarrierTooLarge, emu_pipeline_NamedBarrierMismatch, emu_pipeline_NoNamedBarrier;
extern "C" emu_kernel emu_histogram_None, emu_histogram_NoBarrierAfterClear, emu_histogram_NoBarrierBeforeRead,
    emu_histogram_PlainAdd, emu_histogram_PlainMixed;
extern "C" emu_kernel emu_scan_None, emu_scan_NoBarrierAfterRead, emu_scan_NoBarrierAfterWrite,
    emu_scan_DivergentBarrier, emu_scan_BarrierInHalfWarp;
extern "C" emu_kernel emu_norm_None, emu_norm_EarlyLaneExit, emu_norm_OneLaneTooShort, emu_norm_DivergentShuffle,
    emu_norm_TailColumn, emu_norm_WarpExchange, emu_norm_ReadsEarly, emu_norm_WritesEarly, emu_norm_NeverWaits;

namespace {

constexpr int kSeeds = 16, kMustCatch = 15;

struct Tally {
    int caught = 0, by_report = 0;
    std::string report;
    void add(const test::Outcome &end, bool result_right) {
        if (end.status != EMU_OK && report.empty()) report = end.report;
        by_report += end.status != EMU_OK;
        caught += end.status != EMU_OK || !result_right;
    }
};

// `wanted` of the seeds must be caught; for the faultless version that is none.
void judge(const char *name, const Tally &tally, int wanted) {
    if (wanted == 0) {
        CHECK(tally.caught == 0, "%s: %d of %d seeds fail: %s", name, tally.caught, kSeeds, tally.report.c_str());
        return;
    }
    std::printf("    %-32s caught %2d of %d, %2d by report  %.110s\n", name, tally.caught, kSeeds, tally.by_report,
                tally.report.substr(0, tally.report.find('\n')).c_str());
    CHECK(tally.caught >= wanted, "%s: caught for %d of %d seeds", name, tally.caught, kSeeds);
}

Tally gemm(emu_kernel *kernel, int m, int n, int k) {
    test::Random random(11);
    test::Guarded<int8_t> a(static_cast<size_t>(m) * k), b(static_cast<size_t>(n) * k);
    test::Guarded<float> sa(m), sb(n);
    for (size_t i = 0; i < a.size(); ++i) a[i] = (int8_t)random.between(-127, 127);
    for (size_t i = 0; i < b.size(); ++i) b[i] = (int8_t)random.between(-127, 127);
    for (size_t i = 0; i < sa.size(); ++i) sa[i] = random.unit();
    for (size_t i = 0; i < sb.size(); ++i) sb[i] = random.unit();
    Tally tally;
    for (int seed = 0; seed < kSeeds; ++seed) {
        test::Guarded<float> c(static_cast<size_t>(m) * n, NAN);
        const gemm_params p{a.data(), b.data(), sa.data(), sb.data(), c.data(), m, n, k};
        const auto end = test::launch(
            kernel, p,
            {{(unsigned)(n + 63) / 64, (unsigned)(m + 63) / 64, 1}, 128, sizeof(Gemm<GemmFault::None>::Smem)}, seed,
            {a.buffer(false), b.buffer(false), sa.buffer(false), sb.buffer(false), c.buffer(true)});
        bool right = c.intact();
        for (int i = 0; i < m && right; ++i)
            for (int j = 0; j < n; ++j) {
                int sum = 0;
                for (int t = 0; t < k; ++t)
                    sum += a[static_cast<size_t>(i) * k + t] * b[static_cast<size_t>(j) * k + t];
                right &= c[static_cast<size_t>(i) * n + j] == sa[i] * sb[j] * (float)sum;
            }
        tally.add(end, right);
    }
    return tally;
}

Tally pipeline(emu_kernel *kernel, int rows) {
    test::Random random(12);
    test::Guarded<float> x(static_cast<size_t>(rows) * 64);
    for (size_t i = 0; i < x.size(); ++i) x[i] = (float)random.between(-99, 99);
    Tally tally;
    for (int seed = 0; seed < kSeeds; ++seed) {
        test::Guarded<float> y(rows, NAN);
        const pipeline_params p{x.data(), y.data(), rows};
        const auto end = test::launch(kernel, p, {{3, 1, 1}, 160, sizeof(Pipeline<PipelineFault::None>::Smem)}, seed);
        bool right = y.intact();
        for (int r = 0; r < rows; ++r) {
            float sum = 0;
            for (int c = 0; c < 64; ++c) sum += x[static_cast<size_t>(r) * 64 + c];
            right &= y[r] == sum; // integers: exact in any order
        }
        tally.add(end, right);
    }
    return tally;
}

Tally histogram(emu_kernel *kernel) {
    test::Random random(13);
    const int n = 1000;
    test::Guarded<int32_t> x(n);
    uint32_t want[64] = {};
    for (int i = 0; i < n; ++i) ++want[x[i] = random.between(0, 63)];
    Tally tally;
    for (int seed = 0; seed < kSeeds; ++seed) {
        test::Guarded<uint32_t> counts(64, ~0u);
        const histogram_params p{x.data(), counts.data(), n};
        const auto end = test::launch(kernel, p, {{1, 1, 1}, 128, 256}, seed);
        tally.add(end, counts.intact() && std::memcmp(counts.data(), want, sizeof want) == 0);
    }
    return tally;
}

Tally scan(emu_kernel *kernel) {
    test::Random random(14);
    const int n = 100, rows = 5;
    test::Guarded<int32_t> x(n * rows);
    for (size_t i = 0; i < x.size(); ++i) x[i] = random.between(-1000, 1000);
    Tally tally;
    for (int seed = 0; seed < kSeeds; ++seed) {
        test::Guarded<int32_t> y(n * rows, -1);
        const scan_params p{x.data(), y.data(), n};
        const auto end = test::launch(kernel, p, {{rows, 1, 1}, 128, 512}, seed);
        bool right = y.intact();
        for (int r = 0; r < rows; ++r)
            for (int c = 0, sum = 0; c < n; ++c) right &= y[r * n + c] == (sum += x[r * n + c]);
        tally.add(end, right);
    }
    return tally;
}

Tally norm(emu_kernel *kernel, int n) {
    test::Random random(15);
    const int rows = 10;
    test::Guarded<float> x(static_cast<size_t>(rows) * n);
    for (size_t i = 0; i < x.size(); ++i) x[i] = random.unit();
    Tally tally;
    for (int seed = 0; seed < kSeeds; ++seed) {
        test::Guarded<float> y(static_cast<size_t>(rows) * n, NAN);
        const norm_params p{x.data(), y.data(), rows, n};
        emu_buffer from_earlier = x.buffer(false);
        from_earlier.written = 1;
        const auto end = test::launch(kernel, p, {{3, 1, 1}, 128, 16, 0, true}, seed, {from_earlier, y.buffer(true)});
        bool right = y.intact();
        for (int r = 0; r < rows; ++r) {
            double sum = 0;
            for (int c = 0; c < n; ++c)
                sum += (double)x[static_cast<size_t>(r) * n + c] * x[static_cast<size_t>(r) * n + c];
            for (int c = 0; c < n; ++c) {
                const double want = x[static_cast<size_t>(r) * n + c] / std::sqrt(sum);
                right &= std::fabs(y[static_cast<size_t>(r) * n + c] - want) < 1e-5;
            }
        }
        tally.add(end, right);
    }
    return tally;
}

} // namespace

TEST(faultless_gemm) {
    for (int m : {1, 63, 64, 65})
        for (int n : {1, 70})
            for (int k : {16, 64, 176}) judge("gemm", gemm(emu_gemm_None, m, n, k), 0);
}
TEST(faults_in_gemm) {
#define CAUGHT(fault) judge("gemm " #fault, gemm(emu_gemm_##fault, 67, 70, 176), kMustCatch)
    CAUGHT(NoBarrierBeforeUse);
    CAUGHT(NoBarrierBeforeOverwrite);
    CAUGHT(NoWait);
    CAUGHT(WaitOneTooFew);
    CAUGHT(SwappedFragment);
    CAUGHT(TailRow);
    CAUGHT(TailK);
    CAUGHT(LdmatrixRow);
#undef CAUGHT
}

TEST(faultless_pipeline) {
    for (int rows : {1, 2, 3, 7, 40}) judge("pipeline", pipeline(emu_pipeline_None, rows), 0);
}
TEST(faults_in_pipeline) {
#define CAUGHT(fault) judge("pipeline " #fault, pipeline(emu_pipeline_##fault, 40), kMustCatch)
    CAUGHT(NoFullWait);
    CAUGHT(NoEmptyWait);
    CAUGHT(NoBarrierAfterInit);
    CAUGHT(TooManyBytesExpected);
    CAUGHT(TooFewBytesExpected);
    CAUGHT(WrongParity);
    CAUGHT(NoArrive);
    CAUGHT(TooManyArrivals);
    CAUGHT(NamedBarrierTooSmall);
    CAUGHT(NamedBarrierTooLarge);
    CAUGHT(NamedBarrierMismatch);
    CAUGHT(NoNamedBarrier);
#undef CAUGHT
}

TEST(faultless_small) {
    judge("histogram", histogram(emu_histogram_None), 0);
    judge("scan", scan(emu_scan_None), 0);
    for (int n : {1, 31, 32, 33, 100}) judge("norm", norm(emu_norm_None, n), 0);
}
TEST(faults_in_small) {
    judge("histogram NoBarrierAfterClear", histogram(emu_histogram_NoBarrierAfterClear), kMustCatch);
    judge("histogram NoBarrierBeforeRead", histogram(emu_histogram_NoBarrierBeforeRead), kMustCatch);
    judge("scan NoBarrierAfterRead", scan(emu_scan_NoBarrierAfterRead), kMustCatch);
    judge("scan NoBarrierAfterWrite", scan(emu_scan_NoBarrierAfterWrite), kMustCatch);
    judge("scan DivergentBarrier", scan(emu_scan_DivergentBarrier), kMustCatch);
    judge("scan BarrierInHalfWarp", scan(emu_scan_BarrierInHalfWarp), kMustCatch);
    judge("norm EarlyLaneExit", norm(emu_norm_EarlyLaneExit, 20), kMustCatch);
    judge("norm OneLaneTooShort", norm(emu_norm_OneLaneTooShort, 20), kMustCatch);
    judge("norm DivergentShuffle", norm(emu_norm_DivergentShuffle, 20), kMustCatch);
    judge("norm TailColumn", norm(emu_norm_TailColumn, 20), kMustCatch);
    judge("norm WarpExchange", norm(emu_norm_WarpExchange, 20), kMustCatch);
    judge("norm NeverWaits", norm(emu_norm_NeverWaits, 20), kMustCatch);
}

// A thread runs until it meets the emulator, so that a plain read-modify-write is never interrupted: only the race
// detector of instrumented builds sees it. Elsewhere the results are right by luck, and that is what the run shows.
TEST(faults_that_need_instrumentation) {
    const int wanted = test::instrumented() ? kMustCatch : 0;
    judge("histogram PlainAdd", histogram(emu_histogram_PlainAdd), wanted);
    judge("histogram PlainMixed", histogram(emu_histogram_PlainMixed), wanted);
    judge("norm ReadsEarly", norm(emu_norm_ReadsEarly, 20), wanted);
    judge("norm WritesEarly", norm(emu_norm_WritesEarly, 20), wanted);
}
