// kernels.hpp: the project's own kernels, as tests see them. The table is generated from cuda/instances.toml.
#pragma once
#include <string>
#include <vector>

#include "../emu.h"

namespace test {

// A template argument: a number, or for a type how many values a block of it has, in how many bytes.
struct Arg {
    const char *name;
    int value;
    std::size_t bytes;
};

struct Kernel {
    const char *family;
    const char *name;
    emu_kernel *run;
    std::uint32_t threads, shared_bytes;
    bool pdl;
    std::vector<Arg> args;
};

extern const std::vector<Kernel> kernels;

} // namespace test
