// gemm: C = scale_a scale_b A B^T with int8 operands; a small kernel of the real kind, into which faults are planted.
//
// Math    c[i][j] = sa[i] * sb[j] * sum_k a[i][k] * b[j][k]
// Shapes  a [m, k] int8, b [n, k] int8, sa [m], sb [n], c [m, n] f32;  k % 16 == 0, m and n free
// Tiling  64 x 64 x 64, four warps of 32 x 32, two stages of cp.async, rows of 64 bytes with 16-byte chunks swizzled
// Limits  made for tests: no attention to speed
//
// kFault chooses one fault, or none. The faults are ordinary mistakes: each removes or changes one line.
#pragma once
#include "common/intrin.cuh"

typedef struct {
    const int8_t *a;
    const int8_t *b;
    const float *sa;
    const float *sb;
    float *c;
    int32_t m, n, k;
} gemm_params;

enum class GemmFault {
    None,
    NoBarrierBeforeUse,       // the tile of other threads may not have landed
    NoBarrierBeforeOverwrite, // the next copy overwrites what slow warps still read
    NoWait,                   // nobody waits for the copies
    WaitOneTooFew,            // waits for all groups but the one that is needed
    SwappedFragment,          // two registers of A exchanged
    TailRow,                  // stores one row too many
    TailK,                    // reads past the end of a row instead of zero-filling
    LdmatrixRow,              // a lane names the wrong row
};

template <GemmFault kFault> struct Gemm {
    static constexpr int kTile = 64, kThreads = 128;
    struct Smem {
        int8_t a[2][kTile * kTile], b[2][kTile * kTile];
    };

    // Byte of (row, 16-byte chunk) in a tile: chunks are exchanged so that the eight rows of an 8x16-byte matrix lie in
    // different banks.
    static __device__ __forceinline__ int at(int row, int chunk) { return row * kTile + (chunk ^ (row / 2 % 4)) * 16; }

    static __device__ __forceinline__ void load(int8_t *tile, const int8_t *src, int row0, int rows, int k0, int k) {
        for (int i = threadIdx.x; i < kTile * kTile / 16; i += kThreads) {
            const int row = i / 4, chunk = i % 4, column = k0 + 16 * chunk;
            const bool inside = row0 + row < rows && (column < k || kFault == GemmFault::TailK);
            // A row beyond the end is not read, but its address must still be a valid one.
            const int8_t *from = inside ? src + (size_t)(row0 + row) * k + column : src;
            cp_async_zfill<16>(tile + at(row, chunk), from, inside ? 16 : 0);
        }
    }

    static __device__ __forceinline__ void run(const gemm_params &p) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int m0 = blockIdx.y * kTile, n0 = blockIdx.x * kTile;
        const int warp_m = warp / 2 * 32, warp_n = warp % 2 * 32;
        Smem &s = smem<Smem>();
        int32_t acc[2][4][4] = {};

        const int steps = (p.k + kTile - 1) / kTile;
        load(s.a[0], p.a, m0, p.m, 0, p.k);
        load(s.b[0], p.b, n0, p.n, 0, p.k);
        cp_async_commit();
        for (int step = 0; step < steps; ++step) {
            const int stage = step % 2;
            if (step + 1 < steps) {
                load(s.a[1 - stage], p.a, m0, p.m, (step + 1) * kTile, p.k);
                load(s.b[1 - stage], p.b, n0, p.n, (step + 1) * kTile, p.k);
            }
            cp_async_commit(); // an empty group at the end keeps the count
            if (kFault == GemmFault::WaitOneTooFew) cp_async_wait<2>();
            else if (kFault != GemmFault::NoWait) cp_async_wait<1>();
            if (kFault != GemmFault::NoBarrierBeforeUse) __syncthreads();

            for (int k32 = 0; k32 < 2; ++k32) {
                uint32_t a[2][4], b[4][2];
                for (int i = 0; i < 2; ++i) {
                    int row = warp_m + 16 * i + lane % 16;
                    if (kFault == GemmFault::LdmatrixRow && lane == 9) row -= 1;
                    ldmatrix_x4(a[i], s.a[stage] + at(row, 2 * k32 + lane / 16));
                    if (kFault == GemmFault::SwappedFragment) {
                        const uint32_t other = a[i][1];
                        a[i][1] = a[i][2];
                        a[i][2] = other;
                    }
                }
                for (int j = 0; j < 4; ++j)
                    ldmatrix_x2(b[j], s.b[stage] + at(warp_n + 8 * j + lane % 8, 2 * k32 + lane / 8 % 2));
                for (int i = 0; i < 2; ++i)
                    for (int j = 0; j < 4; ++j) mma_m16n8k32_s8(acc[i][j], a[i], b[j]);
            }
            // The next step copies into this stage.
            if (kFault != GemmFault::NoBarrierBeforeOverwrite) __syncthreads();
        }

        const int rows = kFault == GemmFault::TailRow ? p.m + 1 : p.m;
        for (int i = 0; i < 2; ++i)
            for (int j = 0; j < 4; ++j)
                for (int e = 0; e < 4; ++e) {
                    const int row = m0 + warp_m + 16 * i + lane / 4 + 8 * (e / 2);
                    const int column = n0 + warp_n + 8 * j + lane % 4 * 2 + e % 2;
                    if (row >= rows || column >= p.n) continue;
                    const float scale = row < p.m ? p.sa[row] * p.sb[column] : 0.f;
                    p.c[(size_t)row * p.n + column] = scale * (float)acc[i][j][e];
                }
    }
};
