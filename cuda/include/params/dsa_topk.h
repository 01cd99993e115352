/* dsa_topk. */
#ifndef GLM5_PARAMS_DSA_TOPK_H
#define GLM5_PARAMS_DSA_TOPK_H
#include <stdint.h>

enum { TOPK_BINS = 2048, TOPK_LEVELS = 3, TOPK_LIST = 2048, TOPK_PARTS = 128 };

/** What blocks of threads that share a row tell each other. All zeros before the first launch; `bins`, and the last two modulo 256, are
 *  zeros behind each launch. */
typedef struct {
    /** Scores by their upper 11 bits; of those in one bin by the next 11; of those in one of these by the last 10. */
    uint32_t bins[TOPK_LEVELS][TOPK_BINS];
    /** Scores of one bin, in no order, */
    uint32_t keys[TOPK_LIST];
    /** and where they stand. */
    uint32_t places[TOPK_LIST];
    /** Of each block: scores above the cut, scores at the cut. */
    uint32_t counts[TOPK_PARTS][2];
    /** Grows by 256 whenever all blocks have come; odd once one has given up waiting for the others. */
    uint32_t arrived;
    /** Blocks that have left because one gave up. */
    uint32_t left;
} dsa_topk_row;

/** The largest scores of each row. */
typedef struct {
    /** Row t begins at `t * stride`. */
    const float *scores;
    /** `[m]`: row t sees `min(visible[t] + more, n)` scores. */
    const uint32_t *visible;
    /** `[m]`, may be null if `parts` is 1. */
    dsa_topk_row *shared;
    /** `[m, k]`: positions, ascending; undefined behind the last one. */
    uint32_t *indices;
    /** `[m]`: positions of each row. */
    uint32_t *lens;
    /** Scores from one row to the next. */
    uint64_t stride;
    /** Scores of a row, below 2^31. */
    uint32_t n;
    /** At least 1. */
    uint32_t k;
    /** 0 or 1. */
    uint32_t more;
    /** Blocks of threads of a row: a power of two, at most TOPK_PARTS; of a kernel that gathers what it finds 1. */
    uint32_t parts;
    /** Looks that a block takes for the others before it gives up, and the row is left to the last of them. */
    uint32_t patience;
} dsa_topk_params;

#endif
