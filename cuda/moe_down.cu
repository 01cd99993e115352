// moe_down: the second half of the experts of a layer for up to eight tokens: down, the weighted sum, and the shared expert.
//
// Math    y[t] = sum over the experts of t, by rising expert, of weight * (W h), plus W' h' of the shared expert; products of int8 (int8.cuh),
//         weights and sums in f32
// Shapes  h [places, k_tiles] and h' [m, k_shared] rows; W [slabs, n / 16, k_tiles] tiles; y [m, n] f32
// Tiling  units of 16 rows of the matrices of all experts and of the shared one, one after the other, shared as moe.cuh tells: a weighted
//         sum stays in the registers that products are added to. Types may differ, so a block of threads has the tiles of the experts of
//         several units first and then those of the shared one; between them sums wait in shared memory.
// Floor   bytes of the weights: one token, 8 experts of Q5_K, 6144 x 2048, and a shared one of Q8_0: 83 MB, 51 us at 1.61 TB/s
// Limits  more tokens: moe_rows and moe_sum
#include "common/moe.cuh"

// The tiles of a block of threads in units `first_unit` to `last_unit`, of its `begin` to `end`.
struct moe_down_range {
    uint32_t begin, end, first_unit, last_unit;
    unsigned turn; // of the first unit
};

template <int kBlocks, int kWarps> struct moe_down_smem {
    static constexpr int kRing = 10080; // bytes of a warp
    static constexpr int kUnits = 8;    // whose sums wait
    alignas(16) unsigned char rings[kWarps][kRing];
    moe_sums<1, kWarps> sums;
    float waiting[kUnits][4][32];
    moe_list<kWarps> list;
    // Of each entry and token: its weight, and the place of its row; kNone: it has none.
    float weights[MOE_PAIRS][MOE_ROWS];
    alignas(4) uint8_t places[MOE_PAIRS][MOE_ROWS];
    bool single[MOE_PAIRS]; // not both of tokens t and t + 4
    moe_share share;
    moe_down_range range;
};
constexpr uint8_t kNone = 0xff;

// Each token's place in each entry. `places` are kNone before.
template <int kBlocks, int kWarps> INTRIN void find_tokens(const moe_down_params &p, moe_down_smem<kBlocks, kWarps> &shared) {
    const auto &list = shared.list;
    for (uint32_t i = threadIdx.x; i < list.n * MOE_ROWS; i += 32 * kWarps) {
        const moe_entry entry = list.at(i / MOE_ROWS);
        if (i % MOE_ROWS >= entry.rows()) continue;
        const uint32_t place = entry.first() + i % MOE_ROWS, pair = list.sorted()[place], token = pair / p.pairs.top_k;
        shared.weights[i / MOE_ROWS][token] = f32_from_bits(ld_relaxed(reinterpret_cast<const uint32_t *>(p.weights + pair)));
        shared.places[i / MOE_ROWS][token] = static_cast<uint8_t>(place);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < list.n; i += 32 * kWarps) {
        bool single = true;
        for (int t = 0; t < MOE_ROWS / 2; ++t) single = single && (shared.places[i][t] == kNone || shared.places[i][t + 4] == kNone);
        shared.single[i] = single;
    }
}

// Those of the experts, or those of the shared one, which come last.
template <class Block, int kBlocks, int kWarps> INTRIN void moe_down_part(const moe_down_params &p, bool of_shared) {
    using smem_type = moe_down_smem<kBlocks, kWarps>;
    using type = typename tile<Block>::type;
    using ring_type = tile_ring<type, smem_type::kRing>;
    auto &shared = smem<smem_type>();
    const auto &list = shared.list;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const moe_share &share = shared.share;
    const moe_down_range &range = shared.range;
    const uint32_t row_tiles = (p.n + TILE_ROWS - 1) / TILE_ROWS, of_unit = share.a + share.b;
    const uint32_t k_tiles = of_shared ? p.k_shared : p.k_tiles, skipped = of_shared ? share.a : 0, tiles = of_shared ? share.b : share.a;
    const bool last = of_shared || share.b == 0; // whether sums are complete behind these
    // Of a unit, counted from the first one of the range's: the tiles that there are of this part in this block of threads.
    const auto from_of = [&](uint32_t unit) { return max(range.begin, unit * of_unit + skipped) - unit * of_unit - skipped; };
    const auto to_of = [&](uint32_t unit) {
        const uint32_t first = unit * of_unit + skipped;
        return range.end <= first ? 0 : min(range.end - first, tiles);
    };

    const auto turn_of = [&](uint32_t unit) { return range.turn + unit - range.first_unit; };

    // The tile of this warp that is copied next, in the part of a unit.
    uint32_t ahead_unit = range.first_unit, ahead = 0, ahead_end = 0, ahead_entry = 0, ahead_k = 0;
    const auto settle = [&](uint32_t past) { // `past`: tiles of this warp behind the end of the unit before
        for (;;) {
            ahead = from_of(ahead_unit) + past, ahead_end = list.n == 0 && !of_shared ? 0 : to_of(ahead_unit);
            if (ahead < ahead_end) break;
            past = ahead_end > from_of(ahead_unit) ? ahead - ahead_end : past;
            if (ahead_unit++ == range.last_unit) return;
        }
        ahead_entry = ahead / k_tiles, ahead_k = ahead % k_tiles;
    };
    settle(warp);
    ring_type ring{shared.rings[warp]};
    const type *w = static_cast<const type *>((of_shared ? p.shared : p.experts).w);
    const auto copy = [&](int to) {
        const bool there = ahead_unit <= range.last_unit;
        const uint64_t slab = of_shared || !there ? 0 : list.at(ahead_entry).expert();
        ring.copy(w + (slab * row_tiles + ahead_unit) * k_tiles + ahead_k, there, to);
        if (!there) return;
        ahead += kWarps;
        if (ahead < ahead_end) {
            for (ahead_k += kWarps; ahead_k >= k_tiles; ahead_k -= k_tiles) ++ahead_entry;
        } else {
            const uint32_t past = ahead - ahead_end;
            if (ahead_unit++ < range.last_unit) settle(past);
        }
    };
#pragma unroll 1
    for (int s = 0; s < ring_type::kStages - 1; ++s) copy(s);
    griddep_wait();

    const row_act *x = of_shared ? p.h_shared : p.h;
    uint32_t past = warp;
#pragma unroll 1
    for (uint32_t unit = range.first_unit; unit <= range.last_unit; ++unit) {
        const uint32_t from = from_of(unit), to = list.n == 0 && !of_shared ? 0 : to_of(unit);
        float y[4] = {};
        uint32_t next = from + past, entry = next / k_tiles, k = next % k_tiles;
        // One tile; with one column of an entry without tokens t and t + 4 at once.
        const auto multiply = [&](auto columns) {
            constexpr int kColumns = decltype(columns)::kValue;
            const type &tile = ring.wait();
            copy(ring.reading == 0 ? ring_type::kStages - 1 : ring.reading - 1);
            // Tokens without a row read that of another, which is not added. With one column token t or t + 4 is there in its place.
            const auto place_of = [&](uint32_t token) -> uint32_t {
                if (of_shared) return token < p.pairs.m ? token : kNone;
                return shared.places[entry][token];
            };
            const auto place_in = [&](uint32_t column) {
                const uint32_t place = place_of(column / 2 + 4 * (column % 2));
                return kColumns == 1 && place == kNone && column % 2 == 0 ? place_of(column / 2 + 4) : place;
            };
            const uint32_t any = of_shared ? 0 : list.at(entry).first();
            const auto row_at = [&](uint32_t place) { return x + (uint64_t{place == kNone ? any : place} * k_tiles + k); };
            uint32_t own[2] = {place_of(tile_token(lane, 0)), place_of(tile_token(lane, 1))};
            const uint32_t first_own = kColumns == 1 && own[0] == kNone ? own[1] : own[0];
            const token_rows rows{row_at(place_in(lane / 4)), {row_at(first_own), row_at(own[1])}, lane};
            float acc[1][4] = {};
            multiply_tile<Block, kColumns, (kColumns == 1 && sizeof(type) < kSmall ? 4 : 2 / kColumns)>(acc, tile, lane, rows);
            ring.next();
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if (own[i] == kNone) continue;
                const float weight = of_shared ? 1.f : shared.weights[entry][tile_token(lane, i)];
                const int column = kColumns == 1 ? 0 : i;
                y[i] = __fmaf_rn(weight, acc[0][column], y[i]);
                y[2 + i] = __fmaf_rn(weight, acc[0][2 + column], y[2 + i]);
            }
            for (k += kWarps; k >= k_tiles; k -= k_tiles) ++entry;
        };
#pragma unroll 1
        for (; to > next; next += kWarps) {
            if (of_shared ? p.pairs.m <= MOE_ROWS / 2 : shared.single[entry]) multiply(columns_of<1>{});
            else multiply(columns_of<2>{});
        }
        past = to > from ? next - to : past;
        shared.sums.room(turn_of(unit));
        shared.sums.put(0, y);
        shared.sums.put_all();
        if (!shared.sums.mine(turn_of(unit))) continue;

        auto &sums = shared.sums;
        sums.take(turn_of(unit));
        auto &waiting = shared.waiting[unit - range.first_unit];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            if (of_shared) sums.at(0, r) = __fadd_rn(waiting[r][lane], sums.at(0, r));
            if (!last) waiting[r][lane] = sums.at(0, r);
        }
        const uint32_t unit_begin = unit * of_unit, unit_end = unit_begin + of_unit;
        const bool whole = range.begin <= unit_begin && unit_end <= range.end;
        if (last && (whole || meet(share, unit_begin, unit_end, p.partial, p.arrived, sums)))
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const uint32_t row = unit * TILE_ROWS + tile_row(lane, r), token = tile_token(lane, r);
                if (row < p.n && token < p.pairs.m) p.y[uint64_t{token} * p.n + row] = sums.at(0, r);
            }
        sums.release();
    }
}

template <int kBlocks, int kWarps> __device__ __forceinline__ void moe_down(const moe_down_params &p) {
    using smem_type = moe_down_smem<kBlocks, kWarps>;
    auto &shared = smem<smem_type>();
    if (threadIdx.x == 0) shared.sums.init();
    mbarrier_init_fence();
    griddep_launch_dependents();
    // Ids and weights of the router were there before moe_rows, which lets this begin only then.
    for (uint32_t i = threadIdx.x; i < MOE_PAIRS * MOE_ROWS / 4; i += 32 * kWarps) reinterpret_cast<uint32_t *>(shared.places)[i] = ~0u;
    list_pairs<kWarps>(p.pairs, shared.list);
    const moe_share &share = shared.share;
    if (threadIdx.x < 32) {
        __syncwarp(); // list.n
        // Without any expert a unit has one tile that nobody reads, and its sums are zeros.
        const uint32_t row_tiles = (p.n + TILE_ROWS - 1) / TILE_ROWS, of_experts = shared.list.n * p.k_tiles;
        const moe_share own(of_experts + p.k_shared == 0 ? 1 : of_experts, p.experts.ty, p.k_shared, p.shared.ty, row_tiles);
        const uint32_t edge = own.begin(blockIdx.x + min(threadIdx.x, 1u));
        const uint32_t begin = __shfl_sync(0xffffffffu, edge, 0), end = __shfl_sync(0xffffffffu, edge, 1);
        if (threadIdx.x == 0) shared.share = own, shared.range = {begin, end, 0, 0, 0};
    }
    __syncthreads();
    find_tokens<kBlocks, kWarps>(p, shared);
    const uint32_t of_unit = share.a + share.b;
#pragma unroll 1
    for (uint32_t unit = shared.range.begin / of_unit; unit * of_unit < shared.range.end; unit += smem_type::kUnits)
#pragma unroll 1
        for (int part = 0; part < (share.b == 0 ? 1 : 2); ++part) {
            if (threadIdx.x == 0) {
                auto &range = shared.range;
                if (unit != shared.range.begin / of_unit || part != 0) range.turn += range.last_unit - range.first_unit + 1;
                range.first_unit = unit, range.last_unit = min(unit + smem_type::kUnits - 1, (range.end - 1) / of_unit);
            }
            __syncthreads();
            with_type(part == 0 ? p.experts.ty : p.shared.ty, [&](auto block) {
                moe_down_part<typename decltype(block)::type, kBlocks, kWarps>(p, part != 0);
            });
            __syncthreads(); // sums that wait are there
        }
    griddep_wait(); // those without a tile too: what follows this kernel takes all before it for ended
}
