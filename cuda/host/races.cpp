// races.cpp: vector clocks over one block's shared memory, and the entry points that instrumented kernels call.
#include "races.hpp"

#include <algorithm>

#include "memory.hpp"

namespace emu {
namespace {

bool g_instrumented = false; // set by constructors of instrumented code, before main

const char *name(Races::Kind kind) {
    switch (kind) {
    case Races::Kind::Read: return "reads";
    case Races::Kind::Write: return "writes";
    case Races::Kind::Atomic: return "atomically updates";
    default: return "copies asynchronously to";
    }
}

} // namespace

bool races_instrumented() { return g_instrumented; }

void Races::restart(unsigned threads, const unsigned char *shared, std::size_t bytes) {
    threads_ = threads;
    shared_ = shared;
    bytes_ = bytes;
    ++generation_;
    granules_.resize(std::max(granules_.size(), (bytes + 3) / 4));
    clocks_.resize(threads + 1);
    for (unsigned t = 0; t <= threads; ++t) {
        clocks_[t].assign(threads + 1, 0);
        clocks_[t][t] = 1;
    }
    for (Clock &clock : barriers_) clock.clear();
    phases_.clear();
    atomics_.clear();
    fenced_.assign(threads, {});
    seen_.assign(threads, {});
}

void Races::join(Clock &into, const Clock &from) {
    if (from.empty()) return;
    if (into.empty()) into.assign(threads_ + 1, 0);
    for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

template <class F> void Races::each_granule(const void *p, std::size_t bytes, F f) {
    const auto *byte = static_cast<const unsigned char *>(p);
    if (byte < shared_ || byte + bytes > shared_ + bytes_) return;
    const std::size_t first = static_cast<std::size_t>(byte - shared_), end = first + bytes;
    for (std::size_t g = first / 4; g * 4 < end; ++g) {
        const std::size_t from = std::max(first, 4 * g) - 4 * g, to = std::min(end, 4 * g + 4) - 4 * g;
        const auto mask = static_cast<std::uint8_t>(((1u << to) - 1) & ~((1u << from) - 1));
        Granule &granule = granules_[g];
        if (granule.generation != generation_) {
            granule.generation = generation_;
            for (Cell &cell : granule.cells) cell.kind = Kind::None;
        }
        f(granule, mask, shared_ + 4 * g + from);
    }
}

void Races::record(const Cell &now, Granule &granule, const void *address) {
    const Clock &clock = clocks_[now.thread];
    Cell *place_for = nullptr;
    for (Cell &old : granule.cells) {
        if (old.kind == Kind::None) {
            if (!place_for) place_for = &old;
            continue;
        }
        const bool ordered = old.kind != Kind::Copy && (old.thread == now.thread || clock[old.thread] >= old.moment);
        const bool harmless = (old.kind == Kind::Read && now.kind == Kind::Read) ||
                              (old.kind == Kind::Atomic && now.kind == Kind::Atomic) || !(old.mask & now.mask);
        if (!ordered && !harmless) {
            const std::size_t offset = static_cast<std::size_t>(static_cast<const unsigned char *>(address) - shared_);
            const char *by = old.thread == threads_ ? "the copy engine" : "thread";
            const std::string who = old.thread == threads_ ? by : by + (" " + std::to_string(old.thread));
            fail(EMU_RACE, "%s shared memory offset %zu%s, which %s %s%s; nothing orders the two%s", name(now.kind),
                 offset, place_in_code(now.pc).c_str(), who.c_str(), name(old.kind), place_in_code(old.pc).c_str(),
                 old.kind == Kind::Copy ? " (no wait for the copy)" : "");
        }
        // An ordered access to the same bytes says no more than the new one; so does an earlier one of the same thread.
        if (ordered && (old.mask & ~now.mask) == 0 && (now.kind != Kind::Read || old.kind == Kind::Read)) {
            if (!place_for || place_for->kind == Kind::None) place_for = &old;
            else old.kind = Kind::None;
        }
    }
    if (!place_for) place_for = &granule.cells[t_grid->rng.below(kCells)];
    *place_for = now;
}

void Races::access(unsigned thread, Kind kind, const void *p, std::size_t bytes, std::uintptr_t pc) {
    each_granule(p, bytes, [&](Granule &granule, std::uint8_t mask, const void *address) {
        record({pc, clocks_[thread][thread], static_cast<std::uint16_t>(thread), mask, kind}, granule, address);
    });
}

void Races::copy_begin(unsigned thread, const void *dst, std::size_t bytes) {
    access(thread, Kind::Copy, dst, bytes, 0);
}

void Races::copy_end(unsigned thread, const void *dst, std::size_t bytes) {
    each_granule(dst, bytes, [&](Granule &granule, std::uint8_t mask, const void *) {
        for (Cell &cell : granule.cells) {
            if (cell.kind == Kind::Copy && (cell.mask & mask)) {
                cell.kind = Kind::Write;
                cell.thread = static_cast<std::uint16_t>(thread);
                cell.moment = clocks_[thread][thread];
            }
        }
    });
}

void Races::bulk_end(const void *dst, std::size_t bytes, const std::uint64_t *mbarrier) {
    Clock engine(threads_ + 1, 0);
    engine[threads_] = clocks_[threads_][threads_];
    copy_end(threads_, dst, bytes);
    join(phases_[mbarrier].arrived, engine);
    advance(threads_);
}

void Races::barrier_arrive(unsigned id, unsigned thread) {
    join(barriers_[id], clocks_[thread]);
    advance(thread);
}

void Races::barrier_open(unsigned id, const std::vector<Thread *> &waiting) {
    for (const Thread *thread : waiting) join(clocks_[thread->linear], barriers_[id]);
    barriers_[id].clear();
}

void Races::sync_warp(unsigned warp, unsigned mask) {
    Clock together;
    for (unsigned lane = 0; lane < kWarpSize; ++lane)
        if (mask >> lane & 1) join(together, clocks_[warp * kWarpSize + lane]);
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
        if (!(mask >> lane & 1)) continue;
        join(clocks_[warp * kWarpSize + lane], together);
        advance(warp * kWarpSize + lane);
    }
}

void Races::mbarrier_arrive(unsigned thread, const std::uint64_t *mbarrier) {
    join(phases_[mbarrier].arrived, clocks_[thread]);
    advance(thread);
}

void Races::mbarrier_complete(const std::uint64_t *mbarrier) {
    Phase &phase = phases_[mbarrier];
    phase.completed = phase.arrived;
}

void Races::mbarrier_wait(unsigned thread, const std::uint64_t *mbarrier) {
    join(clocks_[thread], phases_[mbarrier].completed);
}

void Races::fence(unsigned thread) {
    join(clocks_[thread], seen_[thread]);
    seen_[thread].clear();
    fenced_[thread] = clocks_[thread];
    advance(thread);
}

void Races::atomic(unsigned thread, const void *p, std::size_t bytes, bool acquire, bool release) {
    access(thread, Kind::Atomic, p, bytes, 0);
    Clock &variable = atomics_[p];
    // Relaxed operations order only together with fences: what was fenced before, what will be fenced after.
    join(acquire ? clocks_[thread] : seen_[thread], variable);
    join(variable, release ? clocks_[thread] : fenced_[thread]);
    if (release) advance(thread);
}

namespace {

// Misalignment is checked for all memory, since the GPU faults on it anywhere; bounds for shared memory, whose guard
// zones tell when an access falls beside it.
void hook(Races::Kind kind, const void *p, std::size_t bytes, bool aligned, std::uintptr_t pc) {
    if (!t_grid || !t_grid->current) return;
    Thread &thread = self();
    if (aligned && reinterpret_cast<std::uintptr_t>(p) % bytes != 0)
        fail(EMU_BAD_ADDRESS, "%s %zu bytes at address %p, which is misaligned%s", name(kind), bytes, p,
             place_in_code(pc).c_str());
    const Block &block = *thread.block;
    const auto *byte = static_cast<const unsigned char *>(p);
    const unsigned char *begin = block.shared, *end = begin + block.shared_bytes;
    if (byte + bytes <= begin - kGuardBytes || byte >= end + kGuardBytes) {
        if (t_grid->n_buffers > 0) check_buffers(p, bytes, kind != Races::Kind::Read, name(kind), pc);
        return;
    }
    if (byte < begin || byte + bytes > end)
        fail(EMU_BAD_ADDRESS, "%s %zu bytes at offset %td, outside its %zu bytes of shared memory%s", name(kind), bytes,
             byte - begin, block.shared_bytes, place_in_code(pc).c_str());
    if (block.races) block.races->access(thread.linear, kind, p, bytes, pc);
}

} // namespace
} // namespace emu

// The calls that g++ and clang++ emit under -fsanitize=thread.
#define EMU_PC reinterpret_cast<std::uintptr_t>(__builtin_return_address(0))
#define EMU_HOOKS(bytes)                                                                                               \
    void __tsan_read##bytes(void *p) { emu::hook(emu::Races::Kind::Read, p, bytes, true, EMU_PC); }                    \
    void __tsan_write##bytes(void *p) { emu::hook(emu::Races::Kind::Write, p, bytes, true, EMU_PC); }                  \
    void __tsan_unaligned_read##bytes(void *p) { emu::hook(emu::Races::Kind::Read, p, bytes, false, EMU_PC); }         \
    void __tsan_unaligned_write##bytes(void *p) { emu::hook(emu::Races::Kind::Write, p, bytes, false, EMU_PC); }       \
    void __tsan_read_write##bytes(void *p) { emu::hook(emu::Races::Kind::Write, p, bytes, true, EMU_PC); }             \
    void __tsan_unaligned_read_write##bytes(void *p) { emu::hook(emu::Races::Kind::Write, p, bytes, false, EMU_PC); }

extern "C" {
EMU_HOOKS(1)
EMU_HOOKS(2)
EMU_HOOKS(4)
EMU_HOOKS(8)
EMU_HOOKS(16)
void __tsan_init() { emu::g_instrumented = true; }
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_read_range(void *p, unsigned long n) { emu::hook(emu::Races::Kind::Read, p, n, false, EMU_PC); }
void __tsan_write_range(void *p, unsigned long n) { emu::hook(emu::Races::Kind::Write, p, n, false, EMU_PC); }
// clang calls these in place of the library's.
void *__tsan_memcpy(void *d, const void *s, unsigned long n) {
    emu::hook(emu::Races::Kind::Read, s, n, false, EMU_PC);
    emu::hook(emu::Races::Kind::Write, d, n, false, EMU_PC);
    return __builtin_memcpy(d, s, n);
}
void *__tsan_memmove(void *d, const void *s, unsigned long n) {
    emu::hook(emu::Races::Kind::Read, s, n, false, EMU_PC);
    emu::hook(emu::Races::Kind::Write, d, n, false, EMU_PC);
    return __builtin_memmove(d, s, n);
}
void *__tsan_memset(void *d, int value, unsigned long n) {
    emu::hook(emu::Races::Kind::Write, d, n, false, EMU_PC);
    return __builtin_memset(d, value, n);
}
}
