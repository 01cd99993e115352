// iq4_nl.cuh: IQ4_NL, d K[q] with sixteen unevenly spaced levels.
#pragma once
#include "decode.cuh"
#include "params/blocks.h"

// K for each low nibble of `nibbles`: -127 -104 -83 -65, -49 -35 -22 -10, 1 13 25 38, 53 69 89 113.
INTRIN uint32_t iq4_levels(uint32_t nibbles) {
    return lookup16(nibbles, {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u});
}

template <> struct decode<block_iq4_nl> {
    static constexpr int kElems = 32, kScaleElems = 32;
    static constexpr bool kOffset = false;
    static INTRIN uint32_t quants4(const block_iq4_nl &b, int i) {
        return iq4_levels(word<block_iq4_nl>(b.qs + i % 4 * 4) >> i / 4 * 4);
    }
    static INTRIN float scale(const block_iq4_nl &b, int) { return f16_to_f32(b.d); }
};
