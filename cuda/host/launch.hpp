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

// Instrumented copies of structs are calls. Those of g++ go to hooks of races.cpp, but clang++ (14 for one) calls the
// library and relies on the sanitizer's runtime to watch it; so in this unit the name stands for the hook.
#if defined(__clang__) && defined(__ELF__)
#if __has_feature(thread_sanitizer)
__asm__(".set memcpy, __tsan_memcpy\n.set memmove, __tsan_memmove\n.set memset, __tsan_memset");
#endif
#endif
