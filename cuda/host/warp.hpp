// warp.hpp: warp collectives. Every lane of the mask publishes its operands and stops; the last one to come performs
// the operation for the whole warp, as the hardware does, and all go on. Shuffles, votes, ldmatrix and mma are built on
// it.
#pragma once
#include <cstring>
#include <type_traits>

#include "grid.hpp"

namespace emu {

// `operands` stays where it is (on the lane's stack) and is found by the performer as lanes[lane].
void warp_collective(unsigned mask, const char *what, Site site, void *operands,
                     void (*perform)(unsigned mask, void *const *lanes));

// The same with the operand type kept: `perform(mask, Operands *const *lanes)`.
template <class Operands, void (*perform)(unsigned mask, Operands *const *lanes)>
void collective(unsigned mask, const char *what, Site site, Operands &operands) {
    warp_collective(mask, what, site, &operands, [](unsigned m, void *const *lanes) {
        Operands *typed[kWarpSize];
        for (unsigned i = 0; i < kWarpSize; ++i) typed[i] = static_cast<Operands *>(lanes[i]);
        perform(m, typed);
    });
}

// Orders the memory accesses of the lanes; the other collectives do not.
void sync_warp(unsigned mask, Site site);

enum class Shuffle { Index, Up, Down, Xor };
std::uint64_t shuffle(unsigned mask, std::uint64_t value, Shuffle kind, int operand, int width, const char *what,
                      Site site);

unsigned ballot(unsigned mask, bool predicate, const char *what, Site site);
unsigned match_any(unsigned mask, std::uint64_t value, Site site);
unsigned match_all(unsigned mask, std::uint64_t value, int *predicate, Site site);

enum class Reduce { Add, Min, Max, And, Or, Xor };
std::uint32_t reduce(unsigned mask, std::uint32_t value, Reduce kind, bool is_signed, const char *what, Site site);

template <class T>
T shuffle_as(unsigned mask, T value, Shuffle kind, int operand, int width, const char *what, Site site) {
    static_assert(std::is_trivially_copyable<T>::value && (sizeof(T) == 4 || sizeof(T) == 8), "as CUDA's overloads");
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = shuffle(mask, bits, kind, operand, width, what, site);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T> std::uint64_t match_bits(T value) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "as CUDA's overloads");
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}

} // namespace emu
