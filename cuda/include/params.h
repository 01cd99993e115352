/* C ABI shared by kernels (nvcc), the emulator (g++, clang++) and Rust (bindgen): plain structs only.
 *
 * Pointers say their shape and whether they may be null; unless they say so, they may not. Counts that are multiplied by
 * a row length are 64 bits wide. */
#ifndef GLM5_PARAMS_H
#define GLM5_PARAMS_H
#include <stdint.h>

/* Blocks ----------------------------------------------------------------------------------------------------------------
 *
 * As they lie in GGUF files, little-endian, fields named as in ggml. f16, bf16 and E8M0 are bits in integers. What the
 * fields mean is told beside the Rust structs, in src/quant/block.rs; a test there compares the two layouts. */

enum { QK_K = 256 }; /* values in a block of the K and I types */

typedef struct { float d; } block_f32;
typedef struct { uint16_t d; } block_f16;
typedef struct { uint16_t d; } block_bf16;

/* 32 values */
typedef struct { uint16_t d; uint8_t qs[16]; } block_q4_0;
typedef struct { uint16_t d, m; uint8_t qs[16]; } block_q4_1;
typedef struct { uint16_t d; uint8_t qh[4]; uint8_t qs[16]; } block_q5_0;
typedef struct { uint16_t d, m; uint8_t qh[4]; uint8_t qs[16]; } block_q5_1;
typedef struct { uint16_t d; int8_t qs[32]; } block_q8_0;
typedef struct { uint16_t d; uint8_t qs[16]; } block_iq4_nl;
typedef struct { uint8_t e; uint8_t qs[16]; } block_mxfp4;

/* QK_K values */
typedef struct { uint8_t scales[16]; uint8_t qs[64]; uint16_t d, dmin; } block_q2_K;
typedef struct { uint8_t hmask[32]; uint8_t qs[64]; uint8_t scales[12]; uint16_t d; } block_q3_K;
typedef struct { uint16_t d, dmin; uint8_t scales[12]; uint8_t qs[128]; } block_q4_K;
typedef struct { uint16_t d, dmin; uint8_t scales[12]; uint8_t qh[32]; uint8_t qs[128]; } block_q5_K;
typedef struct { uint8_t ql[128]; uint8_t qh[64]; int8_t scales[16]; uint16_t d; } block_q6_K;
typedef struct { uint16_t d; uint16_t scales_h; uint8_t scales_l[4]; uint8_t qs[128]; } block_iq4_xs;
typedef struct { uint16_t d; uint16_t qs[32]; } block_iq2_xxs;
typedef struct { uint16_t d; uint16_t qs[32]; uint8_t scales[8]; } block_iq2_xs;
typedef struct { uint16_t d; uint8_t qs[32]; uint8_t signs[32]; uint8_t qh[8]; uint8_t scales[8]; } block_iq2_s;
typedef struct { uint16_t d; uint8_t qs[64]; uint8_t scales[32]; } block_iq3_xxs;
typedef struct { uint16_t d; uint8_t qs[64]; uint8_t qh[8]; uint8_t signs[32]; uint8_t scales[4]; } block_iq3_s;
typedef struct { uint16_t d; uint8_t qs[32]; uint16_t qh[8]; } block_iq1_s;
typedef struct { uint8_t qs[32]; uint8_t qh[16]; uint8_t scales[8]; } block_iq1_m;

/* Params ----------------------------------------------------------------------------------------------------------------
 *
 * One struct per family, passed by value. */

/** dst = src. */
typedef struct {
    /** `[n_vecs]` of 16 bytes, aligned to 16. */
    const void *src;
    /** `[n_vecs]` of 16 bytes, aligned to 16; does not overlap `src`. */
    void *dst;
    /** Vectors of 16 bytes. */
    uint64_t n_vecs;
} copy_params;

/** One wrapping sum of 64-bit words per block of the grid. */
typedef struct {
    /** `[n_vecs]` of 16 bytes, aligned to 16. */
    const void *src;
    /** `[gridDim.x]` */
    uint64_t *partial;
    /** Vectors of 16 bytes. */
    uint64_t n_vecs;
} reduce_params;

/** A matrix instruction, `steps` times for each of `tiles` accumulators of each warp. */
typedef struct {
    /** `[4, 32]` registers of fragment A. */
    const uint32_t *a;
    /** `[tiles, 2, 32]` registers of fragments B. */
    const uint32_t *b;
    /** `[gridDim.x, warps, tiles, 4, 32]` f32 or s32 registers of fragments D. */
    void *d;
    /** Repetitions. */
    uint32_t steps;
} mma_params;

/** Values of a run of blocks. */
typedef struct {
    /** `[src_bytes]`, whole blocks, aligned to 16. */
    const void *src;
    /** `[n]` f32, f16 or bf16, aligned to 16. */
    void *out;
    /** Bytes of `src`. */
    uint64_t src_bytes;
    /** Byte of `src` at which the first block begins. */
    uint64_t first;
    /** Values; whole blocks, all of them within `src`. */
    uint64_t n;
} dequantize_params;

/** Rows of a table by token id. */
typedef struct {
    /** `[vocab, hidden]` blocks, aligned to 16. */
    const void *table;
    /** `[n_tokens]`, each below `vocab` or the kernel traps. */
    const uint32_t *tokens;
    /** `[n_tokens, hidden]` f32 or bf16, aligned to 16. */
    void *out;
    /** Rows of the table. */
    uint32_t vocab;
    /** Values per row; whole blocks. */
    uint32_t hidden;
} embed_params;

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

/** What is done to the activations of a linear layer before they are multiplied. */
typedef enum {
    /** Nothing. */
    ROUND_NONE,
    /** Rounded to int8 with one scale for 32 values, and back. */
    ROUND_INT8,
    /** Rounded to bf16, and back. */
    ROUND_BF16
} linear_round;

/** Linear layer of any weight type, one matrix or one per head. */
typedef struct {
    /** `[slabs, n, k]` blocks, aligned to 16; as many slabs as the grid is high. */
    const void *w;
    /** `[m]` rows `x_stride` apart; slab s takes `k` columns from `s * x_head` on. */
    const float *x;
    /** `[m]` rows `y_stride` apart; slab s gives `n` columns from `s * y_head` on. */
    float *y;
    /** Values from row to row of `x`. */
    uint64_t x_stride;
    /** Values from row to row of `y`. */
    uint64_t y_stride;
    /** Columns of `x` from slab to slab. */
    uint64_t x_head;
    /** Columns of `y` from slab to slab. */
    uint64_t y_head;
    /** Rows of `x` and `y`: tokens. */
    uint32_t m;
    /** Rows of a slab. */
    uint32_t n;
    /** Columns of a slab: whole blocks, below 2^31; with `ROUND_INT8` a multiple of 32. */
    uint32_t k;
    /** Of the activations. */
    linear_round round;
} linear_params;

#endif
