/* dsa_topk. */
#ifndef GLM5_PARAMS_DSA_TOPK_H
#define GLM5_PARAMS_DSA_TOPK_H
#include <stdint.h>

enum { TOPK_BINS = 2048, TOPK_LEVELS = 3, TOPK_LIST = 8192, TOPK_PARTS = 128 };

/** What blocks of threads that share a row tell each other. All zeros before the first launch; `bins`, `left`, and `arrived` modulo
 *  256, are zeros behind each launch. */
typedef struct {
    /** Scores by their upper 11 bits; of those in one bin by the next 11; of those in one of these by the last 10. */
    uint32_t bins[TOPK_LEVELS][TOPK_BINS];
    /** The largest scores of each block, as integers that grow with them and are not 0; zeros behind them. */
    uint32_t keys[TOPK_LIST];
    /** Where they stand. */
    uint32_t places[TOPK_LIST];
    /** Of each block: the key from which on all its scores are listed, the place up to which scores of just this key are, its largest key. */
    uint32_t ends[TOPK_PARTS][4];
    /** Of each block: scores above the cut, scores at the cut. */
    uint32_t counts[TOPK_PARTS][2];
    /** Grows by 256 whenever all blocks have come; odd once one has given up waiting for the others. */
    uint32_t arrived;
    /** Blocks that have left because one gave up. */
    uint32_t left;
    /** Nothing: rows are aligned to 16. */
    uint32_t unused[2];
} dsa_topk_row;

/** How blocks of threads share a row. */
typedef struct {
    /** Blocks of threads of a row: 1 to TOPK_PARTS. */
    uint32_t parts;
    /** Scores that each can list: at most TOPK_LIST / parts. */
    uint32_t room;
    /** How many each lists at least: more than its share of the k, at most `room`. */
    uint32_t want;
    /** Looks that a block takes for the others before it gives up, and the row is left to the last of them. */
    uint32_t patience;
} topk_sharing;

/** The largest scores of each row. */
typedef struct {
    /** Row t begins at `t * stride`; aligned to 16. */
    const float *scores;
    /** `[m]`: row t sees `min(visible[t] + more, n)` scores. */
    const uint32_t *visible;
    /** `[m]`, may be null if rows have one block of threads each. */
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
    /** How blocks of threads share a row. A kernel that gathers what it finds has one for each. */
    topk_sharing sharing;
} dsa_topk_params;

#endif
