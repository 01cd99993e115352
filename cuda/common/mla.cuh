// mla.cuh: the keys that rows of a batch attend.
#pragma once
#include "pages.cuh"
#include "params/mla_attention.h"

constexpr uint32_t kNoKey = 0xffffffffu;

// Keys that a row may attend: places of its selection, or positions.
INTRIN uint32_t attended(const ragged_rows &rows, const mla_selection &selected, uint32_t row) {
    return selected.indices == nullptr ? rows.positions[row] + 1 : min(selected.lens[row], selected.k);
}

// The position of key `i` of those; kNoKey for one that the row does not see, whatever the selection says.
INTRIN uint32_t key_position(const mla_selection &selected, uint32_t row, uint32_t visible, uint32_t i) {
    const uint32_t position = selected.indices == nullptr ? i : selected.indices[uint64_t{row} * selected.k + i];
    return position < visible ? position : kNoKey;
}

INTRIN float minus_infinity() { return f32_from_bits(0xff800000u); }

// The logarithm of a sum of exponentials relative to a base, which is in base 2.
INTRIN float lse_of(float2 sums) {
    return sums.y == 0.f ? minus_infinity() : __fmul_rn(__fadd_rn(sums.x, log2f(sums.y)), 0.693147180559945309f);
}
