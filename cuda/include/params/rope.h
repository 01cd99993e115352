/* rope_angles, rope. */
#ifndef GLM5_PARAMS_ROPE_H
#define GLM5_PARAMS_ROPE_H
#include <stdint.h>

/** Pairs of a rotated part, at most. */
enum { ROPE_PAIRS = 64 };

/** Cosine and sine of the angle of each pair at each position. */
typedef struct {
    /** `[m]` */
    const uint32_t *positions;
    /** `[m, pairs]` cosines and sines. */
    float *angles;
    /** What each pair turns from one position to the next, in quarters of a turn, at most 1. */
    double quarters[ROPE_PAIRS];
    /** Rows. */
    uint32_t m;
    /** Pairs of a row. */
    uint32_t pairs;
} rope_angles_params;

/** Rotates pairs of neighbouring values of all heads. Of `x` and `y` what is given is the first rotated value of the first head. Where four
 *  values are loaded at once everything is a multiple of 4. */
typedef struct {
    /** `[m, pairs]` cosines and sines. */
    const float *angles;
    /** f32 */
    const float *x;
    /** f32, may be `x` if the strides are the same. */
    float *y;
    /** Values from row to row of `x`. */
    uint64_t x_stride;
    /** Values from row to row of `y`. */
    uint64_t y_stride;
    /** Values from head to head of `x`. */
    uint32_t x_head;
    /** Values from head to head of `y`. */
    uint32_t y_head;
    /** Heads. */
    uint32_t heads;
    /** Rows. */
    uint32_t m;
    /** Pairs of a head. */
    uint32_t pairs;
} rope_params;

#endif
