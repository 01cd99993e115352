// async.hpp: copies that complete later (cp.async, cp.async.bulk) and the mbarriers that tell when.
//
// On a GPU such a copy lands at some moment between its issue and the wait that covers it. Here each copy draws from
// the seed whether it lands early (at once, over data that a slow warp may still be reading) or late (when waited for,
// or when nobody else can run). Its destination is poisoned when it is issued. So a missing wait reads poison, and a
// missing barrier before the issue destroys what others still read.
#pragma once
#include <string>

#include "grid.hpp"

namespace emu {

// cp.async of 4, 8 or 16 bytes, of which `src_bytes` are read and the rest zero.
void cp_async(void *dst, const void *src, unsigned bytes, unsigned src_bytes, Site site);
void cp_async_commit();
// Waits until at most `pending` of the newest committed groups are not complete.
void cp_async_wait_group(unsigned pending);
// Waits for everything that the thread issued, committed or not.
void cp_async_wait_all();

// mbarrier: a 64-bit object in shared memory, opaque to kernels.
void mbarrier_init(std::uint64_t *bar, unsigned count, Site site);
void mbarrier_inval(std::uint64_t *bar, Site site);
void mbarrier_arrive(std::uint64_t *bar, unsigned count, Site site);
void mbarrier_arrive_expect_tx(std::uint64_t *bar, unsigned bytes, Site site);
// Arrives once all cp.asyncs that this thread issued before have landed (the .noinc form).
void cp_async_mbarrier_arrive(std::uint64_t *bar, Site site);
// True once the phase of this parity is complete; test does not block.
bool mbarrier_test_wait(std::uint64_t *bar, unsigned parity, Site site);
void mbarrier_wait(std::uint64_t *bar, unsigned parity, Site site);

// cp.async.bulk, global to shared memory; completes `bytes` on the mbarrier.
void cp_async_bulk(void *dst, const void *src, unsigned bytes, std::uint64_t *bar, Site site);
// Checks the operands of a bulk prefetch, which does nothing else.
void bulk_prefetch(const void *src, unsigned bytes, Site site);

// Lands one copy in flight in a random resident block: an early one, or any when `late_too`. False: there was none.
bool land_one(Grid &grid, bool late_too);

// "phase parity 0 wanted; 1 arrivals and 128 bytes missing", for reports.
std::string mbarrier_text(std::uint64_t bits, unsigned parity);

} // namespace emu
