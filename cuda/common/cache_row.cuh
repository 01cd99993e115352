// cache_row.cuh: values of a row to a paged cache of any type. Rows in fp8 and int8 have the bytes of src/quant/cache_rows.rs.
#pragma once
#include "act.cuh"
#include "row.cuh"
#include "params/cache.h"

INTRIN void store_one(f16 *at, float v) { at->bits = f32_to_f16(v); }
INTRIN void store_four(f16 *at, const float (&v)[4]) {
    *reinterpret_cast<uint2 *>(at) = make_uint2(pack_f16x2(v[0], v[1]), pack_f16x2(v[2], v[3]));
}

// Four neighbouring values from value `at` of the cache on; not for fp8 and int8.
INTRIN void cache_store_four(void *cache, uint32_t type, uint64_t at, const float (&v)[4]) {
    if (type == CACHE_F32) store_four(static_cast<float *>(cache) + at, v);
    else if (type == CACHE_BF16) store_four(static_cast<bf16 *>(cache) + at, v);
    else store_four(static_cast<f16 *>(cache) + at, v);
}

// A latent row in fp8: `latent` e4m3, an f32 scale for each 128 of them, 64 bf16. Rows are whole words, which may not be aligned to more.
INTRIN uint32_t *fp8_row(void *cache, uint32_t latent, uint32_t slot) {
    return static_cast<uint32_t *>(cache) + uint64_t{slot} * (latent / 128 * 33 + 32);
}

// By a warp: values 128 `block` + 4 lane and on. The scale is the least power of two that brings all within 448.
INTRIN void fp8_store_block(uint32_t *row, uint32_t latent, uint32_t block, const float (&x)[4]) {
    const uint32_t lane = threadIdx.x % 32;
    uint32_t amax = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) amax = max(amax, f32_bits(x[k]) & 0x7fffffffu);
    amax = __reduce_max_sync(0xffffffffu, amax);
    const uint32_t exponent = max(9u, (amax + 0x1fffffu) >> 23) - 8; // 448 is 1.75 * 2^8
    const bool finite = amax < 0x7f800000u;
    const float inverse = f32_from_bits((254 - exponent) << 23);
    const uint32_t quants = pack_e4m3x2(__fmul_rn(x[0], inverse), __fmul_rn(x[1], inverse)) |
                            static_cast<uint32_t>(pack_e4m3x2(__fmul_rn(x[2], inverse), __fmul_rn(x[3], inverse))) << 16;
    row[block * 32 + lane] = finite ? quants : 0;
    if (lane == 0) row[latent / 4 + block] = finite ? exponent << 23 : 0x7fc00000u;
}

// Four of the 64 rotated values, from `col` on.
INTRIN void fp8_store_rotated(uint32_t *row, uint32_t latent, uint32_t col, const float (&z)[4]) {
    uint32_t *to = row + latent / 128 * 33 + col / 2;
    to[0] = pack_bf16x2(z[0], z[1]), to[1] = pack_bf16x2(z[2], z[3]);
}

// By a warp: 128 values of which a lane has those from 4 lane on, times the Hadamard matrix over sqrt(128), sums and differences of values
// 1, 2, 4 and so on apart, then rounded with one scale: the lane's quants.
struct rotated_int8 {
    uint32_t quants;
    float scale;
};
INTRIN rotated_int8 rotate_to_int8(float (&x)[4]) {
    constexpr float kInverseRoot = 0.0883883461f;
    const uint32_t lane = threadIdx.x % 32;
    const auto both = [](float &a, float &b) {
        const float sum = __fadd_rn(a, b);
        b = __fsub_rn(a, b), a = sum;
    };
    both(x[0], x[1]), both(x[2], x[3]);
    both(x[0], x[2]), both(x[1], x[3]);
#pragma unroll
    for (uint32_t lanes = 1; lanes < 32; lanes *= 2)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const float other = __shfl_xor_sync(0xffffffffu, x[k], lanes);
            x[k] = lane & lanes ? __fsub_rn(other, x[k]) : __fadd_rn(x[k], other);
        }
    uint32_t amax = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        x[k] = __fmul_rn(x[k], kInverseRoot);
        amax = max(amax, f32_bits(x[k]) & 0x7fffffffu);
    }
    const float2 scale = act_scale(__reduce_max_sync(0xffffffffu, amax));
    return {act_quants4(x, scale.y), scale.x};
}

// A key in int8. A page is the quants of its keys, then their scales: so quants of a key begin at multiples of 128 bytes.
INTRIN void int8_store_key(void *cache, uint32_t slot, float (&x)[4]) {
    constexpr uint32_t kPage = PAGE_ROWS * (128 + 4);
    const uint32_t lane = threadIdx.x % 32;
    const rotated_int8 key = rotate_to_int8(x);
    uint8_t *page = static_cast<uint8_t *>(cache) + uint64_t{slot / PAGE_ROWS} * kPage;
    reinterpret_cast<uint32_t *>(page + slot % PAGE_ROWS * 128)[lane] = key.quants;
    if (lane == 0) reinterpret_cast<float *>(page + PAGE_ROWS * 128)[slot % PAGE_ROWS] = key.scale;
}
