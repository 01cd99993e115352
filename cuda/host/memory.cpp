// memory.cpp: bounds of the caller's buffers.
#include "memory.hpp"

#include <cstdio>
#include <dlfcn.h>

namespace emu {
namespace {

std::uintptr_t begin(const emu_buffer &b) { return reinterpret_cast<std::uintptr_t>(b.data); }

// Both guard zones of a buffer, as pointers.
struct Zones {
    const unsigned char *below, *above;
};
Zones zones(const emu_buffer &b) {
    const auto *data = static_cast<const unsigned char *>(b.data);
    return {data - b.guard_bytes, data + b.bytes};
}

} // namespace

std::string place_in_code(std::uintptr_t pc) {
    Dl_info info;
    if (pc == 0 || !dladdr(reinterpret_cast<void *>(pc), &info) || !info.dli_fname) return "";
    char text[32];
    std::snprintf(text, sizeof text, "+0x%llx)",
                  static_cast<unsigned long long>(pc - 1 - reinterpret_cast<std::uintptr_t>(info.dli_fbase)));
    return std::string(" (") + info.dli_fname + text;
}

std::vector<unsigned char> save_guards(const Grid &grid) {
    std::vector<unsigned char> saved;
    for (std::uint32_t i = 0; i < grid.n_buffers; ++i) {
        const emu_buffer &b = grid.buffers[i];
        const Zones z = zones(b);
        saved.insert(saved.end(), z.below, z.below + b.guard_bytes);
        saved.insert(saved.end(), z.above, z.above + b.guard_bytes);
    }
    return saved;
}

void compare_guards(const Grid &grid, const std::vector<unsigned char> &saved) {
    const unsigned char *was = saved.data();
    for (std::uint32_t i = 0; i < grid.n_buffers; ++i) {
        const emu_buffer &b = grid.buffers[i];
        const Zones z = zones(b);
        for (const unsigned char *zone : {z.below, z.above}) {
            for (std::uint64_t at = 0; at < b.guard_bytes; ++at)
                if (zone[at] != was[at])
                    return note_failure(EMU_BAD_ADDRESS, *grid.resident[0], nullptr,
                                        "or another block wrote at offset %td of buffer %u, which has %llu bytes",
                                        zone + at - static_cast<const unsigned char *>(b.data), i,
                                        static_cast<unsigned long long>(b.bytes));
            was += b.guard_bytes;
        }
    }
}

void check_buffers(const void *p, std::size_t bytes, bool write, const char *what, std::uintptr_t pc) {
    Grid &grid = *t_grid;
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    const emu_buffer *beside = nullptr;
    for (std::uint32_t i = 0; i < grid.n_buffers; ++i) {
        emu_buffer &b = grid.buffers[i];
        if (address >= begin(b) && address + bytes <= begin(b) + b.bytes) {
            if (grid.pdl && !self().waited && (write || (b.written & 1) != 0))
                fail(EMU_TOO_EARLY, "%s %zu bytes at offset %llu of buffer %u before griddep_wait()%s%s", what, bytes,
                     static_cast<unsigned long long>(address - begin(b)), i,
                     write ? "" : ", and an earlier launch wrote to it", place_in_code(pc).c_str());
            if (write) b.written |= 2;
            if (write && !b.writable)
                fail(EMU_BAD_ADDRESS, "%s %zu bytes at offset %llu of buffer %u, which is read-only%s", what, bytes,
                     static_cast<unsigned long long>(address - begin(b)), i, place_in_code(pc).c_str());
            return;
        }
        // Another buffer may begin in this one's guard zone, so go on looking.
        if (address + bytes > begin(b) - b.guard_bytes && address < begin(b) + b.bytes + b.guard_bytes) beside = &b;
    }
    if (beside)
        fail(EMU_BAD_ADDRESS, "%s %zu bytes at offset %lld of buffer %td, which has %llu bytes%s", what, bytes,
             static_cast<long long>(address - begin(*beside)), beside - grid.buffers,
             static_cast<unsigned long long>(beside->bytes), place_in_code(pc).c_str());
}

} // namespace emu
