/* post_a. */
#ifndef GLM5_PARAMS_POST_A_H
#define GLM5_PARAMS_POST_A_H
#include "cache.h"
#include "tiles.h"

/** What stands between the first projections of attention and what takes their results. Widths are multiples of 4, arrays aligned to 16. */
typedef struct {
    /** `[m, q_cols]` */
    const float *q;
    /** `[q_cols]` */
    const float *q_norm;
    /** `[m, q_cols]`: `q` normed; may be null. */
    float *y;
    /** The same in tiles, as `quantize` or `quantize_f16` makes them, `[q_cols / 256, m / 8]`, both rounded up; may be null. */
    void *tiles;
    /** `[m, latent + rope]` */
    const float *kv;
    /** `[latent]` */
    const float *kv_norm;
    /** `[m, key_cols]`, may be null: then the next three are not used. */
    const float *key;
    /** `[key_cols]` */
    const float *key_norm;
    /** `[key_cols]` */
    const float *key_bias;
    /** Rows of `key_cols` values. */
    void *key_cache;
    /** Rows of `latent + rope` values. */
    void *latent_cache;
    /** `[m, rope / 2]` cosines and sines. */
    const float *angles;
    /** `[m]`, each slot once: where in the caches a row goes. */
    const uint32_t *slots;
    /** Rows. */
    uint32_t m;
    /** Rows of `q` that blocks of threads are there for: `m`, with tiles rounded up to whole ones. */
    uint32_t q_rows;
    /** At most 2048; with tiles a multiple of 32. */
    uint32_t q_cols;
    /** At most 512. */
    uint32_t latent;
    /** Rotated values of a latent row and of a key, at most 128. */
    uint32_t rope;
    /** At most 128, at least `rope`. */
    uint32_t key_cols;
    /** Whether tiles are tile_act_f16 (else tile_act). */
    uint32_t f16_tiles;
    /** CACHE_F32 and so on. In fp8 `latent` is a multiple of 128 and `rope` 64. */
    uint32_t latent_type;
    /** The same of the keys. In int8 they have 128 values. */
    uint32_t key_type;
    /** Added to the mean of the squares. */
    float eps;
    /** Added to the variance of a key. */
    float key_eps;
} post_a_params;

#endif
