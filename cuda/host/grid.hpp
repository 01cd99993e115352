// grid.hpp: the state of one launch: threads, warps, barriers, blocks, and who runs. Everything else is built on it.
//
// Model. A launch runs on one OS thread. Each CUDA thread is a fiber that runs until it waits (barrier, warp
// collective, mbarrier), yields or returns; the scheduler then picks another ready one in an order drawn from the seed.
// So at any moment exactly one kernel thread executes, and twins need no locks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emu.h"
#include "fiber.hpp"

namespace emu {

constexpr unsigned kWarpSize = 32;
constexpr unsigned kMaxThreads = 1024;   // per block
constexpr unsigned kBarriers = 16;       // named barriers per block
constexpr std::size_t kGuardBytes = 256; // on both sides of shared memory

struct Index {
    unsigned x, y, z;
};

// A place in kernel source, taken by default arguments so that reports can name the line that waits.
struct Site {
    const char *file;
    int line;
    static constexpr Site here(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
    friend bool operator==(Site a, Site b) { return a.line == b.line && a.file == b.file; }
};

// xorshift64*: small, and the same on every host (the standard library's distributions are not).
class Rng {
public:
    explicit Rng(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull ^ 0xD1B54A32D192ED03ull) {
        if (state_ == 0) state_ = 1;
        for (int i = 0; i < 4; ++i) next(); // neighbouring seeds part ways
    }
    std::uint32_t next() {
        state_ ^= state_ >> 12;
        state_ ^= state_ << 25;
        state_ ^= state_ >> 27;
        return static_cast<std::uint32_t>((state_ * 0x2545F4914F6CDD1Dull) >> 32);
    }
    std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(std::uint64_t{next()} * n >> 32); }
    bool one_in(std::uint32_t n) { return below(n) == 0; }

private:
    std::uint64_t state_;
};

enum class State : std::uint8_t { Ready, Barrier, Warp, Mbarrier, Done };

// One cp.async: what lands where. `late` ones land at the wait, the others landed when issued.
struct CpAsync {
    unsigned char *dst;
    const unsigned char *src;
    unsigned bytes;     // 4, 8 or 16
    unsigned src_bytes; // the rest is zero-filled
    bool late;
};

struct Block;

struct Thread {
    Fiber fiber;
    Block *block = nullptr;
    Index index{};       // threadIdx
    unsigned linear = 0; // x fastest; warp = linear / 32, lane = linear % 32
    std::uint32_t priority = 0;
    State state = State::Ready;
    bool idle = false;    // last stopped in a poll that brought nothing
    bool neutral = false; // last stopped for no reason of its own
    bool waited = false;  // for the kernels before this one
    // While waiting: for what, and where in the source.
    const char *what = "";
    Site site{};
    unsigned barrier = 0;
    int barrier_result = 0;
    const std::uint64_t *mbarrier = nullptr;
    unsigned parity = 0;
    const void *polled = nullptr; // last address that it loaded atomically, and what it saw
    std::uint64_t polled_bits = 0;
    // Its cp.async groups, oldest first; the last one is open (not committed).
    std::vector<std::vector<CpAsync>> copies{1};
};

// Collectives that some lanes have reached. Several may be open in one warp if their masks share no lane.
struct WarpOp {
    unsigned mask, arrived;
    const char *what;
    Site site;
    void (*perform)(unsigned mask, void *const *lanes);
};

struct Warp {
    std::vector<WarpOp> open;
    void *lanes[kWarpSize] = {}; // each waiting lane's operands, on its own stack
};

struct NamedBarrier {
    unsigned expected = 0, arrived = 0; // threads; expected is set by the first to come
    std::uint32_t lanes[kMaxThreads / kWarpSize] = {};
    Site site[kMaxThreads / kWarpSize] = {};
    std::vector<Thread *> waiting;
    int count = 0; // threads whose predicate holds, for __syncthreads_count and its kin
};

// A copy or arrival that some engine other than the threads performs: cp.async.bulk, cp.async.mbarrier.arrive.
struct InFlight {
    unsigned char *dst = nullptr; // null: no bytes of its own
    const unsigned char *src = nullptr;
    unsigned bytes = 0;
    std::uint64_t *mbarrier = nullptr;
    Thread *issuer = nullptr;
    std::vector<CpAsync> before; // cp.asyncs that must land first
    Site site{};
    bool late = false; // lands only when nothing else can run
};

class Races;

struct Block {
    Index index{}; // blockIdx
    unsigned linear = 0;
    unsigned done = 0; // threads that returned
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    NamedBarrier barriers[kBarriers];
    std::vector<InFlight> in_flight;
    std::vector<unsigned char> shared_storage;
    unsigned char *shared = nullptr; // dynamic shared memory, guard zones around it
    std::size_t shared_bytes = 0;
    std::unique_ptr<Races> races; // null unless the kernel is instrumented
    Stacks stacks;
    Block();
    ~Block();
};

// One launch. `current` is the thread that runs; null in the scheduler.
struct Grid {
    const char *kernel = "";
    Index grid_dim{}, block_dim{};
    unsigned threads = 0; // per block
    Rng rng{0};
    Thread *current = nullptr;
    std::vector<Thread *> ready;
    std::vector<Block *> resident;
    Fiber scheduler;
    void (*body)(const void *params) = nullptr;
    const void *params = nullptr;
    emu_buffer *buffers = nullptr;
    std::uint32_t n_buffers = 0;
    bool pdl = false; // kernels before this one count as running until a thread has waited for them
    bool early = false; // a thread let the next launch begin before it had waited
    unsigned candidates = 1;       // ready threads compared by priority at each pick
    unsigned in_flight = 0;        // in all resident blocks
    std::uint64_t idle_slices = 0; // since something last went forward
    emu_status status = EMU_OK;
    std::string report;
};

// The launch of this OS thread. Valid while a kernel runs.
// Defined here so that the compiler sees that it needs no dynamic initialization: an access is one instruction.
inline thread_local Grid *t_grid = nullptr;

// Called by twins, on the fiber of the current thread ---------------------------------------------

inline Thread &self() { return *t_grid->current; }

// Stops the current thread in `state` until someone makes it ready.
void wait(State state, const char *what, Site site);

// Lets others run. Idle: the thread polls and found what it had found before; Neutral: it is merely interrupted.
enum class Yield { Idle, Neutral };
void yield(Yield kind);

void make_ready(Thread &thread);

// Programmatic dependent launch: from here on the thread may touch what kernels before this one write.
inline void griddep_wait() { self().waited = true; }

// The launch behind this one may begin once every block has come here.
inline void griddep_launch_dependents() {
    if (t_grid->pdl && !self().waited) t_grid->early = true;
}

// Ends the launch with a report that names kernel, block and thread. Only from a thread; does not return.
[[noreturn]] void fail(emu_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

// The same from the scheduler, about `thread` or (null) about no thread. Returns; the launch ends before the next
// slice. The first failure of a launch is kept.
void note_failure(emu_status status, const Block &block, const Thread *thread, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// `bytes` at `p` must lie in this block's shared memory, aligned. Fails otherwise.
void check_shared(const void *p, std::size_t bytes, std::size_t alignment, const char *what, Site site);

// The block's dynamic shared memory; fails if the launch gave less than `bytes`.
void *shared_memory(std::size_t bytes, std::size_t alignment);

} // namespace emu
