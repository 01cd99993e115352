// test_act.cpp: division and reciprocal of act.cuh against the correctly rounded ones, for every mantissa.
#include <cfloat>
#include <cmath>

#include "../../common/act.cuh"
#include "check.hpp"

namespace {
constexpr uint32_t kMantissas = 1u << 23, kOne = 0x3f800000u;

// The same bits, or both below the smallest normal number, where act_scale looks no further.
bool same_quotient(float a) {
    const float got = act_div127(a), want = a / 127.f;
    return want < FLT_MIN ? got < FLT_MIN : f32_bits(got) == f32_bits(want);
}
} // namespace

TEST(act_div127_is_the_quotient) {
    for (uint32_t m = 0; m < kMantissas; ++m) {
        CHECK(same_quotient(f32_from_bits(kOne | m)), "mantissa %06x", m);
        RETURN_IF_FAILED();
    }
    // All exponents, with mantissas at both ends and some between: the ends of the range lose nothing either.
    for (uint32_t exponent = 0; exponent < 255; ++exponent)
        for (uint32_t m = 0; m < kMantissas; m += m < 64 || m > kMantissas - 64 ? 1 : 8191) {
            CHECK(same_quotient(f32_from_bits(exponent << 23 | m)), "exponent %u mantissa %06x", exponent, m);
            RETURN_IF_FAILED();
        }
}

TEST(act_inverse_is_the_reciprocal_whatever_the_seed) {
    for (uint32_t m = 0; m < kMantissas; ++m) {
        const float x = f32_from_bits(kOne | m), want = 1.f / x;
        for (uint32_t off = 0; off < 9; ++off) {
            const float got = act_inverse(x, f32_from_bits(f32_bits(want) + off - 4));
            CHECK(f32_bits(got) == f32_bits(want), "mantissa %06x, seed off by %d", m, (int)off - 4);
        }
        RETURN_IF_FAILED();
    }
    // The smallest and the largest scale.
    for (uint32_t m = 0; m < kMantissas; m += 4095)
        for (uint32_t exponent : {1u, 2u, 247u, 248u}) {
            const float x = f32_from_bits(exponent << 23 | m), want = 1.f / x;
            CHECK(f32_bits(act_inverse(x, rcp_approx(x))) == f32_bits(want), "exponent %u mantissa %06x", exponent, m);
        }
}

TEST(act_scale_of_what_is_not_an_ordinary_number) {
    const auto scale = [](float amax) { return act_scale(f32_bits(amax)); };
    CHECK(std::isnan(scale(INFINITY).x) && scale(INFINITY).y == 0.f);
    CHECK(std::isnan(scale(NAN).x) && scale(NAN).y == 0.f);
    for (float tiny : {0.f, FLT_TRUE_MIN, FLT_MIN, 126.f * FLT_MIN})
        CHECK(scale(tiny).x == 0.f && scale(tiny).y == 0.f, "%g", tiny);
    CHECK(scale(127.f * FLT_MIN).x == FLT_MIN && scale(127.f * FLT_MIN).y == 1.f / FLT_MIN);
    // From 2^110 on a value counts as a fault; below, scales have 22 bits.
    for (float huge : {std::ldexp(1.f, 110), FLT_MAX}) CHECK(std::isnan(scale(huge).x) && scale(huge).y == 0.f, "%g", huge);
    const float largest = std::nextafter(std::ldexp(1.f, 110), 0.f), s = scale(largest).x;
    CHECK(std::fabs(s / (largest / 127.f) - 1.f) <= 0x1p-22f && f32_bits(s) % 4 == 0 && scale(largest).y == 1.f / s);
    CHECK(std::isfinite(-kActShift * s));
}
