// gemm_f16.cuh: the step of linear_gemm on f16 activations: a warp's rows and tokens, 256 columns.
//
// Sums are in units of the row (half.cuh), which change from tile to tile or from block to block: what is there is first divided by the
// new unit. So matrix instructions add to the sums themselves, and no scale is applied to products. With a unit for 256 columns that
// costs nothing; with one for 32 it is two more instructions for each of the matrix units, 4 to 8 % of the time.
#pragma once
#include "half.cuh"

// 1 / x to a unit in the last place; of zero and infinity NaN.
INTRIN float near_inverse(float x) {
    const float seed = rcp_approx(x);
    return __fmaf_rn(seed, __fmaf_rn(-x, seed, 1.f), seed);
}

template <class Block, int kRows, int kTokens> struct gemm_f16 {
    using of = half_tile<Block>;
    using weights = typename of::type;
    using activations = tile_act_f16;
    float sums[kRows][kTokens][4];
    float unit[kRows][2];
    float2 scales[kTokens]; // of the two tokens of this lane in each tile

    INTRIN void clear() {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            unit[r][0] = unit[r][1] = 1.f;
#pragma unroll
            for (int t = 0; t < kTokens; ++t) sums[r][t][0] = sums[r][t][1] = sums[r][t][2] = sums[r][t][3] = 0.f;
        }
    }

    INTRIN void add(const weights *w, const activations *x, int lane) {
        typename of::own own[kRows][2];
        if constexpr (!of::kUnitOfBlock) begin_tile(w, x, lane, own);
        // A block ahead: the integer units decode it while the matrix units multiply.
        constexpr int kAtOnce = kTokens < 4 ? kTokens : 4;
        uint32_t a[2][kRows][2][4];
        [[maybe_unused]] float factors[2][kRows][2];
        decode<0>(w, own, 0, lane, a[0], factors[0]);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                if (j == 0) decode<1>(w, own, c, lane, a[1], factors[1]);
                else if (c < 3) decode<0>(w, own, c + 1, lane, a[0], factors[0]);
#pragma unroll
                for (int first = 0; first < kTokens; first += kAtOnce) {
                    uint4 f[kAtOnce];
#pragma unroll
                    for (int t = 0; t < kAtOnce; ++t) f[t] = vector_at<uint4>(x[first + t].x[2 * c + j][lane]);
#pragma unroll
                    for (int h = 0; h < 2; ++h)
#pragma unroll
                        for (int t = 0; t < kAtOnce; ++t)
#pragma unroll
                            for (int r = 0; r < kRows; ++r) {
                                const uint32_t b16[2] = {h == 0 ? f[t].x : f[t].z, h == 0 ? f[t].y : f[t].w};
                                if constexpr (of::kUnitOfBlock)
                                    if (h == 0) multiply(sums[r][first + t], factors[j][r]);
                                mma_m16n8k16_f16(sums[r][first + t], a[j][r][h], b16);
                            }
                }
            }
        }
    }

    // What outputs are multiplied by, from any of the steps; before finish().
    INTRIN void take_scales(const activations *x, int lane) {
#pragma unroll
        for (int t = 0; t < kTokens; ++t) scales[t] = vector_at<float2>(&x[t].scales[lane % 4 * 2]);
    }

    INTRIN void finish() {
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int t = 0; t < kTokens; ++t)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    sums[r][t][i] = __fmul_rn(__fmul_rn(sums[r][t][i], unit[r][i / 2]), i % 2 ? scales[t].y : scales[t].x);
    }

  private:
    // To another unit, of the two rows of a lane.
    static INTRIN void multiply(float (&sum)[4], const float (&factor)[2]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] = __fmul_rn(sum[i], factor[i / 2]);
    }

    // Units, scales and minimums of 256 columns.
    INTRIN void begin_tile(const weights *w, const activations *x, int lane, typename of::own (&own)[kRows][2]) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            typename of::row head[2];
            float inverse[2], factor[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                head[h] = of::load(w[r], lane / 4 + 8 * h);
                own[r][h] = of::prepare(head[h], lane % 4);
                const float next = of::unit(head[h]);
                inverse[h] = near_inverse(next);
                factor[h] = __fmul_rn(unit[r][h], inverse[h]);
                unit[r][h] = next;
            }
#pragma unroll
            for (int t = 0; t < kTokens; ++t) multiply(sums[r][t], factor);
            if constexpr (of::kMins) subtract_mins(r, head, inverse, x, lane);
        }
    }

    // Block 2 c + kUpper of the rows; of a type with a unit of the block also what sums are to be multiplied by before it.
    template <int kUpper>
    INTRIN void decode(const weights *w, const typename of::own (&own)[kRows][2], int c, int lane, uint32_t (&a)[kRows][2][4],
                       [[maybe_unused]] float (&factors)[kRows][2]) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            typename of::scale s[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                if constexpr (of::kUnitOfBlock) {
                    const float next = of::template unit_of<kUpper>(w[r], c, lane / 4 + 8 * h, s[h]);
                    factors[r][h] = __fmul_rn(unit[r][h], near_inverse(next));
                    unit[r][h] = next;
                } else {
                    of::template scale_of<kUpper>(own[r][h], c, lane, s[h]);
                }
            }
            of::template fragments<kUpper>(w[r], c, lane, s, a[r]);
        }
    }

    // Minimums times the sums of the blocks, whose upper and lower parts meet the same operand.
    INTRIN void subtract_mins(int r, const typename of::row (&head)[2], const float (&inverse)[2], const activations *x, int lane) {
        uint32_t a[4];
        float factor[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            a[h] = a[2 + h] = of::mins(head[h], lane % 4);
            factor[h] = -__fmul_rn(of::minimum(head[h]), inverse[h]);
        }
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            const uint2 of_blocks = vector_at<uint2>(x[t].sums[lane]);
            const uint32_t b[2] = {of_blocks.x, of_blocks.y};
            float d[4];
            mma_m16n8k16_f16_zero(d, a, b);
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[r][t][i] = __fmaf_rn(factor[i / 2], d[i], sums[r][t][i]);
        }
    }
};
