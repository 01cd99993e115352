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

/* Tiles -----------------------------------------------------------------------------------------------------------------
 *
 * What matrix instructions take, in the order in which lanes of the integer one take it, so that every load is 16 neighbouring bytes
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

/** Blocks to tiles. */
typedef struct {
    /** `[slabs, n, k]` blocks, aligned to 16. */
    const void *src;
    /** `[slabs, n / 16, k / 256]` tiles, both rounded up: what is behind the end of the matrix is zeros. */
    void *out;
    /** Rows of a slab. */
    uint32_t n;
    /** Columns, whole blocks. */
    uint32_t k;
} repack_params;

/** Rows to int8 tiles. */
typedef struct {
    /** `[m, k]` */
    const float *x;
    /** `[k / 256, m / 8]`, both rounded up: what is behind the end is zeros. */
    tile_act *out;
    /** Tokens. */
    uint32_t m;
    /** Columns, a multiple of 32. */
    uint32_t k;
} quantize_params;

/** Rows to int8 rows. */
typedef struct {
    /** `[m, k]`, aligned to 16. */
    const float *x;
    /** `[m, k / 256]`, rounded up: what is behind the end is zeros. */
    row_act *out;
    /** Tokens. */
    uint32_t m;
    /** Columns, a multiple of 32. */
    uint32_t k;
} quantize_rows_params;

/** Rows to f16 tiles. One matrix, or a part of each row for each of several. */
typedef struct {
    /** `[m]` rows `x_stride` apart; slab s takes `k` columns from `s * x_slab` on. Aligned to 16, as are the strides. */
    const float *x;
    /** `[slabs, k / 256, m / 8]`, rounded up: what is behind the end is zeros. As many slabs as the grid is high. */
    tile_act_f16 *out;
    /** Values from row to row. */
    uint64_t x_stride;
    /** Values from slab to slab. */
    uint64_t x_slab;
    /** Tokens. */
    uint32_t m;
    /** Columns, a multiple of 32. */
    uint32_t k;
} quantize_f16_params;

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

/** How logits of experts become scores. */
typedef enum {
    /** Of all experts together. */
    GATING_SOFTMAX,
    /** Of each on its own. */
    GATING_SIGMOID
} router_gating;

enum { ROUTER_TOKENS = 4 };

/** Types that have tiles. */
typedef enum {
    /** tile_q4_K */
    TILES_Q4_K,
    /** tile_q5_K */
    TILES_Q5_K,
    /** tile_q6_K */
    TILES_Q6_K,
    /** tile_q5_0 */
    TILES_Q5_0,
    /** tile_q8_0 */
    TILES_Q8_0
} tiles_type;

/** Which experts' rows of a call are which: pairs of a token and one of its slots, sorted by expert. Those of few tokens are sorted by
 *  each block of threads for itself; of more tokens moe_sort has sorted them. */
typedef struct {
    /** `[m, top_k]`: experts `first` and on are those of the stack, 0xffffffff is none; unused, and may be null, with `offsets`. */
    const uint32_t *ids;
    /** `[n_experts + 1]` the first place of each expert; may be null, for up to MOE_PAIRS pairs. */
    const uint32_t *offsets;
    /** `[m * top_k]` pairs, by place; unused, and may be null, without `offsets`. */
    const uint32_t *sorted;
    /** Tokens. */
    uint32_t m;
    /** Slots of a token. */
    uint32_t top_k;
    /** Experts of the stack, MOE_EXPERTS at most. */
    uint32_t n_experts;
    /** The first one's id. */
    uint32_t first;
    /** Not 0: the kernel traps at an id of another expert. 0: it is none. */
    uint32_t strict;
} moe_pairs;

enum { MOE_PAIRS = 128, MOE_EXPERTS = 512, MOE_ROWS = 8 };

/** A stack of matrices in tiles. */
typedef struct {
    /** `[slabs, n / 16, k_tiles]` tiles; may be null where there is no shared expert. */
    const void *w;
    /** Of the tiles. */
    tiles_type ty;
} moe_matrix;

/** Experts that have at most MOE_ROWS rows, and the shared expert: silu(gate x) * up x, rounded; or y = W x alone. */
typedef struct {
    /** Up to MOE_ROWS tokens, if there is a shared expert. */
    moe_pairs pairs;
    /** Gate and up, of one type; of one matrix the first. */
    moe_matrix experts[2];
    /** The same of the shared expert. */
    moe_matrix shared[2];
    /** `[m, k_tiles]` by token, or by place where there is one matrix. */
    const row_act *x;
    /** `[places, n / 256]`, rounded up; unused where there is one matrix. */
    row_act *h;
    /** `[m, n_shared / 256]`, the same. */
    row_act *h_shared;
    /** `[places, n]` of one matrix. */
    float *y;
    /** `[gridDim.x, 2, 4, 128]` of units of gate and up that several blocks of threads share; aligned to 16. */
    float *partial;
    /** `[gridDim.x]`: zeros before the first launch, and left so. */
    uint32_t *arrived;
    /** Rows of a matrix; where they are rounded a multiple of 32. */
    uint32_t n;
    /** The same of the shared expert. */
    uint32_t n_shared;
    /** Tiles along a row. */
    uint32_t k_tiles;
} moe_rows_params;

/** Places of an expert that are multiplied together. */
typedef struct {
    /** The first place. */
    uint32_t first;
    /** Of the stack. */
    uint16_t expert;
    /** Places. */
    uint16_t count;
    /** The first tile of this expert in the list. */
    uint32_t begin;
    /** Tiles of this expert, one after the other in the list. */
    uint32_t tiles;
} moe_tile;

/** Experts that have more than MOE_ROWS rows: silu(gate x) * up x, rounded; or y = W x alone. */
typedef struct {
    /** Gate and up, of one type; of one matrix the first. */
    moe_matrix experts[2];
    /** `[m, k_tiles]` by token, or by place where there is one matrix. */
    const row_act *x;
    /** Pairs by place; unused, and may be null, where there is one matrix. */
    const uint32_t *sorted;
    /** `[n_tiles]`, of at most as many places as the kernel takes, experts with most places first. Those with MOE_ROWS or fewer are left out. */
    const moe_tile *tiles;
    /** One. */
    const uint32_t *n_tiles;
    /** One, zero before the launch: what was taken. */
    uint32_t *queue;
    /** `[places, n / 256]`, rounded up; unused where there is one matrix. */
    row_act *h;
    /** `[places, n]` of one matrix. */
    float *y;
    /** Rows of a matrix; where they are rounded a multiple of 32. */
    uint32_t n;
    /** Tiles along a row. */
    uint32_t k_tiles;
    /** Slots of a token. */
    uint32_t top_k;
} moe_gemm_params;

/** For up to MOE_ROWS tokens: the weighted sum of what their experts give, and the shared expert. */
typedef struct {
    /** Up to MOE_PAIRS. */
    moe_pairs pairs;
    /** `[m, top_k]` */
    const float *weights;
    /** Down. */
    moe_matrix experts;
    /** The same of the shared expert. */
    moe_matrix shared;
    /** `[places, k_tiles]` */
    const row_act *h;
    /** `[m, k_shared]` */
    const row_act *h_shared;
    /** `[m, n]` */
    float *y;
    /** `[gridDim.x, 2, 128]` of units that several blocks of threads share; aligned to 16. */
    float *partial;
    /** `[gridDim.x]`: zeros before the first launch, and left so. */
    uint32_t *arrived;
    /** Outputs. */
    uint32_t n;
    /** Tiles along a row of an expert. */
    uint32_t k_tiles;
    /** The same of the shared expert; 0 without one. */
    uint32_t k_shared;
} moe_down_params;

/** Which experts a token goes to. */
typedef struct {
    /** `[n, k]`, aligned to 16; unused, and may be null, where logits are given. */
    const float *w;
    /** `[m, k]`, aligned to 16; unused, and may be null, where logits are given. */
    const float *x;
    /** `[n]` */
    const float *bias;
    /** `[m, n]`, read where they are given. */
    float *logits;
    /** `[m, top_k]` */
    uint32_t *ids;
    /** `[m, top_k]` */
    float *weights;
    /** `[m / ROUTER_TOKENS]`, rounded up, zeros before the first launch; the kernel leaves zeros. Unused, and may be null, where logits
     *  are given. */
    uint32_t *arrived;
    /** Tokens. */
    uint32_t m;
    /** Experts, as many as the kernel has room for, or fewer. */
    uint32_t n;
    /** Columns, a multiple of 4. */
    uint32_t k;
    /** Experts of a token: 1 to n, 32 at most. */
    uint32_t top_k;
    /** Of the scores. */
    router_gating gating;
    /** Not 0: weights are divided by their sum. */
    uint32_t normalize;
    /** Factor on the weights. */
    float scale;
} router_params;

enum { MOE_COUNTERS = 4 };

/** Pairs of token and slot, sorted by expert. */
typedef struct {
    /** `[n]` experts, aligned to 16. */
    const uint32_t *ids;
    /** `[n_experts + 1]`: the first place of each expert; the last is the number of places. */
    uint32_t *offsets;
    /** `[n]`: the pair at each place; undefined behind the last place. */
    uint32_t *sorted;
    /** `[n]`: the place of each pair, or 2^32 - 1. */
    uint32_t *places;
    /** `[n / height + min(n, n_experts)]`, the experts with most places first; aligned to 16. */
    moe_tile *tiles;
    /** `[MOE_COUNTERS]`: the number of tiles, then zeros, in which kernels that take tiles count. */
    uint32_t *counters;
    /** One, zero before the first launch; the kernel leaves zero. Unused, and may be null, by one block of threads. */
    uint32_t *arrived;
    /** Pairs, below 2^23; of one block of threads as many as it has room for. */
    uint32_t n;
    /** Experts of this stack, as many as the kernel has room for, or fewer. */
    uint32_t n_experts;
    /** The id of the first one; with `n_experts` below 2^31. */
    uint32_t first_expert;
    /** Places of a tile, at most; below 2^16. */
    uint32_t height;
    /** Not 0: an id that is not of this stack traps, unless it is 2^32 - 1. */
    uint32_t strict;
} moe_sort_params;

/** The sum of what the experts of a token gave. */
typedef struct {
    /** `[places, hidden]`; loads of four columns need it, `shared` and `y` aligned to 16, and whole fours. */
    const float *rows;
    /** `[m, top_k]`: rows of `rows`, or 2^32 - 1. */
    const uint32_t *places;
    /** `[m, top_k]` */
    const float *weights;
    /** `[m, hidden]`, may be null, may be `y`. */
    const float *shared;
    /** `[m, hidden]` */
    float *y;
    /** Tokens. */
    uint32_t m;
    /** Slots of a token. */
    uint32_t top_k;
    /** Columns, below 2^31. */
    uint32_t hidden;
} moe_sum_params;

/** Products of experts with the tokens that chose them. */
typedef struct {
    /** `[experts, n, k]` blocks, aligned to 16. */
    const void *w;
    /** `[m, k]`, or `[places, k]` without `sorted`. */
    const float *x;
    /** `[places, n]` */
    float *y;
    /** As moe_sort leaves them, with tiles of at most as many places as the kernel multiplies; there are no more of them than the grid
     *  has blocks of threads for. */
    const moe_tile *tiles;
    /** The first is the number of tiles. */
    const uint32_t *counters;
    /** `[places]`: the pair at each place, whose token is its row of `x`; may be null: places are rows. */
    const uint32_t *sorted;
    /** Slots of a token. */
    uint32_t top_k;
    /** Rows of an expert. */
    uint32_t n;
    /** Columns: whole blocks, below 2^31; with `ROUND_INT8` a multiple of 32. */
    uint32_t k;
    /** Of the activations. */
    linear_round round;
} moe_dot_params;

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
