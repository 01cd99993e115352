/* twins.h: the kernels of twins.cu as a table. One block is one warp; every lane reads `in` words and writes `out`
 * words: word i of lane l of block b is at (b * words + i) * 32 + l. Shared by the kernels, the host tests and the GPU
 * comparison. */
#ifndef GLM5_EMU_TWINS_H
#define GLM5_EMU_TWINS_H
#include <stdint.h>

typedef struct twins_params {
    const uint32_t *in;
    uint32_t *out;
} twins_params;

/* TWINS_FROM: where the sums of the integer mma with a constant begin. */
enum { TWINS_THREADS = 32, TWINS_SHARED_BYTES = 4096, TWINS_FROM = 0x4b400000 };

/* How a GPU's result may differ from the emulator's:
 * EXACT   bit for bit, except that any NaN equals any NaN of the same format where outputs are floats
 * SUM     a sum of products in f32: bit for bit when every partial sum is an integer below 2^24; otherwise within
 *         2^-21 of the sum of the absolute products and accumulator (the hardware aligns and truncates; native 8-bit
 *         units may keep fewer bits than that)
 * APPROX  within 2^-20 relative, subnormals may be flushed */
enum twins_class { TWINS_EXACT, TWINS_SUM, TWINS_APPROX };

/* TWIN(name, words in, words out, class) */
#define TWINS(TWIN)                                                                                                    \
    TWIN(mma_bf16, 10, 8, TWINS_SUM)                                                                                   \
    TWIN(mma_f16, 10, 8, TWINS_SUM)                                                                                    \
    TWIN(mma_tf32, 10, 8, TWINS_SUM)                                                                                   \
    TWIN(mma_e4m3, 10, 4, TWINS_SUM)                                                                                   \
    TWIN(mma_s8_k32, 10, 8, TWINS_EXACT)                                                                               \
    TWIN(mma_s8_k16, 7, 8, TWINS_EXACT)                                                                                \
    TWIN(ldmatrix, 5, 14, TWINS_EXACT)                                                                                 \
    TWIN(shuffles, 3, 13, TWINS_EXACT)                                                                                 \
    TWIN(votes, 2, 13, TWINS_EXACT)                                                                                    \
    TWIN(conversions, 2, 11, TWINS_EXACT)                                                                              \
    TWIN(integers, 3, 16, TWINS_EXACT)                                                                                 \
    TWIN(floats, 3, 10, TWINS_EXACT)                                                                                   \
    TWIN(pairs, 3, 8, TWINS_EXACT)                                                                                     \
    TWIN(approximations, 1, 7, TWINS_APPROX)                                                                           \
    TWIN(cp_async_sizes, 10, 14, TWINS_EXACT)                                                                          \
    TWIN(cp_async_arrival, 4, 4, TWINS_EXACT)                                                                          \
    TWIN(bulk_copy, 4, 4, TWINS_EXACT)                                                                                 \
    TWIN(loads, 4, 12, TWINS_EXACT)                                                                                    \
    TWIN(atomics, 2, 12, TWINS_EXACT)

#endif
