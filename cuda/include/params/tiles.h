/* Tiles of weights, and activations, as matrix instructions take them. */
#ifndef GLM5_PARAMS_TILES_H
#define GLM5_PARAMS_TILES_H
#include <stdint.h>

/* What matrix instructions take, in the order in which lanes of the integer one take it, so that every load is 16 neighbouring bytes
 * per lane. A lane l = 4 g + t of a warp holds of 32 columns (k) the columns 16 r + 4 t to 16 r + 4 t + 3, r = 0 and 1.
 *
 * Tiles of weights are 16 rows of 256 columns, those of a matrix row tile by row tile, along k within. Register r of lane
 * (g, t) is row g + 8 (r % 2), columns 16 (r / 2) + 4 t and on. They take the bytes of the blocks that they hold. */

enum { TILE_ROWS = 16, TILE_TOKENS = 8, TILE_COLS = 256 };

/** The bytes of a block before its quants: d, dmin and the packed scales of Q4_K and Q5_K. */
typedef struct { uint16_t d, dmin; uint8_t scales[12]; } tile_head_k4;

/** Columns 64 i and on in the low nibbles, 32 more in the high ones. */
typedef struct { uint32_t qs[4][32][4]; tile_head_k4 heads[16]; } tile_q4_K;
/** The fifth bits: of nibble s of byte e of register r, bit 8 e + 4 s + r of `qh[i][lane]`. */
typedef struct { uint32_t qs[4][32][4]; uint32_t qh[4][32]; tile_head_k4 heads[16]; } tile_q5_K;
/** The upper two bits: of byte e of register r, bits 8 e + 2 r of `qh[i][lane][s]`, s for the nibble. */
typedef struct { uint32_t qs[4][32][4]; uint32_t qh[4][32][2]; int8_t scales[16][16]; uint16_t d[16]; } tile_q6_K;
/** Nibbles and fifth bits as those of Q5_K. */
typedef struct { uint32_t qs[4][32][4]; uint32_t qh[4][32]; uint16_t d[16][8]; } tile_q5_0;
/** Columns 32 j and on in `qs[j]`. */
typedef struct { uint32_t qs[8][32][4]; uint16_t d[16][8]; } tile_q8_0;

/** Activations of 8 tokens, 256 columns, as int8 in blocks of 32 (src/quant/activations.rs). Tokens 0 to 3 are g = 0, 2, 4 and 6,
 *  tokens 4 to 7 the odd g. */
typedef struct {
    /** For each i: columns 64 i and on in words 0 and 1 of a lane, 32 more in words 2 and 3. */
    uint32_t qs[4][32][4];
    /** Of block j and each g: the scale and -3 * 2^22 times the scale. */
    float scales[8][8][2];
    /** The sums of the blocks, scale times quants, in two bf16 that add up to it: the upper and the lower parts of
     *  blocks 2 t and 2 t + 1. */
    uint32_t sums[32][2];
} tile_act;

/** Activations of one token, 256 columns: what it has in a tile_act. Rows like this can be gathered: the experts of a layer take those of
 *  any tokens. */
typedef struct {
    /** Lane t of a token takes `qs[i][t]` for columns 64 i and on. */
    uint32_t qs[4][4][4];
    /** Of each block. */
    float scales[8][2];
    /** Of blocks 2 t and 2 t + 1. */
    uint32_t sums[4][2];
    /** In shared memory the rows of eight tokens then meet all banks. */
    uint32_t unused[4];
} row_act;

/** The same as f16, each token times the power of two that takes its largest value to [2^9, 2^10). */
typedef struct {
    /** For each block of 32 columns: of columns 4 t + (0, 1, 2, 3) the first and the third in word 0, the second and
     *  the fourth in word 1; the same 16 columns further in words 2 and 3. */
    uint32_t x[8][32][4];
    /** As in tile_act, two f16. */
    uint32_t sums[32][2];
    /** Of each g: the inverse of its power of two; NaN if one of its values is not finite. */
    float scales[8];
} tile_act_f16;

#endif
