/* C ABI shared by kernels (nvcc), the emulator (g++, clang++) and Rust (bindgen): plain structs only, for each family one that is passed
 * by value. Kernels include what they take, so that a change compiles them alone.
 *
 * Pointers say their shape and whether they may be null; unless they say so, they may not. Counts that are multiplied by
 * a row length are 64 bits wide. */
#ifndef GLM5_PARAMS_H
#define GLM5_PARAMS_H
#include "params/blocks.h"
#include "params/cache.h"
#include "params/dequantize.h"
#include "params/dsa_indexer.h"
#include "params/dsa_select.h"
#include "params/dsa_topk.h"
#include "params/linear.h"
#include "params/linear_tiled.h"
#include "params/mla_attention.h"
#include "params/mla_prefill.h"
#include "params/moe.h"
#include "params/moe_dot.h"
#include "params/moe_sort.h"
#include "params/norm.h"
#include "params/post_a.h"
#include "params/quantize.h"
#include "params/ragged.h"
#include "params/repack.h"
#include "params/roofs.h"
#include "params/rope.h"
#include "params/router.h"
#include "params/swiglu.h"
#include "params/tiles.h"

#endif
