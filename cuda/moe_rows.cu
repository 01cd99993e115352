// moe_rows: the experts of a layer that have at most eight rows, and the shared expert: gate, up, SwiGLU and rounding, or one matrix alone.
//
// Math    products of int8 (int8.cuh); h = silu(gate x) * (up x) in f32, rounded to int8 in blocks of 32 (row_act.cuh)
// Shapes  x [m, k_tiles] rows by token, or by place; W [slabs, n / 16, k_tiles] tiles; h [places, n / 256], or y [places, n] f32
// Tiling  units of 32 rows of an expert's gate and up, shared as moe.cuh tells: so that what is rounded together is of one unit. A lane finds
//         the rows of its tokens by itself, and nothing is gathered before. First come units of the shared expert: so the loops are of one
//         type of weights, and one block of threads changes it.
//         Of one matrix a warp has 16 rows by itself: there are so many of these, and their columns so few, that sums would take longer.
// Floor   bytes of the weights: one token, 8 experts of Q4_K, 2048 x 6144, and a shared one of Q8_0: 140 MB, 87 us at 1.61 TB/s
// Limits  which weights are needed is known when the router has ended; of many tokens when the pairs are sorted
#include "common/moe.cuh"
#include "common/row_act.cuh"

template <int kGlu, int kBlocks, int kWarps> struct moe_rows_smem {
    static constexpr int kRing = 10080; // bytes of a warp
    static constexpr int kParts = 4;    // gate and up, two row tiles of each
    alignas(16) unsigned char rings[kWarps][kRing];
    moe_sums<kParts, kWarps> sums;
    moe_list<kWarps> list;
    moe_share share;
    uint32_t bounds[3]; // of the tiles of this block of threads: of the shared expert up to the second
    uint32_t unit, part; // its first unit; 0 while it has those of the shared expert
    uint32_t first_unit, units; // of this part: the first one of all, and how many a matrix has
};
template <int kBlocks, int kWarps> struct moe_rows_smem<0, kBlocks, kWarps> {
    static constexpr int kRing = 10080;
    alignas(16) unsigned char rings[kWarps][kRing];
    moe_list<kWarps> list;
};

// Rows of x that a lane reads, of `rows` of an expert.
struct moe_lane_rows {
    uint32_t quants, scales[2];

    template <class F> INTRIN void find(uint32_t rows, F &&row) {
        const uint32_t lane = threadIdx.x % 32, column = lane / 4;
        quants = row(min(column / 2 + 4 * (column % 2), rows - 1)); // columns of others are computed and not stored
#pragma unroll
        for (int i = 0; i < 2; ++i) scales[i] = row(min(static_cast<uint32_t>(tile_token(lane, i)), rows - 1));
    }
};

// Units of a matrix.
INTRIN uint32_t moe_units(uint32_t n) { return (n + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS); }
INTRIN uint32_t moe_shared_units(const moe_rows_params &p) { return p.shared[0].w != nullptr ? moe_units(p.n_shared) : 0; }

// Of gate and up: tiles of a part of the sequence, all of the shared expert or none. Of a unit there are 32 rows of gate and then of
// up, in two row tiles each.
template <class Block, int kBlocks, int kWarps>
INTRIN void moe_gate_up(const moe_rows_params &p) {
    using smem_type = moe_rows_smem<1, kBlocks, kWarps>;
    using type = typename tile<Block>::type;
    using ring_type = tile_ring<type, smem_type::kRing>;
    constexpr int kParts = smem_type::kParts;
    auto &shared = smem<smem_type>();
    auto &list = shared.list;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool of_shared = shared.part == 0;
    const uint32_t begin = shared.bounds[shared.part], end = shared.bounds[shared.part + 1];
    if (begin == end) return; // within a unit of the other part, perhaps
    const uint32_t n = of_shared ? p.n_shared : p.n, row_tiles = (n + TILE_ROWS - 1) / TILE_ROWS, of_unit = kParts * p.k_tiles;

    // The tile of this warp that is copied next: its number, and where it is; at the end of a row tile the next one is found.
    uint32_t ahead = begin + warp, ahead_k = 0;
    const type *at = nullptr;
    const auto find = [&] {
        const uint32_t unit = ahead / of_unit - shared.first_unit, in_unit = ahead % of_unit, part = in_unit / p.k_tiles;
        ahead_k = in_unit % p.k_tiles;
        const uint32_t slab = of_shared ? 0 : list.at(unit / shared.units).expert();
        const uint32_t row_tile = unit % shared.units * 2 + part % 2; // rows are a multiple of 32
        const type *w = static_cast<const type *>((of_shared ? p.shared : p.experts)[part / 2].w);
        at = w + (uint64_t{slab} * row_tiles + row_tile) * p.k_tiles + ahead_k;
    };
    ring_type ring{shared.rings[warp]};
    const auto advance = [&] {
        if (ahead >= end) return;
        ahead += kWarps, ahead_k += kWarps, at += kWarps;
        if (ahead_k >= p.k_tiles && ahead < end) find();
    };
    if (ahead < end) find();
#pragma unroll 1
    for (int s = 0; s < ring_type::kStages - 1; ++s) {
        ring.copy(at, ahead < end, s);
        advance();
    }
    griddep_wait();
    griddep_launch_dependents(); // only now, for moe_down, which reads before its own wait what was there before this kernel

    uint32_t next = begin + warp; // tile of this warp
#pragma unroll 1
    for (uint32_t unit = begin / of_unit; unit * of_unit < end; ++unit) {
        const uint32_t unit_begin = unit * of_unit, turn = unit - shared.unit;
        const moe_entry entry = of_shared ? moe_entry::of(0, 0, p.pairs.m) : list.at((unit - shared.first_unit) / shared.units);
        moe_lane_rows x_rows;
        x_rows.find(entry.rows(), [&](uint32_t row) {
            if (of_shared) return row;
            return (p.pairs.offsets != nullptr ? p.pairs.sorted : list.sorted())[entry.first() + row] / p.pairs.top_k;
        });
        const auto row_at = [&](uint32_t row, uint32_t k) { return p.x + (uint64_t{row} * p.k_tiles + k); };
        const auto multiply = [&](auto columns, float (&acc)[1][4], uint32_t part_begin, uint32_t part_end) {
            constexpr int kColumns = decltype(columns)::kValue;
#pragma unroll 1
            for (; part_end > next; next += kWarps) {
                const type &w = ring.wait();
                ring.copy(at, ahead < end);
                advance();
                const uint32_t k = next - part_begin;
                const token_rows x{row_at(x_rows.quants, k), {row_at(x_rows.scales[0], k), row_at(x_rows.scales[1], k)}, lane};
                multiply_tile<Block, kColumns, (kColumns == 1 && sizeof(type) < kSmall ? 4 : 2)>(acc, w, lane, x);
                ring.next();
            }
        };
#pragma unroll 1
        for (int part = 0; part < kParts; ++part) {
            const uint32_t part_begin = unit_begin + part * p.k_tiles, part_end = min(part_begin + p.k_tiles, end);
            float acc[1][4] = {};
            if (entry.rows() <= MOE_ROWS / 2) multiply(columns_of<1>{}, acc, part_begin, part_end);
            else multiply(columns_of<2>{}, acc, part_begin, part_end);
            if (part == 0) shared.sums.room(turn);
            shared.sums.put(part, acc[0]);
        }
        shared.sums.put_all();
        if (!shared.sums.mine(turn)) continue;

        auto &sums = shared.sums;
        sums.take(turn);
        const bool whole = begin <= unit_begin && unit_begin + of_unit <= end;
        const uint32_t row_tile = (unit - shared.first_unit) % shared.units * 2;
        if (whole || meet(shared.share, unit_begin, unit_begin + of_unit, p.partial, p.arrived, sums)) {
            const uint32_t h_tiles = (n + TILE_COLS - 1) / TILE_COLS, col = row_tile * TILE_ROWS;
            row_act *h = (of_shared ? p.h_shared : p.h) + uint64_t{entry.first()} * h_tiles + col / TILE_COLS;
            store_h(h_tiles, h, static_cast<int>(col % TILE_COLS / 32), col + 32 == n, entry.rows(), [&](int part, int r) { return sums.at(part, r); });
        }
        sums.release();
    }
    cp_async_wait_all();
    __syncwarp(); // nothing is read any more of what may be overwritten
}

// Of one matrix: the row tiles of all experts are one list, of which a warp has neighbours, whose tiles lie one behind the other.
template <class Block, int kBlocks, int kWarps> INTRIN void moe_matrix_rows(const moe_rows_params &p) {
    using smem_type = moe_rows_smem<0, kBlocks, kWarps>;
    using type = typename tile<Block>::type;
    using ring_type = tile_ring<type, smem_type::kRing>;
    auto &shared = smem<smem_type>();
    const auto &list = shared.list;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t row_tiles = (p.n + TILE_ROWS - 1) / TILE_ROWS, me = blockIdx.x * kWarps + warp;
    const moe_share share(list.n_light * row_tiles, kLight, (list.n - list.n_light) * row_tiles, kHeavy, 1, gridDim.x * kWarps);
    const uint32_t first_unit = share.begin(me), end = share.begin(me + 1);

    uint32_t ahead = first_unit, left = 0; // unit of the tile that is copied next; tiles to the end of this expert or of this warp
    const type *at = nullptr;
    const auto find = [&] {
        if (ahead >= end) return;
        const uint32_t entry = ahead / row_tiles, row_tile = ahead % row_tiles, rest = min(row_tiles - row_tile, end - ahead);
        at = static_cast<const type *>(p.experts[0].w) + (uint64_t{list.at(entry).expert()} * row_tiles + row_tile) * p.k_tiles;
        left = rest * p.k_tiles, ahead += rest;
    };
    find();
    ring_type ring{shared.rings[warp]};
    const auto advance = [&] {
        if (left == 0) return;
        ++at;
        if (--left == 0) find();
    };
#pragma unroll
    for (int s = 0; s < ring_type::kStages - 1; ++s) {
        ring.copy(at, left > 0, s);
        advance();
    }
#pragma unroll 1
    for (uint32_t unit = first_unit; unit < end; ++unit) {
        const moe_entry entry = list.at(unit / row_tiles);
        const uint32_t first = entry.first(), rows = entry.rows();
        moe_lane_rows x_rows;
        x_rows.find(rows, [&](uint32_t row) { return first + row; });
        const auto row_at = [&](uint32_t row, uint32_t k) { return p.x + (uint64_t{row} * p.k_tiles + k); };
        float acc[1][4] = {};
        const auto multiply = [&](auto columns) {
            constexpr int kColumns = decltype(columns)::kValue;
#pragma unroll 1
            for (uint32_t k = 0; k < p.k_tiles; ++k) {
                const type &w = ring.wait();
                ring.copy(at, left > 0);
                advance();
                const token_rows x{row_at(x_rows.quants, k), {row_at(x_rows.scales[0], k), row_at(x_rows.scales[1], k)}, lane};
                multiply_tile<Block, kColumns, (kColumns == 1 && sizeof(type) < kSmall ? 4 : 2)>(acc, w, lane, x);
                ring.next();
            }
        };
        if (rows <= MOE_ROWS / 2) multiply(columns_of<1>{});
        else multiply(columns_of<2>{});
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const uint32_t row = unit % row_tiles * TILE_ROWS + tile_row(lane, r), token = tile_token(lane, r);
            if (row < p.n && token < rows) p.y[uint64_t{first + token} * p.n + row] = acc[0][r];
        }
    }
}

template <int kGlu, int kBlocks, int kWarps> __device__ __forceinline__ void moe_rows(const moe_rows_params &p) {
    using smem_type = moe_rows_smem<kGlu, kBlocks, kWarps>;
    auto &shared = smem<smem_type>();
    auto &list = shared.list;
    if constexpr (kGlu)
        if (threadIdx.x == 0) shared.sums.init();
    mbarrier_init_fence();
    // Few pairs whose ids were there before the kernel in front of this one are read, and the first weights are on their way, while that
    // runs. Others come from that kernel, as do pairs that were sorted.
    if (p.pairs.early == 0) griddep_wait();
    if (p.pairs.offsets != nullptr) {
        list_experts<kWarps>(p.pairs, list);
    } else {
        list_pairs<kWarps>(p.pairs, list);
    }

    if constexpr (!kGlu) {
        griddep_launch_dependents();
        griddep_wait();
        __syncthreads();
        with_type(p.experts[0].ty, [&](auto block) { moe_matrix_rows<typename decltype(block)::type, kBlocks, kWarps>(p); });
    } else {
        const uint32_t of_unit = smem_type::kParts * p.k_tiles, of_shared = moe_shared_units(p) * of_unit;
        if (threadIdx.x < 32) {
            __syncwarp(); // list.n
            // Of many tokens there is no shared expert, but there are experts with more rows and less.
            const uint32_t of_expert = moe_units(p.n) * of_unit;
            const moe_share share = p.pairs.offsets == nullptr
                                        ? moe_share(of_shared, p.shared[0].ty, list.n * of_expert, p.experts[0].ty, 1)
                                        : moe_share(list.n_light * of_expert, kLight, (list.n - list.n_light) * of_expert, kHeavy, 1, gridDim.x);
            const uint32_t edge = share.begin(blockIdx.x + min(threadIdx.x, 1u));
            const uint32_t begin = __shfl_sync(0xffffffffu, edge, 0), end = __shfl_sync(0xffffffffu, edge, 1);
            if (threadIdx.x == 0) {
                shared.share = share;
                shared.bounds[0] = begin, shared.bounds[1] = min(max(begin, of_shared), end), shared.bounds[2] = end;
                shared.unit = begin / of_unit, shared.part = 0;
                shared.first_unit = 0, shared.units = moe_units(p.n_shared);
            }
        }
        __syncthreads();
        // What counts the parts is in shared memory, as all that need not be in registers while tiles are multiplied.
        for (; shared.part < 2; __syncthreads()) {
            with_type((shared.part == 0 ? p.shared : p.experts)[0].ty,
                      [&](auto block) { moe_gate_up<typename decltype(block)::type, kBlocks, kWarps>(p); });
            __syncthreads();
            if (threadIdx.x == 0) ++shared.part, shared.first_unit = moe_shared_units(p), shared.units = moe_units(p.n);
        }
        griddep_wait(); // those without a tile too: what follows this kernel takes all before it for ended
    }
}
