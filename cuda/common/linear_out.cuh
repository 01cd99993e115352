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
    bool there, rotates, is_second;

    // `y` is that of the group and slab.
    INTRIN linear_out(const linear_group &group, float *y, uint32_t row, uint32_t m)
        : to(y + row), stride(group.y_stride), angles(nullptr), width(0), m(m), there(row < group.n), rotates(false), is_second(false) {
        if constexpr (kRotates) {
            const linear_rotation &rotation = group.rotation;
            angles = rotation.angles;
            if (angles == nullptr) return; // the same for the whole warp
            width = rotation.width;
            const uint32_t from = row - rotation.first, head = from / rotation.stride, i = from % rotation.stride;
            rotates = head < rotation.heads && i < width; // rows before the first part wrap around, to no head
            if (!rotates) return;
            to = rotation.y + (uint64_t{head} * rotation.y_head + i), stride = rotation.y_stride;
            angles += i & ~1u, is_second = i % 2 != 0;
        }
    }

    // What turns the pair at a token: asked for ahead of the stores before it, which it could not pass.
    INTRIN float2 angle(uint32_t token) const {
        if constexpr (kRotates)
            if (rotates && token < m) return vector_at<float2>(angles + uint64_t{token} * width);
        return {1.f, 0.f};
    }

    INTRIN void store(uint32_t token, float value, float2 angle) const {
        if constexpr (kRotates)
            if (angles != nullptr) {
                const float other = __shfl_xor_sync(0xffffffffu, value, 4);
                if (rotates) value = is_second ? rotated(other, value, angle.x, angle.y).y : rotated(value, other, angle.x, angle.y).x;
            }
        if (there && token < m) to[token * stride] = value;
    }
};
