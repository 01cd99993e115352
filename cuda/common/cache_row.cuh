// cache_row.cuh: values of a row to a paged cache of any type.
#pragma once
#include "row.cuh"
#include "params/cache.h"

// Four neighbouring values from value `at` of the cache on.
INTRIN void cache_store_four(void *cache, uint32_t type, uint64_t at, const float (&v)[4]) {
    if (type == CACHE_F32) store_four(static_cast<float *>(cache) + at, v);
    else if (type == CACHE_BF16) store_four(static_cast<bf16 *>(cache) + at, v);
    else store_four(static_cast<f16 *>(cache) + at, v);
}
