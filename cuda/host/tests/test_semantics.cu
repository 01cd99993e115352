// test_semantics.cu: what the emulator promises beyond single instructions: indices, barriers with counts, blocks that
// run side by side, seeded order, and the text of its reports.
#include <set>

#include "check.hpp"
#include "common/intrin.cuh"

namespace {

struct Params {
    uint32_t *out;
    uint32_t *state; // zeroed
    int32_t n;
};

struct Buffers {
    test::Guarded<uint32_t> out, state;
    explicit Buffers(size_t n) : out(n, ~0u), state(16, 0) {}
    Params params(int n = 0) { return {out.data(), state.data(), n}; }
};

struct Words {
    uint32_t w[64];
};

// Indices and dimensions.
__device__ void indices(const Params &p) {
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    p.out[block * threads + thread] = threadIdx.x | threadIdx.y << 8 | threadIdx.z << 16 | blockIdx.x << 20;
}

// Votes of a block.
__device__ void block_votes(const Params &p) {
    const int odd = __syncthreads_count(threadIdx.x % 2);
    const int all = __syncthreads_and(threadIdx.x < 96), any = __syncthreads_or(threadIdx.x == 95);
    p.out[threadIdx.x] = odd << 8 | all << 1 | any;
}

// Warp 0 fills, warps 1 and 2 read; two named barriers hand the buffer back and forth, the one who need not wait
// arrives.
__device__ void hand_over(const Params &p) {
    Words &s = smem<Words>();
    const int t = threadIdx.x;
    for (int round = 0; round < 5; ++round) {
        if (t < 32) {
            if (round > 0) bar_sync(2, 96);
            s.w[t] = t + 100 * round;
            s.w[t + 32] = t + 132 + 100 * round;
            bar_arrive(1, 96);
        } else {
            bar_sync(1, 96);
            p.out[round * 64 + t - 32] = s.w[95 - t];
            if (round < 4) bar_arrive(2, 96);
        }
    }
}

// The last block of the grid adds what all have left in global memory.
__device__ void last_block(const Params &p) {
    Words &s = smem<Words>();
    p.out[blockIdx.x * 32 + threadIdx.x] = blockIdx.x + threadIdx.x;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) s.w[0] = atomic_add_acq_rel(p.state, 1);
    __syncthreads();
    if (s.w[0] != gridDim.x - 1) return;
    uint32_t sum = 0;
    for (unsigned i = threadIdx.x; i < gridDim.x * 32; i += 32) sum += p.out[i];
    sum = __reduce_add_sync(~0u, sum);
    if (threadIdx.x == 0) p.state[1] = sum;
}

// A barrier across the grid: every block waits for all others, so all must be resident.
__device__ void grid_barrier(const Params &p) {
    for (uint32_t round = 1; round <= 3; ++round) {
        __syncthreads();
        if (threadIdx.x == 0) {
            red_add_release(p.state, 1);
            while (ld_acquire(p.state) < round * gridDim.x) {
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) p.out[blockIdx.x * 3 + round - 1] = ld_acquire(p.state) >= round * gridDim.x;
    }
}

// Order in which blocks begin, and in which the threads of a block run.
__device__ void order(const Params &p) { p.out[atomicAdd(p.state, 1u)] = blockIdx.x * 32 + threadIdx.x; }

// One mistake each, chosen by n -------------------------------------------------------------------

__device__ void mistakes(const Params &p) {
    struct Smem {
        mbarrier bar;
        alignas(16) uint32_t w[8];
    };
    Smem &s = smem<Smem>();
    const int t = threadIdx.x;
    uint32_t d[4];
    switch (p.n) {
    case 0: // waits for a warp that has left
        if (t >= 32) __syncthreads();
        break;
    case 1: // named barrier that nobody else comes to
        if (t < 32) bar_sync(3, 64);
        break;
    case 2: bar_sync(16, 64); break;
    case 3: bar_sync(1, 40); break;
    case 4: ldmatrix_x4(d, reinterpret_cast<char *>(s.w) + 4); break;
    case 5: ldmatrix_x4(d, s.w + 64); break;
    case 6: cp_async<16>(s.w, reinterpret_cast<const char *>(p.out) + 4); break;
    case 7: cp_async_zfill<8>(s.w, p.out, 9); break;
    case 8: // past the end of shared memory, where the guard zone is
        if (t == 0) *const_cast<volatile uint32_t *>(s.w + 8) = 1;
        break;
    case 9: mbarrier_arrive(s.bar); break;
    case 10:
        if (t == 0) {
            mbarrier_init(s.bar, 1);
            mbarrier_init(s.bar, 1);
        }
        break;
    case 11:
        if (t == 0) {
            mbarrier_init(s.bar, 1);
            mbarrier_arrive_expect_tx(s.bar, 32);
            cp_async_bulk(s.w, p.out, 24, s.bar);
        }
        break;
    case 12: // leaves without waiting for its bytes
        if (t == 0) {
            mbarrier_init(s.bar, 1);
            mbarrier_arrive_expect_tx(s.bar, 32);
            cp_async_bulk(s.w, p.state, 32, s.bar);
        }
        break;
    case 13: __trap(); break;
    case 14: // lane 3 leaves, the others vote
        if (t != 3) p.out[0] = __ballot_sync(~0u, 1);
        break;
    case 15: (void)__shfl_sync(1u << (t + 1) % 32, t, 0); break;
    case 16: (void)__shfl_xor_sync(~0u, t, 1, 12); break;
    case 17: // polls for what nobody sets
        while (ld_acquire(p.state) == 0) {
        }
        break;
    case 18: (void)smem<Words>(); break;
    case 19: // an init that others do not wait for, after an inval
        if (t == 0) {
            mbarrier_init(s.bar, 64);
            mbarrier_inval(s.bar);
        }
        __syncthreads();
        mbarrier_wait(s.bar, 0);
        break;
    case 20: // two arrivals on a count of one
        if (t == 0) {
            mbarrier_init(s.bar, 2);
            mbarrier_arrive_expect_tx(s.bar, 16);
            mbarrier_arrive(s.bar);
            mbarrier_arrive(s.bar);
        }
        break;
    case 21: atomicAdd(reinterpret_cast<uint32_t *>(reinterpret_cast<char *>(p.state) + 2), 1u); break;
    case 22: // one thread takes a barrier twice while the others take it once
        __syncthreads();
        if (t == 5) __syncthreads();
        break;
    default: break;
    }
}

constexpr uint32_t kMistakeBytes = 48;

// More local variables than a thread's stack holds.
__device__ void too_deep(const Params &p) {
    volatile char locals[120 << 10];
    for (int i = 0; i < (120 << 10); i += 64) locals[i] = 1;
    __syncthreads();
    p.out[threadIdx.x] = locals[64];
}

} // namespace

KERNEL_ENTRY(indices, Params, 64, indices)
KERNEL_ENTRY(block_votes, Params, 96, block_votes)
KERNEL_ENTRY(hand_over, Params, 96, hand_over)
KERNEL_ENTRY(last_block, Params, 32, last_block)
KERNEL_ENTRY(grid_barrier, Params, 64, grid_barrier)
KERNEL_ENTRY(order, Params, 32, order)
KERNEL_ENTRY(mistakes, Params, 64, mistakes)
KERNEL_ENTRY(too_deep, Params, 32, too_deep)

TEST(semantics_indices) {
    Buffers b(24 * 64);
    char report[512] = "";
    const Params p = b.params();
    const emu_launch l{{2, 3, 4}, {8, 4, 2}, 0, sizeof p, 0, 0, 7, nullptr, 0, report, sizeof report};
    CHECK(emu_indices(&p, &l) == EMU_OK, "%s", report);
    for (unsigned block = 0; block < 24; ++block)
        for (unsigned t = 0; t < 64; ++t)
            CHECK(b.out[block * 64 + t] == (t % 8 | t / 8 % 4 << 8 | t / 32 << 16 | block % 2 << 20));
}

TEST(semantics_barriers) {
    for (uint64_t seed = 0; seed < 50; ++seed) {
        Buffers votes(96), handed(320);
        auto end = test::launch(emu_block_votes, votes.params(), {{1, 1, 1}, 96, 0}, seed);
        CHECK(end.status == EMU_OK, "%s", end.report.c_str());
        for (int t = 0; t < 96; ++t) CHECK(votes.out[t] == (48 << 8 | 1 << 1 | 1));
        end = test::launch(emu_hand_over, handed.params(), {{1, 1, 1}, 96, 256}, seed);
        CHECK(end.status == EMU_OK, "%s", end.report.c_str());
        for (int round = 0; round < 5; ++round)
            for (int i = 0; i < 64; ++i) {
                const int from = 63 - i;
                CHECK(handed.out[round * 64 + i] == (uint32_t)((from < 32 ? from : from + 100) + 100 * round));
            }
        RETURN_IF_FAILED();
    }
}

TEST(semantics_blocks_side_by_side) {
    for (uint64_t seed = 0; seed < 50; ++seed) {
        Buffers last(20 * 32), grid(15);
        auto end = test::launch(emu_last_block, last.params(), {{20, 1, 1}, 32, 256}, seed);
        CHECK(end.status == EMU_OK && last.state[1] == 20 * 32 * (19 + 31) / 2, "%s", end.report.c_str());
        end = test::launch(emu_grid_barrier, grid.params(), {{5, 1, 1}, 64, 0, 5}, seed);
        CHECK(end.status == EMU_OK, "%s", end.report.c_str());
        for (int i = 0; i < 15; ++i) CHECK(grid.out[i] == 1);
        RETURN_IF_FAILED();
    }
    // With fewer resident blocks than the barrier needs, the report says that they poll.
    Buffers grid(15);
    const auto end = test::launch(emu_grid_barrier, grid.params(), {{5, 1, 1}, 64, 0, 2}, 1);
    CHECK(end.status == EMU_DEADLOCK && end.report.find("poll") != std::string::npos, "%s", end.report.c_str());
}

TEST(semantics_order_is_seeded) {
    std::set<std::vector<uint32_t>> orders;
    std::set<uint32_t> firsts;
    for (uint64_t seed = 0; seed < 20; ++seed)
        for (int again = 0; again < 2; ++again) { // the same seed gives the same order
            Buffers b(8 * 32);
            const auto end = test::launch(emu_order, b.params(), {{8, 1, 1}, 32, 0}, seed);
            CHECK(end.status == EMU_OK, "%s", end.report.c_str());
            orders.insert(std::vector<uint32_t>(b.out.data(), b.out.data() + b.out.size()));
            firsts.insert(b.out[0] / 32);
        }
    CHECK(orders.size() == 20, "%zu orders", orders.size());
    CHECK(firsts.size() > 3, "%zu first blocks", firsts.size());
}

TEST(semantics_reports) {
    const struct {
        int status;
        const char *text;
    } want[] = {
        {EMU_DEADLOCK, "threads 0-31: returned\n  threads 32-63: wait at __syncthreads 0 (32 of 64 threads came)"},
        {EMU_DEADLOCK, "threads 0-31: wait at bar.sync 3 (32 of 64 threads came)"},
        {EMU_DIVERGENCE, "barrier 16, there are 16"},
        {EMU_DIVERGENCE, "40 threads are no whole number of warps"},
        {EMU_BAD_ADDRESS, "offset 20 is not 16-byte aligned"},
        {EMU_BAD_ADDRESS, "offset 272, 16 bytes, is outside the 48 bytes of shared memory"},
        {EMU_BAD_ADDRESS, "the source is not 16-byte aligned"},
        {EMU_BAD_ADDRESS, "reads 9 of 8 bytes"},
        {EMU_BAD_ADDRESS, nullptr}, // the text depends on whether the access or its trace is seen
        {EMU_MBARRIER, "mbarrier.arrive at"},
        {EMU_MBARRIER, "already initialized"},
        {EMU_BAD_ADDRESS, "source and size (24) must be multiples of 16"},
        {EMU_MBARRIER, "the block ended while its cp.async.bulk"},
        {EMU_TRAP, "__trap at"},
        {EMU_DIVERGENCE, nullptr}, // seen by whoever comes last
        {EMU_DIVERGENCE, "is not in its mask"},
        {EMU_DIVERGENCE, "width 12"},
        {EMU_DEADLOCK, "poll in a load of the same value"},
        {EMU_BAD_ADDRESS, "its Smem has 256 bytes, the launch gives 48"},
        {EMU_MBARRIER, "not initialized"},
        {EMU_MBARRIER, "more arrivals than the count"},
        {EMU_BAD_ADDRESS, "is not 4-byte aligned"},
        {EMU_DEADLOCK, "threads 5: wait at __syncthreads 0 (1 of 64 threads came)"},
    };
    for (int n = 0; n < (int)(sizeof want / sizeof want[0]); ++n)
        for (uint64_t seed = 0; seed < 10; ++seed) {
            Buffers b(64);
            const auto end = test::launch(emu_mistakes, b.params(n), {{3, 1, 1}, 64, kMistakeBytes}, seed);
            CHECK(end.status == want[n].status, "mistake %d: status %d: %s", n, end.status, end.report.c_str());
            CHECK(end.report.rfind("kernel mistakes, block (", 0) == 0, "%s", end.report.c_str());
            CHECK(!want[n].text || end.report.find(want[n].text) != std::string::npos, "mistake %d: %s", n,
                  end.report.c_str());
            CHECK(n == 6 || b.out.intact());
        }
}

TEST(semantics_stacks_are_watched) {
    Buffers b(32);
    const auto end = test::launch(emu_too_deep, b.params(), {{1, 1, 1}, 32, 0}, 1);
#ifdef __SANITIZE_ADDRESS__ // stacks are larger there
    CHECK(end.status == EMU_OK, "%s", end.report.c_str());
#else
    CHECK(end.status == EMU_TRAP && end.report.find("of its stack left") != std::string::npos, "%s",
          end.report.c_str());
#endif
}

TEST(semantics_launches_are_checked) {
    Buffers b(64);
    const Params p = b.params(99);
    char report[512];
    const emu_launch good{{1, 1, 1}, {64, 1, 1}, kMistakeBytes, sizeof p, 0, 0, 1, nullptr, 0, report, sizeof report};
    CHECK(emu_mistakes(&p, &good) == EMU_OK, "%s", report);
    auto refused = [&](emu_launch l, const char *text) {
        report[0] = 0;
        const int status = emu_mistakes(&p, &l);
        CHECK(status == EMU_BAD_LAUNCH && std::strstr(report, text), "status %d, %s", status, report);
    };
    emu_launch l = good;
    l.grid[1] = 0, refused(l, "grid (1,0,1)");
    l = good, l.grid[1] = 65536, refused(l, "grid (1,65536,1)");
    l = good, l.grid[0] = 0x80000000u, refused(l, "grid (2147483648,1,1)");
    l = good, l.grid[0] = 0x7fffffffu, l.grid[1] = l.grid[2] = 65535, refused(l, "blocks");
    l = good, l.block[0] = 32, refused(l, "block (32,1,1), the kernel runs 64 threads");
    l = good, l.shared_bytes = 232449, refused(l, "232449 bytes of shared memory");
    l = good, l.params_bytes = 8, refused(l, "params of 8 bytes");
    CHECK(emu_mistakes(nullptr, &good) == EMU_BAD_LAUNCH && std::strstr(report, "no params"));
    CHECK(emu_mistakes(&p, nullptr) == EMU_BAD_LAUNCH);
    l = good, l.n_buffers = 1, refused(l, "but no buffers");
    emu_buffer buffer = b.out.buffer(true);
    l = good, l.buffers = &buffer, l.n_buffers = 65, refused(l, "65 buffers");
    // A report that does not fit is cut; none is asked for.
    char small[10];
    l = good, l.block[0] = 32, l.report = small, l.report_bytes = sizeof small;
    CHECK(emu_mistakes(&p, &l) == EMU_BAD_LAUNCH && std::strcmp(small, "kernel mi") == 0, "%s", small);
    l.report = nullptr;
    CHECK(emu_mistakes(&p, &l) == EMU_BAD_LAUNCH);
    // After a failure the next launch starts clean.
    const Params wrong = b.params(1);
    CHECK(emu_mistakes(&wrong, &good) == EMU_DEADLOCK && emu_mistakes(&p, &good) == EMU_OK, "%s", report);
}
