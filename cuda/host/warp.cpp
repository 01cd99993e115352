// warp.cpp: the meeting of lanes, and the collectives that move or combine one word per lane.
#include "warp.hpp"

#include <algorithm>

#include "races.hpp"

namespace emu {

void warp_collective(unsigned mask, const char *what, Site site, void *operands,
                     void (*perform)(unsigned mask, void *const *lanes)) {
    Thread &thread = self();
    Block &block = *thread.block;
    const unsigned warp_index = thread.linear / kWarpSize, lane = thread.linear % kWarpSize;
    Warp &warp = block.warps[warp_index];
    if (!(mask >> lane & 1))
        fail(EMU_DIVERGENCE, "%s at %s:%d: lane %u is not in its mask 0x%08x", what, site.file, site.line, lane, mask);
    for (unsigned other = 0; other < kWarpSize; ++other) {
        if ((mask >> other & 1) && block.threads[warp_index * kWarpSize + other].state == State::Done)
            fail(EMU_DIVERGENCE, "%s at %s:%d: mask 0x%08x names lane %u, which has returned", what, site.file,
                 site.line, mask, other);
    }
    // Names are compared as text: each translation unit has its own copy of a literal.
    std::size_t at = 0;
    while (at < warp.open.size() && (warp.open[at].mask != mask || std::strcmp(warp.open[at].what, what) != 0)) ++at;
    if (at == warp.open.size()) warp.open.push_back({mask, 0, what, site, perform});
    WarpOp &op = warp.open[at];
    // Some lanes may still be in an operation of fewer lanes; but two operations must not wait for each other's lanes.
    for (const WarpOp &other : warp.open) {
        if (&other != &op && (other.arrived & mask) && (other.mask & (op.arrived | 1u << lane)))
            fail(EMU_DIVERGENCE,
                 "%s at %s:%d with mask 0x%08x, but lanes 0x%08x of the warp are in %s at %s:%d with mask 0x%08x", what,
                 site.file, site.line, mask, other.arrived, other.what, other.site.file, other.site.line, other.mask);
    }

    warp.lanes[lane] = operands;
    op.arrived |= 1u << lane;
    if (op.arrived != mask) {
        wait(State::Warp, what, site);
        return;
    }
    warp.open.erase(warp.open.begin() + static_cast<std::ptrdiff_t>(at));
    perform(mask, warp.lanes);
    for (unsigned other = 0; other < kWarpSize; ++other)
        if (mask >> other & 1) make_ready(block.threads[warp_index * kWarpSize + other]);
    wait(State::Ready, what, site);
}

namespace {

struct Nothing {};

void perform_sync(unsigned mask, Nothing *const *) {
    Thread &thread = self();
    if (thread.block->races) thread.block->races->sync_warp(thread.linear / kWarpSize, mask);
}

struct ShuffleLane {
    std::uint64_t value;
    unsigned source;
    std::uint64_t result;
};

void perform_shuffle(unsigned mask, ShuffleLane *const *lanes) {
    for (unsigned i = 0; i < kWarpSize; ++i) {
        if (!(mask >> i & 1)) continue;
        const unsigned source = lanes[i]->source;
        // Reading a lane outside the mask gives an undefined value; poison makes its use visible.
        lanes[i]->result = mask >> source & 1 ? lanes[source]->value : ~std::uint64_t{0};
    }
}

struct VoteLane {
    std::uint64_t value;
    unsigned result;
};

void perform_ballot(unsigned mask, VoteLane *const *lanes) {
    unsigned votes = 0;
    for (unsigned i = 0; i < kWarpSize; ++i)
        if (mask >> i & 1) votes |= static_cast<unsigned>(lanes[i]->value) << i;
    for (unsigned i = 0; i < kWarpSize; ++i)
        if (mask >> i & 1) lanes[i]->result = votes;
}

void perform_match(unsigned mask, VoteLane *const *lanes) {
    for (unsigned i = 0; i < kWarpSize; ++i) {
        if (!(mask >> i & 1)) continue;
        lanes[i]->result = 0;
        for (unsigned j = 0; j < kWarpSize; ++j)
            if ((mask >> j & 1) && lanes[j]->value == lanes[i]->value) lanes[i]->result |= 1u << j;
    }
}

struct ReduceLane {
    std::uint32_t value;
    Reduce kind;
    bool is_signed;
    std::uint32_t result;
};

void perform_reduce(unsigned mask, ReduceLane *const *lanes) {
    bool first = true;
    std::uint32_t total = 0;
    for (unsigned i = 0; i < kWarpSize; ++i) {
        if (!(mask >> i & 1)) continue;
        const std::uint32_t v = lanes[i]->value;
        const bool less =
            lanes[i]->is_signed ? static_cast<std::int32_t>(v) < static_cast<std::int32_t>(total) : v < total;
        if (first) total = v;
        else switch (lanes[i]->kind) {
            case Reduce::Add: total += v; break;
            case Reduce::Min: total = less ? v : total; break;
            case Reduce::Max: total = less ? total : v; break;
            case Reduce::And: total &= v; break;
            case Reduce::Or: total |= v; break;
            case Reduce::Xor: total ^= v; break;
            }
        first = false;
    }
    for (unsigned i = 0; i < kWarpSize; ++i)
        if (mask >> i & 1) lanes[i]->result = total;
}

} // namespace

void sync_warp(unsigned mask, Site site) {
    Nothing nothing;
    collective<Nothing, perform_sync>(mask, "__syncwarp", site, nothing);
}

std::uint64_t shuffle(unsigned mask, std::uint64_t value, Shuffle kind, int operand, int width, const char *what,
                      Site site) {
    if (width <= 0 || width > 32 || (width & (width - 1)))
        fail(EMU_DIVERGENCE, "%s at %s:%d: width %d is no power of two up to 32", what, site.file, site.line, width);
    const int lane = static_cast<int>(self().linear % kWarpSize), first = lane / width * width, at = lane - first;
    operand &= 31;     // as the instruction does
    int source = lane; // out of the segment: the lane's own value
    switch (kind) {
    case Shuffle::Index: source = first + (operand & (width - 1)); break;
    case Shuffle::Up: source = operand <= at ? lane - operand : lane; break;
    case Shuffle::Down: source = operand < width - at ? lane + operand : lane; break;
    // PTX lets xor reach lower segments, but not higher ones.
    case Shuffle::Xor: source = (lane ^ operand) < first + width ? lane ^ operand : lane; break;
    }
    ShuffleLane operands{value, static_cast<unsigned>(source) & 31, 0};
    collective<ShuffleLane, perform_shuffle>(mask, what, site, operands);
    return operands.result;
}

unsigned ballot(unsigned mask, bool predicate, const char *what, Site site) {
    VoteLane operands{predicate, 0};
    collective<VoteLane, perform_ballot>(mask, what, site, operands);
    return operands.result;
}

unsigned match_any(unsigned mask, std::uint64_t value, Site site) {
    VoteLane operands{value, 0};
    collective<VoteLane, perform_match>(mask, "__match_any_sync", site, operands);
    return operands.result;
}

unsigned match_all(unsigned mask, std::uint64_t value, int *predicate, Site site) {
    VoteLane operands{value, 0};
    collective<VoteLane, perform_match>(mask, "__match_all_sync", site, operands);
    *predicate = operands.result == mask;
    return *predicate ? mask : 0;
}

std::uint32_t reduce(unsigned mask, std::uint32_t value, Reduce kind, bool is_signed, const char *what, Site site) {
    ReduceLane operands{value, kind, is_signed, 0};
    collective<ReduceLane, perform_reduce>(mask, what, site, operands);
    return operands.result;
}

} // namespace emu
