// silu.cuh: x / (1 + e^-x), the activation of SwiGLU.
#pragma once
#include "intrin.cuh"

INTRIN float silu(float x) { return __fdiv_rn(x, __fadd_rn(1.f, expf(-x))); }
