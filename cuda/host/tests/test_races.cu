// test_races.cu: what the race detector calls ordered and what not. Without instrumentation it sees nothing, and then
// the sound kernels still must pass.
#include "check.hpp"
#include "common/intrin.cuh"

namespace {

struct Params {
    uint32_t *out; // [64]
    int32_t n;
};

struct Four {
    uint32_t words[4];
};

struct Smem {
    alignas(16) uint8_t bytes[256];
    alignas(16) uint32_t words[64];
    uint32_t flag;
    mbarrier bar;
};

// Sound ways to pass a word from each thread to its neighbour, chosen by n.
__device__ void sound(const Params &p) {
    Smem &s = smem<Smem>();
    const int t = threadIdx.x, other = t ^ 1;
    switch (p.n) {
    case 0: // barrier; bytes of one word belong to different threads
        s.bytes[t] = (uint8_t)t;
        __syncthreads();
        p.out[t] = s.bytes[other];
        break;
    case 1: // within a warp
        s.words[t] = t;
        __syncwarp();
        p.out[t] = s.words[other];
        __syncwarp();
        s.words[t] = 0;
        break;
    case 2: // mbarrier
        if (t == 0) mbarrier_init(s.bar, 64);
        __syncthreads();
        s.words[t] = t;
        mbarrier_arrive(s.bar);
        mbarrier_wait(s.bar, 0);
        p.out[t] = s.words[other];
        break;
    case 3: // fence and flag
        if (t == 0) s.flag = 0;
        __syncthreads();
        s.words[t] = t;
        __threadfence_block();
        atomicAdd(&s.flag, 1u);
        while (atomicAdd(&s.flag, 0u) < 64) {
        }
        __threadfence_block();
        p.out[t] = s.words[other];
        break;
    case 4: // release and acquire
        if (t == 0) s.flag = 0;
        __syncthreads();
        s.words[t] = t;
        red_add_release(&s.flag, 1);
        while (ld_acquire(&s.flag) < 64) {
        }
        p.out[t] = s.words[other];
        break;
    case 5: // who arrives need not wait, who waits sees what those who arrived wrote
        if (t < 32) {
            s.words[t] = t;
            s.words[t + 32] = t + 32;
            bar_arrive(1, 64);
            p.out[t] = other;
        } else {
            bar_sync(1, 64);
            p.out[t] = s.words[other];
        }
        break;
    case 6: // all write the same atomics
        s.words[t] = t;
        __syncthreads();
        atomicMax(&s.words[t], 0u);
        atomicMax(&s.words[other], 0u);
        __syncthreads();
        p.out[t] = s.words[other];
        break;
    default: break;
    }
}

// The same without what makes them sound.
__device__ void unsound(const Params &p) {
    Smem &s = smem<Smem>();
    const int t = threadIdx.x, other = t ^ 1;
    switch (p.n) {
    case 0:
        s.bytes[t] = (uint8_t)t;
        p.out[t] = s.bytes[other];
        break;
    case 1: // a shuffle makes lanes meet, but orders no memory
        s.words[t] = t;
        (void)__shfl_sync(~0u, t, 0);
        p.out[t] = s.words[other];
        break;
    case 2: // does not wait
        if (t == 0) mbarrier_init(s.bar, 64);
        __syncthreads();
        s.words[t] = t;
        mbarrier_arrive(s.bar);
        p.out[t] = s.words[other];
        break;
    case 3: // no fence before the flag
        if (t == 0) s.flag = 0;
        __syncthreads();
        s.words[t] = t;
        atomicAdd(&s.flag, 1u);
        while (atomicAdd(&s.flag, 0u) < 64) {
        }
        __threadfence_block();
        p.out[t] = s.words[other];
        break;
    case 4: // no acquire
        if (t == 0) s.flag = 0;
        __syncthreads();
        s.words[t] = t;
        red_add_release(&s.flag, 1);
        while (atomicAdd(&s.flag, 0u) < 64) {
        }
        p.out[t] = s.words[other];
        break;
    case 5: // who only arrives sees nothing of the others
        s.words[t] = t;
        if (t < 32) bar_arrive(1, 64);
        else bar_sync(1, 64);
        p.out[t] = s.words[t ^ 32];
        break;
    case 6: // a plain write among atomics
        s.words[t] = t;
        __syncthreads();
        atomicMax(&s.words[t], 0u);
        s.words[other] = 5;
        break;
    case 7: // copies to the same place
        cp_async<4>(&s.words[t / 2], p.out + t);
        cp_async_wait_all();
        break;
    case 8: // one word too far along
        s.words[t] = t;
        __syncthreads();
        s.words[(t + 1) % 64] = s.words[t];
        break;
    case 9: { // from struct to struct
        Four *const four = reinterpret_cast<Four *>(s.words);
        four[(t + 1) % 16] = four[t % 16];
        break;
    }
    default: break;
    }
}

__device__ void misaligned(const Params &p) {
    Smem &s = smem<Smem>();
    s.words[threadIdx.x] = threadIdx.x;
    __syncthreads();
    const int *volatile q = reinterpret_cast<const int *>(s.bytes + 2 * p.n); // hides the offset from the compiler
    p.out[threadIdx.x] = *q;
}

__device__ void beyond(const Params &p) {
    Smem &s = smem<Smem>();
    uint32_t *volatile words = s.words;
    p.out[threadIdx.x] = words[64 + p.n + threadIdx.x];
}

struct BufferParams {
    uint32_t *x, *y; // [64]
    int32_t n;
};

__device__ void buffers(const BufferParams &p) {
    Smem &s = smem<Smem>();
    const int t = threadIdx.x;
    p.y[t] = p.n == 1 ? p.x[t + 1] : p.x[t];
    if (p.n == 2 && t == 0) p.y[-1] = 7;
    if (p.n == 3 && t == 3) p.x[t] = 7;
    if (p.n == 4 && t == 0) cp_async<16>(s.bytes, p.x + 64);
    if (p.n == 5 && t == 0) atomicAdd(&p.y[65], 1u);
}

} // namespace

KERNEL_ENTRY(races_buffers, BufferParams, 64, buffers)
KERNEL_ENTRY(races_sound, Params, 64, sound)
KERNEL_ENTRY(races_unsound, Params, 64, unsound)
KERNEL_ENTRY(races_misaligned, Params, 64, misaligned)
KERNEL_ENTRY(races_beyond, Params, 64, beyond)

TEST(races_sound_kernels_pass) {
    for (int n = 0; n < 7; ++n)
        for (uint64_t seed = 0; seed < 30; ++seed) {
            test::Guarded<uint32_t> out(64, ~0u);
            const auto end = test::launch(emu_races_sound, Params{out.data(), n}, {{2, 1, 1}, 64, sizeof(Smem)}, seed);
            CHECK(end.status == EMU_OK, "kind %d: %s", n, end.report.c_str());
            for (int t = 0; t < 64; ++t)
                CHECK(out[t] == (uint32_t)(t ^ 1), "kind %d: thread %d reads %u", n, t, out[t]);
            RETURN_IF_FAILED();
        }
}

TEST(races_are_found) {
    if (!test::instrumented()) return;
    for (int n = 0; n < 10; ++n)
        for (uint64_t seed = 0; seed < 30; ++seed) {
            test::Guarded<uint32_t> out(64, ~0u);
            const auto end =
                test::launch(emu_races_unsound, Params{out.data(), n}, {{1, 1, 1}, 64, sizeof(Smem)}, seed);
            CHECK(end.status == EMU_RACE && end.report.find("nothing orders the two") != std::string::npos,
                  "kind %d, seed %d: status %d %s", n, (int)seed, end.status, end.report.c_str());
        }
}

// Buffers that the launch names: x is only read, y is written.
TEST(races_buffers_are_bounded) {
    struct {
        int n;
        const char *text;  // of instrumented kernels
        bool seen_without; // by twins, or by a changed guard zone
    } const cases[] = {
        {0, nullptr, false},
        {1, "reads 4 bytes at offset 256 of buffer 0, which has 256 bytes", false},
        {2, "writes 4 bytes at offset -4 of buffer 1, which has 256 bytes", true},
        {3, "writes 4 bytes at offset 12 of buffer 0, which is read-only", false},
        {4, "cp.async reads 16 bytes at offset 256 of buffer 0", true},
        {5, "atomic access of 4 bytes at offset 260 of buffer 1", true},
    };
    for (const auto &c : cases)
        for (uint64_t seed = 0; seed < 10; ++seed) {
            test::Guarded<uint32_t> x(64, 1), y(64, 2);
            const auto end = test::launch(emu_races_buffers, BufferParams{x.data(), y.data(), c.n},
                                          {{2, 1, 1}, 64, sizeof(Smem)}, seed, {x.buffer(false), y.buffer(true)});
            const bool wrong = c.text && (test::instrumented() || c.seen_without);
            CHECK(end.status == (wrong ? EMU_BAD_ADDRESS : EMU_OK), "case %d: %s", c.n, end.report.c_str());
            CHECK(!wrong || !test::instrumented() || end.report.find(c.text) != std::string::npos, "%s",
                  end.report.c_str());
        }
}

TEST(races_misaligned_and_outside) {
    if (!test::instrumented()) return;
    for (int n = 0; n < 4; ++n) {
        test::Guarded<uint32_t> out(64, ~0u);
        auto end = test::launch(emu_races_misaligned, Params{out.data(), n}, {{1, 1, 1}, 64, sizeof(Smem)}, 1);
        const bool wrong = n % 2 == 1;
        CHECK(end.status == (wrong ? EMU_BAD_ADDRESS : EMU_OK), "%d: %s", n, end.report.c_str());
        CHECK(!wrong || end.report.find("reads 4 bytes at address") != std::string::npos, "%s", end.report.c_str());
    }
    test::Guarded<uint32_t> out(64, ~0u);
    const auto end = test::launch(emu_races_beyond, Params{out.data(), 0}, {{1, 1, 1}, 64, sizeof(Smem)}, 1);
    CHECK(end.status == EMU_BAD_ADDRESS && end.report.find("outside") != std::string::npos, "%s", end.report.c_str());
}
