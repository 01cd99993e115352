// twins_gpu.cpp: runs the kernels of twins.cu on a GPU and in the emulator, on the same words, and compares.
//
// A program of its own, for a machine with a driver but no toolkit: g++ builds it with the emulator, nvcc has compiled
// twins.cu to a fatbin (lane nvcc of run.sh), and libcuda is opened when it runs.
//
//   twins_gpu twins.fatbin [repetitions]
//
// Inputs: random words; for the sums also small integers, whose results must agree bit for bit. The classes that say
// what may differ are in twins.h.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <string>
#include <vector>

#include "../../common/num.cuh"
#include "check.hpp"
#include "twins.h"

#define TWIN(name, words_in, words_out, how) extern "C" emu_kernel emu_twin_##name;
TWINS(TWIN)
#undef TWIN

namespace {

constexpr int kBlocks = 64;

struct Twin {
    const char *name;
    emu_kernel *emulated;
    int words_in, words_out;
    twins_class how;
};
const Twin kTwins[] = {
#define TWIN(name, words_in, words_out, how) {"twin_" #name, emu_twin_##name, words_in, words_out, how},
    TWINS(TWIN)
#undef TWIN
};

// The few driver functions that are needed. Types as in cuda.h: results and devices are int, handles pointers.
struct Driver {
    using Handle = void *;
    int (*init)(unsigned);
    int (*device)(int *, int);
    int (*retain)(Handle *, int);
    int (*set_current)(Handle);
    int (*load)(Handle *, const void *);
    int (*function)(Handle *, Handle, const char *);
    int (*alloc)(uint64_t *, size_t);
    int (*free)(uint64_t);
    int (*to_device)(uint64_t, const void *, size_t);
    int (*to_host)(void *, uint64_t, size_t);
    int (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **,
                  void **);
    int (*synchronize)();
};

void check(int result, const char *what) {
    if (result == 0) return;
    std::fprintf(stderr, "twins_gpu: %s: CUDA error %d\n", what, result);
    std::exit(2);
}

Driver open_driver() {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        std::fprintf(stderr, "twins_gpu: no libcuda.so.1: %s\n", dlerror());
        std::exit(2);
    }
    Driver d{};
    auto find = [&](auto &into, const char *name) {
        void *symbol = dlsym(library, name);
        check(symbol ? 0 : -1, name);
        std::memcpy(&into, &symbol, sizeof symbol);
    };
    find(d.init, "cuInit");
    find(d.device, "cuDeviceGet");
    find(d.retain, "cuDevicePrimaryCtxRetain");
    find(d.set_current, "cuCtxSetCurrent");
    find(d.load, "cuModuleLoadData");
    find(d.function, "cuModuleGetFunction");
    find(d.alloc, "cuMemAlloc_v2");
    find(d.free, "cuMemFree_v2");
    find(d.to_device, "cuMemcpyHtoD_v2");
    find(d.to_host, "cuMemcpyDtoH_v2");
    find(d.launch, "cuLaunchKernel");
    find(d.synchronize, "cuCtxSynchronize");
    return d;
}

std::vector<unsigned char> read_file(const char *path) {
    std::FILE *file = std::fopen(path, "rb");
    if (!file) {
        std::perror(path);
        std::exit(2);
    }
    std::vector<unsigned char> bytes;
    unsigned char buffer[65536];
    for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;) bytes.insert(bytes.end(), buffer, buffer + n);
    std::fclose(file);
    return bytes;
}

// Elements of the operands of a float mma in a register, and their values, by name.
int per_register(const std::string &name) { return name == "twin_mma_e4m3" ? 4 : name == "twin_mma_tf32" ? 1 : 2; }
uint32_t element(const std::string &name, float x) {
    if (name == "twin_mma_bf16") return f32_to_bf16_soft(x);
    if (name == "twin_mma_f16") return f32_to_f16_soft(x);
    if (name == "twin_mma_tf32") return f32_bits(x); // with bits that the unit must ignore
    return f32_to_e4m3_soft(x);
}
double decode(const std::string &name, uint32_t bits) {
    if (name == "twin_mma_bf16") return bf16_to_f32_soft((uint16_t)bits);
    if (name == "twin_mma_f16") return f16_to_f32_soft((uint16_t)bits);
    if (name == "twin_mma_tf32") return f32_from_bits(bits & 0xffffe000u);
    return e4m3_to_f32_soft((uint8_t)bits);
}

// Fragments: words 0 to 3 of A, 4 and 5 of B, 6 to 9 of D. Integers stay below 16, so that sums are exact; others are
// spread over 2^-6 to 2^6 with random signs.
void fill_sum(std::vector<uint32_t> &in, const std::string &name, bool integers, test::Random &random) {
    const int bits = 32 / per_register(name);
    auto number = [&] {
        return integers ? (float)random.between(-15, 15) : std::ldexp(random.unit(), random.between(-6, 6));
    };
    for (size_t i = 0; i < in.size(); ++i) {
        const size_t word = i / 32 % 10;
        if (word >= 6) {
            in[i] = f32_bits(number());
            continue;
        }
        in[i] = 0;
        for (int at = 0; at < 32; at += bits) in[i] |= element(name, number()) << at;
    }
}

// sum |a b| + |c| for output `reg` of `lane`: what the tolerance of a sum is relative to. From 4 on without c.
double magnitude(const std::string &name, const uint32_t *block, int lane, int reg) {
    const int per = per_register(name), bits = 32 / per, k_total = 8 * per;
    const uint32_t low = 0xffffffffu >> (32 - bits);
    const int row = lane / 4 + 8 * (reg % 4 / 2), column = lane % 4 * 2 + reg % 2;
    double sum = reg < 4 ? std::fabs(f32_from_bits(block[(6 + reg) * 32 + lane])) : 0;
    for (int k = 0; k < k_total; ++k) {
        const int quad = k % (4 * per) / per, half = k / (4 * per), shift = bits * (k % per);
        const uint32_t a = block[(row / 8 + 2 * half) * 32 + row % 8 * 4 + quad] >> shift & low;
        const uint32_t b = block[(4 + half) * 32 + column * 4 + quad] >> shift & low;
        sum += std::fabs(decode(name, a) * decode(name, b));
    }
    return sum;
}

bool is_nan32(uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }

// Worst difference in the unit of the class (0: equal bits), and whether it is allowed.
struct Difference {
    double size;
    bool allowed;
};
Difference compare(const Twin &twin, bool integers, const uint32_t *in, int lane, int word, uint32_t gpu,
                   uint32_t emulated) {
    if (gpu == emulated) return {0, true};
    const std::string name = twin.name;
    const bool floats = twin.how != TWINS_EXACT || name == "twin_floats" || name == "twin_pairs" ||
                        (name == "twin_conversions" && word >= 6 && word <= 8);
    if (floats && is_nan32(gpu) && is_nan32(emulated)) return {0, true};
    const double g = f32_from_bits(gpu), e = f32_from_bits(emulated);
    if (twin.how == TWINS_SUM) {
        const double relative = std::fabs(g - e) / magnitude(name, in, lane, word);
        return {relative, !integers && relative <= std::ldexp(1, -21)};
    }
    if (twin.how == TWINS_APPROX) {
        const double x = f32_from_bits(in[lane]), tiny = 1.17549435e-38;
        if (std::fabs(x) < tiny || (std::fabs(g) < tiny && std::fabs(e) < 2 * tiny)) return {0, true};
        // The reciprocals of numbers beyond 2^126 are subnormal and flushed by some forms.
        const double relative = std::fabs(g - e) / std::fabs(e);
        return {relative, relative <= std::ldexp(1, -20)};
    }
    return {1, false};
}

} // namespace

int main(int argc, char **argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: twins_gpu twins.fatbin [repetitions]\n");
        return 2;
    }
    const std::vector<unsigned char> image = read_file(argv[1]);
    const int repetitions = argc > 2 ? std::atoi(argv[2]) : 20;
    const Driver cuda = open_driver();
    int device = 0, passed = 0, failed = 0;
    Driver::Handle context = nullptr, module = nullptr;
    check(cuda.init(0), "cuInit");
    check(cuda.device(&device, 0), "cuDeviceGet");
    check(cuda.retain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuda.set_current(context), "cuCtxSetCurrent");
    check(cuda.load(&module, image.data()), "cuModuleLoadData");

    for (const Twin &twin : kTwins) {
        Driver::Handle function = nullptr;
        check(cuda.function(&function, module, twin.name), twin.name);
        std::vector<uint32_t> in(static_cast<size_t>(kBlocks * twin.words_in * 32));
        std::vector<uint32_t> gpu(static_cast<size_t>(kBlocks * twin.words_out * 32)), emulated(gpu.size());
        uint64_t d_in = 0, d_out = 0;
        check(cuda.alloc(&d_in, in.size() * 4), "cuMemAlloc");
        check(cuda.alloc(&d_out, gpu.size() * 4), "cuMemAlloc");
        size_t wrong = 0, different = 0;
        double worst = 0;
        for (int repetition = 0; repetition < repetitions; ++repetition) {
            test::Random random(static_cast<uint64_t>(repetition) * 1000 + 17);
            const bool integers = repetition % 2 == 0;
            if (twin.how == TWINS_SUM) fill_sum(in, twin.name, integers, random);
            else
                for (uint32_t &word : in) {
                    const uint32_t kind = random.word() % 4; // floats near 1, halfway values, any word
                    word = kind == 0   ? f32_bits(random.unit() * 300.f)
                           : kind == 1 ? f32_bits((float)random.between(-600, 600) * 0.5f)
                                       : random.word();
                }
            twins_params params{reinterpret_cast<const uint32_t *>(d_in), reinterpret_cast<uint32_t *>(d_out)};
            void *arguments[] = {&params};
            check(cuda.to_device(d_in, in.data(), in.size() * 4), "cuMemcpyHtoD");
            check(cuda.launch(function, kBlocks, 1, 1, TWINS_THREADS, 1, 1, TWINS_SHARED_BYTES, nullptr, arguments,
                              nullptr),
                  twin.name);
            check(cuda.synchronize(), twin.name);
            check(cuda.to_host(gpu.data(), d_out, gpu.size() * 4), "cuMemcpyDtoH");

            const twins_params host{in.data(), emulated.data()};
            const auto end = test::launch(twin.emulated, host, {{kBlocks, 1, 1}, TWINS_THREADS, TWINS_SHARED_BYTES},
                                          static_cast<uint64_t>(repetition));
            if (end.status != EMU_OK) std::printf("%s: %s\n", twin.name, end.report.c_str()), ++wrong;

            for (size_t i = 0; i < gpu.size(); ++i) {
                const int lane = static_cast<int>(i % 32), word = static_cast<int>(i / 32) % twin.words_out;
                const size_t block = i / 32 / static_cast<size_t>(twin.words_out);
                const uint32_t *block_in = &in[block * static_cast<size_t>(twin.words_in) * 32];
                const Difference d = compare(twin, integers, block_in, lane, word, gpu[i], emulated[i]);
                different += d.size > 0;
                worst = std::max(worst, d.size);
                if (!d.allowed && ++wrong <= 5)
                    std::printf("%s word %d lane %d: GPU %08x (%a), emulator %08x (%a); input %08x\n", twin.name, word,
                                lane, gpu[i], f32_from_bits(gpu[i]), emulated[i], f32_from_bits(emulated[i]),
                                block_in[lane]);
            }
        }
        check(cuda.free(d_in), "cuMemFree");
        check(cuda.free(d_out), "cuMemFree");
        std::printf("%-6s %-24s %zu of %zu words differ, worst 2^%.1f\n", wrong ? "FAILED" : "ok", twin.name, different,
                    gpu.size() * static_cast<size_t>(repetitions), worst > 0 ? std::log2(worst) : -INFINITY);
        ++(wrong ? failed : passed);
    }
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
