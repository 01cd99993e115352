// atomics.hpp: atomic operations and fences. Since one thread runs at a time they are plain operations; what matters is
// that others may run in between two of them, and what they order.
#pragma once
#include "grid.hpp"

namespace emu {

enum class Atomic { Add, Min, Max, Exchange, CompareExchange, And, Or, Xor, Load, Store };
enum class Order { Relaxed, Acquire, Release, AcqRel };

// Returns the old value. For 32-bit and 64-bit integers, and Add, Exchange, Load and Store of float.
template <class T> T atomic(Atomic kind, Order order, T *p, T value, T compare, Site site);

extern template std::uint32_t atomic(Atomic, Order, std::uint32_t *, std::uint32_t, std::uint32_t, Site);
extern template std::int32_t atomic(Atomic, Order, std::int32_t *, std::int32_t, std::int32_t, Site);
extern template unsigned long long atomic(Atomic, Order, unsigned long long *, unsigned long long, unsigned long long,
                                          Site);
extern template long long atomic(Atomic, Order, long long *, long long, long long, Site);
extern template float atomic(Atomic, Order, float *, float, float, Site);

// __threadfence and its kin: the widths differ only on a machine with caches.
void fence();

} // namespace emu
