/* router, router_choose. */
#ifndef GLM5_PARAMS_ROUTER_H
#define GLM5_PARAMS_ROUTER_H
#include <stdint.h>

enum { ROUTER_TOKENS = 4 };

/** How logits of experts become scores. */
typedef enum {
    /** Of all experts together. */
    GATING_SOFTMAX,
    /** Of each on its own. */
    GATING_SIGMOID
} router_gating;

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
    /** Experts of a group, a divisor of `n`; 0: all experts can be chosen. */
    uint32_t group_size;
    /** Groups that are used, which have `top_k` experts or more. Unused without groups. */
    uint32_t groups_used;
} router_params;

#endif
