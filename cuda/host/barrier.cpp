// barrier.cpp: block barriers. Stricter than the hardware where PTX leaves things undefined: the forms that kernels use
// are .aligned, so a warp must come whole and from one place.
#include "barrier.hpp"

#include "races.hpp"

namespace emu {
namespace {

void open(Block &block, unsigned id) {
    NamedBarrier &barrier = block.barriers[id];
    // Warps that came in part: the others of the warp are elsewhere, which an .aligned barrier does not allow.
    for (unsigned warp = 0; warp < block.warps.size(); ++warp) {
        if (barrier.lanes[warp] != 0 && barrier.lanes[warp] != ~0u)
            fail(EMU_DIVERGENCE,
                 "barrier %u opens with lanes 0x%08x of warp %u only (at %s:%d); a warp must come whole", id,
                 barrier.lanes[warp], warp, barrier.site[warp].file, barrier.site[warp].line);
    }
    if (block.races) block.races->barrier_open(id, barrier.waiting);
    for (Thread *thread : barrier.waiting) {
        thread->barrier_result = barrier.count;
        if (thread != &self()) make_ready(*thread);
    }
    barrier = NamedBarrier{};
}

} // namespace

int barrier(unsigned id, unsigned count, Arrival arrival, bool predicate, const char *what, Site site) {
    Thread &thread = self();
    Block &block = *thread.block;
    if (id >= kBarriers) fail(EMU_DIVERGENCE, "%s at %s:%d: barrier %u, there are 16", what, site.file, site.line, id);
    if (count == 0 || count % kWarpSize != 0 || count > t_grid->threads)
        fail(EMU_DIVERGENCE, "%s at %s:%d: %u threads are no whole number of warps of this block of %u", what,
             site.file, site.line, count, t_grid->threads);

    NamedBarrier &barrier = block.barriers[id];
    const unsigned warp = thread.linear / kWarpSize, lane = thread.linear % kWarpSize;
    if (barrier.arrived == 0) barrier.expected = count;
    if (barrier.expected != count)
        fail(EMU_DIVERGENCE, "%s %u at %s:%d expects %u threads, those who came before expect %u", what, id, site.file,
             site.line, count, barrier.expected);
    if (barrier.lanes[warp] == 0) barrier.site[warp] = site;
    if (!(barrier.site[warp] == site))
        fail(EMU_DIVERGENCE, "%s %u at %s:%d, but other lanes of the warp came to it at %s:%d", what, id, site.file,
             site.line, barrier.site[warp].file, barrier.site[warp].line);
    if (barrier.lanes[warp] >> lane & 1)
        fail(EMU_DIVERGENCE, "%s %u at %s:%d: arrives a second time before the barrier opened", what, id, site.file,
             site.line);

    barrier.lanes[warp] |= 1u << lane;
    barrier.count += predicate;
    thread.barrier = id;
    if (arrival == Arrival::Sync) barrier.waiting.push_back(&thread);
    if (block.races) block.races->barrier_arrive(id, thread.linear);
    const bool last = ++barrier.arrived == count;
    if (last) open(block, id);
    if (arrival == Arrival::Arrive) return 0;
    // The last one queues too: that it runs on first is as much chance as anything else.
    if (last) make_ready(thread);
    wait(last ? State::Ready : State::Barrier, what, site);
    return thread.barrier_result;
}

} // namespace emu
