// pairs.cuh: what kernels of sorted pairs of token and slot share.
#pragma once
#include "intrin.cuh"
#include "params/moe_sort.h"

// In place of an id or of a place: there is none.
constexpr uint32_t kNone = 0xffffffffu;
