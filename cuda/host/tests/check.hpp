// check.hpp: the few things that the emulator's tests share: registration, checks, guarded buffers, launches.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "../emu.h"

namespace test {

struct Case {
    const char *name;
    void (*run)();
};
std::vector<Case> &cases();
void note_failure(const char *file, int line, const std::string &text);
int failures(); // in the running case

struct Register {
    Register(const char *name, void (*run)()) { cases().push_back({name, run}); }
};

#define TEST(name)                                                                                                     \
    static void test_##name();                                                                                         \
    static const test::Register register_##name(#name, test_##name);                                                   \
    static void test_##name()

// Reports and goes on; a flood is cut by the caller with RETURN_IF_FAILED.
#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) test::note_failure(__FILE__, __LINE__, test::text(" " __VA_ARGS__) + "  [" #condition "]");  \
    } while (0)
#define RETURN_IF_FAILED()                                                                                             \
    do {                                                                                                               \
        if (test::failures() > 5) return;                                                                              \
    } while (0)

std::string text(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Random numbers for inputs; another generator than the emulator's.
struct Random {
    std::uint64_t state;
    explicit Random(std::uint64_t seed) : state(seed * 2654435761u + 88172645463325252ull) {}
    std::uint32_t word() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return static_cast<std::uint32_t>(state >> 16);
    }
    int between(int low, int high) { // inclusive
        return low + static_cast<int>(word() % static_cast<std::uint32_t>(high - low + 1));
    }
    float unit() { return static_cast<float>(word() >> 8) * (2.f / 16777216.f) - 1.f; } // [-1, 1)
};

// A buffer between guard zones: what a kernel writes outside is seen.
template <class T> class Guarded {
public:
    explicit Guarded(std::size_t n, T fill = T()) : n_(n), all_(n + 2 * kZone) {
        std::memset(all_.data(), 0x5A, all_.size() * sizeof(T));
        std::fill_n(all_.begin() + kZone, n, fill);
    }
    T *data() { return all_.data() + kZone; }
    T &operator[](std::size_t i) { return all_[kZone + i]; }
    std::size_t size() const { return n_; }
    emu_buffer buffer(bool writable) { return {data(), n_ * sizeof(T), kZone * sizeof(T), writable, 0}; }
    bool intact() const {
        std::vector<unsigned char> zone(kZone * sizeof(T), 0x5A);
        return std::memcmp(all_.data(), zone.data(), zone.size()) == 0 &&
               std::memcmp(all_.data() + kZone + n_, zone.data(), zone.size()) == 0;
    }

private:
    static constexpr std::size_t kZone = 1024;
    std::size_t n_;
    std::vector<T> all_;
};

struct Outcome {
    int status;
    std::string report;
};

struct Shape {
    std::uint32_t grid[3];
    std::uint32_t threads;
    std::uint32_t shared_bytes;
    std::uint32_t resident = 0;
    bool pdl = false;
};

template <class Params>
Outcome launch(emu_kernel *kernel, const Params &params, const Shape &shape, std::uint64_t seed,
               std::vector<emu_buffer> buffers = {}) {
    char report[4096] = "";
    emu_launch l{};
    for (int i = 0; i < 3; ++i) l.grid[i] = shape.grid[i];
    l.block[0] = shape.threads;
    l.block[1] = l.block[2] = 1;
    l.shared_bytes = shape.shared_bytes;
    l.params_bytes = sizeof(Params);
    l.pdl = shape.pdl;
    l.resident_blocks = shape.resident;
    l.seed = seed;
    l.buffers = buffers.data();
    l.n_buffers = buffers.size();
    l.report = report;
    l.report_bytes = sizeof report;
    const int status = kernel(&params, &l);
    return {status, report};
}

// Compiled with the memory hooks: races are found too.
bool instrumented();

} // namespace test
