// fiber.cpp: context switches for x86-64 and aarch64, ucontext elsewhere, and what AddressSanitizer must be told.
#include "fiber.hpp"

#include <cstdint>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
#endif
#endif
#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__ELF__) && (defined(__x86_64__) || defined(__aarch64__)) && !defined(EMU_UCONTEXT)
#define EMU_ASSEMBLY 1
#else
#include <ucontext.h>
#endif

namespace emu {

#ifdef EMU_ASSEMBLY
// Saves what the ABI says a callee must keep, stores the stack pointer in *from, takes `to` as the new one and returns
// on the other stack. Floating-point control words are not saved: neither kernels nor the emulator change them.
extern "C" void emu_switch_stacks(void **from, void *to) __asm__("emu_switch_stacks");
#if defined(__x86_64__)
__asm__(R"(
.text
.p2align 4
.type emu_switch_stacks,@function
emu_switch_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emu_switch_stacks,.-emu_switch_stacks
)");
// Words on a fresh stack from the top down: a null return address (unwinders stop, and `entry` sees the alignment of
// a called function), `entry`, six registers.
constexpr int kFrameWords = 8, kEntryWord = 6;
#else
__asm__(R"(
.text
.p2align 4
.type emu_switch_stacks,%function
emu_switch_stacks:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size emu_switch_stacks,.-emu_switch_stacks
)");
constexpr int kFrameWords = 20, kEntryWord = 11; // x30, where `ret` goes
#endif
#endif

namespace {

#ifdef EMU_ASAN
constexpr std::size_t kStackBytes = 512 << 10; // red zones make frames several times larger
#else
constexpr std::size_t kStackBytes = 128 << 10; // address space; a typical kernel touches one or two pages
#endif

std::size_t page_bytes() {
    static const std::size_t bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

} // namespace

void fiber_prepare(Fiber &fiber, void (*entry)()) {
#ifdef EMU_ASAN
    // The last user of this stack may have been abandoned in the middle of its frames.
    __asan_unpoison_memory_region(fiber.stack, fiber.stack_bytes);
#endif
    fiber.finished = false;
    fiber.fake_stack = nullptr;
#ifdef EMU_ASSEMBLY
    std::uintptr_t top = reinterpret_cast<std::uintptr_t>(fiber.stack + fiber.stack_bytes) & ~std::uintptr_t{15};
    auto *frame = reinterpret_cast<void **>(top) - kFrameWords;
    for (int i = 0; i < kFrameWords; ++i) frame[i] = nullptr;
    frame[kEntryWord] = reinterpret_cast<void *>(entry);
    fiber.sp = frame;
#else
    // The context lives at the top of the stack it describes.
    auto *context = reinterpret_cast<ucontext_t *>(
        reinterpret_cast<std::uintptr_t>(fiber.stack + fiber.stack_bytes - sizeof(ucontext_t)) & ~std::uintptr_t{63});
    getcontext(context);
    context->uc_stack.ss_sp = fiber.stack;
    context->uc_stack.ss_size = static_cast<std::size_t>(reinterpret_cast<unsigned char *>(context) - fiber.stack);
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    fiber.sp = context;
#endif
}

void fiber_switch(Fiber &from, Fiber &to) {
#ifdef EMU_ASAN
    __sanitizer_start_switch_fiber(from.finished ? nullptr : &from.fake_stack, to.stack, to.stack_bytes);
#endif
#ifdef EMU_ASSEMBLY
    emu_switch_stacks(&from.sp, to.sp);
#else
    ucontext_t here; // lives on the stack that it describes while that stack sleeps
    void *target = to.sp;
    from.sp = &here;
    swapcontext(&here, static_cast<ucontext_t *>(target));
#endif
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

void fiber_entered(Fiber &from) {
#ifdef EMU_ASAN
    const void *bottom = nullptr;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &from.stack_bytes);
    from.stack = static_cast<unsigned char *>(const_cast<void *>(bottom));
#else
    (void)from;
#endif
}

Stacks::~Stacks() {
    if (base_) munmap(base_, page_bytes() + count_ * kStackBytes);
}

bool Stacks::reserve(std::size_t count) {
    if (count <= count_) return true;
    const std::size_t bytes = page_bytes() + count * kStackBytes;
    void *base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return false;
    if (base_) munmap(base_, page_bytes() + count_ * kStackBytes);
    base_ = static_cast<unsigned char *>(base);
    count_ = count;
    mprotect(base_, page_bytes(), PROT_NONE);
    return true;
}

void Stacks::assign(std::size_t index, Fiber &fiber) const {
    fiber.stack = base_ + page_bytes() + index * kStackBytes;
    fiber.stack_bytes = kStackBytes;
}

} // namespace emu
