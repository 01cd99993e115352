// moe_sum: what the experts of a token gave, weighted and added up, and what the shared one gave.
//
// Math    y[t][i] = shared[t][i] + sum_j weights[t][j] rows[places[t][j]][i], by FMA from slot 0 on, from 0, shared last; slots without
//         a place are zeros
// Shapes  rows [places, hidden], places and weights [m, top_k], shared and y [m, hidden]
// Tiling  a thread has kLoad neighbouring columns of a token and loads those of kSlots experts before it adds the first
// Floor   bytes of the rows, of shared and of y: 512 tokens, 8 experts, 6144 columns of f32 126 MB, 32 us at 4 TB/s
// Limits  f32 rows are what it is about; the experts' last product could leave narrower ones
#include "common/pairs.cuh"
#include "common/row.cuh"

template <int kLoad> INTRIN void load_all_cols(const float *at, float (&v)[kLoad]) {
    static_assert(kLoad == 4 || kLoad == 1, "one load");
    if constexpr (kLoad == 4) {
        const float4 vec = *reinterpret_cast<const float4 *>(at);
        v[0] = vec.x, v[1] = vec.y, v[2] = vec.z, v[3] = vec.w;
    } else {
        v[0] = *at;
    }
}

template <int kLoad> INTRIN void add_cols(float weight, const float (&row)[kLoad], float (&sum)[kLoad]) {
#pragma unroll
    for (int k = 0; k < kLoad; ++k) sum[k] = __fmaf_rn(weight, row[k], sum[k]);
}

template <int kLoad, int kSlots, int kBlocks, int kWarps> __device__ __forceinline__ void moe_sum(const moe_sum_params &p) {
    constexpr uint32_t kCols = 32 * kWarps * kLoad;
    const uint32_t chunks = (p.hidden + kCols - 1) / kCols, token = blockIdx.x / chunks;
    const int n = static_cast<int>(p.hidden), col = static_cast<int>(blockIdx.x % chunks * kCols + threadIdx.x * kLoad);
    griddep_wait();
    griddep_launch_dependents();
    if (col >= n) return;
    const uint32_t *places = p.places + uint64_t{token} * p.top_k;
    const float *weights = p.weights + uint64_t{token} * p.top_k;
    float sum[kLoad] = {};
    for (uint32_t slot = 0; slot < p.top_k; slot += kSlots) {
        uint32_t place[kSlots];
        bool all = true; // have a place, the same for all threads
#pragma unroll
        for (uint32_t i = 0; i < kSlots; ++i) {
            place[i] = slot + i < p.top_k ? places[slot + i] : kNone;
            all = all && place[i] != kNone;
        }
        if (all) {
            // Without conditions, so that all loads are issued before the first is waited for.
            float row[kSlots][kLoad];
#pragma unroll
            for (int i = 0; i < kSlots; ++i) load_all_cols(p.rows + uint64_t{place[i]} * p.hidden + col, row[i]);
#pragma unroll
            for (uint32_t i = 0; i < kSlots; ++i) add_cols(weights[slot + i], row[i], sum);
        } else {
#pragma unroll
            for (uint32_t i = 0; i < kSlots; ++i) {
                if (place[i] == kNone) continue;
                float row[kLoad];
                load_all_cols(p.rows + uint64_t{place[i]} * p.hidden + col, row);
                add_cols(weights[slot + i], row, sum);
            }
        }
    }
    const uint64_t at = uint64_t{token} * p.hidden + col;
    if (p.shared != nullptr) {
        float shared[kLoad];
        load_all_cols(p.shared + at, shared);
#pragma unroll
        for (int k = 0; k < kLoad; ++k) sum[k] = __fadd_rn(shared[k], sum[k]);
    }
    if constexpr (kLoad == 4) store_four(p.y + at, sum);
    else p.y[at] = sum[0];
}
