/* norm_quantize, norm_tiles, layer_norm. */
#ifndef GLM5_PARAMS_NORM_H
#define GLM5_PARAMS_NORM_H
#include "tiles.h"

/** Residual step, RMSNorm, and the int8 activations of the integer linear layers. */
typedef struct {
    /** `[n_rows, n]` f32, rows `x_stride` apart; with `r` it becomes x + r. */
    float *x;
    /** `[n_rows, n]` f32, may be null: nothing is added then, and `x` is not written unless `y` is `x`. */
    const float *r;
    /** `[n]` */
    const float *w;
    /** `[n_rows, n]` f32 or bf16, rows `y_stride` apart; may be null, may be `x` if f32. */
    void *y;
    /** `[n_rows, n]`, may be null: then nothing is quantized, and the two that follow are not used. */
    int8_t *qs;
    /** `[n_rows, n / block]` */
    float *scales;
    /** `[n_rows, n / 16]` */
    int16_t *sums;
    /** Values from row to row of `x`. */
    uint64_t x_stride;
    /** Values from row to row of `y`. */
    uint64_t y_stride;
    /** Values per row; whole blocks if they are quantized. */
    uint32_t n;
    /** Added to the mean of the squares. */
    float eps;
} norm_quantize_params;

/** Residual step, RMSNorm, and the same rounded for linear layers in tiles and for experts. Arrays are aligned to 16. */
typedef struct {
    /** `[n_rows, n]`; with `r` it becomes x + r. */
    float *x;
    /** `[n_rows, n]`, may be null: nothing is added then, and `x` is not written. */
    const float *r;
    /** `[n]` */
    const float *w;
    /** `[n_rows, n]`; may be null. */
    float *y;
    /** The same in tiles, as `quantize` or `quantize_f16` makes them, `[n / 256, n_rows / 8]`, both rounded up; may be null. With tiles the grid
     *  is as many rows as they have, else `n_rows`. */
    void *tiles;
    /** The same as rows, as `quantize_rows` makes them, `[n_rows, n / 256]`, the last rounded up; may be null. */
    row_act *rows;
    /** Rows. */
    uint32_t n_rows;
    /** Values per row, a multiple of 32. */
    uint32_t n;
    /** Whether tiles are tile_act_f16 (else tile_act). */
    uint32_t f16_tiles;
    /** Added to the mean of the squares. */
    float eps;
} norm_tiles_params;

/** LayerNorm in place. */
typedef struct {
    /** `[n_rows, n]` f32 */
    float *x;
    /** `[n]` */
    const float *w;
    /** `[n]` */
    const float *b;
    /** Values per row. */
    uint32_t n;
    /** Added to the variance. */
    float eps;
} layer_norm_params;

#endif
