/* mla_gather, mla_expand, mla_prefill: latent attention of prompts with expanded keys and values. */
#ifndef GLM5_PARAMS_MLA_PREFILL_H
#define GLM5_PARAMS_MLA_PREFILL_H
#include "ragged.h"

/** Widths: the latent part of a row of the cache, its rotated part, the row; of a head, the part of a key that comes from the latent,
 *  a whole key, and a value. */
enum {
    PREFILL_LATENT = 512,
    PREFILL_ROPE = 64,
    PREFILL_WIDTH = PREFILL_LATENT + PREFILL_ROPE,
    PREFILL_NOPE = 192,
    PREFILL_HEAD = PREFILL_NOPE + PREFILL_ROPE,
    PREFILL_VALUE = 256
};

/** Expanded keys of a head lie in tiles: 32 keys of 512 bytes, then their values, bf16. Of each 128 bytes, sixteen lie where their number is changed
 *  by that of the key, by exclusive or, so that eight keys meet all banks of shared memory. */
enum { PREFILL_KEYS = 32, PREFILL_TILE = PREFILL_KEYS * 2 * (PREFILL_HEAD + PREFILL_VALUE) };

/** Keys that a block of threads expands. */
enum { PREFILL_EXPAND = 128 };

/** Rows of a sequence that a block of threads attends for. */
enum { PREFILL_ROWS = 128 };

/** Sequences of a launch, at most. */
enum { PREFILL_SEQUENCES = 64 };

/** One sequence, and the place of its keys among those of all, which stand one behind the other. */
typedef struct {
    /** Its first row in the batch. */
    uint32_t row;
    /** Its rows. */
    uint32_t rows;
    /** The place of its first key; a multiple of PAGE_ROWS. */
    uint32_t first;
    /** Its keys: the position of its last row, and one. */
    uint32_t keys;
} prefill_sequence;

/** Some sequences of a batch, in order. */
typedef struct {
    /** The first `n`. */
    prefill_sequence at[PREFILL_SEQUENCES];
    /** How many there are. */
    uint32_t n;
} prefill_sequences;

/** Rows of pages of a cache, one behind the other, in bf16. */
typedef struct {
    /** `[slots, PREFILL_WIDTH]` of the type; aligned to 16. */
    const void *cache;
    /** `[PAGE_ROWS * gridDim.x, PREFILL_WIDTH]` bf16, of the keys from `begin` on; zeros where there is none; aligned to 16. */
    uint16_t *out;
    /** Of the batch. */
    ragged_rows rows;
    /** Their sequences. */
    prefill_sequences sequences;
    /** The place of the first key; a multiple of PAGE_ROWS. */
    uint32_t begin;
} mla_gather_params;

/** Keys or values of all heads from latent rows; gridDim.x is n_heads * (keys / PREFILL_EXPAND). */
typedef struct {
    /** `[keys, PREFILL_WIDTH]` bf16; aligned to 16. */
    const uint16_t *rows;
    /** bf16: for keys `[n_heads, PREFILL_LATENT, PREFILL_NOPE]`, for values `[n_heads, PREFILL_VALUE, PREFILL_LATENT]`; aligned to 16. */
    const uint16_t *weights;
    /** `[keys / PREFILL_KEYS, n_heads]` tiles, of which the half that is keys, or values, is written; aligned to 16. */
    void *tiles;
    /** Heads. */
    uint32_t n_heads;
} mla_expand_params;

/** Attention of rows to the keys of some tiles; gridDim.x is n_heads * row_tiles. */
typedef struct {
    /** `[m, n_heads, PREFILL_HEAD]`; aligned to 8. */
    const float *q;
    /** `[(end - begin) / PREFILL_KEYS, n_heads]` tiles of the keys from `begin` to `end`; aligned to 16. */
    const void *tiles;
    /** `[m, n_heads, PREFILL_VALUE]`: sums so far, and in the end the result; aligned to 8. */
    float *out;
    /** `[m, n_heads, 4, 2]`: of rows that have more keys before or behind these, by lane: the logit that sums are relative to, and a part of the sum of
     *  exponentials; aligned to 8. */
    float *state;
    /** `[m, n_heads]`: logarithm of the sum of exponentials of the logits; may be null. */
    float *lse;
    /** Of the batch. */
    prefill_sequences sequences;
    /** Tiles of PREFILL_ROWS rows, of all sequences. */
    uint32_t row_tiles;
    /** The place of the first key; a multiple of PREFILL_KEYS. */
    uint32_t begin;
    /** The place behind the last; a multiple of PREFILL_KEYS. */
    uint32_t end;
    /** Query heads. */
    uint32_t n_heads;
    /** Of q, so that dot products are logits in base 2. */
    float scale;
} mla_prefill_params;

#endif
