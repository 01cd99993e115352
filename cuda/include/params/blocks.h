/* Blocks of quantized values, and of float ones, as they lie in files. */
#ifndef GLM5_PARAMS_BLOCKS_H
#define GLM5_PARAMS_BLOCKS_H
#include <stdint.h>

/* As they lie in GGUF files, little-endian, fields named as in ggml. f16, bf16 and E8M0 are bits in integers. What the
 * fields mean is told beside the Rust structs, in src/quant/block.rs; a test there compares the two layouts. */

enum { QK_K = 256 }; /* values in a block of the K and I types */

typedef struct { float d; } block_f32;
typedef struct { uint16_t d; } block_f16;
typedef struct { uint16_t d; } block_bf16;

/* 32 values */
typedef struct { uint16_t d; uint8_t qs[16]; } block_q4_0;
typedef struct { uint16_t d, m; uint8_t qs[16]; } block_q4_1;
typedef struct { uint16_t d; uint8_t qh[4]; uint8_t qs[16]; } block_q5_0;
typedef struct { uint16_t d, m; uint8_t qh[4]; uint8_t qs[16]; } block_q5_1;
typedef struct { uint16_t d; int8_t qs[32]; } block_q8_0;
typedef struct { uint16_t d; uint8_t qs[16]; } block_iq4_nl;
typedef struct { uint8_t e; uint8_t qs[16]; } block_mxfp4;

/* QK_K values */
typedef struct { uint8_t scales[16]; uint8_t qs[64]; uint16_t d, dmin; } block_q2_K;
typedef struct { uint8_t hmask[32]; uint8_t qs[64]; uint8_t scales[12]; uint16_t d; } block_q3_K;
typedef struct { uint16_t d, dmin; uint8_t scales[12]; uint8_t qs[128]; } block_q4_K;
typedef struct { uint16_t d, dmin; uint8_t scales[12]; uint8_t qh[32]; uint8_t qs[128]; } block_q5_K;
typedef struct { uint8_t ql[128]; uint8_t qh[64]; int8_t scales[16]; uint16_t d; } block_q6_K;
typedef struct { uint16_t d; uint16_t scales_h; uint8_t scales_l[4]; uint8_t qs[128]; } block_iq4_xs;
typedef struct { uint16_t d; uint16_t qs[32]; } block_iq2_xxs;
typedef struct { uint16_t d; uint16_t qs[32]; uint8_t scales[8]; } block_iq2_xs;
typedef struct { uint16_t d; uint8_t qs[32]; uint8_t signs[32]; uint8_t qh[8]; uint8_t scales[8]; } block_iq2_s;
typedef struct { uint16_t d; uint8_t qs[64]; uint8_t scales[32]; } block_iq3_xxs;
typedef struct { uint16_t d; uint8_t qs[64]; uint8_t qh[8]; uint8_t signs[32]; uint8_t scales[4]; } block_iq3_s;
typedef struct { uint16_t d; uint8_t qs[32]; uint16_t qh[8]; } block_iq1_s;
typedef struct { uint8_t qs[32]; uint8_t qh[16]; uint8_t scales[8]; } block_iq1_m;

#endif
