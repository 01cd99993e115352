/* quantize, quantize_rows, quantize_f16. */
#ifndef GLM5_PARAMS_QUANTIZE_H
#define GLM5_PARAMS_QUANTIZE_H
#include "tiles.h"

/** Rows to int8 tiles. */
typedef struct {
    /** `[m, k]` */
    const float *x;
    /** `[k / 256, m / 8]`, both rounded up: what is behind the end is zeros. */
    tile_act *out;
    /** Tokens. */
    uint32_t m;
    /** Columns, a multiple of 32. */
    uint32_t k;
} quantize_params;

/** Rows to int8 rows. */
typedef struct {
    /** `[m, k]`, aligned to 16; with `sorted` as many rows as there are tokens. */
    const float *x;
    /** `[m, k / 256]`, rounded up: what is behind the end is zeros. */
    row_act *out;
    /** `[m]` pairs by place, whose token is the row of `x`; may be null: rows are those of `x`. */
    const uint32_t *sorted;
    /** One: how many rows there are, `m` or fewer; may be null: `m`. */
    const uint32_t *places;
    /** Rows. */
    uint32_t m;
    /** Columns, a multiple of 32. */
    uint32_t k;
    /** Slots of a token; unused without `sorted`. */
    uint32_t top_k;
} quantize_rows_params;

/** Rows to f16 tiles. One matrix, or a part of each row for each of several. */
typedef struct {
    /** `[m]` rows `x_stride` apart; slab s takes `k` columns from `s * x_slab` on. Aligned to 16, as are the strides. */
    const float *x;
    /** `[slabs, k / 256, m / 8]`, rounded up: what is behind the end is zeros. As many slabs as the grid is high. */
    tile_act_f16 *out;
    /** Values from row to row. */
    uint64_t x_stride;
    /** Values from slab to slab. */
    uint64_t x_slab;
    /** Tokens. */
    uint32_t m;
    /** Columns, a multiple of 32. */
    uint32_t k;
} quantize_f16_params;

#endif
