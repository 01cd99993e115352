// async.cpp: when copies land, and the state of mbarriers.
#include "async.hpp"

#include <cstring>

#include "memory.hpp"
#include "races.hpp"

namespace emu {
namespace {

constexpr int kPoison = 0xFF;

void land(const CpAsync &copy) {
    std::memcpy(copy.dst, copy.src, copy.src_bytes);
    std::memset(copy.dst + copy.src_bytes, 0, copy.bytes - copy.src_bytes);
}

// After this the group's bytes are ordinary writes of the thread.
void complete(Thread &thread, std::vector<CpAsync> &group) {
    for (const CpAsync &copy : group) {
        if (copy.late) land(copy);
        if (thread.block->races) thread.block->races->copy_end(thread.linear, copy.dst, copy.bytes);
    }
    group.clear();
}

// The state of an mbarrier in the 64 bits that it occupies, so that overwriting or forgetting it has consequences.
// `missing` counts arrivals still to come in this phase, `tx` the bytes announced but not landed (it may be negative in
// between: bytes can land before they are announced).
struct Mbarrier {
    std::uint64_t parity : 1;
    std::uint64_t count : 20;
    std::uint64_t missing : 20;
    std::int64_t tx : 21;
    std::uint64_t mark : 2;
};
static_assert(sizeof(Mbarrier) == 8, "an mbarrier is 64 bits");
constexpr unsigned kMark = 2; // poison reads 3, zeroed memory 0
constexpr unsigned kMaxCount = (1u << 20) - 1;

Mbarrier unpack(std::uint64_t bits) {
    Mbarrier bar;
    std::memcpy(&bar, &bits, sizeof bar);
    return bar;
}

Mbarrier load(const std::uint64_t *p) {
    std::uint64_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return unpack(bits);
}

void store(std::uint64_t *p, const Mbarrier &bar) { std::memcpy(p, &bar, sizeof bar); }

Mbarrier load_checked(const std::uint64_t *p, const char *what, Site site) {
    check_shared(p, 8, 8, what, site);
    const Mbarrier bar = load(p);
    if (bar.mark != kMark)
        fail(EMU_MBARRIER, "%s at %s:%d: the mbarrier is not initialized", what, site.file, site.line);
    return bar;
}

// Applies arrivals and bytes to the current phase; completes it when nothing is missing. Runs on a thread or in the
// scheduler. Returns what is wrong, or null.
const char *advance(Block &block, std::uint64_t *p, unsigned arrivals, long long tx) {
    Mbarrier bar = load(p);
    if (bar.mark != kMark) return "the mbarrier is not initialized";
    if (arrivals > bar.missing) return "more arrivals than the count of the mbarrier";
    const long long sum = bar.tx + tx;
    if (sum >= 1 << 20 || sum <= -(1 << 20)) return "more bytes announced or landed than an mbarrier can count";
    bar.missing -= arrivals;
    bar.tx = sum;
    const bool complete = bar.missing == 0 && bar.tx == 0;
    if (complete) {
        bar.parity ^= 1;
        bar.missing = bar.count;
    }
    store(p, bar);
    if (!complete) return nullptr;
    if (block.races) block.races->mbarrier_complete(p);
    for (Thread &thread : block.threads)
        if (thread.state == State::Mbarrier && thread.mbarrier == p && thread.parity != bar.parity) make_ready(thread);
    return nullptr;
}

void arrive(std::uint64_t *p, unsigned arrivals, unsigned bytes, const char *what, Site site) {
    load_checked(p, what, site);
    Thread &thread = self();
    if (thread.block->races) thread.block->races->mbarrier_arrive(thread.linear, p);
    // One step: a phase must not complete between the announcement and the arrival.
    if (const char *wrong = advance(*thread.block, p, arrivals, bytes))
        fail(EMU_MBARRIER, "%s at %s:%d: %s", what, site.file, site.line, wrong);
}

void start(InFlight op) {
    op.late = t_grid->rng.one_in(2);
    op.issuer = &self();
    self().block->in_flight.push_back(std::move(op));
    ++t_grid->in_flight;
}

void land(Grid &grid, Block &block, std::size_t at) {
    InFlight op = std::move(block.in_flight[at]);
    block.in_flight.erase(block.in_flight.begin() + static_cast<std::ptrdiff_t>(at));
    --grid.in_flight;
    if (!op.before.empty()) complete(*op.issuer, op.before);
    if (op.bytes > 0) {
        std::memcpy(op.dst, op.src, op.bytes);
        if (block.races) block.races->bulk_end(op.dst, op.bytes, op.mbarrier);
    } else if (block.races) {
        block.races->mbarrier_arrive(op.issuer->linear, op.mbarrier);
    }
    const char *wrong = advance(block, op.mbarrier, op.bytes > 0 ? 0 : 1, -static_cast<long long>(op.bytes));
    if (wrong)
        note_failure(EMU_MBARRIER, block, op.issuer, "%s of %s:%d completes: %s",
                     op.bytes > 0 ? "cp.async.bulk" : "cp.async.mbarrier.arrive", op.site.file, op.site.line, wrong);
}

// cp.asyncs that an mbarrier arrival took along must land too when the thread waits for them itself.
void land_before(Thread &thread) {
    for (InFlight &op : thread.block->in_flight)
        if (op.issuer == &thread && !op.before.empty()) complete(thread, op.before);
}

} // namespace

void cp_async(void *dst, const void *src, unsigned bytes, unsigned src_bytes, Site site) {
    check_shared(dst, bytes, bytes, "cp.async", site);
    if (reinterpret_cast<std::uintptr_t>(src) % bytes != 0)
        fail(EMU_BAD_ADDRESS, "cp.async at %s:%d: the source is not %u-byte aligned", site.file, site.line, bytes);
    if (src_bytes > bytes)
        fail(EMU_BAD_ADDRESS, "cp.async at %s:%d: reads %u of %u bytes", site.file, site.line, src_bytes, bytes);
    if (src_bytes > 0) check_buffers(src, src_bytes, false, "cp.async reads", 0);
    Thread &thread = self();
    CpAsync copy{static_cast<unsigned char *>(dst), static_cast<const unsigned char *>(src), bytes, src_bytes,
                 t_grid->rng.one_in(2)};
    if (thread.block->races) thread.block->races->copy_begin(thread.linear, copy.dst, bytes);
    if (copy.late) std::memset(copy.dst, kPoison, bytes);
    else land(copy);
    thread.copies.back().push_back(copy);
}

void cp_async_commit() { self().copies.emplace_back(); }

void cp_async_wait_group(unsigned pending) {
    Thread &thread = self();
    auto &groups = thread.copies;
    const std::size_t committed = groups.size() - 1;
    if (committed <= pending) return;
    land_before(thread);
    const std::size_t done = committed - pending;
    for (std::size_t i = 0; i < done; ++i) complete(thread, groups[i]);
    groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(done));
}

void cp_async_wait_all() {
    Thread &thread = self();
    land_before(thread);
    for (auto &group : thread.copies) complete(thread, group);
    thread.copies.assign(1, {});
}

void cp_async_mbarrier_arrive(std::uint64_t *bar, Site site) {
    load_checked(bar, "cp.async.mbarrier.arrive", site);
    InFlight op;
    op.mbarrier = bar;
    op.site = site;
    for (auto &group : self().copies) {
        op.before.insert(op.before.end(), group.begin(), group.end());
        group.clear();
    }
    start(std::move(op));
}

void mbarrier_init(std::uint64_t *p, unsigned count, Site site) {
    check_shared(p, 8, 8, "mbarrier.init", site);
    if (count == 0 || count > kMaxCount)
        fail(EMU_MBARRIER, "mbarrier.init at %s:%d: count %u", site.file, site.line, count);
    if (load(p).mark == kMark)
        fail(EMU_MBARRIER, "mbarrier.init at %s:%d: already initialized; inval it first", site.file, site.line);
    Mbarrier bar{};
    bar.count = bar.missing = count;
    bar.mark = kMark;
    store(p, bar);
}

void mbarrier_inval(std::uint64_t *p, Site site) {
    load_checked(p, "mbarrier.inval", site);
    std::memset(p, kPoison, 8);
}

void mbarrier_arrive(std::uint64_t *p, unsigned count, Site site) { arrive(p, count, 0, "mbarrier.arrive", site); }

void mbarrier_arrive_expect_tx(std::uint64_t *p, unsigned bytes, Site site) {
    arrive(p, 1, bytes, "mbarrier.arrive.expect_tx", site);
}

bool mbarrier_test_wait(std::uint64_t *p, unsigned parity, Site site) {
    const char *what = "mbarrier.test_wait";
    if (parity > 1) fail(EMU_MBARRIER, "%s at %s:%d: parity %u", what, site.file, site.line, parity);
    Thread &thread = self();
    if (load_checked(p, what, site).parity == parity) {
        thread.what = what;
        thread.site = site;
        yield(Yield::Idle);
        if (load_checked(p, what, site).parity == parity) return false;
    }
    if (thread.block->races) thread.block->races->mbarrier_wait(thread.linear, p);
    return true;
}

void mbarrier_wait(std::uint64_t *p, unsigned parity, Site site) {
    const char *what = "mbarrier.try_wait";
    if (parity > 1) fail(EMU_MBARRIER, "%s at %s:%d: parity %u", what, site.file, site.line, parity);
    Thread &thread = self();
    // A loop, as in the kernel on a device: by the time this thread runs, the next phase may have completed as well,
    // which looks like no phase at all. A kernel that allows that is wrong and shows as a deadlock.
    while (load_checked(p, what, site).parity == parity) {
        thread.mbarrier = p;
        thread.parity = parity;
        wait(State::Mbarrier, what, site);
    }
    if (thread.block->races) thread.block->races->mbarrier_wait(thread.linear, p);
}

void cp_async_bulk(void *dst, const void *src, unsigned bytes, std::uint64_t *bar, Site site) {
    check_shared(dst, bytes, 16, "cp.async.bulk", site);
    load_checked(bar, "cp.async.bulk", site);
    if (reinterpret_cast<std::uintptr_t>(src) % 16 != 0 || bytes % 16 != 0 || bytes == 0)
        fail(EMU_BAD_ADDRESS, "cp.async.bulk at %s:%d: source and size (%u) must be multiples of 16", site.file,
             site.line, bytes);
    check_buffers(src, bytes, false, "cp.async.bulk reads", 0);
    Thread &thread = self();
    if (thread.block->races) thread.block->races->copy_begin(thread.linear, dst, bytes);
    std::memset(dst, kPoison, bytes);
    InFlight op;
    op.dst = static_cast<unsigned char *>(dst);
    op.src = static_cast<const unsigned char *>(src);
    op.bytes = bytes;
    op.mbarrier = bar;
    op.site = site;
    start(std::move(op));
}

void bulk_prefetch(const void *src, unsigned bytes, Site site) {
    if (reinterpret_cast<std::uintptr_t>(src) % 16 != 0 || bytes % 16 != 0)
        fail(EMU_BAD_ADDRESS, "cp.async.bulk.prefetch at %s:%d: source and size (%u) must be multiples of 16",
             site.file, site.line, bytes);
}

bool land_one(Grid &grid, bool late_too) {
    const auto blocks = static_cast<std::uint32_t>(grid.resident.size());
    const std::uint32_t first = grid.rng.below(blocks);
    for (std::uint32_t b = 0; b < blocks; ++b) {
        Block &block = *grid.resident[(first + b) % blocks];
        const auto n = static_cast<std::uint32_t>(block.in_flight.size());
        if (n == 0) continue;
        const std::uint32_t start_at = grid.rng.below(n);
        for (std::uint32_t i = 0; i < n; ++i) {
            const std::size_t at = (start_at + i) % n;
            if (!late_too && block.in_flight[at].late) continue;
            land(grid, block, at);
            return true;
        }
    }
    return false;
}

std::string mbarrier_text(std::uint64_t bits, unsigned parity) {
    const Mbarrier bar = unpack(bits);
    if (bar.mark != kMark) return "the mbarrier is no longer initialized";
    return "for the phase of parity " + std::to_string(parity) + "; " + std::to_string(bar.missing) + " of " +
           std::to_string(bar.count) + " arrivals and " + std::to_string(static_cast<long long>(bar.tx)) +
           " bytes missing";
}

} // namespace emu
