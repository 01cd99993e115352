// scheduler.cpp: starts blocks, picks who runs, notices that nobody can, and writes the reports.
#include "scheduler.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "async.hpp"
#include "races.hpp"

namespace emu {

Block::Block() = default;
Block::~Block() = default;

namespace {

// Poison: all ones is a NaN in f32, f16, bf16 and e4m3, -1 in integers, and an mbarrier nobody initialized.
constexpr int kPoison = 0xFF;
// What the guard zones hold; a value that kernels do not write by accident.
constexpr unsigned char kGuard = 0xA5;
constexpr std::size_t kSharedAlignment = 1024; // what the strictest shared-memory layouts ask for

void thread_entry() {
    Grid &grid = *t_grid;
    fiber_entered(grid.scheduler);
    grid.body(grid.params);
    Thread &thread = self();
    // The launch that follows waits for this one alone, so this one must have waited for those before.
    if (grid.pdl && !thread.waited) fail(EMU_TOO_EARLY, "returned without griddep_wait()");
    // A warp collective that waits for this lane would wait for ever.
    for (const WarpOp &op : thread.block->warps[thread.linear / kWarpSize].open) {
        if (op.mask >> thread.linear % kWarpSize & 1)
            fail(EMU_DIVERGENCE, "returned while lanes 0x%08x of its warp wait for it in %s at %s:%d", op.arrived,
                 op.what, op.site.file, op.site.line);
    }
    thread.state = State::Done;
    thread.fiber.finished = true;
    fiber_switch(thread.fiber, grid.scheduler);
}

void lay_out_shared(Block &block, std::size_t bytes) {
    block.shared_storage.resize(kSharedAlignment + 2 * kGuardBytes + bytes);
    const auto start = reinterpret_cast<std::uintptr_t>(block.shared_storage.data()) + kGuardBytes;
    block.shared =
        reinterpret_cast<unsigned char *>((start + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment);
    block.shared_bytes = bytes;
}

void start_block(Grid &grid, Block &block, unsigned linear) {
    block.linear = linear;
    block.index = {linear % grid.grid_dim.x, linear / grid.grid_dim.x % grid.grid_dim.y,
                   linear / grid.grid_dim.x / grid.grid_dim.y};
    block.done = 0;
    for (NamedBarrier &barrier : block.barriers) barrier = NamedBarrier{};
    for (Warp &warp : block.warps) warp.open.clear();
    block.in_flight.clear();
    std::memset(block.shared - kGuardBytes, kGuard, kGuardBytes);
    std::memset(block.shared, kPoison, block.shared_bytes);
    std::memset(block.shared + block.shared_bytes, kGuard, kGuardBytes);
    if (block.races) block.races->restart(grid.threads, block.shared, block.shared_bytes);

    // Priorities mostly go to warps as a whole: a warp far behind or ahead of the others is what finds missing
    // barriers; single lanes behind find what is wrong within a warp. (With uniform picks all warps keep nearly the
    // same pace, and a missing barrier before an overwrite was found for half of the seeds only.)
    const bool by_warp = !grid.rng.one_in(4);
    std::uint32_t priority = 0;
    for (Thread &thread : block.threads) {
        if (!by_warp || thread.linear % kWarpSize == 0) priority = grid.rng.next();
        thread.priority = priority;
        thread.copies.assign(1, {});
        thread.waited = false;
        thread.polled = nullptr;
        fiber_prepare(thread.fiber, thread_entry);
        make_ready(thread);
    }
}

// Called when all threads of the block returned.
void finish_block(Grid &grid, Block &block) {
    for (const InFlight &op : block.in_flight) {
        if (op.bytes == 0) continue;
        note_failure(EMU_MBARRIER, block, op.issuer, "the block ended while its cp.async.bulk (%s:%d) was in flight",
                     op.site.file, op.site.line);
    }
    grid.in_flight -= static_cast<unsigned>(block.in_flight.size());
    block.in_flight.clear();
    for (std::size_t i = 0; i < kGuardBytes; ++i) {
        const bool below = block.shared[-1 - static_cast<std::ptrdiff_t>(i)] != kGuard;
        if (below || block.shared[block.shared_bytes + i] != kGuard) {
            note_failure(EMU_BAD_ADDRESS, block, nullptr, "a write %zu bytes %s of its %zu bytes of shared memory",
                         i + 1, below ? "before the start" : "past the end", block.shared_bytes);
            return;
        }
    }
}

// Uniform, or mostly by priority among a few candidates, so that some threads stay behind for long, but not for ever.
Thread &take_ready(Grid &grid) {
    auto &ready = grid.ready;
    const unsigned candidates = grid.rng.one_in(8) ? 1 : grid.candidates;
    std::size_t best = grid.rng.below(static_cast<std::uint32_t>(ready.size()));
    for (unsigned i = 1; i < candidates; ++i) {
        const std::size_t other = grid.rng.below(static_cast<std::uint32_t>(ready.size()));
        if (ready[other]->priority > ready[best]->priority) best = other;
    }
    Thread &thread = *ready[best];
    ready[best] = ready.back();
    ready.pop_back();
    return thread;
}

std::string ranges(const std::vector<unsigned> &threads) {
    std::string text;
    for (std::size_t i = 0; i < threads.size();) {
        std::size_t j = i;
        while (j + 1 < threads.size() && threads[j + 1] == threads[j] + 1) ++j;
        text += (text.empty() ? "" : ",") + std::to_string(threads[i]);
        if (j > i) text += "-" + std::to_string(threads[j]);
        i = j + 1;
    }
    return text;
}

// Who waits where, threads at the same place together.
std::string waiting_text(const Block &block) {
    std::string text;
    std::vector<bool> told(block.threads.size(), false);
    for (std::size_t i = 0; i < block.threads.size(); ++i) {
        if (told[i]) continue;
        const Thread &first = block.threads[i];
        std::vector<unsigned> group;
        for (std::size_t j = i; j < block.threads.size(); ++j) {
            const Thread &other = block.threads[j];
            const bool done = first.state == State::Done;
            if (told[j] || other.state != first.state || (!done && !(other.site == first.site)) ||
                (!done && other.barrier != first.barrier))
                continue;
            told[j] = true;
            group.push_back(other.linear);
        }
        text += "\n  threads " + ranges(group) + ": ";
        switch (first.state) {
        case State::Done: text += "returned"; continue;
        case State::Ready: text += first.idle ? "poll in " : "stopped after "; break;
        case State::Barrier: text += "wait at "; break;
        case State::Warp: text += "wait for their warp in "; break;
        case State::Mbarrier: text += "wait in "; break;
        }
        text += first.what;
        if (first.state == State::Barrier) {
            const NamedBarrier &barrier = block.barriers[first.barrier];
            text += " " + std::to_string(first.barrier) + " (" + std::to_string(barrier.arrived) + " of " +
                    std::to_string(barrier.expected) + " threads came)";
        }
        text += " at " + std::string(first.site.file) + ":" + std::to_string(first.site.line);
        if (first.state == State::Mbarrier) text += ", " + mbarrier_text(*first.mbarrier, first.parity);
    }
    return text;
}

void note_deadlock(Grid &grid, const char *how) {
    for (const Block *block : grid.resident) {
        if (block->done == grid.threads) continue;
        note_failure(EMU_DEADLOCK, *block, nullptr, "%s%s", how, waiting_text(*block).c_str());
        return;
    }
}

void vnote(emu_status status, const Block &block, const Thread *thread, const char *format, va_list args) {
    Grid &grid = *t_grid;
    if (grid.status != EMU_OK) return;
    grid.status = status;
    char where[200];
    int n = std::snprintf(where, sizeof where, "kernel %s, block (%u,%u,%u)", grid.kernel, block.index.x, block.index.y,
                          block.index.z);
    if (thread) {
        std::snprintf(where + n, sizeof where - static_cast<std::size_t>(n), ", thread (%u,%u,%u) = warp %u lane %u",
                      thread->index.x, thread->index.y, thread->index.z, thread->linear / kWarpSize,
                      thread->linear % kWarpSize);
    }
    va_list again;
    va_copy(again, args);
    const int length = std::vsnprintf(nullptr, 0, format, again);
    va_end(again);
    std::string text(static_cast<std::size_t>(length) + 1, '\0');
    std::vsnprintf(&text[0], text.size(), format, args);
    text.pop_back();
    grid.report = std::string(where) + ": " + text;
}

} // namespace

void fail(emu_status status, const char *format, ...) {
    Thread &thread = self();
    va_list args;
    va_start(args, format);
    vnote(status, *thread.block, &thread, format, args);
    va_end(args);
    // The fiber is left as it stands: kernels hold nothing that would need unwinding.
    fiber_switch(thread.fiber, t_grid->scheduler);
    __builtin_unreachable();
}

void note_failure(emu_status status, const Block &block, const Thread *thread, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vnote(status, block, thread, format, args);
    va_end(args);
}

void wait(State state, const char *what, Site site) {
    Thread &thread = self();
    thread.state = state;
    thread.what = what;
    thread.site = site;
    fiber_switch(thread.fiber, t_grid->scheduler);
}

void yield(Yield kind) {
    Thread &thread = self();
    thread.idle = kind == Yield::Idle;
    thread.neutral = kind == Yield::Neutral;
    if (thread.idle) thread.priority /= 2; // whom it polls for should get to run
    make_ready(thread);
    fiber_switch(thread.fiber, t_grid->scheduler);
}

void make_ready(Thread &thread) {
    thread.state = State::Ready;
    t_grid->ready.push_back(&thread);
}

void check_shared(const void *p, std::size_t bytes, std::size_t alignment, const char *what, Site site) {
    const Block &block = *self().block;
    const auto address = reinterpret_cast<std::uintptr_t>(p), base = reinterpret_cast<std::uintptr_t>(block.shared);
    const long long offset = static_cast<long long>(address - base);
    if (address < base || address + bytes > base + block.shared_bytes)
        fail(EMU_BAD_ADDRESS, "%s at %s:%d: offset %lld, %zu bytes, is outside the %zu bytes of shared memory", what,
             site.file, site.line, offset, bytes, block.shared_bytes);
    if (address % alignment != 0)
        fail(EMU_BAD_ADDRESS, "%s at %s:%d: shared memory offset %lld is not %zu-byte aligned", what, site.file,
             site.line, offset, alignment);
}

void *shared_memory(std::size_t bytes, std::size_t alignment) {
    const Block &block = *self().block;
    if (bytes > block.shared_bytes)
        fail(EMU_BAD_ADDRESS, "its Smem has %zu bytes, the launch gives %zu bytes of shared memory", bytes,
             block.shared_bytes);
    if (alignment > kSharedAlignment) fail(EMU_BAD_ADDRESS, "its Smem asks for alignment %zu", alignment);
    return block.shared;
}

bool prepare_block(Grid &grid, Block &block, std::size_t shared_bytes) {
    if (!block.stacks.reserve(grid.threads)) return false;
    block.threads.resize(grid.threads);
    block.warps.resize(grid.threads / kWarpSize);
    const Index dim = grid.block_dim;
    for (unsigned i = 0; i < grid.threads; ++i) {
        Thread &thread = block.threads[i];
        thread.block = &block;
        thread.linear = i;
        thread.index = {i % dim.x, i / dim.x % dim.y, i / dim.x / dim.y};
        block.stacks.assign(i, thread.fiber);
    }
    lay_out_shared(block, shared_bytes);
    if (!races_instrumented()) block.races.reset();
    else if (!block.races) block.races = std::make_unique<Races>();
    return true;
}

void run_grid(Grid &grid) {
    std::vector<unsigned> order(grid.grid_dim.x * grid.grid_dim.y * grid.grid_dim.z);
    for (unsigned i = 0; i < order.size(); ++i) order[i] = i;
    for (std::size_t i = order.size(); i > 1; --i)
        std::swap(order[i - 1], order[grid.rng.below(static_cast<std::uint32_t>(i))]);

    std::size_t next = 0, live = 0;
    for (Block *block : grid.resident) {
        start_block(grid, *block, order[next++]);
        ++live;
    }
    while (live > 0 && grid.status == EMU_OK) {
        // Early copies land at some moment of their own; late ones only when nobody else can act.
        if (grid.in_flight > 0 && grid.rng.one_in(8)) land_one(grid, false);
        const bool stuck = grid.ready.empty() || grid.idle_slices > 4 * grid.ready.size();
        if (stuck && grid.in_flight > 0 && land_one(grid, true)) {
            grid.idle_slices = 0;
            continue;
        }
        if (grid.ready.empty()) {
            note_deadlock(grid, "deadlock, nobody can go on:");
            break;
        }
        if (grid.idle_slices > 64 * grid.ready.size() + 4096) {
            note_deadlock(grid, "livelock, whoever can run polls for something that does not come:");
            break;
        }
        Thread &thread = take_ready(grid);
        thread.idle = thread.neutral = false;
        grid.current = &thread;
        fiber_switch(grid.scheduler, thread.fiber);
        grid.current = nullptr;
        if (fiber_stack_left(thread.fiber) < kStackReserve)
            note_failure(EMU_TRAP, *thread.block, &thread, "has %td bytes of its stack left: too many local variables",
                         fiber_stack_left(thread.fiber));
        if (thread.idle) ++grid.idle_slices;
        else if (!thread.neutral) grid.idle_slices = 0;
        if (grid.status == EMU_OK && thread.state == State::Done && ++thread.block->done == grid.threads) {
            finish_block(grid, *thread.block);
            if (next < order.size()) start_block(grid, *thread.block, order[next++]);
            else --live;
        }
    }
}

} // namespace emu
