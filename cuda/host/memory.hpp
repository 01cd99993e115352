// memory.hpp: the caller's buffers, as far as the launch names them, and which accesses to them are allowed.
#pragma once
#include <string>
#include <vector>

#include "grid.hpp"

namespace emu {

// Remembers the guard zones of the launch's buffers.
std::vector<unsigned char> save_guards(const Grid &grid);

// After the launch: a changed guard zone is a write outside a buffer that nobody saw happen.
void compare_guards(const Grid &grid, const std::vector<unsigned char> &saved);

// Fails if the bytes touch a guard zone, or if a read-only buffer is written. Memory that no buffer covers is not
// judged: it may be a thread's stack or a constant table. Called by instrumented code for each access, `pc` its place,
// and by twins.
void check_buffers(const void *p, std::size_t bytes, bool write, const char *what, std::uintptr_t pc);

// " (file+0x123)", which addr2line turns into a line; empty for 0.
std::string place_in_code(std::uintptr_t pc);

} // namespace emu
