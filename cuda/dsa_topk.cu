// dsa_topk: the k largest scores of each row, exactly, as ascending positions. One launch; nothing is sorted.
//
// Math    radix selection: scores as integers that grow with them (NaN on top, both zeros alike), counted by their upper bits, those of the bin that
//         holds the k-th by the next ones. Of equals at the cut the first ones.
// Shapes  scores [m, n], visible, lens [m], indices [m, k]
// Tiling  kHeld: a row has one block of threads, or `parts`. These list their largest scores in global memory, more than their share of the k, meet,
//         and each selects from all lists; if what was listed does not prove the result they count together, meeting three or four times more.
//         kFound: long rows with a block each. A sample says from which score on to keep what one pass over the row finds.
// Floor   bytes of the scores: 128k of them 0.5 MB, at once in L2; 512 rows 268 MB, 65 us at 4.1 TB/s. One row: a launch, a meeting.
// Limits  blocks that meet should be resident together. If they are not, one gives up, all leave, and the last of them does the row alone: slower,
//         the same result. Where the sample misleads, a row is read up to five times.
#include "common/topk.cuh"

template <int kHeld, int kFound, int kBlocks, int kWarps> struct dsa_topk_smem {
    topk_counts<kWarps> counts;
    uint32_t keys[kHeld > kFound ? kHeld : kFound]; // of this block's part of the row, or of what it found
    uint32_t places[kFound > 0 ? kFound : 1];       // of what it found
};

// A row that several blocks may share.
template <int kHeld, int kWarps> struct topk_held : topk_shared<kWarps> {
    using base = topk_shared<kWarps>;
    using base::kThreads, base::parts, base::k;
    const float *scores;
    uint32_t *keys; // kHeld

    // False if a block of this row gave up: nothing of the result is written then.
    INTRIN bool select() {
        if (parts > 1 && 2 * k <= TOPK_LIST) {
            const uint32_t n = this->own();
            if (n <= uint32_t{kHeld}) {
                this->hold(n, keys, [&](uint32_t i) { return scores + this->place_of(i); });
                this->template list<8>(n, [&](uint32_t i) { return keys[i]; });
            } else {
                this->template list<8>(n, [&](uint32_t i) { return topk_key(scores[this->place_of(i)]); });
            }
            if (!this->meet()) return false;
            if (this->choose()) return true;
        }
        return this->by_counts(scores, keys, kHeld);
    }
};

// A row that one block has for itself, and that is longer than what it can hold.
template <int kFound, int kWarps> struct topk_alone : topk_shared<kWarps> {
    using base = topk_shared<kWarps>;
    using base::c, base::cut, base::kThreads, base::k, base::visible, base::indices;
    static constexpr uint32_t kVectors = 3, kChunk = kThreads * kVectors * 4; // scores on their way at a time
    const float *scores;
    uint32_t *keys, *places; // kFound

    INTRIN void select() {
        bool tied = false;
        const uint32_t low = visible <= uint32_t{kFound} ? kTopkLowest : k <= kFound / 4 * 3 ? sampled_cut(tied) : ~0u;
        if (low <= kTopkInfinity && (tied ? select_at(low) : select_from(low))) return;
        select_by_counts();
    }

private:
    // For 12 scores of each thread at a time: is(score) makes bits of them, a bit for each of four neighbours that stand at place, place + 128 and
    // so on; then take(place, bits) while the next ones are on their way. Threads of a warp are neighbours, warps too. Ends early if take() says
    // false.
    template <class Is, class Take> INTRIN void each_chunk(Is is, Take take) const {
        // Vectors are aligned; the first may begin before the row.
        const uint32_t skew = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(scores) / 4 % 4), end = skew + visible;
        const float *aligned = scores - skew;
        const uint32_t mine = 4 * (threadIdx.x / 32 * (32 * kVectors) + threadIdx.x % 32);
        float4 v[kVectors];
        const auto load = [&](uint32_t at) {
            if (at >= skew && at + 128 * (kVectors - 1) + 4 <= end) {
#pragma unroll
                for (uint32_t j = 0; j < kVectors; ++j) v[j] = vector_at<float4>(aligned + at + 128 * j);
            } else {
                const auto one = [&](uint32_t i) { return i >= skew && i < end ? aligned[i] : 0.f; };
#pragma unroll
                for (uint32_t j = 0; j < kVectors; ++j)
                    v[j] = make_float4(one(at + 128 * j), one(at + 128 * j + 1), one(at + 128 * j + 2), one(at + 128 * j + 3));
            }
        };
        load(mine);
#pragma unroll 1
        for (uint32_t base = 0; base < end; base += kChunk) {
            const uint32_t at = base + mine;
            uint32_t bits = 0;
#pragma unroll
            for (uint32_t j = 0; j < kVectors; ++j)
                bits |= (is(v[j].x) | is(v[j].y) << 1 | is(v[j].z) << 2 | is(v[j].w) << 3) << 4 * j;
            if (at < skew || at + 128 * (kVectors - 1) + 4 > end) {
#pragma unroll
                for (uint32_t i = 0; i < 4 * kVectors; ++i) {
                    const uint32_t place = at + 128 * (i / 4) + i % 4;
                    if (place < skew || place >= end) bits &= ~(1u << i);
                }
            }
            if (base + kChunk < end) load(at + kChunk);
            if (!take(at - skew, bits)) return;
        }
    }

    // A key at or above which, as a sample of the row says, lie at least k and not more than kFound; or, `tied`, a key with many equals.
    INTRIN uint32_t sampled_cut(bool &tied) {
        const uint32_t skew = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(scores) / 4 % 4), first = (4 - skew) % 4;
        const uint32_t vectors = (visible - first) / 4, steps = visible > (1u << 18) ? 4 : 2, size = 4 * steps * kThreads;
        static_assert(4 * 4 * kThreads <= kFound, "room for the sample");
        const float part = static_cast<float>(size) / static_cast<float>(visible), stride = static_cast<float>(vectors) / static_cast<float>(size / 4);
        uint32_t most = 0, least = ~0u;
#pragma unroll 1
        for (uint32_t base = threadIdx.x; base < size / 4; base += 2 * kThreads) {
            float4 v[2];
#pragma unroll
            for (uint32_t j = 0; j < 2; ++j) {
                const uint32_t at = min(static_cast<uint32_t>(static_cast<float>(base + j * kThreads) * stride), vectors - 1);
                v[j] = vector_at<float4>(scores + first + 4 * at);
            }
#pragma unroll
            for (uint32_t j = 0; j < 2; ++j) {
                const uint4 key = make_uint4(topk_key(v[j].x), topk_key(v[j].y), topk_key(v[j].z), topk_key(v[j].w));
                *reinterpret_cast<uint4 *>(keys + 4 * (base + j * kThreads)) = key;
                most = max(max(most, key.x), max(max(key.y, key.z), key.w)), least = min(min(least, key.x), min(min(key.y, key.z), key.w));
            }
        }
        const uint2 all = this->extremes(least, most);
        // Five standard deviations more than the share, but not beyond the middle of what is allowed.
        const float share = part * static_cast<float>(k), room = part * static_cast<float>(kFound);
        const uint32_t want = static_cast<uint32_t>(min(share + 5.f * sqrtf(share), 0.5f * (share + room))) + 1;
        cut = topk_between(all.x, all.y, want);
        do this->narrow([&](auto f) { this->template each_key<8>(size, [&](uint32_t i) { return keys[i]; }, f); });
        while (cut.shift > 0 && want - cut.want + cut.equals > want + want / 4);
        tied = static_cast<float>(want - cut.want + cut.equals) > 0.25f * share + 0.75f * room;
        return cut.low();
    }

    // Calls take(place, at) for the scores of which is(score), in order, numbered from 0 on: all, or until as many chunks of the row as have
    // `enough` of them. Gives how many there were.
    template <class Is, class Take> INTRIN uint32_t each_of(Is is, uint32_t enough, Take take) const {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        uint32_t found = 0, buffer = 0;
        each_chunk(is, [&](uint32_t place, uint32_t bits) {
            uint32_t own = 0; // counts of 8 bits
#pragma unroll
            for (uint32_t j = 0; j < kVectors; ++j) own |= __popc(bits >> 4 * j & 15) << 8 * j;
            uint32_t upto = own;
#pragma unroll
            for (uint32_t lanes = 1; lanes < 32; lanes *= 2) {
                const uint32_t other = __shfl_up_sync(0xffffffffu, upto, lanes);
                if (lane >= lanes) upto += other;
            }
            const uint32_t of_warp = __shfl_sync(0xffffffffu, upto, 31);
            const uint32_t pairs = (of_warp & 0xff00ffu) + (of_warp >> 8 & 0xff00ffu);
            if (lane == 0) c.sums[buffer][warp] = (pairs & 0xffff) + (pairs >> 16);
            __syncthreads();
            const uint32_t sum = lane < kWarps ? c.sums[buffer][lane] : 0;
            uint32_t before = found + __reduce_add_sync(0xffffffffu, lane < warp ? sum : 0);
            found += __reduce_add_sync(0xffffffffu, sum);
            buffer ^= 1;
#pragma unroll
            for (uint32_t j = 0; j < kVectors; ++j) {
                uint32_t at = before + ((upto - own) >> 8 * j & 0xff);
                for (uint32_t four = bits >> 4 * j & 15; four != 0; four &= four - 1)
                    take(place + 128 * j + __ffs(static_cast<int>(four)) - 1, at++);
                before += of_warp >> 8 * j & 0xff;
            }
            return found < enough;
        });
        __syncthreads();
        return found;
    }

    // By what is at or above this key: false if that is fewer than k, or too many to keep.
    INTRIN bool select_from(uint32_t low) {
        const float least = topk_score(low);
        const uint32_t found = each_of([&](float x) { return static_cast<uint32_t>(!(x < least)); }, kFound + 1, [&](uint32_t place, uint32_t at) {
            if (at < uint32_t{kFound}) keys[at] = topk_key(scores[place]), places[at] = place; // the score is in L1 from a moment ago
        });
        if (found < k || found > uint32_t{kFound}) return false;
        const auto key_of = [&](uint32_t i) { return keys[i]; };
        uint32_t most = 0;
        this->template each_key<8>(found, key_of, [&](uint32_t key) { most = max(most, key); });
        cut = topk_between(low, this->extremes(0, most).y, k);
        do this->narrow([&](auto f) { this->template each_key<8>(found, key_of, f); });
        while (cut.shift > 0 && cut.is_undecided());
        const auto is = [&](uint32_t key) { return cut.is_above(key) ? 1 : cut.is_equal(key) ? 2 : 0; };
        this->template each_in_order<4>(found, key_of, is, [&](uint32_t i, uint32_t key, uint32_t above, uint32_t equals) {
            if (cut.is_above(key) || equals < cut.want) indices[above + min(equals, cut.want)] = places[i];
        });
        return true;
    }

    // If the k-th is just this key, however many equals there are. False if it is not.
    INTRIN bool select_at(uint32_t key) {
        const float score = topk_score(key);
        const uint32_t above = each_of([&](float x) { return static_cast<uint32_t>(!(x <= score)); }, k, [&](uint32_t place, uint32_t at) {
            if (at < k) keys[at] = place;
        });
        if (above >= k) return false;
        const uint32_t want = k - above;
        const uint32_t equals = each_of([&](float x) { return static_cast<uint32_t>(x == score); }, want, [&](uint32_t place, uint32_t at) {
            if (at < want) places[at] = place;
        });
        if (equals < want) return false;
        merge(keys, above, places, want);
        merge(places, want, keys, above);
        return true;
    }

    // Writes the n of one list behind those of the other that are smaller. Both ascend.
    INTRIN void merge(const uint32_t *list, uint32_t n, const uint32_t *other, uint32_t size) const {
        for (uint32_t i = threadIdx.x; i < n; i += kThreads) {
            const uint32_t place = list[i];
            uint32_t smaller = 0;
            for (uint32_t step = kFound; step > 0; step /= 2)
                if (smaller + step <= size && other[smaller + step - 1] < place) smaller += step;
            indices[i + smaller] = place;
        }
    }

    INTRIN void select_by_counts() {
        const auto key_of = [&](uint32_t i) { return topk_key(scores[i]); };
        cut = {0, 32, k, ~0u};
        do {
            this->narrow([&](auto f) { this->template each_key<8>(visible, key_of, f); });
            if (cut.shift > 0 && cut.low() <= kTopkInfinity && k - cut.want + cut.equals <= uint32_t{kFound}) {
                select_from(cut.low());
                return;
            }
        } while (cut.shift > 0 && cut.is_undecided());
        const auto is = [&](uint32_t key) { return cut.is_above(key) ? 1 : cut.is_equal(key) ? 2 : 0; };
        this->template each_in_order<8>(visible, key_of, is, [&](uint32_t i, uint32_t key, uint32_t above, uint32_t equals) {
            if (cut.is_above(key) || equals < cut.want) indices[above + min(equals, cut.want)] = i;
        });
    }
};

template <int kHeld, int kFound, int kBlocks, int kWarps> __device__ __forceinline__ void dsa_topk(const dsa_topk_params &p) {
    static_assert((kHeld == 0) != (kFound == 0), "one way to keep keys");
    auto &s = smem<dsa_topk_smem<kHeld, kFound, kBlocks, kWarps>>();
    griddep_wait();
    griddep_launch_dependents();
    const uint32_t row = blockIdx.x / p.sharing.parts, part = blockIdx.x % p.sharing.parts, k = p.k;
    const uint32_t visible = min(p.visible[row] + p.more, p.n);
    const float *scores = p.scores + row * p.stride;
    uint32_t *indices = p.indices + uint64_t{row} * k;
    if (part == 0 && threadIdx.x == 0) p.lens[row] = min(visible, k);
    if (visible <= k) {
        for (uint32_t i = part * (32 * kWarps) + threadIdx.x; i < visible; i += p.sharing.parts * (32 * kWarps)) indices[i] = i;
        return;
    }
    topk_shared<kWarps> block{s.counts, p.shared + (p.sharing.parts > 1 ? row : 0), p.sharing, part, k, visible, indices};
    block.clear_bins();
    if constexpr (kFound > 0) {
        topk_alone<kFound, kWarps> alone{block, scores, s.keys, s.places};
        alone.select();
    } else {
        topk_held<kHeld, kWarps> held{block, scores, s.keys};
        while (!held.select() && held.is_last()) {
            held.part = 0, held.parts = 1; // which does not fail
            held.clear_bins();
        }
    }
}
