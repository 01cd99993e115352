/* linear_float, linear_dot, linear_tile: linear layers in blocks. */
#ifndef GLM5_PARAMS_LINEAR_H
#define GLM5_PARAMS_LINEAR_H
#include <stdint.h>

/** What is done to the activations of a linear layer before they are multiplied. */
typedef enum {
    /** Nothing. */
    ROUND_NONE,
    /** Rounded to int8 with one scale for 32 values, and back. */
    ROUND_INT8,
    /** Rounded to bf16, and back. */
    ROUND_BF16
} linear_round;

/** Linear layer of any weight type, one matrix or one per head. */
typedef struct {
    /** `[slabs, n, k]` blocks, aligned to 16; as many slabs as the grid is high. */
    const void *w;
    /** `[m]` rows `x_stride` apart; slab s takes `k` columns from `s * x_head` on. */
    const float *x;
    /** `[m]` rows `y_stride` apart; slab s gives `n` columns from `s * y_head` on. */
    float *y;
    /** Values from row to row of `x`. */
    uint64_t x_stride;
    /** Values from row to row of `y`. */
    uint64_t y_stride;
    /** Columns of `x` from slab to slab. */
    uint64_t x_head;
    /** Columns of `y` from slab to slab. */
    uint64_t y_head;
    /** Rows of `x` and `y`: tokens. */
    uint32_t m;
    /** Rows of a slab. */
    uint32_t n;
    /** Columns of a slab: whole blocks, below 2^31; with `ROUND_INT8` a multiple of 32. */
    uint32_t k;
    /** Of the activations. */
    linear_round round;
} linear_params;

#endif
