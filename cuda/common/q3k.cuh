// q3k.cuh: Q3_K, d (sc - 32) (q - 4), the third bits apart.
#pragma once
#include "q2k.cuh"

template <> struct decode<block_q3_K> {
    static constexpr int kElems = QK_K, kScaleElems = 16;
    static constexpr bool kOffset = false;
    static INTRIN uint32_t quants4(const block_q3_K &b, int i) {
        const uint32_t high = word<block_q3_K>(b.hmask + i % 8 * 4) >> i / 8 & 0x01010101u;
        return minus4<4>(two_bits4(b, i) | high << 2);
    }
    static INTRIN float scale(const block_q3_K &b, int g) {
        const uint32_t low = b.scales[g % 8] >> g / 8 * 4 & 15u;
        const uint32_t high = b.scales[8 + g % 4] >> g / 4 * 2 & 3u;
        return __fmul_rn(f16_to_f32(b.d), static_cast<float>(static_cast<int>(low | high << 4) - 32));
    }
};
