// post_a: from the first projections of attention to what takes their results, in one launch: norm of the queries' latent and its rounding
// for the next linear layers, norm and rotation of keys, and their rows in the paged caches.
//
// Math    y = rms(q) q_norm, as f32 and in tiles with the bits that quantize and quantize_f16 make of it;
//         latent row = [rms(kv[0, latent)) kv_norm | rotated kv[latent, latent + rope)]: the rotated part is not normed;
//         key row = LayerNorm(key) with the first `rope` values rotated
// Shapes  q [m, 2048], kv [m, 512 + 64], key [m, 128]; caches by slot
// Tiling  a block of threads for each row of q, which stays in registers (a warp has the 256 columns of a tile); behind them a warp for
//         each latent row and one for each key, so that nothing of these crosses warps
// Floor   1 row: 20 KB and a launch, 0.5 us; as in norm_quantize latency: load 0.3 us, two reductions and stores 0.4. 2048 rows to f16
//         tiles and bf16: 34 MB, 8.8 us at 3.9 TB/s
// Limits  padding of a tile of 8 tokens is a block of threads for each token that is not there
#include "common/act_pieces.cuh"
#include "common/cache_row.cuh"
#include "common/rotate.cuh"
#include "params/post_a.h"

template <int kVecs, int kWarps> struct post_a_smem {
    float partial[kWarps];
    uint32_t amax[kWarps];
};

// Squares of four values, added to a sum.
INTRIN float add_squares(const float (&x)[4], float sum) {
#pragma unroll
    for (int k = 0; k < 4; ++k) sum = __fmaf_rn(x[k], x[k], sum);
    return sum;
}

template <int kVecs, int kWarps> INTRIN void post_a_q(const post_a_params &p, uint32_t row) {
    static_assert(kVecs == 2, "a warp has the columns of a tile");
    auto &shared = smem<post_a_smem<kVecs, kWarps>>();
    const int n = static_cast<int>(p.q_cols), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool there = row < p.m; // the same for all threads
    float w[kVecs][4], y[kVecs][4] = {};
#pragma unroll
    for (int v = 0; v < kVecs; ++v) load_const_cols<4>(p.q_norm, row_col<kVecs>(v), n, w[v]);
    griddep_launch_dependents();
    griddep_wait();
    if (there) {
        float x[kVecs][4];
        const uint64_t first = uint64_t{row} * n;
#pragma unroll
        for (int v = 0; v < kVecs; ++v) load_cols<4>(p.q + first, row_col<kVecs>(v), n, x[v]);
        const float inverse_n = computed_here(__frcp_rn(static_cast<float>(n)));
        const float squares = block_sum(__fadd_rn(add_squares(x[0], 0.f), add_squares(x[1], 0.f)), shared.partial);
        const float s = rsqrt_approx(__fmaf_rn(squares, inverse_n, p.eps));
#pragma unroll
        for (int v = 0; v < kVecs; ++v) {
            if (row_col<kVecs>(v) >= n) continue; // zeros, whatever s is: a tile has blocks there
#pragma unroll
            for (int k = 0; k < 4; ++k) y[v][k] = __fmul_rn(__fmul_rn(x[v][k], s), w[v][k]);
            if (p.y != nullptr) store_cols<4>(p.y + first, row_col<kVecs>(v), n, y[v]);
        }
    }
    if (p.tiles == nullptr) return;
    const uint32_t k_tiles = (p.q_cols + TILE_COLS - 1) / TILE_COLS, tiles = (p.m + TILE_TOKENS - 1) / TILE_TOKENS;
    const uint64_t tile = uint64_t{static_cast<uint32_t>(warp)} * tiles + row / TILE_TOKENS;
    const int g = tile_column(row % TILE_TOKENS);
    if (p.f16_tiles == 0) {
        if (static_cast<uint32_t>(warp) < k_tiles) act_pieces_int8(static_cast<tile_act *>(p.tiles) + tile, g, nullptr, y);
        return;
    }
    uint32_t amax = 0; // bits without the sign: magnitudes order as they do, NaN last
#pragma unroll
    for (int i = 0; i < 4 * kVecs; ++i) amax = max(amax, f32_bits(y[i / 4][i % 4]) & 0x7fffffffu);
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, lanes));
    if (lane == 0) shared.amax[warp] = amax;
    __syncthreads();
#pragma unroll
    for (int other = 0; other < kWarps; ++other) amax = max(amax, shared.amax[other]);
    const act_f16_unit unit = act_f16_unit_of(amax);
    if (static_cast<uint32_t>(warp) < k_tiles) act_pieces_f16(static_cast<tile_act_f16 *>(p.tiles)[tile], g, unit, y);
}

// Four values from column 4 lane on, rotated if they are among the first `rope`; z as it is behind them.
INTRIN void rotate_four(const post_a_params &p, const float4 &angle, float (&z)[4]) {
    if (threadIdx.x % 32 * 4 >= p.rope) return;
    const float2 a = rotated(z[0], z[1], angle.x, angle.y), b = rotated(z[2], z[3], angle.z, angle.w);
    z[0] = a.x, z[1] = a.y, z[2] = b.x, z[3] = b.y;
}
INTRIN float4 load_angles(const post_a_params &p, uint32_t row) {
    const uint32_t col = threadIdx.x % 32 * 4;
    return col < p.rope ? vector_at<float4>(p.angles + uint64_t{row} * p.rope + col) : make_float4(1.f, 0.f, 1.f, 0.f);
}

// By a warp, 128 columns at a time.
INTRIN void post_a_latent(const post_a_params &p, uint32_t row) {
    constexpr int kPieces = 4;
    const int col = threadIdx.x % 32 * 4, n = static_cast<int>(p.latent);
    float w[kPieces][4], x[kPieces][4], z[4];
#pragma unroll
    for (int v = 0; v < kPieces; ++v) load_const_cols<4>(p.kv_norm, col + 128 * v, n, w[v]);
    griddep_launch_dependents();
    griddep_wait();
    const uint32_t width = p.latent + p.rope;
    const float *kv = p.kv + uint64_t{row} * width;
#pragma unroll
    for (int v = 0; v < kPieces; ++v) load_cols<4>(kv, col + 128 * v, n, x[v]);
    load_cols<4>(kv + n, col, static_cast<int>(p.rope), z);
    const float4 angle = load_angles(p, row);
    const uint32_t slot = p.slots[row];
    const uint64_t to = uint64_t{slot} * width;
    uint32_t *fp8 = fp8_row(p.latent_cache, p.latent, slot);
    const bool is_fp8 = p.latent_type == CACHE_FP8;
    const float inverse_n = computed_here(__frcp_rn(static_cast<float>(n)));

    rotate_four(p, angle, z);
    if (col < static_cast<int>(p.rope)) {
        if (is_fp8) fp8_store_rotated(fp8, p.latent, col, z);
        else cache_store_four(p.latent_cache, p.latent_type, to + n + col, z);
    }
    float squares = add_squares(x[0], 0.f);
#pragma unroll
    for (int v = 1; v < kPieces; ++v) squares = __fadd_rn(squares, add_squares(x[v], 0.f));
    const float s = rsqrt_approx(__fmaf_rn(warp_sum(squares), inverse_n, p.eps));
#pragma unroll
    for (int v = 0; v < kPieces; ++v) {
#pragma unroll
        for (int k = 0; k < 4; ++k) x[v][k] = __fmul_rn(__fmul_rn(x[v][k], s), w[v][k]);
        if (is_fp8 && 128 * v < n) fp8_store_block(fp8, p.latent, v, x[v]);
        else if (col + 128 * v < n) cache_store_four(p.latent_cache, p.latent_type, to + col + 128 * v, x[v]);
    }
}

// By a warp; arithmetic of layer_norm.cu.
INTRIN void post_a_key(const post_a_params &p, uint32_t row) {
    const int col = threadIdx.x % 32 * 4, n = static_cast<int>(p.key_cols);
    float w[4], b[4], x[4];
    load_const_cols<4>(p.key_norm, col, n, w);
    load_const_cols<4>(p.key_bias, col, n, b);
    griddep_launch_dependents();
    griddep_wait();
    load_cols<4>(p.key + uint64_t{row} * n, col, n, x);
    const float4 angle = load_angles(p, row);
    const uint32_t slot = p.slots[row];
    const float inverse_n = computed_here(__frcp_rn(static_cast<float>(n)));

    const float mean = __fmul_rn(warp_sum(__fadd_rn(__fadd_rn(x[0], x[1]), __fadd_rn(x[2], x[3]))), inverse_n);
    // Deviations from a mean that is off by its rounding; their own mean is that error.
    float deviation = 0.f;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        x[k] = col < n ? __fsub_rn(x[k], mean) : 0.f;
        deviation = __fadd_rn(deviation, x[k]);
    }
    const float square = warp_sum(add_squares(x, 0.f));
    const float off = __fmul_rn(warp_sum(deviation), inverse_n);
    const float s = rsqrt_approx(__fadd_rn(__fmaf_rn(-off, off, __fmul_rn(square, inverse_n)), p.key_eps));
#pragma unroll
    for (int k = 0; k < 4; ++k) x[k] = __fmaf_rn(__fmul_rn(__fsub_rn(x[k], off), s), w[k], b[k]);
    rotate_four(p, angle, x);
    if (p.key_type == CACHE_INT8) int8_store_key(p.key_cache, slot, x);
    else if (col < n) cache_store_four(p.key_cache, p.key_type, uint64_t{slot} * n + col, x);
}

template <int kVecs, int kWarps> __device__ __forceinline__ void post_a(const post_a_params &p) {
    if (blockIdx.x < p.q_rows) return post_a_q<kVecs, kWarps>(p, blockIdx.x);
    const uint32_t unit = (blockIdx.x - p.q_rows) * kWarps + threadIdx.x / 32;
    if (unit < p.m) return post_a_latent(p, unit);
    if (p.key != nullptr && unit - p.m < p.m) return post_a_key(p, unit - p.m);
    griddep_wait();
}
