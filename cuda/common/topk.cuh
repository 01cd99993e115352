// topk.cuh: how blocks of threads select the largest of many scores: alone, or several that share a row and meet.
//
// A score becomes an integer that grows with it, its key. Which key is the k-th is found by counting keys by their upper bits, then those of one bin
// by the next bits: exactly, with any scores. Of equals the first ones are taken.
#pragma once
#include "intrin.cuh"
#include "params/dsa_topk.h"

// Grows with the score, equal for equal ones; never 0.
INTRIN uint32_t topk_key(float score) {
    const uint32_t bits = __float_as_uint(score + 0.f); // -0 becomes 0
    const uint32_t key = bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
    return score != score ? ~0u : key; // NaN is seen
}
constexpr uint32_t kTopkLowest = 0x007fffffu, kTopkInfinity = 0xff800000u; // of -inf and inf; larger ones are NaN

// The score of a key.
INTRIN float topk_score(uint32_t key) { return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key); }

INTRIN uint32_t upper_bits(uint32_t key, uint32_t shift) { return shift < 32 ? key >> shift : 0; }

// What is known of the k-th largest key: its bits from `shift` on. Keys with larger ones are selected, and `want` of the `equals` with these.
struct alignas(16) topk_cut {
    uint32_t prefix, shift, want, equals;

    INTRIN bool is_above(uint32_t key) const { return upper_bits(key, shift) > prefix; }
    INTRIN bool is_equal(uint32_t key) const { return upper_bits(key, shift) == prefix; }
    INTRIN bool is_undecided() const { return want < equals; }
    INTRIN uint32_t low() const { return shift < 32 ? prefix << shift : 0; } // the least key that is above or equal
};

// The k-th of keys is at least `low`, none is above `high`: what both begin with is known.
INTRIN topk_cut topk_between(uint32_t low, uint32_t high, uint32_t k) {
    const uint32_t shift = 32 - __clz(static_cast<int>((low ^ high) | 1u));
    return {upper_bits(high, shift), shift, k, ~0u};
}

template <int kWarps> struct topk_counts {
    alignas(16) uint32_t bins[TOPK_BINS]; // zeros but for the time in which something is counted
    uint32_t sums[2][kWarps];
    uint32_t bin[3];
    uint32_t answer;
};

// What the threads of a block do together.
template <int kWarps> struct topk_block {
    static constexpr uint32_t kThreads = 32 * kWarps;
    static_assert(kWarps <= 32 && TOPK_BINS % kThreads == 0, "a lane for each warp");
    topk_counts<kWarps> &c;
    topk_cut cut;

    INTRIN uint32_t sum(uint32_t x) const {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        x = __reduce_add_sync(0xffffffffu, x);
        if (lane == 0) c.sums[0][warp] = x;
        __syncthreads();
        x = __reduce_add_sync(0xffffffffu, lane < kWarps ? c.sums[0][lane] : 0);
        __syncthreads();
        return x;
    }

    // The smallest x and the largest y of all threads.
    INTRIN uint2 extremes(uint32_t x, uint32_t y) const {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        x = __reduce_min_sync(0xffffffffu, x), y = __reduce_max_sync(0xffffffffu, y);
        if (lane == 0) c.sums[0][warp] = x, c.sums[1][warp] = y;
        __syncthreads();
        x = __reduce_min_sync(0xffffffffu, lane < kWarps ? c.sums[0][lane] : ~0u);
        y = __reduce_max_sync(0xffffffffu, lane < kWarps ? c.sums[1][lane] : 0);
        __syncthreads();
        return make_uint2(x, y);
    }

    // Sums over the threads before this one, and over all.
    INTRIN uint32_t sum_before(uint32_t x, uint32_t &all) const {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        uint32_t upto = x;
#pragma unroll
        for (uint32_t lanes = 1; lanes < 32; lanes *= 2) {
            const uint32_t other = __shfl_up_sync(0xffffffffu, upto, lanes);
            if (lane >= lanes) upto += other;
        }
        if (lane == 31) c.sums[0][warp] = upto;
        __syncthreads();
        const uint32_t of_warp = lane < kWarps ? c.sums[0][lane] : 0;
        all = __reduce_add_sync(0xffffffffu, of_warp);
        const uint32_t before = __reduce_add_sync(0xffffffffu, lane < warp ? of_warp : 0);
        __syncthreads();
        return before + upto - x;
    }

    INTRIN void clear_bins() const {
        for (uint32_t i = threadIdx.x; i < TOPK_BINS; i += kThreads) c.bins[i] = 0;
        __syncthreads();
    }

    // Calls f(key) for all keys but 0. Several are on their way at a time.
    template <int kSteps, class Key, class F> INTRIN void each_key(uint32_t n, Key key_of, F f) const {
#pragma unroll 1
        for (uint32_t base = threadIdx.x; base < n; base += kSteps * kThreads) {
            uint32_t key[kSteps];
#pragma unroll
            for (uint32_t j = 0; j < kSteps; ++j) key[j] = base + j * kThreads < n ? key_of(base + j * kThreads) : 0;
#pragma unroll
            for (uint32_t j = 0; j < kSteps; ++j)
                if (key[j] != 0) f(key[j]);
        }
    }

    // By the next bits of the cut.
    INTRIN void count(uint32_t key) const {
        const uint32_t bits = min(cut.shift, 11u);
        if (cut.is_equal(key)) atomicAdd(&c.bins[key >> (cut.shift - bits) & ((1u << bits) - 1)], 1u);
    }

    // Narrows the cut by what was counted: to the bin in which the wanted one lies. False if fewer than wanted were counted.
    INTRIN bool find_bin() {
        constexpr uint32_t kOwn = TOPK_BINS / kThreads;
        static_assert(kOwn == 4, "a vector");
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, vector = kThreads - 1 - threadIdx.x; // from the largest on
        uint4 *bins = reinterpret_cast<uint4 *>(c.bins);
        const uint4 counts = bins[vector];
        bins[vector] = make_uint4(0, 0, 0, 0);
        const uint32_t count[kOwn] = {counts.w, counts.z, counts.y, counts.x}, own = counts.x + counts.y + counts.z + counts.w;
        uint32_t upto = own;
#pragma unroll
        for (uint32_t lanes = 1; lanes < 32; lanes *= 2) {
            const uint32_t other = __shfl_up_sync(0xffffffffu, upto, lanes);
            if (lane >= lanes) upto += other;
        }
        if (lane == 31) c.sums[0][warp] = upto;
        __syncthreads();
        const uint32_t of_warp = lane < kWarps ? c.sums[0][lane] : 0;
        const uint32_t all = __reduce_add_sync(0xffffffffu, of_warp);
        uint32_t above = __reduce_add_sync(0xffffffffu, lane < warp ? of_warp : 0) + upto - own;
        if (above < cut.want && cut.want <= above + own) {
            bool found = false;
#pragma unroll
            for (uint32_t i = 0; i < kOwn; ++i) {
                if (!found && cut.want <= above + count[i]) {
                    c.bin[0] = 4 * vector + 3 - i, c.bin[1] = above, c.bin[2] = count[i];
                    found = true;
                }
                above += count[i];
            }
        }
        __syncthreads();
        if (all < cut.want) return false;
        const uint32_t bits = min(cut.shift, 11u);
        cut = {cut.prefix << bits | c.bin[0], cut.shift - bits, cut.want - c.bin[1], c.bin[2]};
        return true;
    }

    // Counts the keys that each(f) calls f with, and narrows the cut.
    template <class Each> INTRIN bool narrow(Each each) {
        each([&](uint32_t key) { count(key); });
        __syncthreads();
        return find_bin();
    }

    // Calls take(i, key, above, equals) for those i < n of which is(key) is not 0, with how many of both kinds are before: is() 1 means above, 2
    // equal. Gives how many are above.
    template <int kSteps, class Key, class Is, class Take> INTRIN uint32_t each_in_order(uint32_t n, Key key_of, Is is, Take take) const {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, before_lane = (1u << lane) - 1;
        uint32_t above = 0, equals = 0, buffer = 0;
#pragma unroll 1
        for (uint32_t base = 0; base < n; base += kThreads * kSteps, buffer ^= 1) {
            uint32_t key[kSteps], is_1[kSteps], is_2[kSteps], all = 0; // counts of 16 bits
            const uint32_t mine = base + warp * (32 * kSteps) + lane;
#pragma unroll
            for (uint32_t j = 0; j < kSteps; ++j) key[j] = mine + 32 * j < n ? key_of(mine + 32 * j) : 0;
#pragma unroll
            for (uint32_t j = 0; j < kSteps; ++j) {
                const int kind = mine + 32 * j < n ? is(key[j]) : 0;
                is_1[j] = __ballot_sync(0xffffffffu, kind == 1);
                is_2[j] = __ballot_sync(0xffffffffu, kind == 2);
                all += __popc(is_1[j]) | __popc(is_2[j]) << 16;
            }
            if (lane == 0) c.sums[buffer][warp] = all;
            __syncthreads();
            const uint32_t sum = lane < kWarps ? c.sums[buffer][lane] : 0;
            uint32_t before = __reduce_add_sync(0xffffffffu, lane < warp ? sum : 0);
            const uint32_t total = __reduce_add_sync(0xffffffffu, sum);
#pragma unroll
            for (uint32_t j = 0; j < kSteps; ++j) {
                if ((is_1[j] | is_2[j]) >> lane & 1)
                    take(mine + 32 * j, key[j], above + (before & 0xffffu) + __popc(is_1[j] & before_lane),
                         equals + (before >> 16) + __popc(is_2[j] & before_lane));
                before += __popc(is_1[j]) | __popc(is_2[j]) << 16;
            }
            above += total & 0xffffu, equals += total >> 16;
        }
        __syncthreads(); // sums are free again
        return above;
    }
};

// A block of those that share a row. kTile: neighbouring scores that one of them has.
template <int kWarps, int kTile = 32> struct topk_shared : topk_block<kWarps> {
    using base = topk_block<kWarps>;
    using base::c, base::cut, base::kThreads;
    static constexpr uint32_t kAll = 2 * TOPK_PARTS; // what `arrived` grows by at a meeting, whatever the number of blocks
    dsa_topk_row *row; // null if the block has the row for itself
    const topk_sharing &how;
    uint32_t part, parts;
    uint32_t k, visible; // of the row
    uint32_t *indices;
    uint32_t tiles;  // whole ones of each block; some have one more, one a part of one
    uint32_t target; // of `arrived`, at the next meeting; thread 0 has it

    INTRIN topk_shared(topk_counts<kWarps> &counts, dsa_topk_row *row, const topk_sharing &how, uint32_t part, uint32_t k, uint32_t visible,
                       uint32_t *indices)
        : base{counts, {}}, row(row), how(how), part(part), parts(how.parts), k(k), visible(visible), indices(indices),
          tiles(visible / kTile / how.parts), target(0) {
        if (threadIdx.x == 0 && row != nullptr) target = ld_relaxed(&row->arrived) & ~(kAll - 1);
    }

    // Tiles of a row are dealt to its blocks in turn, so that each has a share of what is large, wherever that stands.
    INTRIN uint32_t place_of(uint32_t own) const { return (own / kTile * parts + part) * kTile + own % kTile; }
    INTRIN uint32_t own() const {
        const uint32_t last = visible / kTile - tiles * parts; // the block with what is less than a tile
        return (tiles + (part < last)) * kTile + (part == last ? visible % kTile : 0);
    }

    // All blocks of a row have come, and what they wrote before is seen by all. False, for all of them, if one gave up.
    INTRIN bool meet() {
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t *arrived = &row->arrived;
            red_add_release(arrived, part == 0 ? kAll - 2 * (parts - 1) : 2); // together kAll, and not before the last of them
            target += kAll;
            bool hope = true;
            for (uint32_t look = 0;; ++look) {
                const uint32_t now = ld_acquire(arrived);
                hope = (now & 1) == 0;
                if (!hope || static_cast<int32_t>(now - target) >= 0) break;
                // Giving up is one step with finding that others are missing, so that all learn the same.
                if (look >= how.patience && atomicCAS(arrived, now, now | 1) == now) {
                    hope = false;
                    break;
                }
            }
            c.answer = hope;
        }
        __syncthreads();
        return c.answer != 0;
    }

    // After a block gave up: whether this one is the last to leave, which then finds everything as before the launch.
    INTRIN bool is_last() const {
        __syncthreads();
        if (threadIdx.x == 0) c.answer = atomic_add_acq_rel(&row->left, 1) == parts - 1;
        __syncthreads();
        if (c.answer == 0) return false;
        uint32_t *bins = row->bins[0];
        for (uint32_t i = threadIdx.x; i < TOPK_LEVELS * TOPK_BINS; i += kThreads) bins[i] = 0;
        if (threadIdx.x == 0) row->arrived = 0, row->left = 0;
        __syncthreads();
        return true;
    }

    // Lists, in the row's memory, the largest of this block's n keys, more than its share of the k largest, and from which key on all are listed;
    // of that key perhaps the first ones only.
    template <int kSteps, class Key> INTRIN void list(uint32_t n, Key key_of) {
        const uint32_t room = how.room, want = how.want;
        uint32_t *keys = row->keys + part * room, *places = row->places + part * room;
        uint32_t low = 0, most = ~0u;
        if (n > room) {
            uint32_t mine = 0;
            this->template each_key<kSteps>(n, key_of, [&](uint32_t key) { mine = max(mine, key); });
            const uint2 of_block = this->extremes(mine == 0 ? ~0u : mine, mine);
            most = of_block.y;
            // The wanted one of threads' largest keys is not above the wanted one of all, and not far below.
            if (want <= min(n, kThreads) * 3 / 4) {
                cut = topk_between(of_block.x, most, want);
                this->narrow([&](auto f) { if (mine != 0) f(mine); });
                low = cut.low();
            }
        }
        const auto write = [&](uint32_t i, uint32_t key, uint32_t at) {
            if (at >= room) return;
            keys[at] = key, places[at] = place_of(i);
            if (at == room - 1) c.answer = place_of(i);
        };
        uint32_t listed = n, bound = ~0u;
        if (low != 0 || n <= room) {
            const auto is = [&](uint32_t key) { return key >= low ? 1 : 0; };
            listed = this->template each_in_order<4>(n, key_of, is, [&](uint32_t i, uint32_t key, uint32_t at, uint32_t) { write(i, key, at); });
        }
        if (listed > room && low == most) { // equals, of which the first ones are listed
            listed = room, bound = c.answer;
        } else if (listed > room) { // by exact counts
            cut = topk_between(low, most, want);
            do this->narrow([&](auto f) { this->template each_key<kSteps>(n, key_of, f); });
            while (cut.shift > 0 && want - cut.want + cut.equals > room);
            const uint32_t above = want - cut.want;
            low = cut.low(), listed = min(room, above + cut.equals);
            const auto is = [&](uint32_t key) { return cut.is_above(key) ? 1 : cut.is_equal(key) ? 2 : 0; };
            this->template each_in_order<4>(n, key_of, is, [&](uint32_t i, uint32_t key, uint32_t n_above, uint32_t equals) {
                write(i, key, cut.is_above(key) ? n_above : above + equals);
            });
            if (above + cut.equals > room) bound = c.answer; // then they are of one key
        }
        for (uint32_t i = listed + threadIdx.x; i < room; i += kThreads) keys[i] = 0;
        if (threadIdx.x == 0) *reinterpret_cast<uint4 *>(row->ends[part]) = make_uint4(low, bound, most, 0);
    }

    // Selects from what all blocks listed, and writes what lies in this block's share of the places. False, for all of them, if something may be
    // missing that was not listed.
    INTRIN bool choose() {
        constexpr uint32_t kOwn = TOPK_LIST / kThreads, kEnds = TOPK_PARTS / 32;
        static_assert(TOPK_LIST % kThreads == 0, "as many of the listed for each thread");
        const uint32_t lane = threadIdx.x % 32, size = how.room * parts;
        const uint32_t *places = row->places + threadIdx.x;
        uint32_t key[kOwn];
#pragma unroll
        for (uint32_t j = 0; j < kOwn; ++j) key[j] = j * kThreads + threadIdx.x < size ? row->keys[j * kThreads + threadIdx.x] : 0;
        // What each warp finds by itself needs no barrier.
        uint32_t lows[kEnds], bounds[kEnds], low = 0, most = 0;
        bool bounded = false;
#pragma unroll
        for (uint32_t i = 0; i < kEnds; ++i) {
            const uint4 end = 32 * i + lane < parts ? vector_at<uint4>(row->ends[32 * i + lane]) : make_uint4(0, ~0u, 0, 0);
            lows[i] = end.x, bounds[i] = end.y, low = max(low, end.x), most = max(most, end.z), bounded = bounded || end.y != ~0u;
        }
        low = __reduce_max_sync(0xffffffffu, low), most = __reduce_max_sync(0xffffffffu, most);
        bounded = __any_sync(0xffffffffu, bounded) != 0;
        cut = topk_between(low, most, k);
        do {
            const auto each = [&](auto f) {
#pragma unroll
                for (uint32_t j = 0; j < kOwn; ++j)
                    if (key[j] != 0) f(key[j]);
            };
            if (!this->narrow(each)) return false;
        } while (cut.shift > 0 && (cut.is_undecided() || low > cut.low() || bounded));
        if (low > cut.low()) return false;
        const uint32_t first_key = max(cut.low(), 1u);
        uint32_t last = ~0u; // of those with just this key, the place of the last that is selected
        if (cut.is_undecided() || bounded) { // then it is one key
            cut = topk_between(~(visible - 1), ~0u, cut.want);
            do {
                this->narrow([&](auto f) {
#pragma unroll
                    for (uint32_t i = 0; i < kOwn; i += 4) {
                        uint32_t place[4];
#pragma unroll
                        for (uint32_t j = 0; j < 4; ++j) place[j] = key[i + j] == first_key ? places[(i + j) * kThreads] : ~0u;
#pragma unroll
                        for (uint32_t j = 0; j < 4; ++j)
                            if (place[j] != ~0u) f(~place[j]);
                    }
                });
            } while (cut.shift > 0);
            last = ~cut.prefix;
            bool missing = false;
#pragma unroll
            for (uint32_t i = 0; i < kEnds; ++i) missing = missing || (lows[i] == first_key && bounds[i] < last);
            if (__any_sync(0xffffffffu, missing)) return false;
        }
        // From here on places in place of keys.
#pragma unroll
        for (uint32_t j = 0; j < kOwn; ++j) {
            const uint32_t place = key[j] >= first_key ? places[j * kThreads] : ~0u;
            key[j] = key[j] == first_key && place > last ? ~0u : place;
        }
        // One bit for each place, as many at a time as there is room for; those that are before are counted.
        static_assert(kTile % 32 == 0, "whole words");
        constexpr uint32_t kBits = 32 * TOPK_BINS;
        const uint32_t share = (tiles + 1) * kTile;
        const uint32_t begin = min(part * share, visible), end = min(begin + share, visible);
#pragma unroll 1
        for (uint32_t from = begin; from < end; from += kBits) {
            const uint32_t size_of = min(end - from, kBits), words = (size_of + 31) / 32;
            uint32_t mine = 0;
#pragma unroll
            for (uint32_t j = 0; j < kOwn; ++j) {
                const uint32_t place = key[j];
                mine += place < from;
                if (place - from < size_of) atomicOr(&c.bins[(place - from) / 32], 1u << (place - from) % 32);
            }
            uint32_t before = this->sum(mine);
#pragma unroll 1
            for (uint32_t base = 0; base < words; base += kThreads) {
                const uint32_t word = base + threadIdx.x;
                uint32_t bits = word < words ? c.bins[word] : 0, all_of;
                if (word < words) c.bins[word] = 0;
                uint32_t at = before + this->sum_before(__popc(bits), all_of);
                before += all_of;
                for (; bits != 0; bits &= bits - 1) indices[at++] = from + word * 32 + __ffs(static_cast<int>(bits)) - 1;
            }
        }
        return true;
    }

    // By counts alone, of any scores: each block has neighbouring ones, and keeps up to `room` of them. False if a block gave up: nothing of the
    // result is written then.
    INTRIN bool by_counts(const float *scores, uint32_t *held, uint32_t room) {
        const uint32_t share = (visible + parts - 1) / parts, first = min(part * share, visible), n = min(share, visible - first);
        scores += first;
        if (n > room) return by_counts_of(first, n, [&](uint32_t i) { return topk_key(scores[i]); });
        hold(n, held, [&](uint32_t i) { return scores + i; });
        return by_counts_of(first, n, [&](uint32_t i) { return held[i]; });
    }

    // Keeps the keys of n scores, of which score i stands at at(i): four that begin at a multiple of four are neighbours.
    template <class At> INTRIN void hold(uint32_t n, uint32_t *held, At at) const {
        const bool aligned = reinterpret_cast<uintptr_t>(at(0)) % 16 == 0;
        const uint32_t vectors = aligned ? n / 4 : 0;
        constexpr uint32_t kSteps = 8;
#pragma unroll 1
        for (uint32_t base = threadIdx.x; base < vectors; base += kSteps * kThreads) {
            uint4 score[kSteps];
#pragma unroll
            for (uint32_t j = 0; j < kSteps; ++j) // the last one for those behind it, so that all are on their way together
                score[j] = vector_at<uint4>(at(4 * min(base + j * kThreads, vectors - 1)));
#pragma unroll
            for (uint32_t j = 0; j < kSteps; ++j) {
                if (base + j * kThreads >= vectors) continue;
                const uint4 key = make_uint4(topk_key(__uint_as_float(score[j].x)), topk_key(__uint_as_float(score[j].y)),
                                             topk_key(__uint_as_float(score[j].z)), topk_key(__uint_as_float(score[j].w)));
                *reinterpret_cast<uint4 *>(held + 4 * (base + j * kThreads)) = key;
            }
        }
#pragma unroll 4
        for (uint32_t i = 4 * vectors + threadIdx.x; i < n; i += kThreads) held[i] = topk_key(*at(i));
        __syncthreads();
    }

private:
    template <class Key> INTRIN bool by_counts_of(uint32_t first, uint32_t n, Key key_of) {
        cut = {0, 32, k, ~0u};
        int level = 0;
#pragma unroll 1
        for (; cut.shift > 0 && cut.is_undecided(); ++level) {
            this->template each_key<8>(n, key_of, [&](uint32_t key) { this->count(key); });
            __syncthreads();
            if (parts > 1 && !share_bins(level)) return false;
            this->find_bin();
        }
        uint32_t above = 0, equals = 0; // before this piece
        if (parts > 1) {
            this->template each_key<8>(n, key_of, [&](uint32_t key) { above += cut.is_above(key), equals += cut.is_equal(key); });
            above = this->sum(above), equals = this->sum(equals);
            if (threadIdx.x == 0) row->counts[part][0] = above, row->counts[part][1] = equals;
            if (!meet()) return false;
            forget_bins(level - 1);
            above = this->sum(threadIdx.x < part ? row->counts[threadIdx.x][0] : 0);
            equals = this->sum(threadIdx.x < part ? row->counts[threadIdx.x][1] : 0);
        }
        const auto is = [&](uint32_t key) { return cut.is_above(key) ? 1 : cut.is_equal(key) ? 2 : 0; };
        this->template each_in_order<4>(n, key_of, is, [&](uint32_t i, uint32_t key, uint32_t n_above, uint32_t n_equals) {
            const uint32_t first_ones = min(equals + n_equals, cut.want);
            if (cut.is_above(key) || equals + n_equals < cut.want) indices[above + n_above + first_ones] = first + i;
        });
        return true;
    }

    // Adds up the counts of all blocks, in shared memory of each.
    INTRIN bool share_bins(int level) {
        uint32_t *bins = row->bins[level];
        for (uint32_t i = threadIdx.x; i < TOPK_BINS; i += kThreads)
            if (c.bins[i] != 0) atomicAdd(bins + i, c.bins[i]);
        if (!meet()) return false;
        for (uint32_t i = threadIdx.x; i < TOPK_BINS; i += kThreads) c.bins[i] = bins[i];
        __syncthreads();
        if (level > 0) forget_bins(level - 1);
        return true;
    }

    // Of which nobody reads the sums any more.
    INTRIN void forget_bins(int level) const {
        for (uint32_t i = part * kThreads + threadIdx.x; i < TOPK_BINS; i += parts * kThreads) row->bins[level][i] = 0;
    }
};
