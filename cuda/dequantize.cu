// dequantize: values of a run of blocks, any type, to f32, f16 or bf16.
//
// Math    out[i] = scale q (+ offset), in f32 with the roundings of the format's reference; f16 and bf16 are those values
//         rounded to nearest, ties to even
// Shapes  src [src_bytes] blocks; out [n], from byte `first` of src on
// Tiling  one block of threads for each kTile values; lanes take neighbouring 16 bytes of out
// Floor   bytes of the blocks + bytes of the values. 6144 x 6144 of Q4_K to bf16: 21 + 75 MB, 54 us at 1.79 TB/s.
// Limits  a tile is loaded whole before the first value is written; other blocks on the SM fill that gap. Below a few MB
//         the launch dominates.
#include "common/dequantize.cuh"
#include "params/dequantize.h"

template <class Block, class Out, int kTile, int kWarps>
using dequantize_smem = dequantize_stage<Block, kTile>;

template <class Block, class Out, int kTile, int kWarps>
__device__ __forceinline__ void dequantize(const dequantize_params &p) {
    const uint64_t tile = static_cast<uint64_t>(blockIdx.x) * kTile;
    const uint64_t first = p.first + tile / decode<Block>::kElems * sizeof(Block);
    const int n = static_cast<int>(min(p.n - tile, uint64_t{kTile}));
    dequantize_tile<Block, Out, kTile, 32 * kWarps>(smem<dequantize_smem<Block, Out, kTile, kWarps>>(), p.src, p.src_bytes,
                                                    first, n, static_cast<Out *>(p.out) + tile);
}
