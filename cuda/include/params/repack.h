/* repack. */
#ifndef GLM5_PARAMS_REPACK_H
#define GLM5_PARAMS_REPACK_H
#include "tiles.h"

/** Blocks to tiles. */
typedef struct {
    /** `[slabs, n, k]` blocks, aligned to 16. */
    const void *src;
    /** `[slabs, n / 16, k / 256]` tiles, both rounded up: what is behind the end of the matrix is zeros. */
    void *out;
    /** Rows of a slab. */
    uint32_t n;
    /** Columns, whole blocks. */
    uint32_t k;
} repack_params;

#endif
