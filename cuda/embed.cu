// embed: rows of a table of any type, by token id, to f32 or bf16.
//
// Math    out[t] = table[tokens[t]], dequantized as in dequantize.cu; no scale, no sum
// Shapes  table [vocab, hidden] blocks, tokens [n_tokens], out [n_tokens, hidden]
// Tiling  one block of threads for each kTile values of a row
// Floor   bytes of the rows + bytes of the values. 2048 tokens of 6144, Q6_K to f32: 10 + 50 MB, 34 us at 1.79 TB/s; one
//         token: 30 KB, a launch.
// Limits  rows are found by their id only, so equal tokens are read twice (from L2). A token outside the table traps; the
//         host refuses ids that it knows.
#include "common/dequantize.cuh"
#include "params/dequantize.h"

template <class Block, class Out, int kTile, int kWarps>
using embed_smem = dequantize_stage<Block, kTile>;

template <class Block, class Out, int kTile, int kWarps>
__device__ __forceinline__ void embed(const embed_params &p) {
    const uint32_t tiles = (p.hidden + kTile - 1) / kTile; // per row
    const uint32_t t = blockIdx.x / tiles;
    const uint32_t col = blockIdx.x % tiles * kTile;
    const uint32_t token = p.tokens[t];
    if (token >= p.vocab) __trap();

    const uint64_t row_bytes = uint64_t{p.hidden} / decode<Block>::kElems * sizeof(Block);
    const uint64_t first = token * row_bytes + uint64_t{col} / decode<Block>::kElems * sizeof(Block);
    const int n = static_cast<int>(min(p.hidden - col, uint32_t{kTile}));
    dequantize_tile<Block, Out, kTile, 32 * kWarps>(smem<embed_smem<Block, Out, kTile, kWarps>>(), p.table,
                                                    p.vocab * row_bytes, first, n,
                                                    static_cast<Out *>(p.out) + uint64_t{t} * p.hidden + col);
}
