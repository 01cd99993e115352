// atomics.cpp: the operations, in a file of their own so that an instrumented kernel does not see them as plain
// accesses.
#include "atomics.hpp"

#include <cstring>
#include <type_traits>

#include "memory.hpp"
#include "races.hpp"

namespace emu {
namespace {

template <class T> T add(T a, T b) {
    if constexpr (std::is_integral<T>::value) { // wraps
        using U = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    } else {
        return a + b;
    }
}

template <class T> T combine(Atomic kind, T old, T value, T compare) {
    switch (kind) {
    case Atomic::Add: return add(old, value);
    case Atomic::Min: return value < old ? value : old;
    case Atomic::Max: return value > old ? value : old;
    case Atomic::Exchange:
    case Atomic::Store: return value;
    case Atomic::CompareExchange: return old == compare ? value : old;
    case Atomic::Load: return old;
    default: break;
    }
    if constexpr (std::is_integral<T>::value) {
        if (kind == Atomic::And) return old & value;
        if (kind == Atomic::Or) return old | value;
        return old ^ value;
    }
    return old;
}

// A thread that reads the same value from the same place again polls: others must run, and if all poll, nothing ever
// comes.
template <class T> void note_poll(const T *p, T value, Site site) {
    Thread &thread = self();
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    if (thread.polled == p && thread.polled_bits == bits) {
        thread.what = "a load of the same value";
        thread.site = site;
        yield(Yield::Idle);
    }
    thread.polled = p;
    thread.polled_bits = bits;
}

} // namespace

template <class T> T atomic(Atomic kind, Order order, T *p, T value, T compare, Site site) {
    if (reinterpret_cast<std::uintptr_t>(p) % sizeof(T) != 0)
        fail(EMU_BAD_ADDRESS, "atomic at %s:%d: address %p is not %zu-byte aligned", site.file, site.line,
             static_cast<void *>(p), sizeof(T));
    check_buffers(p, sizeof(T), kind != Atomic::Load, "atomic access of", 0);
    if (t_grid->rng.one_in(4)) yield(Yield::Neutral);
    if (kind == Atomic::Load || kind == Atomic::CompareExchange) note_poll(p, *p, site);
    Thread &thread = self();
    if (thread.block->races) {
        const bool acquire = order == Order::Acquire || order == Order::AcqRel;
        const bool release = order == Order::Release || order == Order::AcqRel;
        thread.block->races->atomic(thread.linear, p, sizeof(T), acquire, release);
    }
    const T old = *p;
    *p = combine(kind, old, value, compare);
    if (std::memcmp(p, &old, sizeof old) != 0) t_grid->idle_slices = 0; // whoever polls for it may go on
    return old;
}

template std::uint32_t atomic(Atomic, Order, std::uint32_t *, std::uint32_t, std::uint32_t, Site);
template std::int32_t atomic(Atomic, Order, std::int32_t *, std::int32_t, std::int32_t, Site);
template unsigned long long atomic(Atomic, Order, unsigned long long *, unsigned long long, unsigned long long, Site);
template long long atomic(Atomic, Order, long long *, long long, long long, Site);
template float atomic(Atomic, Order, float *, float, float, Site);

void fence() {
    Thread &thread = self();
    if (thread.block->races) thread.block->races->fence(thread.linear);
}

} // namespace emu
