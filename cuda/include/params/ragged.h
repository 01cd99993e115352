/* Rows of a batch of sequences, over paged caches: RaggedRows of src/tensor/ragged.rs. */
#ifndef GLM5_PARAMS_RAGGED_H
#define GLM5_PARAMS_RAGGED_H
#include <stdint.h>

enum { PAGE_ROWS = 64 };

/** Row t sees the keys 0 to `positions[t]` of its sequence. Key s lies in slot `tables[table_starts[t] + s / PAGE_ROWS] * PAGE_ROWS +
 *  s % PAGE_ROWS` of a cache. Rows of a sequence are neighbours, by rising position. */
typedef struct {
    /** `[m]` */
    const uint32_t *positions;
    /** `[m]`: where the row's own key lies. */
    const uint32_t *slots;
    /** `[m]` */
    const uint32_t *table_starts;
    /** Numbers of pages, of all sequences. */
    const uint32_t *tables;
    /** Rows. */
    uint32_t m;
} ragged_rows;

#endif
