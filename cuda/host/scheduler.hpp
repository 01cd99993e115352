// scheduler.hpp: what a launch needs of the scheduler.
#pragma once
#include "grid.hpp"

namespace emu {

// Gives `block` threads, stacks and shared memory for this launch. False: no memory.
bool prepare_block(Grid &grid, Block &block, std::size_t shared_bytes);

// Runs all blocks of the grid in seeded order on `grid.resident`; the outcome is in `grid.status` and `grid.report`.
void run_grid(Grid &grid);

} // namespace emu
