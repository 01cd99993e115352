// router: experts of each token and their weights. router: from activations, for few tokens; router_choose: from logits.
//
// Math    z = W x in f32; s = sigmoid(z), or softmax(z); the top_k experts with the largest s + bias, of equals those with the lower index,
//         NaN as -inf; weights s, divided by their sum + 1e-20 if asked for, times a factor. If some groups of experts are used, those with
//         the largest sums of their two largest s + bias, no others' experts are chosen.
// Shapes  x [m, k], W [n, k], bias [n], z [m, n], ids and weights [m, top_k]; n <= kExperts, top_k <= 32
// Tiling  router: a block of threads for kRows experts and 4 tokens (float_rows.cuh); the last one to end of all experts of 4 tokens chooses.
//         Choosing is the work of a warp, a lane of which has every 32nd expert.
// Floor   bytes of W: 256 x 6144 6.3 MB, 3.9 us at 1.61 TB/s. Choosing: launch, and two reductions over a warp for each expert.
// Limits  many tokens read W again for every 4 of them, from L2: those have their logits from linear_float
#include "common/float_rows.cuh"
#include "params/router.h"

// Larger for larger scores; of NaN that of -inf, and of no score 0.
INTRIN uint32_t score_order(float score) {
    const uint32_t bits = f32_bits(__fadd_rn(score, 0.f)); // -0 is +0
    if ((bits & 0x7fffffffu) > 0x7f800000u) return ~0xff800000u;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

INTRIN float warp_max(float x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    return x;
}
INTRIN float warp_sum(float x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    return x;
}

// The largest of kN and, of equals, the first one, comes to be number 0. By a tree: chains of comparisons are what the choice waits for.
template <int kN, int kAll> INTRIN void first_largest(uint32_t (&value)[kAll], uint32_t (&at)[kAll]) {
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
        const bool second = value[2 * i + 1] > value[2 * i];
        value[i] = second ? value[2 * i + 1] : value[2 * i], at[i] = second ? at[2 * i + 1] : at[2 * i];
    }
    if constexpr (kN > 2) first_largest<kN / 2>(value, at);
}

// The number of the first of the largest, which is struck out: lane l has numbers l, l + 32 and so on. By a warp.
template <int kOwn> INTRIN uint32_t take_first_largest(uint32_t (&order)[kOwn]) {
    const uint32_t lane = threadIdx.x % 32;
    uint32_t best[kOwn], at[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) best[i] = order[i], at[i] = i * 32 + lane;
    first_largest<kOwn>(best, at);
    const uint32_t top = __reduce_max_sync(0xffffffffu, best[0]);
    const uint32_t found = __reduce_min_sync(0xffffffffu, best[0] == top ? at[0] : 0xffffffffu);
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
        if (found == i * 32 + lane) order[i] = 0; // not again
    return found;
}

INTRIN float score_of_order(uint32_t order) { return f32_from_bits(order >> 31 ? order & 0x7fffffffu : ~order); }

// Strikes out the experts of all groups but those that are used, by a warp. One group after the other, as there are few.
template <int kOwn> INTRIN void keep_groups(const router_params &p, uint32_t (&order)[kOwn]) {
    const uint32_t lane = threadIdx.x % 32, groups = p.n / p.group_size;
    uint32_t sums[kOwn] = {}; // of groups lane, lane + 32 and so on
#pragma unroll 1
    for (uint32_t group = 0; group < groups; ++group) {
        uint32_t first = 0, second = 0; // of this lane's experts
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            const uint32_t v = i * 32 + lane - group * p.group_size < p.group_size ? order[i] : 0;
            second = max(second, min(first, v)), first = max(first, v);
        }
        const uint32_t top = __reduce_max_sync(0xffffffffu, first);
        const uint32_t owner = __reduce_min_sync(0xffffffffu, first == top ? lane : 32);
        const uint32_t next = __reduce_max_sync(0xffffffffu, lane == owner ? second : first);
        float sum = score_of_order(top);
        if (p.group_size > 1) sum = __fadd_rn(sum, score_of_order(next));
#pragma unroll
        for (int i = 0; i < kOwn; ++i)
            if (group == i * 32 + lane) sums[i] = score_order(sum);
    }
    uint32_t used = 0; // bits of groups 32 lane and on
#pragma unroll 1
    for (uint32_t j = 0; j < p.groups_used; ++j) {
        const uint32_t group = take_first_largest(sums);
        if (group / 32 == lane) used |= 1u << group % 32;
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        const uint32_t group = (i * 32 + lane) / p.group_size;
        if ((__shfl_sync(0xffffffffu, used, static_cast<int>(group / 32 % 32)) >> group % 32 & 1) == 0) order[i] = 0;
    }
}

// Of one token, by a warp.
template <int kExperts> INTRIN void choose_experts(const router_params &p, uint32_t token) {
    constexpr int kOwn = kExperts / 32;
    const uint32_t lane = threadIdx.x % 32;
    float scores[kOwn], bias[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) bias[i] = i * 32 + lane < p.n ? p.bias[i * 32 + lane] : 0.f;
    const float *logits = p.logits + uint64_t{token} * p.n;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) scores[i] = i * 32 + lane < p.n ? logits[i * 32 + lane] : f32_from_bits(0xff800000u);
    if (p.gating == GATING_SIGMOID) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) scores[i] = __fdiv_rn(1.f, __fadd_rn(1.f, expf(-scores[i])));
    } else {
        float largest = scores[0], sum = 0.f;
#pragma unroll
        for (int i = 1; i < kOwn; ++i) largest = fmaxf(largest, scores[i]);
        largest = warp_max(largest);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            scores[i] = expf(__fsub_rn(scores[i], largest));
            if (i * 32 + lane < p.n) sum = __fadd_rn(sum, scores[i]);
        }
        sum = warp_sum(sum);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) scores[i] = __fdiv_rn(scores[i], sum);
    }
    uint32_t order[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
        order[i] = i * 32 + lane < p.n ? score_order(__fadd_rn(scores[i], bias[i])) : 0;
    if (p.group_size > 0) keep_groups(p, order);

    float mine = 0.f, sum = 0.f; // of the expert whose number among the chosen is that of the lane
    uint32_t id = 0;
    for (uint32_t j = 0; j < p.top_k; ++j) {
        const uint32_t expert = take_first_largest(order);
        float score = 0.f;
#pragma unroll
        for (int i = 0; i < kOwn; ++i)
            if (expert == i * 32 + lane) score = scores[i];
        score = __shfl_sync(0xffffffffu, score, static_cast<int>(expert % 32));
        sum = __fadd_rn(sum, score);
        if (j == lane) mine = score, id = expert;
    }
    if (lane >= p.top_k) return;
    if (p.normalize) mine = __fdiv_rn(mine, __fadd_rn(sum, 1e-20f));
    p.ids[uint64_t{token} * p.top_k + lane] = id;
    p.weights[uint64_t{token} * p.top_k + lane] = __fmul_rn(mine, p.scale);
}

template <int kExperts, int kRows, int kBlocks, int kWarps> struct router_smem {
    float_rows_smem<kWarps> rows; // at the beginning, where it is looked for
    uint32_t last;
};

template <int kExperts, int kRows, int kBlocks, int kWarps> __device__ __forceinline__ void router(const router_params &p) {
    static_assert(FLOAT_TOKENS == ROUTER_TOKENS && kWarps >= ROUTER_TOKENS, "a warp chooses for each token");
    const uint32_t across = (p.m + FLOAT_TOKENS - 1) / FLOAT_TOKENS, down = (p.n + kRows - 1) / kRows;
    const uint32_t row = blockIdx.x / across * kRows, tokens = blockIdx.x % across, token = tokens * FLOAT_TOKENS;
    multiply_float_rows<kRows, kWarps, 3>(p.w, row, p.n, p.x, token, p.m, p.k,
                                   [&](uint32_t j, uint32_t t, float z) { p.logits[uint64_t{t} * p.n + j] = z; });
    auto &shared = smem<router_smem<kExperts, kRows, kBlocks, kWarps>>();
    const uint32_t warp = threadIdx.x / 32;
    if (warp == 0) {
        __syncwarp(); // its logits are there
        if (threadIdx.x == 0) {
            const bool last = atomic_add_acq_rel(p.arrived + tokens, 1) == down - 1;
            if (last) p.arrived[tokens] = 0; // for the next launch
            shared.last = last;
        }
    }
    __syncthreads();
    if (shared.last != 0 && warp < FLOAT_TOKENS && token + warp < p.m) choose_experts<kExperts>(p, token + warp);
}

template <int kExperts, int kWarps> __device__ __forceinline__ void router_choose(const router_params &p) {
    griddep_launch_dependents();
    griddep_wait();
    const uint32_t token = blockIdx.x * kWarps + threadIdx.x / 32;
    if (token < p.m) choose_experts<kExperts>(p, token);
}
