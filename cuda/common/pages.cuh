// pages.cuh: where the keys of a row of a batch lie in a paged cache.
#pragma once
#include "intrin.cuh"
#include "params/ragged.h"

// The slot of key s of row t's sequence.
INTRIN uint32_t slot_of(const ragged_rows &rows, uint32_t t, uint32_t s) {
    return rows.tables[rows.table_starts[t] + s / PAGE_ROWS] * PAGE_ROWS + s % PAGE_ROWS;
}
