// dsa_topk: the k largest scores of each row, exactly, as ascending positions. One launch; nothing is sorted.
//
// Math    radix selection: scores as integers that grow with them (NaN on top, both zeros alike), counted by their upper 11 bits, those of the
//         bin that holds the k-th by the next 11, then by the last 10. Of equals at the cut the first ones.
// Shapes  scores [m, n], visible, lens [m], indices [m, k]
// Tiling  a row has one block of threads, or `parts`, which have neighbouring pieces of it and keep them in shared memory (kHeld keys). They add up
//         their counts in global memory and meet there. If one bin is all that is undecided, and small, they list it, and each decides by itself.
//         kFound: long rows with a block each, which keeps what lies in or above the bin of the k-th, so that scores are read twice.
// Floor   bytes of the scores: 128k of them 0.5 MB, at once in L2; 512 rows 268 MB, 65 us at 4.1 TB/s. One row: a launch, two meetings.
// Limits  blocks that meet should be resident together. If they are not, one gives up, all leave, and the last of them does the row alone: slower,
//         the same result. More than kFound keys in and above a bin are read up to five times.
#include "common/intrin.cuh"
#include "params/dsa_topk.h"

// Grows with the score, equal for equal ones.
INTRIN uint32_t topk_key(float score) {
    const uint32_t bits = __float_as_uint(score), size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return ~0u; // NaN, so that it is seen
    if (size == 0) return 0x80000000u;
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

constexpr uint32_t kListed = TOPK_LIST;

template <int kHeld, int kFound, int kBlocks, int kWarps> struct dsa_topk_smem {
    uint32_t bins[TOPK_BINS];
    uint32_t keys[kHeld > kFound ? kHeld : kFound]; // of this block's piece, or of what it found
    uint32_t places[kFound > 0 ? kFound : kListed]; // of what it found, or of the listed
    uint32_t listed[kFound > 0 ? 1 : kListed];      // keys; before: how many of a bin blocks have that came before
    uint32_t sums[2][kWarps];
    uint32_t bin[3];
    uint32_t answer;
    uint32_t taken; // of the places of a list
};

// What is known of the k-th largest key: its bits from `shift` on. Keys with larger ones are selected, and `want` of the `equals` with these.
struct topk_cut {
    uint32_t prefix, shift, want, equals;
};

template <int kHeld, int kFound, int kBlocks, int kWarps> struct dsa_topk_block {
    static constexpr uint32_t kThreads = 32 * kWarps, kSteps = kFound > 0 ? 8 : 4, kPiece = kThreads * kSteps; // keys on their way at a time
    static_assert(kWarps <= 32 && TOPK_BINS % kThreads == 0 && (kHeld == 0) != (kFound == 0), "a lane for each warp; one way to keep keys");
    const dsa_topk_params &p;
    dsa_topk_smem<kHeld, kFound, kBlocks, kWarps> &s;
    uint32_t row, part, parts;
    uint32_t first, n; // of this block's piece
    uint32_t found;    // keys that were gathered, if `gathered`
    bool held, gathered;
    topk_cut cut;

    INTRIN const float *scores() const { return p.scores + row * p.stride + first; }
    INTRIN dsa_topk_row &shared() const { return p.shared[row]; }
    INTRIN bool is_above(uint32_t key) const { return key >> cut.shift > cut.prefix; }
    INTRIN bool is_equal(uint32_t key) const { return key >> cut.shift == cut.prefix; }

    // Calls f(key) for all keys of the piece that may matter, in any order.
    template <class F> INTRIN void each(F f) const {
        if (held || gathered) {
            const uint32_t end = gathered ? found : n;
#pragma unroll 4
            for (uint32_t i = threadIdx.x; i < end; i += kThreads) f(s.keys[i]);
        } else {
            const float *at = scores();
            uint32_t i = threadIdx.x;
            for (; i + (kSteps - 1) * kThreads < n; i += kPiece) {
                float score[kSteps];
#pragma unroll
                for (uint32_t j = 0; j < kSteps; ++j) score[j] = at[i + j * kThreads];
#pragma unroll
                for (uint32_t j = 0; j < kSteps; ++j) f(topk_key(score[j]));
            }
            for (; i < n; i += kThreads) f(topk_key(at[i]));
        }
    }

    // Calls take(place, key, above, equals) for those keys of which is(key) is not 0, with how many of both kinds are before: is() 1 means above,
    // 2 equal.
    template <class Is, class Take> INTRIN void each_in_order(Is is, Take take) const {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, before_lane = (1u << lane) - 1;
        const uint32_t end = gathered ? found : n;
        uint32_t above = 0, equals = 0, buffer = 0;
#pragma unroll 1
        for (uint32_t base = 0; base < end; base += kPiece, buffer ^= 1) {
            uint32_t key[kSteps], is_1[kSteps], is_2[kSteps], all = 0; // counts of 16 bits
            const uint32_t mine = base + warp * (32 * kSteps) + lane;
            if (held || gathered) {
#pragma unroll
                for (uint32_t j = 0; j < kSteps; ++j) key[j] = mine + 32 * j < end ? s.keys[mine + 32 * j] : 0;
            } else {
                const float *at = scores();
#pragma unroll
                for (uint32_t j = 0; j < kSteps; ++j) key[j] = mine + 32 * j < end ? topk_key(at[mine + 32 * j]) : 0;
            }
#pragma unroll
            for (uint32_t j = 0; j < kSteps; ++j) {
                const int kind = mine + 32 * j < end ? is(key[j]) : 0;
                is_1[j] = __ballot_sync(0xffffffffu, kind == 1);
                is_2[j] = __ballot_sync(0xffffffffu, kind == 2);
                all += __popc(is_1[j]) | __popc(is_2[j]) << 16;
            }
            if (lane == 0) s.sums[buffer][warp] = all;
            __syncthreads();
            const uint32_t sum = lane < kWarps ? s.sums[buffer][lane] : 0;
            uint32_t before = __reduce_add_sync(0xffffffffu, lane < warp ? sum : 0);
            const uint32_t total = __reduce_add_sync(0xffffffffu, sum);
#pragma unroll
            for (uint32_t j = 0; j < kSteps; ++j) {
                if ((is_1[j] | is_2[j]) >> lane & 1)
                    take(gathered ? s.places[mine + 32 * j] : first + mine + 32 * j, key[j],
                         above + (before & 0xffffu) + __popc(is_1[j] & before_lane),
                         equals + (before >> 16) + __popc(is_2[j] & before_lane));
                before += __popc(is_1[j]) | __popc(is_2[j]) << 16;
            }
            above += total & 0xffffu, equals += total >> 16;
        }
        __syncthreads(); // sums are free again
    }

    // The sum over the block of threads.
    INTRIN uint32_t sum(uint32_t x) const {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        x = __reduce_add_sync(0xffffffffu, x);
        if (lane == 0) s.sums[0][warp] = x;
        __syncthreads();
        x = __reduce_add_sync(0xffffffffu, lane < kWarps ? s.sums[0][lane] : 0);
        __syncthreads();
        return x;
    }

    INTRIN void clear_bins() const {
        for (uint32_t i = threadIdx.x; i < TOPK_BINS; i += kThreads) s.bins[i] = 0;
        __syncthreads();
    }

    // Narrows the cut by `bits` bits: the bin in which the wanted one of all that were counted lies.
    INTRIN void find_bin(uint32_t bits) {
        constexpr uint32_t kOwn = TOPK_BINS / kThreads;
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const uint32_t top = TOPK_BINS - 1 - threadIdx.x * kOwn; // from the largest on
        uint32_t count[kOwn], own = 0;
#pragma unroll
        for (uint32_t i = 0; i < kOwn; ++i) own += count[i] = s.bins[top - i];
        uint32_t upto = own;
#pragma unroll
        for (uint32_t lanes = 1; lanes < 32; lanes *= 2) {
            const uint32_t other = __shfl_up_sync(0xffffffffu, upto, lanes);
            if (lane >= lanes) upto += other;
        }
        if (lane == 31) s.sums[0][warp] = upto;
        __syncthreads();
        uint32_t above = __reduce_add_sync(0xffffffffu, lane < warp ? s.sums[0][lane] : 0) + upto - own;
        if (above < cut.want && cut.want <= above + own) {
            uint32_t i = 0;
#pragma unroll
            for (; i < kOwn - 1; ++i) {
                if (cut.want <= above + count[i]) break;
                above += count[i];
            }
            s.bin[0] = top - i, s.bin[1] = above, s.bin[2] = s.bins[top - i];
        }
        __syncthreads();
        cut = {cut.prefix << bits | s.bin[0], cut.shift - bits, cut.want - s.bin[1], s.bin[2]};
    }

    // All blocks of a row have come, and what they wrote before is seen by all. False, for all of them, if one gave up.
    INTRIN bool meet() const {
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t *arrived = &shared().arrived;
            const uint32_t before = atomic_add_acq_rel(arrived, 2 * TOPK_PARTS / parts);
            const uint32_t target = (before & ~(2u * TOPK_PARTS - 1)) + 2 * TOPK_PARTS;
            uint32_t now = before + 2 * TOPK_PARTS / parts;
            bool hope = (before & 1) == 0;
            for (uint32_t look = 0; hope && static_cast<int32_t>(now - target) < 0; ++look) {
                // Giving up is one step with finding that others are missing, so that all learn the same.
                if (look >= p.patience && atomicCAS(arrived, now, now | 1) == now) hope = false;
                if (hope) now = ld_acquire(arrived);
                hope = hope && (now & 1) == 0;
            }
            s.answer = hope;
        }
        __syncthreads();
        return s.answer != 0;
    }

    // After a block gave up: whether this one is the last to leave, which then finds everything as before the launch.
    INTRIN bool is_last() const {
        __syncthreads();
        if (threadIdx.x == 0) s.answer = atomic_add_acq_rel(&shared().left, 1) == parts - 1;
        __syncthreads();
        if (s.answer == 0) return false;
        uint32_t *bins = shared().bins[0];
        for (uint32_t i = threadIdx.x; i < TOPK_LEVELS * TOPK_BINS; i += kThreads) bins[i] = 0;
        if (threadIdx.x == 0) shared().arrived = 0, shared().left = 0;
        __syncthreads();
        return true;
    }

    // Adds up the counts of all blocks, in shared memory of each.
    INTRIN bool share_bins(int level) const {
        uint32_t *bins = shared().bins[level];
        for (uint32_t i = threadIdx.x; i < TOPK_BINS; i += kThreads) {
            if (s.bins[i] == 0) continue;
            if (level == 0) s.listed[i % kListed] = atomicAdd(bins + i, s.bins[i]);
            else atomicAdd(bins + i, s.bins[i]);
        }
        if (!meet()) return false;
        for (uint32_t i = threadIdx.x; i < TOPK_BINS; i += kThreads) s.bins[i] = bins[i];
        __syncthreads();
        if (level > 0) forget_bins(level - 1);
        return true;
    }

    // Of which nobody reads the sums any more.
    INTRIN void forget_bins(int level) const {
        const uint32_t own = TOPK_BINS / parts;
        for (uint32_t i = threadIdx.x; i < own; i += kThreads) shared().bins[level][part * own + i] = 0;
    }

    INTRIN void count(uint32_t key, uint32_t bits) const {
        if (is_equal(key)) atomicAdd(&s.bins[key >> (cut.shift - bits) & ((1u << bits) - 1)], 1u);
    }

    INTRIN bool is_undecided() const { return cut.want < cut.equals; }

    // Of a part of the piece: what all blocks list of the bin of the cut decides it. Gives how many that are selected stand before this piece,
    // above the cut and at it.
    INTRIN bool decide_by_list(uint32_t &above, uint32_t &equals) {
        const uint32_t begin = s.listed[cut.prefix % kListed];
        if (threadIdx.x == 0) s.taken = 0;
        __syncthreads();
        const uint32_t lane = threadIdx.x % 32, end = (n + 31) / 32 * 32;
        uint32_t sure = 0;
        for (uint32_t i = threadIdx.x; i < end; i += kThreads) {
            const uint32_t key = i < n ? held ? s.keys[i] : topk_key(scores()[i]) : 0;
            const bool in_bin = i < n && is_equal(key);
            sure += i < n && is_above(key);
            const uint32_t mask = __ballot_sync(0xffffffffu, in_bin);
            uint32_t at = 0;
            if (mask != 0 && lane == 0) at = atomicAdd(&s.taken, static_cast<uint32_t>(__popc(mask)));
            at = __shfl_sync(0xffffffffu, at, 0);
            if (!in_bin) continue;
            at += begin + __popc(mask & ((1u << lane) - 1));
            shared().keys[at] = key, shared().places[at] = first + i;
        }
        sure = sum(sure);
        if (threadIdx.x == 0) shared().counts[part][0] = sure;
        if (!meet()) return false;
        forget_bins(0);
        const uint32_t size = cut.equals;
        for (uint32_t i = threadIdx.x; i < size; i += kThreads) s.listed[i] = shared().keys[i], s.places[i] = shared().places[i];
#pragma unroll 1
        for (uint32_t bits = 11; is_undecided() && cut.shift > 0; bits = 10) {
            clear_bins();
            for (uint32_t i = threadIdx.x; i < size; i += kThreads) count(s.listed[i], bits);
            __syncthreads();
            find_bin(bits);
        }
        above = threadIdx.x < part ? shared().counts[threadIdx.x][0] : 0;
        equals = 0;
        for (uint32_t i = threadIdx.x; i < size; i += kThreads) { // what this thread has written itself
            if (s.places[i] >= first) continue;
            above += is_above(s.listed[i]), equals += is_equal(s.listed[i]);
        }
        above = sum(above), equals = sum(equals);
        return true;
    }

    // As decide_by_list, with the cut known: by the counts of all blocks.
    INTRIN bool share_counts(int level, uint32_t &above, uint32_t &equals) const {
        uint32_t n_above = 0, n_equals = 0;
        each([&](uint32_t key) { n_above += is_above(key), n_equals += is_equal(key); });
        n_above = sum(n_above), n_equals = sum(n_equals);
        if (threadIdx.x == 0) shared().counts[part][0] = n_above, shared().counts[part][1] = n_equals;
        if (!meet()) return false;
        forget_bins(level);
        above = sum(threadIdx.x < part ? shared().counts[threadIdx.x][0] : 0);
        equals = sum(threadIdx.x < part ? shared().counts[threadIdx.x][1] : 0);
        return true;
    }

    // False if a block of this row gave up: nothing of the result is written then.
    INTRIN bool select() {
        const uint32_t visible = min(p.visible[row] + p.more, p.n), share = (visible + parts - 1) / parts;
        first = min(part * share, visible), n = min(share, visible - first);
        uint32_t *indices = p.indices + uint64_t{row} * p.k;
        if (part == 0 && threadIdx.x == 0) p.lens[row] = min(visible, p.k);
        if (visible <= p.k) {
            for (uint32_t i = threadIdx.x; i < n; i += kThreads) indices[first + i] = first + i;
            return true;
        }
        held = gathered = false;
        clear_bins();
        if (n <= uint32_t{kHeld}) {
            const float *at = scores();
#pragma unroll 8
            for (uint32_t i = threadIdx.x; i < n; i += kThreads) {
                const uint32_t key = topk_key(at[i]);
                s.keys[i] = key;
                atomicAdd(&s.bins[key >> 21], 1u);
            }
            held = true;
        } else {
            each([&](uint32_t key) { atomicAdd(&s.bins[key >> 21], 1u); });
        }
        __syncthreads();
        if (parts > 1 && !share_bins(0)) return false;
        cut = {0, 32, p.k, 0};
        find_bin(11);
        uint32_t above = 0, equals = 0; // before this piece
        bool decided = parts == 1;
        if constexpr (kFound > 0) {
            if (is_undecided() && p.k - cut.want + cut.equals <= uint32_t{kFound}) {
                const auto is = [&](uint32_t key) { return key >> 21 >= cut.prefix ? 1 : 0; };
                each_in_order(is, [&](uint32_t place, uint32_t key, uint32_t at, uint32_t) { s.keys[at] = key, s.places[at] = place; });
                found = p.k - cut.want + cut.equals;
                gathered = true;
            }
        } else if (parts > 1 && is_undecided() && cut.equals <= kListed) {
            if (!decide_by_list(above, equals)) return false;
            decided = true;
        }
        int level = 0;
#pragma unroll 1
        for (uint32_t bits = 11; is_undecided() && cut.shift > 0; bits = 10) {
            ++level;
            clear_bins();
            each([&](uint32_t key) { count(key, bits); });
            __syncthreads();
            if (parts > 1 && !share_bins(level)) return false;
            find_bin(bits);
        }
        if (!decided && !share_counts(level, above, equals)) return false;
        const auto is = [&](uint32_t key) { return is_above(key) ? 1 : is_equal(key) ? 2 : 0; };
        each_in_order(is, [&](uint32_t place, uint32_t key, uint32_t n_above, uint32_t n_equals) {
            const uint32_t first_ones = min(equals + n_equals, cut.want);
            if (is_above(key) || equals + n_equals < cut.want) indices[above + n_above + first_ones] = place;
        });
        return true;
    }
};

template <int kHeld, int kFound, int kBlocks, int kWarps> __device__ __forceinline__ void dsa_topk(const dsa_topk_params &p) {
    auto &s = smem<dsa_topk_smem<kHeld, kFound, kBlocks, kWarps>>();
    griddep_wait();
    griddep_launch_dependents();
    dsa_topk_block<kHeld, kFound, kBlocks, kWarps> block{p, s, blockIdx.x / p.parts, blockIdx.x % p.parts, p.parts, 0, 0, 0, false, false, {}};
    while (!block.select() && block.is_last()) block.part = 0, block.parts = 1; // which does not fail
}
