/* cache_write. */
#ifndef GLM5_PARAMS_CACHE_H
#define GLM5_PARAMS_CACHE_H
#include <stdint.h>

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
