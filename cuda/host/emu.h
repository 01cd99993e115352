/* emu.h: C ABI of the emulator. One function per kernel entry, `int emu_<name>(params, launch)`; this header says what
 * it takes and what it answers. Plain C, so that bindgen or a hand-written Rust mirror can follow it. */
#ifndef GLM5_EMU_H
#define GLM5_EMU_H
#include <stdint.h>

/* What a launch ended with. Everything but EMU_OK comes with a text in `report`. */
enum emu_status {
    EMU_OK = 0,
    EMU_BAD_LAUNCH = 1,  /* grid, block, shared memory or params do not fit the kernel; nothing was run */
    EMU_DEADLOCK = 2,    /* threads are left that wait for something that cannot come */
    EMU_DIVERGENCE = 3,  /* threads that must act together do not: warp collectives, barriers */
    EMU_BAD_ADDRESS = 4, /* misaligned; outside shared memory or a buffer; a write to a read-only buffer */
    EMU_MBARRIER = 5,    /* an mbarrier used before init, arrived at too often, with impossible bytes */
    EMU_RACE = 6,        /* two accesses to shared memory that no barrier orders (instrumented kernels only) */
    EMU_TRAP = 7,        /* the kernel executed __trap(), or its local variables nearly fill the stack */
    EMU_TOO_EARLY = 8    /* griddep_wait() came after an access that it must precede, or not at all */
};

/* A buffer that the kernel may touch. Around it the caller owns `guard_bytes` on each side, which nobody may touch. */
typedef struct emu_buffer {
    const void *data;
    uint64_t bytes;
    uint64_t guard_bytes;
    uint32_t writable; /* 0: the kernel only reads it */
    uint32_t written;  /* in: 1 if an earlier launch wrote to it that may still run; out: 2 more if this one did (instrumented kernels) */
} emu_buffer;

typedef struct emu_launch {
    uint32_t grid[3];          /* blocks; as on the device at most 2^31-1, 65535, 65535; in all at most 2^22 */
    uint32_t block[3];         /* threads; the product must be the THREADS of the entry */
    uint32_t shared_bytes;     /* dynamic shared memory, at most 232448 */
    uint32_t params_bytes;     /* sizeof the params struct as the caller knows it, checked against the kernel's */
    uint32_t pdl;              /* 1: earlier launches may still run until griddep_wait(): before it nothing may be written, */
                               /* and nothing read that one of them wrote (instrumented kernels) */
    uint32_t resident_blocks;  /* blocks that run interleaved; 0: drawn from the seed, 1 to 4 */
    uint64_t seed;             /* orders threads, blocks and completion of asynchronous copies */
    emu_buffer *buffers;       /* what params point to; may be null. Instrumented kernels: every access is checked; */
    uint64_t n_buffers;        /* others: changed guard zones are reported after the launch. At most 64 */
    char *report;              /* receives a NUL-terminated text; may be null */
    uint64_t report_bytes;     /* size of `report` */
    uint32_t *early;           /* receives 1 if a thread let the next launch begin before it had itself waited, else 0; may be null. */
                               /* If none did, what launches before this one wrote is there when the next one begins */
} emu_launch;

typedef int emu_kernel(const void *params, const emu_launch *launch);

#endif
