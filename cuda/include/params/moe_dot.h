/* moe_dot: experts in blocks. */
#ifndef GLM5_PARAMS_MOE_DOT_H
#define GLM5_PARAMS_MOE_DOT_H
#include "linear.h"
#include "moe_sort.h"

/** Products of experts with the tokens that chose them. */
typedef struct {
    /** `[experts, n, k]` blocks, aligned to 16. */
    const void *w;
    /** `[m, k]`, or `[places, k]` without `sorted`. */
    const float *x;
    /** `[places, n]` */
    float *y;
    /** As moe_sort leaves them, with tiles of at most as many places as the kernel multiplies; there are no more of them than the grid
     *  has blocks of threads for. */
    const moe_tile *tiles;
    /** The first is the number of tiles. */
    const uint32_t *counters;
    /** `[places]`: the pair at each place, whose token is its row of `x`; may be null: places are rows. */
    const uint32_t *sorted;
    /** Slots of a token. */
    uint32_t top_k;
    /** Rows of an expert. */
    uint32_t n;
    /** Columns: whole blocks, below 2^31; with `ROUND_INT8` a multiple of 32. */
    uint32_t k;
    /** Of the activations. */
    linear_round round;
} moe_dot_params;

#endif
