// barrier.hpp: __syncthreads and the named barriers, bar.sync and bar.arrive.
#pragma once
#include "grid.hpp"

namespace emu {

enum class Arrival { Sync, Arrive };

// One thread comes to barrier `id`, which opens when `count` threads have come. `Sync` waits for that and returns how
// many threads came with a true `predicate`; `Arrive` goes on at once.
int barrier(unsigned id, unsigned count, Arrival arrival, bool predicate, const char *what, Site site);

} // namespace emu
