/* copy, reduce, mma: what measures the roofs of a machine. */
#ifndef GLM5_PARAMS_ROOFS_H
#define GLM5_PARAMS_ROOFS_H
#include <stdint.h>

/** dst = src. */
typedef struct {
    /** `[n_vecs]` of 16 bytes, aligned to 16. */
    const void *src;
    /** `[n_vecs]` of 16 bytes, aligned to 16; does not overlap `src`. */
    void *dst;
    /** Vectors of 16 bytes. */
    uint64_t n_vecs;
} copy_params;

/** One wrapping sum of 64-bit words per block of the grid. */
typedef struct {
    /** `[n_vecs]` of 16 bytes, aligned to 16. */
    const void *src;
    /** `[gridDim.x]` */
    uint64_t *partial;
    /** Vectors of 16 bytes. */
    uint64_t n_vecs;
} reduce_params;

/** A matrix instruction, `steps` times for each of `tiles` accumulators of each warp. */
typedef struct {
    /** `[4, 32]` registers of fragment A. */
    const uint32_t *a;
    /** `[tiles, 2, 32]` registers of fragments B. */
    const uint32_t *b;
    /** `[gridDim.x, warps, tiles, 4, 32]` f32 or s32 registers of fragments D. */
    void *d;
    /** Repetitions. */
    uint32_t steps;
} mma_params;

#endif
