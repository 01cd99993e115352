// mma.hpp: matrix instructions of a warp: ldmatrix and mma.sync. Fragment layouts as in the PTX ISA; each lane holds a
// few registers of A (row major), B (column major) and the accumulator, and the last lane to come multiplies for all.
#pragma once
#include "warp.hpp"

namespace emu {

// `row` is this lane's row address; lanes 8 i to 8 i + 7 address the rows of matrix i. Fills `count` registers.
void ldmatrix(std::uint32_t *d, const void *row, unsigned count, bool transposed, Site site);

// D = A B + D with 32-bit (tf32), 16-bit or 8-bit operands, exact products, one rounding per output (the hardware's own sum of up to
// 32 terms is neither sequential nor correctly rounded; docs/emulator.md says what may differ).
void mma_m16n8k16_bf16(float *d, const std::uint32_t *a, const std::uint32_t *b, Site site);
void mma_m16n8k16_f16(float *d, const std::uint32_t *a, const std::uint32_t *b, Site site);
void mma_m16n8k8_tf32(float *d, const std::uint32_t *a, const std::uint32_t *b, Site site);
void mma_m16n8k32_e4m3(float *d, const std::uint32_t *a, const std::uint32_t *b, Site site);

// s8 operands, s32 accumulator, wrapping.
void mma_m16n8k16_s8(std::int32_t *d, const std::uint32_t *a, const std::uint32_t *b, Site site);
void mma_m16n8k32_s8(std::int32_t *d, const std::uint32_t *a, const std::uint32_t *b, Site site);

} // namespace emu
