/* mla_decode, mla_merge, mla_float: absorbed latent attention over paged caches. */
#ifndef GLM5_PARAMS_MLA_ATTENTION_H
#define GLM5_PARAMS_MLA_ATTENTION_H
#include "ragged.h"

/** Values of a row of the cache, of which the first MLA_LATENT are values of the attention, too; the rest is the rotated part. */
enum { MLA_LATENT = 512, MLA_ROPE = 64, MLA_WIDTH = 576 };

/** Keys of a tile: one step of a block of threads of mla_decode, and of mla_few. */
enum { MLA_KEYS = 16, MLA_FEW_KEYS = 32 };

/** Keys that a block of threads takes, at least, if there are so many. */
enum { MLA_SHARE = 64 };

/** Most blocks of threads of mla_decode and mla_few, and so pieces of a unit. */
enum { MLA_BLOCKS = 1024 };

/** A unit whose keys several blocks of threads have; `pieces` is 0 for none. */
typedef struct {
    /** Of the batch. */
    uint32_t row;
    /** Of `heads` query heads, the template argument. */
    uint32_t group;
    /** The block of threads that began it; the next ones have the rest. */
    uint32_t first;
    /** Blocks of threads that have some of it. */
    uint32_t pieces;
} mla_cut;

/** The keys that a row attends: those that it sees, or of them those that it selected. */
typedef struct {
    /** `[m, k]` positions, the first `lens[t]` of row t ascending; null: all that it sees. One behind the row's own position is left out. */
    const uint32_t *indices;
    /** `[m]`; unused, and may be null, without `indices`. */
    const uint32_t *lens;
    /** Positions of a row, at most. */
    uint32_t k;
} mla_selection;

/** Heads of 512 + 64, caches of f16, bf16 or fp8; mla_few, too. */
typedef struct {
    /** `[m, n_heads, MLA_WIDTH]` */
    const float *q;
    /** `[slots, MLA_WIDTH]` of the type, or rows of fp8; aligned to 16. */
    const void *cache;
    /** One row at least. Tiles of all rows and groups of heads are fewer than 2^32. */
    ragged_rows rows;
    /** Of the rows. */
    mla_selection selected;
    /** `[m, n_heads, MLA_LATENT]`; aligned to 8. */
    float *out;
    /** `[m, n_heads]`: logarithm of the sum of exponentials of the logits; may be null. */
    float *lse;
    /** `[gridDim.x, 2, heads, MLA_LATENT]`: sums of pieces, of one that began before the block's tiles and of one that ends behind them; aligned
     *  to 16. */
    float *partial;
    /** `[gridDim.x, 2, heads, 2]`: for each the largest logit, in base 2, and the sum of exponentials. */
    float *sums;
    /** One for each unit (of a row and a group of heads) if there are no more of them than blocks of threads; else one for each block. */
    mla_cut *cuts;
    /** Query heads. */
    uint32_t n_heads;
    /** Of the dot products, to logits in base 2. */
    float scale;
} mla_decode_params;

/** What mla_decode or mla_few left in pieces; gridDim.x is 2 * heads for each cut, or a quarter of that, by the template argument. */
typedef struct {
    /** As that has it, like all here. */
    const float *partial;
    /** See there. */
    const float *sums;
    /** See there. */
    const mla_cut *cuts;
    /** See there. */
    float *out;
    /** See there. */
    float *lse;
    /** See there. */
    uint32_t n_heads;
} mla_merge_params;

/** Heads of any widths up to MLA_WIDTH in all, in f32 arithmetic; gridDim.x is m * n_heads. */
typedef struct {
    /** `[m, n_heads, width]` */
    const float *q;
    /** `[slots, width]` of the type, or rows of fp8, whose width is some times 128, and 64. */
    const void *cache;
    /** Of the batch. */
    ragged_rows rows;
    /** Of the rows. */
    mla_selection selected;
    /** `[m, n_heads, latent]` */
    float *out;
    /** `[m, n_heads]`; may be null. */
    float *lse;
    /** Query heads. */
    uint32_t n_heads;
    /** Values of a row of the cache that are values of the attention. */
    uint32_t latent;
    /** Values of a row, MLA_WIDTH at most. */
    uint32_t width;
    /** Of the dot products, to logits. */
    float scale;
} mla_float_params;

#endif
