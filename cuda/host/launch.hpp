// launch.hpp: what KERNEL_ENTRY expands to on the host.
#pragma once
#include <cstddef>

#include "emu.h"

namespace emu {

// What the emulator must know of an entry. `body` runs the kernel for the current thread.
struct Kernel {
    const char *name;
    unsigned threads;
    std::size_t params_bytes;
    void (*body)(const void *params);
};

// Checks the launch against the kernel, runs it, fills the report. Never throws, never ends the process.
int launch(const Kernel &kernel, const void *params, const emu_launch *launch) noexcept;

} // namespace emu
