/* cache_write, and types of caches. */
#ifndef GLM5_PARAMS_CACHE_H
#define GLM5_PARAMS_CACHE_H
#include <stdint.h>

/** Types of the values of a cache: CacheType::code of src/tensor/paged.rs. */
enum { CACHE_F32 = 0, CACHE_BF16 = 1, CACHE_F16 = 2 };

/** Rows to slots of a paged cache. */
typedef struct {
    /** `[m, width]` */
    const float *x;
    /** `[m]`, each slot once: where in `cache` a row goes. */
    const uint32_t *slots;
    /** `[slots, width]` of the type. */
    void *cache;
    /** Rows. */
    uint32_t m;
    /** Values of a row. */
    uint32_t width;
} cache_write_params;

#endif
