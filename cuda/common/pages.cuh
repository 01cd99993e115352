// pages.cuh: where the keys of a row of a batch lie in a paged cache.
#pragma once
#include "intrin.cuh"
#include "params/ragged.h"

// The slot of key s of a sequence whose page table begins at `table`.
INTRIN uint32_t slot_in(const ragged_rows &rows, uint32_t table, uint32_t s) {
    return rows.tables[table + s / PAGE_ROWS] * PAGE_ROWS + s % PAGE_ROWS;
}

// The same of row t's sequence.
INTRIN uint32_t slot_of(const ragged_rows &rows, uint32_t t, uint32_t s) { return slot_in(rows, rows.table_starts[t], s); }
