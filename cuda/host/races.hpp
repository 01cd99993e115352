// races.hpp: finds accesses to shared memory that nothing orders, whatever order the seed chose this time.
//
// Kernels compiled with -fsanitize=thread call __tsan_read4 and its kin before each memory access. The sanitizer's
// runtime is not linked; races.cpp answers these calls. Why not ThreadSanitizer itself: it knows neither that a shuffle
// orders nothing while __syncwarp does, nor that a cp.async writes later, nor kernel, block and thread; it takes over
// the process; and the calls also tell of misaligned accesses, which a GPU refuses and a host forgives.
//
// Method: vector clocks, as in FastTrack (Flanagan and Freund, PLDI 2009). clock(t)[u] is the last moment of u that t
// has synchronized with; an access is ordered after an earlier one by u at moment c if clock(t)[u] >= c. Only one
// block's shared memory is watched, so clocks have one entry per thread of the block, and one for the bulk-copy engine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "grid.hpp"

namespace emu {

// True if any loaded code was compiled with the hooks.
bool races_instrumented();

class Races {
public:
    void restart(unsigned threads, const unsigned char *shared, std::size_t bytes);

    // Plain and atomic accesses; those outside shared memory are ignored. `pc`: where in the code, 0 if in a twin.
    enum class Kind : std::uint8_t { None, Read, Write, Atomic, Copy };
    void access(unsigned thread, Kind kind, const void *p, std::size_t bytes, std::uintptr_t pc);

    // cp.async and cp.async.bulk: bytes belong to the copy from begin to end.
    void copy_begin(unsigned thread, const void *dst, std::size_t bytes);
    void copy_end(unsigned thread, const void *dst, std::size_t bytes);
    void bulk_end(const void *dst, std::size_t bytes, const std::uint64_t *mbarrier);

    // What orders.
    void barrier_arrive(unsigned id, unsigned thread);
    void barrier_open(unsigned id, const std::vector<Thread *> &waiting);
    void sync_warp(unsigned warp, unsigned mask);
    void mbarrier_arrive(unsigned thread, const std::uint64_t *mbarrier);
    void mbarrier_complete(const std::uint64_t *mbarrier);
    void mbarrier_wait(unsigned thread, const std::uint64_t *mbarrier);
    void fence(unsigned thread);
    void atomic(unsigned thread, const void *p, std::size_t bytes, bool acquire, bool release);

private:
    using Clock = std::vector<std::uint32_t>;
    // An access on record: who, when, which of the granule's four bytes.
    struct Cell {
        std::uintptr_t pc;
        std::uint32_t moment;
        std::uint16_t thread;
        std::uint8_t mask;
        Kind kind;
    };
    // Four bytes of shared memory. Several readers must be remembered, since a later write must follow all of them;
    // more than fit push out one another, which loses reports on some seeds, never invents one.
    static constexpr unsigned kCells = 8;
    struct Granule {
        std::uint32_t generation = 0; // of the block that wrote the cells; others are void
        Cell cells[kCells];
    };
    struct Phase {
        Clock arrived, completed;
    };

    void record(const Cell &cell, Granule &granule, const void *address);
    template <class F> void each_granule(const void *p, std::size_t bytes, F f);
    void join(Clock &into, const Clock &from);
    void advance(unsigned thread) { ++clocks_[thread][thread]; }

    unsigned threads_ = 0;
    const unsigned char *shared_ = nullptr;
    std::size_t bytes_ = 0;
    std::uint32_t generation_ = 0;
    std::vector<Clock> clocks_;
    std::vector<Granule> granules_;
    Clock barriers_[kBarriers];
    std::unordered_map<const void *, Phase> phases_;
    std::unordered_map<const void *, Clock> atomics_; // what was released to an atomic variable
    std::vector<Clock> fenced_, seen_;                // per thread: clock at its last fence; read but not yet fenced
};

} // namespace emu
