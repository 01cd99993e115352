/* dsa_select. */
#ifndef GLM5_PARAMS_DSA_SELECT_H
#define GLM5_PARAMS_DSA_SELECT_H
#include "dsa_indexer.h"
#include "dsa_topk.h"

/** The keys that rows of a batch like best, of those that they see. */
typedef struct {
    /** What is scored, as for dsa_indexer. `scores` is room for what blocks of threads have to tell each other of a row if what they listed is
     *  not enough; rows see at most `stride` keys; `least`, `fill` and `workers` mean nothing. */
    dsa_indexer_params of;
    /** `[m]` */
    dsa_topk_row *shared;
    /** `[m, k]`: positions, ascending; undefined behind the last one. */
    uint32_t *indices;
    /** `[m]`: positions of each row. */
    uint32_t *lens;
    /** At least 1. */
    uint32_t k;
    /** How blocks of threads share a row: so many that each can hold its part of the scores. */
    topk_sharing sharing;
} dsa_select_params;

#endif
