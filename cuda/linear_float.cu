// linear_float: y = W x for W of f32, f16 or bf16, to a few units of f32's last place, by tf32 matrix instructions.
//
// Math    An f32 is a tf32, its upper 11 bits, and the rest, 2^-10 of it at most, of which a tf32 keeps all but the last 2 bits; an f16
//         or bf16 is one tf32. Products of these are exact, and all are made but that of two rests. With the bits that were cut off a
//         product of two f32 is short by 7/4 of 2^-20 at most (of f16 and bf16 3/8), by 2^-22 on average.
//         Those of the upper parts are added up by the matrix units, which cut sums off, over 32 columns and by FADDs then; the
//         others by the matrix units. What is left of a value below 2^-116 has fewer bits, below 2^-126 none. An infinity gives NaN.
// Shapes  x [m, k], W [n, k], y [m, n], each once per slab; k a multiple of 32, rows of x and W aligned to 16 bytes
// Tiling  one block of threads for 16 tokens and 8 kRows rows; its warps take turns at steps of 32 columns, of which a lane has
//         8 neighbouring ones of each of its rows and its two tokens, straight from global memory. Sums over the warps in order.
// Floor   few tokens: the bytes of W, 256 x 6144 of f32 6.3 MB, 3.9 us at 1.61 TB/s. Many: products at the rate of tf32, half of f16's:
//         3 of f32, 2 of f16 and bf16
// Limits  few rows are few blocks of threads, whose steps are a chain of loads, differences and products. Many: tokens are read for
//         every 32 rows, through L1 at 64 bytes a cycle.
#include "common/linear.cuh"

// Eight values of a row as they are loaded; as numbers of which the matrix units take the upper part; and whether there is a rest.
struct eight_f32 {
    static constexpr bool kRest = true;
    float4 v[2];

    INTRIN void load(const void *p) {
        v[0] = vector_at<float4>(p), v[1] = vector_at<float4>(static_cast<const float *>(p) + 4);
    }
    INTRIN void get(float (&f)[8]) const {
        f[0] = v[0].x, f[1] = v[0].y, f[2] = v[0].z, f[3] = v[0].w, f[4] = v[1].x, f[5] = v[1].y, f[6] = v[1].z, f[7] = v[1].w;
    }
};

template <class Block> struct eight : eight_f32 {};

template <class Half> struct eight_halves {
    static constexpr bool kRest = false;
    uint4 v;

    INTRIN void load(const void *p) { v = vector_at<uint4>(p); }
    INTRIN void get(float (&f)[8]) const {
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) f[i] = to_f32(Half{static_cast<uint16_t>(words[i / 2] >> 16 * (i % 2))});
    }
};

template <> struct eight<block_f16> : eight_halves<f16> {};
template <> struct eight<block_bf16> : eight_halves<bf16> {};

// Eight values as operands: upper parts, and rests if there are any.
template <bool kRest> struct operands {
    uint32_t upper[8], rest[kRest ? 8 : 1];

    template <class Eight> INTRIN void take(const Eight &values) {
        float f[8];
        values.get(f);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            upper[i] = f32_bits(f[i]);
            if constexpr (kRest) rest[i] = f32_bits(__fsub_rn(f[i], f32_from_bits(upper[i] & 0xffffe000u)));
        }
    }
};

template <class Block, int kRows, int kBlocks, int kWarps> struct linear_float_smem {
    float partial[kWarps][kRows * 4][32];
};

template <class Block, int kRows, int kBlocks, int kWarps>
__device__ __forceinline__ void linear_float(const linear_params &p) {
    constexpr int kTokens = 16, kStep = 32;
    // Of few rows: steps whose loads are on their way at a time, and sums of rests in two chains, so that less waits for another.
    constexpr int kAhead = kRows == 1 ? 3 : 1, kChains = kRows == 1 ? 2 : 1;
    using weights = eight<Block>;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const linear_place<Block, 8 * kRows, kTokens> place(p);
    const int k = static_cast<int>(p.k);
    if (threadIdx.x < 8 * kRows) bulk_prefetch_l2(place.w_row(threadIdx.x), static_cast<unsigned>(k * sizeof(Block)));
    const Block *w_rows[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) w_rows[r] = place.w_row(8 * r + lane / 4);
    const float *x_rows[2] = {place.x_row(lane / 4), place.x_row(8 + lane / 4)};
    griddep_launch_dependents();
    griddep_wait();

    float upper[kRows][4] = {}, rest[kRows][kChains][4] = {};
    for (int first = warp * kStep; first < k; first += kWarps * kStep * kAhead) {
        weights w[kAhead][kRows];
        eight_f32 x[kAhead][2];
#pragma unroll
        for (int s = 0; s < kAhead; ++s) {
            const int col = first + s * kWarps * kStep + lane % 4 * 8;
            if (col >= k) continue;
#pragma unroll
            for (int r = 0; r < kRows; ++r) w[s][r].load(w_rows[r] + col);
#pragma unroll
            for (int h = 0; h < 2; ++h) x[s][h].load(x_rows[h] + col);
        }
#pragma unroll
        for (int s = 0; s < kAhead; ++s) {
            if (first + s * kWarps * kStep >= k) continue; // of the whole warp
            operands<weights::kRest> of_rows[kRows];
#pragma unroll
            for (int r = 0; r < kRows; ++r) of_rows[r].take(w[s][r]);
            operands<true> of_tokens[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) of_tokens[h].take(x[s][h]);
            float d[kRows][4];
            // Columns 2 j and 2 j + 1 of each lane are those of an instruction.
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const auto &[g, g8] = of_tokens;
                const uint32_t a[4] = {g.upper[2 * j], g8.upper[2 * j], g.upper[2 * j + 1], g8.upper[2 * j + 1]};
                const uint32_t a_rest[4] = {g.rest[2 * j], g8.rest[2 * j], g.rest[2 * j + 1], g8.rest[2 * j + 1]};
#pragma unroll
                for (int r = 0; r < kRows; ++r) {
                    const uint32_t b[2] = {of_rows[r].upper[2 * j], of_rows[r].upper[2 * j + 1]};
                    if (j == 0) mma_m16n8k8_tf32_zero(d[r], a, b);
                    else mma_m16n8k8_tf32(d[r], a, b);
                    mma_m16n8k8_tf32(rest[r][0], a_rest, b);
                    if constexpr (weights::kRest) {
                        const uint32_t b_rest[2] = {of_rows[r].rest[2 * j], of_rows[r].rest[2 * j + 1]};
                        mma_m16n8k8_tf32(rest[r][kChains - 1], a, b_rest);
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < kRows; ++r)
#pragma unroll
                for (int e = 0; e < 4; ++e) upper[r][e] = __fadd_rn(upper[r][e], d[r][e]);
        }
    }

    auto &partial = smem<linear_float_smem<Block, kRows, kBlocks, kWarps>>().partial;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float sum = __fadd_rn(upper[r][e], rest[r][0][e]);
            if constexpr (kChains > 1) sum = __fadd_rn(sum, rest[r][1][e]);
            partial[warp][r * 4 + e][lane] = sum;
        }
    __syncthreads();
    for (int out = warp; out < kRows * 4; out += kWarps) {
        float y = partial[0][out][lane];
#pragma unroll
        for (int other = 1; other < kWarps; ++other) y = __fadd_rn(y, partial[other][out][lane]);
        const int r = out / 4, e = out % 4;
        place.store(8 * r + lane % 4 * 2 + e % 2, lane / 4 + 8 * (e / 2), y);
    }
}
