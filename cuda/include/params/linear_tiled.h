/* linear_decode, linear_gemm, linear_heads: linear layers in tiles. */
#ifndef GLM5_PARAMS_LINEAR_TILED_H
#define GLM5_PARAMS_LINEAR_TILED_H
#include "tiles.h"

/** Outputs that are rotated, in pairs of neighbours, on their way to where they belong: a part of each head. */
typedef struct {
    /** `[m, width / 2]` cosines and sines; null: nothing is rotated. */
    const float *angles;
    /** Of the first head; may be within `y` of the matrix, and then at the same places. */
    float *y;
    /** Values from row to row of `y`. */
    uint64_t y_stride;
    /** Values from head to head of `y`. */
    uint32_t y_head;
    /** The first output of the first head's part: even. */
    uint32_t first;
    /** Outputs from head to head: even, at least 1. */
    uint32_t stride;
    /** Outputs of a part: even. */
    uint32_t width;
    /** Heads: all within the outputs. */
    uint32_t heads;
} linear_rotation;

/** One matrix of a launch. */
typedef struct {
    /** `[n / 16, k_tiles]` tiles, the first rounded up; as many times as there are slabs. */
    const void *w;
    /** `[m]` rows `y_stride` apart; unused, and may be null, of the second matrix of a pair. */
    float *y;
    /** Outputs. */
    uint32_t n;
    /** Values from row to row of `y`. */
    uint32_t y_stride;
    /** Of the outputs, without SwiGLU, slabs and f32. */
    linear_rotation rotation;
} linear_group;

enum { LINEAR_GROUPS = 4 };

/** Linear layers of one type on the same int8 activations, for few tokens; behind them such of f32 on these activations unrounded. */
typedef struct {
    /** With SwiGLU pairs of gate and up with the same `n`, of which the first has `y`. Of f32 `w` is `[n, k]` f32, aligned to 16. */
    linear_group groups[LINEAR_GROUPS];
    /** Those of quantized weights. Those of f32 are behind them. */
    uint32_t n_groups;
    /** Tokens: as many as the kernel multiplies, or fewer by less than a tile. */
    uint32_t m;
    /** `[k_tiles, m / 8]`, the last rounded up. */
    const tile_act *x;
    /** `[m, k]`, aligned to 16; unused, and may be null, without groups of f32. */
    const float *x_f32;
    /** Tiles along a row. */
    uint32_t k_tiles;
    /** Columns of a row of f32, a multiple of 4. */
    uint32_t k;
    /** Blocks of threads for quantized weights, at least one. The grid has as many more as there are tiles of 4 rows by 4 tokens of groups
     *  of f32, both rounded up. */
    uint32_t blocks;
} linear_decode_params;

/** Linear layers of one type on the same activations, for any number of tokens. */
typedef struct {
    /** With SwiGLU pairs of gate and up with the same `n`, of which the first has `y`. */
    linear_group groups[LINEAR_GROUPS];
    /** Those that there are. */
    uint32_t n_groups;
    /** Tokens. */
    uint32_t m;
    /** `[slabs, k_tiles, m / 8]`, the last rounded up: tile_act_f16, or tile_act. */
    const void *x;
    /** `[gridDim.x, 2, rows, tokens]` of what a block of threads holds, for tiles that several share; aligned to 16. */
    float *partial;
    /** `[gridDim.x]`, zeros before the first launch; the kernel leaves zeros. */
    uint32_t *arrived;
    /** Tiles along a row. */
    uint32_t k_tiles;
    /** Matrices of each group, each with activations of its own. */
    uint32_t slabs;
    /** Values of a row of `y` from slab to slab. */
    uint32_t y_slab;
    /** Whether a tile of `y` may be cut along K, for several blocks of threads. */
    uint32_t cut;
} linear_gemm_params;

/* Columns of a head, and tokens, that linear_heads has room for. */
enum { LINEAR_HEADS_COLS = 512, LINEAR_HEADS_TOKENS = 16 };

/** One matrix for each head, few tokens. The grid is as wide as there are eights of row tiles, rounded up, and as high as there are heads. */
typedef struct {
    /** `[heads, n / 16, k / 256]` tiles, both rounded up. */
    const void *w;
    /** `[m]` rows `x_stride` apart; a head takes `k` columns from its number times `x_head` on. Aligned to 16, as are the strides. */
    const float *x;
    /** `[m]` rows `y_stride` apart; a head has `n` columns from its number times `y_head` on. May be null. */
    float *y;
    /** `[heads n / 256, m / 8]`, the last rounded up: the heads side by side, rounded. May be null; else `n` is a multiple of 32. What a tile has
     *  behind the last head is not written. */
    tile_act *out;
    /** Values from row to row of `x`. */
    uint64_t x_stride;
    /** Values from row to row of `y`. */
    uint64_t y_stride;
    /** Values from head to head of `x`. */
    uint32_t x_head;
    /** Values from head to head of `y`. */
    uint32_t y_head;
    /** Tokens. */
    uint32_t m;
    /** Outputs. */
    uint32_t n;
    /** Inputs, a multiple of 32. */
    uint32_t k;
} linear_heads_params;

#endif
