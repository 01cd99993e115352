// test_scalars.cpp: conversions, integer, bit and float functions against definitions.
#include <algorithm>
#include <cmath>

#include "../../common/num.cuh"
#include "check.hpp"
#include "twins.h"

extern "C" emu_kernel emu_twin_conversions, emu_twin_integers, emu_twin_floats, emu_twin_pairs,
    emu_twin_approximations;

namespace {

constexpr int kBlocks = 40;

struct Inputs {
    std::vector<uint32_t> in, out;
    int words_in, words_out;
    uint32_t get(int block, int word, int lane) const {
        return in[static_cast<size_t>((block * words_in + word) * 32 + lane)];
    }
    uint32_t got(int block, int word, int lane) const {
        return out[static_cast<size_t>((block * words_out + word) * 32 + lane)];
    }
};

// Random words, among them floats of moderate size, small integers, NaNs and infinities.
Inputs run(emu_kernel *kernel, int words_in, int words_out, uint64_t seed) {
    Inputs r{std::vector<uint32_t>(static_cast<size_t>(kBlocks * words_in * 32)),
             std::vector<uint32_t>(static_cast<size_t>(kBlocks * words_out * 32)), words_in, words_out};
    test::Random random(seed);
    for (uint32_t &word : r.in) {
        switch (random.between(0, 7)) {
        case 0: word = f32_bits((float)random.between(-300, 300)); break;
        case 1: word = f32_bits((float)random.between(-300, 300) + 0.5f); break;
        case 2: word = f32_bits(random.unit()); break;
        case 3: word = f32_bits(random.unit() * 500.f); break;
        case 4: word = (uint32_t)random.between(-3, 70); break;
        case 5: word = random.between(0, 1) ? 0x7f800000u | random.word() % 2 * 0x80400000u : 0x80000000u; break;
        default: word = random.word();
        }
    }
    const twins_params params{r.in.data(), r.out.data()};
    const auto end = test::launch(kernel, params, {{kBlocks, 1, 1}, 32, 0}, seed);
    CHECK(end.status == EMU_OK, "%s", end.report.c_str());
    return r;
}

template <class F> void each_lane(const Inputs &r, F f) {
    for (int block = 0; block < kBlocks; ++block)
        for (int lane = 0; lane < 32; ++lane)
            f([&](int word) { return r.get(block, word, lane); },
              [&](int word, uint32_t want, bool is_float = false) {
                  const uint32_t got = r.got(block, word, lane);
                  const bool both_nan = is_float && std::isnan(f32_from_bits(got)) && std::isnan(f32_from_bits(want));
                  CHECK(got == want || both_nan, "word %d: %08x, want %08x, from %08x %08x", word, got, want,
                        r.get(block, 0, lane), r.words_in > 1 ? r.get(block, 1, lane) : 0);
              });
}

// a * b + c as a whole number of 2^-48, rounded to the nearest multiple of what an f16 of that size has as its step.
float fma_of_f16(uint32_t a, uint32_t b, uint32_t c) {
    __extension__ typedef __int128 wide;
    const double x = f16_to_f32_soft((uint16_t)a), y = f16_to_f32_soft((uint16_t)b), z = f16_to_f32_soft((uint16_t)c);
    if (!std::isfinite(x) || !std::isfinite(y) || !std::isfinite(z)) return (float)(x * y + z);
    const wide sum = (wide)std::ldexp(x, 24) * (wide)std::ldexp(y, 24) + (wide)std::ldexp(z, 24) * ((wide)1 << 24);
    if (sum == 0) return (float)(x * y + z); // for its sign
    const wide size = sum < 0 ? -sum : sum;
    int bits = 0;
    while (size >> bits != 0) ++bits;
    const int step = std::max(bits - 11, 24); // subnormal: 2^-24
    wide whole = size >> step;
    const wide rest = size - (whole << step), half = (wide)1 << (step - 1);
    if (rest > half || (rest == half && (whole & 1))) ++whole;
    const double value = std::ldexp((double)whole, step - 48);
    return (float)std::copysign(value > 65504 ? INFINITY : value, sum < 0 ? -1. : 1.);
}

uint32_t byte(uint32_t word, int i) { return word >> 8 * i & 0xff; }

} // namespace

TEST(scalar_conversions) {
    const Inputs r = run(emu_twin_conversions, 2, 11, 1);
    each_lane(r, [](auto in, auto want) {
        const float x = f32_from_bits(in(0)), y = f32_from_bits(in(1));
        want(0, f32_to_f16_soft(x));
        want(1, f32_to_bf16_soft(x));
        want(2, f32_to_f16_soft(x) | (uint32_t)f32_to_f16_soft(y) << 16);
        want(3, f32_to_bf16_soft(x) | (uint32_t)f32_to_bf16_soft(y) << 16);
        want(4, f32_to_e4m3_soft(x) | (uint32_t)f32_to_e4m3_soft(y) << 8);
        want(5, f32_to_f16_soft(e4m3_to_f32_soft((uint8_t)byte(in(0), 0))) |
                    (uint32_t)f32_to_f16_soft(e4m3_to_f32_soft((uint8_t)byte(in(0), 1))) << 16);
        want(6, f32_bits(f16_to_f32_soft((uint16_t)in(0))), true);
        want(7, in(0) << 16, true);
        want(8, f32_bits(e4m3_to_f32_soft((uint8_t)in(0))), true);
        double nearest = std::isnan(x) ? 0 : std::nearbyint((double)x);
        want(9, (uint32_t)(int)std::min(127., std::max(-128., nearest)));
        want(10, f32_to_e4m3_soft(y));
    });
}

TEST(scalar_integers) {
    const Inputs r = run(emu_twin_integers, 3, 16, 2);
    each_lane(r, [](auto in, auto want) {
        const uint32_t a = in(0), b = in(1), c = in(2);
        int64_t dot_signed = (int32_t)c;
        uint64_t dot = c;
        uint32_t permuted = 0, reversed = 0;
        for (int i = 0; i < 4; ++i) {
            dot_signed += (int64_t)(int8_t)byte(a, i) * (int8_t)byte(b, i);
            dot += (uint64_t)byte(a, i) * byte(b, i);
            const uint32_t choice = c >> 4 * i & 15;
            const uint32_t chosen = byte(choice & 4 ? b : a, choice & 3);
            permuted |= chosen << 8 * i; // bit 3 of the choice is masked
        }
        for (int i = 0; i < 32; ++i) reversed = reversed << 1 | (a >> i & 1);
        auto bits = [](uint64_t v, int n) {
            int count = 0;
            for (int i = 0; i < n; ++i) count += v >> i & 1;
            return (uint32_t)count;
        };
        auto leading = [](uint64_t v, int n) {
            int zeros = 0;
            while (zeros < n && !(v >> (n - 1 - zeros) & 1)) ++zeros;
            return (uint32_t)zeros;
        };
        auto first = [](uint64_t v, int n) {
            for (int i = 0; i < n; ++i)
                if (v >> i & 1) return (uint32_t)(i + 1);
            return 0u;
        };
        const uint64_t wide = (uint64_t)a << 32 | b; // what the 64-bit functions see
        const int shift = (int)(c % 32), clamped = (int)std::min(c % 64, 32u);
        auto left = [&](int s) { return s == 0 ? b : s == 32 ? a : b << s | a >> (32 - s); }; // hi = b, lo = a
        auto right = [&](int s) { return s == 0 ? a : s == 32 ? b : a >> s | b << (32 - s); };
        want(0, (uint32_t)dot_signed);
        want(1, (uint32_t)dot);
        want(2, permuted);
        want(3, left(shift));
        want(4, right(shift));
        want(5, left(clamped));
        want(6, right(clamped));
        want(7, bits(a, 32));
        want(8, leading(a >> b % 32, 32));
        want(9, first((uint32_t)(a << b % 32), 32));
        want(10, reversed);
        want(11, (uint32_t)((int64_t)(int32_t)a * (int32_t)b >> 32));
        want(12, (uint32_t)((uint64_t)a * b >> 32));
        want(13, bits(wide, 64));
        want(14, leading(wide >> c % 64, 64));
        want(15, first(wide << c % 64, 64));
    });
}

TEST(scalar_floats) {
    const Inputs r = run(emu_twin_floats, 3, 10, 3);
    each_lane(r, [](auto in, auto want) {
        const float a = f32_from_bits(in(0)), b = f32_from_bits(in(1)), c = f32_from_bits(in(2));
        auto integer = [](double x) {
            return std::isnan(x) ? 0 : (int32_t)std::min(2147483647., std::max(-2147483648., x));
        };
        // Double rounding is harmless for one +, *, /, sqrt of floats (53 >= 2 * 24 + 2).
        want(0, f32_bits(std::fma(a, b, c)), true);
        want(1, f32_bits((float)((double)a + b)), true);
        want(2, f32_bits((float)((double)a * b)), true);
        want(3, f32_bits((float)((double)a / b)), true);
        want(4, f32_bits((float)(1. / (double)b)), true);
        want(5, f32_bits((float)std::sqrt((double)c)), true);
        want(6, (uint32_t)integer(std::nearbyint((double)a)));
        want(7, (uint32_t)integer(std::trunc((double)b)));
        want(8, f32_bits((float)(double)(int32_t)in(0)), true);
        want(9, f32_bits(a > 0 ? std::min(a, 1.f) : 0.f), true);
    });
}

TEST(scalar_pairs) {
    const Inputs r = run(emu_twin_pairs, 3, 8, 5);
    each_lane(r, [](auto in, auto want) {
        for (int i = 0; i < 2; ++i) {
            const uint32_t a = in(0) >> 16 * i & 0xffff, b = in(1) >> 16 * i & 0xffff, c = in(2) >> 16 * i & 0xffff;
            want(i, f32_bits(fma_of_f16(a, b, c)), true);
            want(2 + i, f32_bits(fma_of_f16(a, b, 0x8000)), true); // minus zero keeps the sign of a product of zero
            want(4 + i, f32_bits(fma_of_f16(a, 0x3c00, b)), true);
            const float x = f32_from_bits(a << 16), y = f32_from_bits(b << 16);
            want(6 + i, (uint32_t)f32_to_bf16_soft(x - y) << 16, true);
        }
    });
}

TEST(scalar_approximations) {
    const Inputs r = run(emu_twin_approximations, 1, 7, 4);
    for (int block = 0; block < kBlocks; ++block)
        for (int lane = 0; lane < 32; ++lane) {
            const double x = f32_from_bits(r.get(block, 0, lane));
            const double want[7] = {std::exp2(x), 1 / x, 1 / std::sqrt(x), std::exp2(x), 1 / std::sqrt(x),
                                    std::exp(x),  1 / x};
            for (int word = 0; word < 7; ++word) {
                const float got = f32_from_bits(r.got(block, word, lane));
                // Where argument or result is subnormal, the flushed forms may give zero or infinity.
                const bool tiny = std::fabs(x) < 1.2e-38 || std::fabs(want[word]) < 1.2e-38;
                const bool close = std::isnan(want[word]) ? std::isnan(got)
                                   : std::fabs(want[word]) > 3.4028235e38
                                       ? std::isinf(got)
                                       : std::fabs(got - want[word]) <=
                                             (1e-6 + (word == 5 ? 1.2e-7 * std::fabs(x) : 0)) * std::fabs(want[word]);
                CHECK(tiny || close, "word %d of %a: %a, want %a", word, x, got, want[word]);
            }
        }
}
