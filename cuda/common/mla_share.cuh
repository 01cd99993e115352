// mla_share.cuh: which tiles of keys a block of threads has: an equal share of those of all rows, by lengths that lie on the device.
#pragma once
#include "mla.cuh"

constexpr uint32_t kAll = 0xffffffffu;

// Of kKeys keys each; a row without keys has its zeros written.
template <uint32_t kKeys> INTRIN uint32_t unit_tiles(uint32_t keys) { return max(1u, (keys + kKeys - 1) / kKeys); }

// A place in the sequence of tiles.
template <uint32_t kKeys> struct mla_cursor {
    uint32_t row, group, keys, visible, tiles, first; // tiles of the unit of row and group, and the number of its first
    uint32_t table;

    INTRIN void enter(const mla_decode_params &p) {
        keys = attended(p.rows, p.selected, row), visible = p.rows.positions[row] + 1, tiles = unit_tiles<kKeys>(keys);
        table = p.rows.table_starts[row]; // now, so that it is there when a position is
    }
    // To the unit of a tile that is not before this one.
    INTRIN void seek(const mla_decode_params &p, uint32_t groups, uint32_t tile) {
        while (tile - first >= tiles) {
            first += tiles;
            if (++group < groups) continue;
            group = 0, ++row;
            enter(p);
        }
    }
};

// The sum of the values of the threads before this one, and of all; whether any thread has a flag.
template <int kWarps> INTRIN uint2 sums_before(uint32_t value, bool &flag, uint32_t (&scan)[kWarps]) {
    uint32_t sum = value;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        const uint32_t other = __shfl_up_sync(kAll, sum, lanes);
        if (threadIdx.x % 32 >= lanes) sum += other;
    }
    flag = __syncthreads_or(flag); // others may still read what was there
    if (threadIdx.x % 32 == 31) scan[threadIdx.x / 32] = sum;
    __syncthreads();
    uint32_t before = 0, all = 0;
#pragma unroll
    for (uint32_t w = 0; w < kWarps; ++w) {
        before += w < threadIdx.x / 32 ? scan[w] : 0;
        all += scan[w];
    }
    return {before + sum - value, all};
}

// Tiles for each block: an equal share. If units are equal and a little more makes cuts meet their ends, that: fewer pieces are left to add up.
template <uint32_t kKeys> INTRIN uint32_t share_size(uint32_t all, bool equal, uint32_t tiles) {
    constexpr uint32_t kLeast = MLA_SHARE / kKeys;
    const uint32_t share = max((all - 1) / gridDim.x + 1, kLeast);
    if (!equal) return share;
    const uint32_t cuts = max(1u, tiles / share), whole = tiles >= share ? tiles / cuts : (share + tiles - 1) / tiles * tiles;
    return tiles % cuts == 0 && whole - share <= kLeast ? whole : share;
}

// The block's tiles: `n` from `first` on, of which every block but the last has `per`. Its first row goes to shared memory.
struct mla_share {
    uint32_t first, n, per;
};
template <uint32_t kKeys, int kWarps, class Smem> INTRIN mla_share share_of(const mla_decode_params &p, uint32_t groups, Smem &shared) {
    constexpr uint32_t kThreads = 32 * kWarps;
    const uint32_t tiles = unit_tiles<kKeys>(attended(p.rows, p.selected, 0));
    bool unequal = false;
    const auto tiles_of = [&](uint32_t row) {
        if (row >= p.rows.m) return 0u;
        const uint32_t own = unit_tiles<kKeys>(attended(p.rows, p.selected, row));
        unequal |= own != tiles;
        return groups * own;
    };
    uint32_t all = 0;
    if (p.rows.m > kThreads) {
        uint32_t some = 0;
        for (uint32_t row = threadIdx.x; row < p.rows.m; row += kThreads) some += tiles_of(row);
        all = sums_before<kWarps>(some, unequal, shared.scan).y;
    }
    mla_share share{};
    uint32_t before = 0;
    for (uint32_t chunk = 0; chunk < p.rows.m; chunk += kThreads) {
        const uint32_t row = chunk + threadIdx.x, mine = tiles_of(row);
        const uint2 sums = sums_before<kWarps>(mine, unequal, shared.scan);
        if (p.rows.m <= kThreads) all = sums.y;
        share.per = share_size<kKeys>(all, !unequal, tiles);
        share.first = min(uint64_t{blockIdx.x} * share.per, uint64_t{all});
        share.n = min(share.per, all - share.first);
        const uint32_t first = before + sums.x;
        if (share.first - first < mine) shared.row = row, shared.row_first = first; // one thread, unless there are no tiles
        before += sums.y;
        if (share.first < before) break;
    }
    __syncthreads();
    return share;
}
