/* cache_write, cache_write_fp8, cache_write_int8, and types of caches. */
#ifndef GLM5_PARAMS_CACHE_H
#define GLM5_PARAMS_CACHE_H
#include "ragged.h"

/** Types of the values of a cache: CacheType::code of src/tensor/paged.rs. */
enum { CACHE_F32 = 0, CACHE_BF16 = 1, CACHE_F16 = 2, CACHE_FP8 = 3, CACHE_INT8 = 4 };

/** Rows to slots of a paged cache. */
typedef struct {
    /** `[m, width]`, aligned to 16. */
    const float *x;
    /** `[m]`, each slot once: where in `cache` a row goes. */
    const uint32_t *slots;
    /** Rows of the type. */
    void *cache;
    /** Rows. */
    uint32_t m;
    /** Values of a row; in fp8 some times 128, and 64; in int8 128. */
    uint32_t width;
} cache_write_params;

#endif
