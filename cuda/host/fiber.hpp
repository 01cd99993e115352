// fiber.hpp: one call stack per emulated CUDA thread, and the switch between two of them.
//
// Why fibers: a CUDA thread may stop in the middle of any function (at a barrier, in a shuffle), thousands of times per
// test. OS threads would cost microseconds per stop and their order could not be seeded; a fiber switch saves a dozen
// registers and the scheduler decides who runs next.
#pragma once
#include <cstddef>

namespace emu {

// A saved execution. The scheduler is one too: it runs on the stack of the OS thread that called the launch.
struct Fiber {
    void *sp = nullptr;             // saved stack pointer, or the ucontext_t of the fallback
    unsigned char *stack = nullptr; // lowest usable byte; for the scheduler learned from the sanitizer
    std::size_t stack_bytes = 0;
    void *fake_stack = nullptr; // AddressSanitizer's handle while this fiber is not running
    bool finished = false;      // set before the last switch away, so that ASan frees the fake stack
};

// Makes `fiber` start in `entry` on its stack at the next switch to it. `entry` must not return.
void fiber_prepare(Fiber &fiber, void (*entry)());

// Saves the running execution in `from` and continues `to`.
void fiber_switch(Fiber &from, Fiber &to);

// First call inside `entry`: completes the switch that started the fiber. `from` is the execution that started it.
void fiber_entered(Fiber &from);

// Bytes that a sleeping fiber has left on its stack; negative if it has run over the end.
inline std::ptrdiff_t fiber_stack_left(const Fiber &fiber) {
    return static_cast<const unsigned char *>(fiber.sp) -
           fiber.stack; // the fallback's context lies on top of the stack too
}
constexpr std::ptrdiff_t kStackReserve = 16 << 10;

// Stacks for `count` fibers in one mapping, an inaccessible page below the lowest. Pages are only taken once touched. A
// page between any two would cost two mappings per thread, of which a process with many test threads has too few; so
// the scheduler checks at each stop that a thread has not come near the end of its stack.
class Stacks {
public:
    Stacks() = default;
    Stacks(const Stacks &) = delete;
    Stacks &operator=(const Stacks &) = delete;
    ~Stacks();

    bool reserve(std::size_t count); // false: the system has no memory; keeps what was there if that is enough
    void assign(std::size_t index, Fiber &fiber) const;

private:
    unsigned char *base_ = nullptr;
    std::size_t count_ = 0;
};

} // namespace emu
