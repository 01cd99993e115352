/* moe_rows, moe_down, moe_gemm: experts in tiles. */
#ifndef GLM5_PARAMS_MOE_H
#define GLM5_PARAMS_MOE_H
#include "moe_sort.h"
#include "tiles.h"

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
    /** `[m, top_k]`: experts `first` and on are those of the stack, 0xffffffff is none; unused, and may be null, with `offsets`. moe_down
     *  reads them before griddep_wait(), as it reads weights: they were there before moe_rows, which waits before it lets moe_down begin. */
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
    /** Not 0: moe_rows, too, reads ids before griddep_wait(): they were there before the kernel in front of it, quantize_rows, which waits before it
     *  lets moe_rows begin. */
    uint32_t early;
} moe_pairs;

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

#endif
