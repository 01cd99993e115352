// linear_out.cuh: where outputs of linear layers in tiles go. Parts of heads are rotated on their way, as rope.cu does it.
#pragma once
#include "params/linear_tiled.h"
#include "rotate.cuh"

// A row of W, which a lane has for some tokens; lanes that differ by 4 have the two rows of a pair (tile_row). Used by whole warps.
template <bool kRotates> struct linear_out {
    float *to;       // of token 0
    uint64_t stride; // to the next
    const float *angles;
    uint32_t width, m;
    bool there, rotates;
    bool turns; // whether any row of the warp is rotated
    float sign; // of the other row's share: of two rows that turn the first loses it

    // `y` is that of the group and slab.
    INTRIN linear_out(const linear_group &group, float *y, uint32_t row, uint32_t m)
        : to(y + row), stride(group.y_stride), angles(nullptr), width(0), m(m), there(row < group.n), rotates(false), turns(false),
          sign(0.f) {
        if constexpr (kRotates) {
            const linear_rotation &rotation = group.rotation;
            if (rotation.angles == nullptr) return; // the same for the whole warp
            width = rotation.width;
            const uint32_t from = row - rotation.first, head = from / rotation.stride, i = from % rotation.stride;
            rotates = head < rotation.heads && i < width; // rows before the first part wrap around, to no head
            turns = __any_sync(0xffffffffu, rotates);
            if (!rotates) return;
            to = rotation.y + (uint64_t{head} * rotation.y_head + i), stride = rotation.y_stride;
            angles = rotation.angles + (i & ~1u), sign = i % 2 != 0 ? 1.f : -1.f;
        }
    }

    // Cosine and sine of the row's pair at a token, to be asked for ahead of what a load cannot pass. If the warp `turns`.
    INTRIN float2 angle(uint32_t token) const {
        return rotates && token < m ? vector_at<float2>(angles + uint64_t{token} * width) : make_float2(1.f, 0.f);
    }

    // A value, rotated if it is of a row that is, as `rotated` has it; without a branch. If the warp `turns`.
    INTRIN float turned(float value, float2 angle) const {
        const float other = __fmul_rn(__shfl_xor_sync(0xffffffffu, value, 4), __fmul_rn(angle.y, sign));
        return rotates ? __fadd_rn(__fmul_rn(value, angle.x), other) : value;
    }

    INTRIN void store(uint32_t token, float value) const {
        if (there && token < m) to[token * stride] = value;
    }
};
