/* moe_sort, moe_sort_few, moe_sum. */
#ifndef GLM5_PARAMS_MOE_SORT_H
#define GLM5_PARAMS_MOE_SORT_H
#include <stdint.h>

enum { MOE_PAIRS = 128, MOE_EXPERTS = 512, MOE_ROWS = 8 };

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

#endif
