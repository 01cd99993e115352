/* dequantize, embed. */
#ifndef GLM5_PARAMS_DEQUANTIZE_H
#define GLM5_PARAMS_DEQUANTIZE_H
#include <stdint.h>

/** Values of a run of blocks. */
typedef struct {
    /** `[src_bytes]`, whole blocks, aligned to 16. */
    const void *src;
    /** `[n]` f32, f16 or bf16, aligned to 16. */
    void *out;
    /** Bytes of `src`. */
    uint64_t src_bytes;
    /** Byte of `src` at which the first block begins. */
    uint64_t first;
    /** Values; whole blocks, all of them within `src`. */
    uint64_t n;
} dequantize_params;

/** Rows of a table by token id. */
typedef struct {
    /** `[vocab, hidden]` blocks, aligned to 16. */
    const void *table;
    /** `[n_tokens]`, each below `vocab` or the kernel traps. */
    const uint32_t *tokens;
    /** `[n_tokens, hidden]` f32 or bf16, aligned to 16. */
    void *out;
    /** Rows of the table. */
    uint32_t vocab;
    /** Values per row; whole blocks. */
    uint32_t hidden;
} embed_params;

#endif
