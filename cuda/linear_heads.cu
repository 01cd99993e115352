// linear_heads: one W for each head, for up to 16 tokens: absorbing k_b, applying v_b. Activations are rounded here, and outputs, too, if
// a linear layer in tiles comes next.
//
// Math    as quantize_f16 and linear_gemm on its tiles, bit for bit; outputs as quantize rounds them
// Shapes  x [m] rows with a part of k <= 512 for each head, W [heads, ceil(n / 16), ceil(k / 256)] tiles, y as x with parts of n;
//         out [heads n / 256, ceil(m / 8)] tiles
// Tiling  a warp multiplies 32 rows of a head by all tokens. All of its weights are on their way before the kernels before this one
//         have ended; then the block of threads rounds its head's part of x, a token a warp at a time. 32 rows of a token are a block
//         of the rounded outputs.
// Floor   bytes of W: 64 heads, 192 to 512 or 512 to 256, Q8_0 in whole tiles: 8.9 MB, 2.2 us at 4.1 TB/s
// Limits  what is rounded meets no L1 of other blocks of threads: each of a head reads its part from L2, 3 KB for 8 tokens
#include "common/act_f16.cuh"
#include "common/gemm_f16.cuh"
#include "common/row_act.cuh"
#include "params/linear_tiled.h"

template <class Block, int kTokens, int kBlocks, int kWarps> struct linear_heads_smem {
    using step = gemm_f16<Block, 2, kTokens>;
    static constexpr int kTiles = LINEAR_HEADS_COLS / TILE_COLS;
    alignas(128) typename step::weights w[kWarps][kTiles][2];
    tile_act_f16 x[kTiles][kTokens];
    mbarrier full[kWarps];
};

template <class Block, int kTokens, int kBlocks, int kWarps> __device__ __forceinline__ void linear_heads(const linear_heads_params &p) {
    using smem_type = linear_heads_smem<Block, kTokens, kBlocks, kWarps>;
    using weights = typename smem_type::step::weights;
    constexpr int kTiles = smem_type::kTiles;
    auto &shared = smem<smem_type>();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t head = blockIdx.y, row_tiles = (p.n + TILE_ROWS - 1) / TILE_ROWS, k_tiles = (p.k + TILE_COLS - 1) / TILE_COLS;
    const uint32_t row_tile = (blockIdx.x * kWarps + warp) * 2; // of this warp the first of two
    const bool there = row_tile < row_tiles;
    if (there && lane == 0) {
        mbarrier_init(shared.full[warp], 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect_tx(shared.full[warp], 2 * k_tiles * sizeof(weights));
        for (uint32_t k = 0; k < k_tiles; ++k)
            for (uint32_t r = 0; r < 2; ++r) { // behind the end of a matrix its last rows, whose results are not stored
                const uint64_t row = uint64_t{head} * row_tiles + min(row_tile + r, row_tiles - 1);
                cp_async_bulk(&shared.w[warp][k][r], static_cast<const weights *>(p.w) + row * k_tiles + k, sizeof(weights), shared.full[warp]);
            }
    }
    griddep_launch_dependents();
    griddep_wait();

#pragma unroll 1
    for (int token = warp; token < kTokens * TILE_TOKENS; token += kWarps) {
        const float *row = p.x + token * p.x_stride + uint64_t{head} * p.x_head;
        float x[kTiles][2][4] = {};
        uint32_t amax = 0; // bits without the sign: magnitudes order as they do, NaN last
#pragma unroll
        for (int k = 0; k < kTiles; ++k) {
            const uint32_t col = k * TILE_COLS + lane * 8;
            if (static_cast<uint32_t>(token) >= p.m || col >= p.k) continue; // k is a multiple of 32, so all eight are there
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float4 v = vector_at<float4>(row + col + 4 * h);
                x[k][h][0] = v.x, x[k][h][1] = v.y, x[k][h][2] = v.z, x[k][h][3] = v.w;
            }
        }
#pragma unroll
        for (int i = 0; i < 8 * kTiles; ++i) amax = max(amax, f32_bits(x[i / 8][i / 4 % 2][i % 4]) & 0x7fffffffu);
#pragma unroll
        for (int lanes = 16; lanes > 0; lanes /= 2) amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, lanes));
        const act_f16_unit unit = act_f16_unit_of(amax);
#pragma unroll
        for (int k = 0; k < kTiles; ++k) act_f16_store(shared.x[k][token / TILE_TOKENS], tile_column(token % TILE_TOKENS), unit, x[k]);
    }
    __syncthreads(); // of barriers as well
    if (!there) return;

    typename smem_type::step step;
    step.clear();
    mbarrier_wait(shared.full[warp], 0);
#pragma unroll 1
    for (uint32_t k = 0; k < k_tiles; ++k) step.add(shared.w[warp][k], shared.x[k], lane);
    step.take_scales(shared.x[0], lane);
    step.finish();

    if (p.y != nullptr) {
        float *y = p.y + uint64_t{head} * p.y_head;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const uint32_t row = (row_tile + r / 2) * TILE_ROWS + tile_row(lane, r % 2 * 2);
#pragma unroll
            for (int i = 0; i < 2 * kTokens; ++i) {
                const uint32_t token = i / 2 * TILE_TOKENS + tile_token(lane, i % 2);
                if (row < p.n && token < p.m) y[token * p.y_stride + row] = step.sums[r / 2][i / 2][r % 2 * 2 + i % 2];
            }
        }
    }
    if (p.out == nullptr) return;
    const uint32_t col = head * p.n + row_tile * TILE_ROWS, block = col % TILE_COLS / 32, of = lane / 4; // n is a multiple of 32
    tile_act *tiles = p.out + uint64_t{col / TILE_COLS} * ((p.m + TILE_TOKENS - 1) / TILE_TOKENS);
#pragma unroll
    for (int i = 0; i < 2 * kTokens; ++i) {
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = step.sums[j / 2][i / 2][j % 2 * 2 + i % 2];
        const act_column_part part = act_of_columns(v);
        if (i / 2 * TILE_TOKENS >= static_cast<int>(p.m)) continue; // no such tile
        tile_act &tile = tiles[i / 2];
        const int g = tile_column(tile_token(lane, i % 2));
        tile.qs[block / 2][4 * g + of % 4][block % 2 * 2 + of / 4] = part.word;
        if (of != 0) continue;
        *reinterpret_cast<float2 *>(tile.scales[block][g]) = make_float2(part.scale.x, __fmul_rn(part.scale.x, -kActShift));
        // The lower halves of words are those of even blocks.
        uint16_t *sums = reinterpret_cast<uint16_t *>(tile.sums[4 * g + block / 2]) + block % 2;
        const uint16_t upper = f32_to_bf16(part.sum);
        sums[0] = upper, sums[2] = f32_to_bf16(__fsub_rn(part.sum, bf16_to_f32(upper)));
    }
}
