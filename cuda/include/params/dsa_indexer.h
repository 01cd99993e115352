/* dsa_indexer, dsa_indexer_int8, dsa_indexer_any. */
#ifndef GLM5_PARAMS_DSA_INDEXER_H
#define GLM5_PARAMS_DSA_INDEXER_H
#include "ragged.h"

enum { INDEXER_HEADS = 32, INDEXER_DIM = 128, INDEXER_KEYS = 32 };

/** Scores of the lightning indexer, of rows `first` to `first + m` of a batch. */
typedef struct {
    /** `[rows.m, heads, dim]`, aligned to 16 */
    const float *q;
    /** `[rows.m, heads]` */
    const float *w;
    /** `[slots, dim]` of the type of the cache, aligned to 16; int8: pages of quants and scales. */
    const void *keys;
    /** Of which slots lie in the cache. */
    ragged_rows rows;
    /** `[m]` rows `stride` apart: the scores of the keys that a row sees, by position, and minus infinity behind them up to `fill`. */
    float *scores;
    /** Scores from one row to the next, at least as many as a row sees. */
    uint64_t stride;
    /** Of all scores. */
    float scale;
    /** The first row. */
    uint32_t first;
    /** Rows. */
    uint32_t m;
    /** Heads of a query; at most INDEXER_HEADS but for dsa_indexer_any. */
    uint32_t heads;
    /** Values of a key; INDEXER_DIM but for dsa_indexer_any. */
    uint32_t dim;
    /** Rows that see no more keys than this are not scored. */
    uint32_t least;
    /** Columns that are written, or 0: those of keys that a row sees. */
    uint32_t fill;
    /** Blocks of threads for each group of rows. */
    uint32_t workers;
} dsa_indexer_params;

#endif
