// half.hpp: arithmetic of two f16 in a register: every result is the exact one, rounded once.
#pragma once
#include <cmath>
#include <cstdint>

#include "../common/num.cuh"

namespace emu {

// The f16 nearest to a * b + c.
inline uint16_t fma_f16(uint16_t a, uint16_t b, uint16_t c) {
    const double product = double{f16_to_f32_soft(a)} * f16_to_f32_soft(b); // exact: 22 bits
    const double other = f16_to_f32_soft(c);
    double sum = product + other;
    if (!std::isfinite(sum)) return f32_to_f16_soft(static_cast<float>(sum));
    // Rounding to an odd last place in between leaves a second rounding, to fewer bits, what it would have seen.
    const double back = sum - product, lost = (product - (sum - back)) + (other - back);
    const auto odd = [](double x) {
        uint64_t bits;
        memcpy(&bits, &x, sizeof bits);
        return (bits & 1) != 0;
    };
    if (lost != 0 && !odd(sum)) sum = std::nextafter(sum, lost > 0 ? INFINITY : -INFINITY);
    float narrow = static_cast<float>(sum);
    if (std::fabs(static_cast<double>(narrow)) > std::fabs(sum)) narrow = std::nextafter(narrow, 0.f);
    if (narrow != sum) narrow = f32_from_bits(f32_bits(narrow) | 1u);
    return f32_to_f16_soft(narrow);
}

inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
    const auto half = [&](int shift) {
        return static_cast<uint32_t>(fma_f16(static_cast<uint16_t>(a >> shift), static_cast<uint16_t>(b >> shift),
                                             static_cast<uint16_t>(c >> shift)));
    };
    return half(0) | half(16) << 16;
}

} // namespace emu
