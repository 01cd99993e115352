// repack: the blocks of a matrix to tiles (params/tiles.h), the same bytes in another order. Once, when weights are loaded.
//
// Math    none: bits move
// Shapes  src [slabs, n, k] blocks; out [slabs, ceil(n / 16), ceil(k / 256)] tiles
// Tiling  a warp for each tile
// Floor   bytes of the weights, twice. 100 MB: 0.12 ms at 1.79 TB/s.
// Limits  small loads: bytes that become neighbours lie far apart. Faster than any bus brings the weights.
#include "common/tile.cuh"
#include "params/repack.h"

// The blocks that a tile is made from. Those behind the end of the matrix are not there, and count as zeros.
template <class Block> struct repack_source {
    static constexpr int kElems = decode<Block>::kElems;
    const Block *row0;
    uint64_t row_blocks; // per row of the matrix
    int n_rows, n_blocks; // left in this tile

    INTRIN const Block *block(int row, int b) const {
        return row < n_rows && b < n_blocks ? row0 + row * row_blocks + b : nullptr;
    }
};

// Four bytes at `field` + `at` of a block, which may not be there.
template <class Block, class Field> INTRIN uint32_t bytes4(const Block *block, Field Block::*field, int at) {
    if (!block) return 0;
    return load_aligned<uint32_t, kBlockAlign<Block>>(reinterpret_cast<const unsigned char *>(&(block->*field)) + at);
}

// Rows and columns of register r of a lane.
INTRIN int repack_row(int lane, int r) { return lane / 4 + 8 * (r % 2); }
INTRIN int repack_col(int lane, int r) { return lane % 4 * 4 + 16 * (r / 2); }

template <class Block, class Tile> INTRIN void repack_k4(const repack_source<Block> &src, int lane, Tile &out) {
    for (int i = 0; i < 4; ++i)
        for (int r = 0; r < 4; ++r)
            out.qs[i][lane][r] = bytes4(src.block(repack_row(lane, r), 0), &Block::qs, 32 * i + repack_col(lane, r));
    if (lane >= 16) return;
    tile_head_k4 head{};
    if (const Block *block = src.block(lane, 0)) {
        head.d = block->d, head.dmin = block->dmin;
        for (int b = 0; b < 12; ++b) head.scales[b] = block->scales[b];
    }
    out.heads[lane] = head;
}

INTRIN void repack_tile(const repack_source<block_q4_K> &src, int lane, tile_q4_K &out) { repack_k4(src, lane, out); }

INTRIN void repack_tile(const repack_source<block_q5_K> &src, int lane, tile_q5_K &out) {
    repack_k4(src, lane, out);
    for (int i = 0; i < 4; ++i) {
        uint32_t high = 0;
        for (int r = 0; r < 4; ++r) {
            const uint32_t bits = bytes4(src.block(repack_row(lane, r), 0), &block_q5_K::qh, repack_col(lane, r));
            for (int s = 0; s < 2; ++s) high |= (bits >> (2 * i + s) & 0x01010101u) << (4 * s + r);
        }
        out.qh[i][lane] = high;
    }
}

INTRIN void repack_tile(const repack_source<block_q6_K> &src, int lane, tile_q6_K &out) {
    for (int i = 0; i < 4; ++i) {
        // Columns 64 i are quarters 2 (i % 2) and the next one of half i / 2: nibble i % 2, bits 4 (i % 2) and on.
        uint32_t high[2] = {0, 0};
        for (int r = 0; r < 4; ++r) {
            const block_q6_K *block = src.block(repack_row(lane, r), 0);
            const int col = repack_col(lane, r);
            const uint32_t q0 = bytes4(block, &block_q6_K::ql, i / 2 * 64 + col) >> i % 2 * 4 & 0x0f0f0f0fu;
            const uint32_t q1 = bytes4(block, &block_q6_K::ql, i / 2 * 64 + 32 + col) >> i % 2 * 4 & 0x0f0f0f0fu;
            out.qs[i][lane][r] = q0 | q1 << 4;
            const uint32_t bits = bytes4(block, &block_q6_K::qh, i / 2 * 32 + col);
            for (int s = 0; s < 2; ++s) high[s] |= (bits >> (i % 2 * 4 + s * 2) & 0x03030303u) << 2 * r;
        }
        for (int s = 0; s < 2; ++s) out.qh[i][lane][s] = high[s];
    }
    if (lane >= 16) return;
    const block_q6_K *block = src.block(lane, 0);
    for (int b = 0; b < 16; ++b) out.scales[lane][b] = block ? block->scales[b] : 0;
    out.d[lane] = block ? block->d : 0;
}

// The scales of types with one for each block.
template <class Block, class Tile> INTRIN void repack_scales(const repack_source<Block> &src, int lane, Tile &out) {
    if (lane >= 16) return;
    for (int j = 0; j < 8; ++j) {
        const Block *block = src.block(lane, j);
        out.d[lane][j] = block ? block->d : 0;
    }
}

INTRIN void repack_tile(const repack_source<block_q5_0> &src, int lane, tile_q5_0 &out) {
    for (int i = 0; i < 4; ++i) {
        uint32_t high = 0;
        for (int r = 0; r < 4; ++r) {
            // Values 0 to 15 of a block are the low nibbles of its bytes, the others the high ones.
            const int col = repack_col(lane, r);
            uint32_t word = 0;
            for (int s = 0; s < 2; ++s) {
                const block_q5_0 *block = src.block(repack_row(lane, r), 2 * i + s);
                word |= (bytes4(block, &block_q5_0::qs, col % 16) >> col / 16 * 4 & 0x0f0f0f0fu) << 4 * s;
                high |= spread_bits4(bytes4(block, &block_q5_0::qh, 0) >> col) << (4 * s + r);
            }
            out.qs[i][lane][r] = word;
        }
        out.qh[i][lane] = high;
    }
    repack_scales(src, lane, out);
}

INTRIN void repack_tile(const repack_source<block_q8_0> &src, int lane, tile_q8_0 &out) {
    for (int j = 0; j < 8; ++j)
        for (int r = 0; r < 4; ++r)
            out.qs[j][lane][r] = bytes4(src.block(repack_row(lane, r), j), &block_q8_0::qs, repack_col(lane, r));
    repack_scales(src, lane, out);
}

// gridDim.x covers the tiles of a slab, gridDim.y is slabs.
template <class Block, int kWarps>
__device__ __forceinline__ void repack(const repack_params &p) {
    constexpr int kElems = decode<Block>::kElems, kBlocks = TILE_COLS / kElems; // per row of a tile
    using type = typename tile<Block>::type;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t k_tiles = (p.k + TILE_COLS - 1) / TILE_COLS, row_tiles = (p.n + TILE_ROWS - 1) / TILE_ROWS;
    const uint64_t at = uint64_t{blockIdx.x} * kWarps + warp; // in the slab
    if (at >= uint64_t{row_tiles} * k_tiles) return;
    const uint32_t row = static_cast<uint32_t>(at / k_tiles) * TILE_ROWS;
    const int b = static_cast<int>(at % k_tiles) * kBlocks;
    const uint64_t row_blocks = p.k / kElems;

    repack_source<Block> src;
    src.row0 = static_cast<const Block *>(p.src) + (uint64_t{blockIdx.y} * p.n + row) * row_blocks + b;
    src.row_blocks = row_blocks;
    src.n_rows = static_cast<int>(min(p.n - row, uint32_t{TILE_ROWS}));
    src.n_blocks = static_cast<int>(min(row_blocks - b, static_cast<uint64_t>(kBlocks)));
    repack_tile(src, lane, static_cast<type *>(p.out)[uint64_t{blockIdx.y} * row_tiles * k_tiles + at]);
}
