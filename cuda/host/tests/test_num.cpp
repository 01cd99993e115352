// test_num.cpp: the small formats against definitions: decode by ldexp, encode by searching the nearest value.
#include <cmath>

#include "../../common/num.cuh"
#include "check.hpp"

namespace {

// A format's finite non-negative values in rising order of their bits, and what rounding up past the last one gives.
struct Format {
    int mantissa, bias, values; // bits 0 to values - 1 are finite
    double value(int bits) const {
        const int exponent = bits >> mantissa, fraction = bits & ((1 << mantissa) - 1);
        return exponent == 0 ? std::ldexp(fraction, 1 - bias - mantissa)
                             : std::ldexp((1 << mantissa) + fraction, exponent - bias - mantissa);
    }
    // Nearest, ties to even bits; `values` if it lies beyond the largest by at least half a step.
    int nearest(double magnitude) const {
        int low = 0, high = values; // value(high) stands for the next power beyond
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            (value(middle) <= magnitude ? low : high) = middle;
        }
        const double below = magnitude - value(low), above = value(low + 1) - magnitude;
        if (below != above) return below < above ? low : low + 1;
        return low % 2 == 0 ? low : low + 1;
    }
};
const Format kF16{10, 15, 31 << 10}, kBf16{7, 127, 255 << 7}, kE4m3{3, 7, 127};

bool same(float a, double b) { return (double)a == b && std::signbit(a) == std::signbit(b); }

// Every float near a rounding boundary of the format, and random ones.
template <class F> void each_float(const Format &format, F f) {
    for (int bits = 0; bits < format.values; ++bits) {
        const double here = format.value(bits), next = format.value(bits + 1), middle = (here + next) / 2;
        for (double at : {here, middle}) {
            const float x = (float)at;
            for (float y : {x, std::nextafterf(x, 0.f), std::nextafterf(x, INFINITY)}) {
                if (std::isinf(y)) continue;
                f(y);
                f(-y);
            }
        }
    }
    test::Random random(7);
    for (int i = 0; i < 200000; ++i) {
        const float x = f32_from_bits(random.word());
        if (std::isfinite(x)) f(x);
    }
}

} // namespace

TEST(num_decodes_every_value) {
    for (int bits = 0; bits < 65536; ++bits) {
        const int magnitude = bits & 0x7fff;
        const double sign = bits >> 15 ? -1 : 1;
        const float h = f16_to_f32_soft((uint16_t)bits), b = bf16_to_f32_soft((uint16_t)bits);
        if (magnitude < kF16.values) CHECK(same(h, sign * kF16.value(magnitude)), "f16 %04x", bits);
        else CHECK(magnitude == kF16.values ? std::isinf(h) && (h < 0) == (sign < 0) : std::isnan(h), "f16 %04x", bits);
        if (magnitude < kBf16.values) CHECK(same(b, sign * kBf16.value(magnitude)), "bf16 %04x", bits);
        else
            CHECK(magnitude == kBf16.values ? std::isinf(b) && (b < 0) == (sign < 0) : std::isnan(b), "bf16 %04x",
                  bits);
        RETURN_IF_FAILED();
    }
    for (int bits = 0; bits < 256; ++bits) {
        const float e = e4m3_to_f32_soft((uint8_t)bits);
        if ((bits & 127) == 127) CHECK(std::isnan(e), "e4m3 %02x", bits);
        else CHECK(same(e, (bits & 128 ? -1 : 1) * kE4m3.value(bits & 127)), "e4m3 %02x", bits);
    }
}

TEST(num_rounds_to_nearest_even) {
    each_float(kF16, [](float x) {
        const int want = kF16.nearest(std::fabs(x)) | (std::signbit(x) ? 0x8000 : 0); // `values` is infinity
        CHECK(f32_to_f16_soft(x) == want, "f16 of %a: %04x, want %04x", x, f32_to_f16_soft(x), want);
    });
    each_float(kBf16, [](float x) {
        const int want = kBf16.nearest(std::fabs(x)) | (std::signbit(x) ? 0x8000 : 0);
        CHECK(f32_to_bf16_soft(x) == want, "bf16 of %a: %04x, want %04x", x, f32_to_bf16_soft(x), want);
    });
    each_float(kE4m3, [](float x) {
        const int nearest = kE4m3.nearest(std::fabs(x));
        const int want = (nearest > 126 ? 126 : nearest) | (std::signbit(x) ? 128 : 0);
        CHECK(f32_to_e4m3_soft(x) == want, "e4m3 of %a: %02x, want %02x", x, f32_to_e4m3_soft(x), want);
    });
}

TEST(num_special_values) {
    const float inf = INFINITY, nan = NAN;
    CHECK(f32_to_f16_soft(inf) == 0x7c00 && f32_to_f16_soft(-inf) == 0xfc00 && f32_to_f16_soft(65520.f) == 0x7c00);
    CHECK(f32_to_f16_soft(65519.f) == 0x7bff);
    CHECK(f32_to_bf16_soft(inf) == 0x7f80 && f32_to_bf16_soft(-inf) == 0xff80);
    CHECK(f32_to_e4m3_soft(inf) == 0x7e && f32_to_e4m3_soft(-inf) == 0xfe && f32_to_e4m3_soft(1e30f) == 0x7e);
    CHECK(std::isnan(f16_to_f32_soft(f32_to_f16_soft(nan))) && std::isnan(bf16_to_f32_soft(f32_to_bf16_soft(nan))));
    CHECK(std::isnan(e4m3_to_f32_soft(f32_to_e4m3_soft(nan))));
}
