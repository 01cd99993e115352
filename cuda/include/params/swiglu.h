/* swiglu. */
#ifndef GLM5_PARAMS_SWIGLU_H
#define GLM5_PARAMS_SWIGLU_H
#include <stdint.h>

/** The activation of a feed-forward layer. */
typedef struct {
    /** `[n]`, aligned to 16. */
    const float *gate;
    /** `[n]`, aligned to 16. */
    const float *up;
    /** `[n]`, aligned to 16; may be `gate` or `up`. */
    float *y;
    /** Values. */
    uint64_t n;
} swiglu_params;

#endif
