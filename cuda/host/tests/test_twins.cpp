// test_twins.cpp: each twin against a scalar definition written here, from the layouts and formulas of the PTX ISA,
// with nothing of the emulator's own code but the decoding of small floats (which test_num.cpp checks).
#include <algorithm>
#include <cmath>

#include "../../common/num.cuh"
#include "check.hpp"
#include "twins.h"

#define TWIN(name, words_in, words_out, how) extern "C" emu_kernel emu_twin_##name;
TWINS(TWIN)
#undef TWIN

namespace {

constexpr int kBlocks = 6;

struct Run {
    int words_in, words_out;
    test::Guarded<uint32_t> in, out;
    Run(int words_in, int words_out)
        : words_in(words_in), words_out(words_out), in(kBlocks * 32u * static_cast<unsigned>(words_in)),
          out(kBlocks * 32u * static_cast<unsigned>(words_out), 0xdeadbeefu) {}
    uint32_t &get(int block, int word, int lane) {
        return in[static_cast<size_t>((block * words_in + word) * 32 + lane)];
    }
    uint32_t got(int block, int word, int lane) {
        return out[static_cast<size_t>((block * words_out + word) * 32 + lane)];
    }
    // Each lane's word as laid out for copies: block, then 32-word rows.
    uint32_t flat(int block, int i) { return in[static_cast<size_t>(block * words_in * 32 + i)]; }
    void run(emu_kernel *kernel, uint64_t seed) {
        const twins_params params{in.data(), out.data()};
        const auto end = test::launch(kernel, params, {{kBlocks, 1, 1}, TWINS_THREADS, TWINS_SHARED_BYTES}, seed);
        CHECK(end.status == EMU_OK, "%s", end.report.c_str());
        CHECK(out.intact());
    }
};

template <class F> void each_lane(F f) {
    for (int block = 0; block < kBlocks; ++block)
        for (int lane = 0; lane < 32; ++lane) f(block, lane);
}

void fill_random(Run &r, uint64_t seed) {
    test::Random random(seed);
    for (size_t i = 0; i < r.in.size(); ++i) r.in[i] = random.word();
}

// Where the PTX ISA puts element (row, column) of A, (row, column) of B, (row, column) of D: lane, register, element.
struct Place {
    int lane, reg, element;
};
Place place_a(int row, int k, int per) { // m16 x k: groups of 4 * per columns
    return {row % 8 * 4 + k % (4 * per) / per, row / 8 + 2 * (k / (4 * per)), k % per};
}
Place place_b(int k, int column, int per) { return {column * 4 + k % (4 * per) / per, k / (4 * per), k % per}; }
Place place_d(int row, int column) { return {row % 8 * 4 + column / 2, row / 8 * 2 + column % 2, 0}; }

// `decode(bits)` gives an element's value; A registers come first, then B's, then D's. With `from` the upper four outputs,
// whose sums begin there, instead of the lower four.
template <class Decode, class Check>
void mma_outputs(Run &r, int k_total, int per, Decode decode, Check check, const uint32_t *from = nullptr) {
    const int a_regs = 16 * k_total / 32 / per, b_regs = 8 * k_total / 32 / per, bits = 32 / per;
    const uint32_t low = 0xffffffffu >> (32 - bits);
    for (int block = 0; block < kBlocks; ++block)
        for (int i = 0; i < 16; ++i)
            for (int j = 0; j < 8; ++j) {
                std::vector<double> products;
                for (int k = 0; k < k_total; ++k) {
                    const Place a = place_a(i, k, per), b = place_b(k, j, per);
                    const uint32_t wa = r.get(block, a.reg, a.lane) >> bits * a.element & low;
                    const uint32_t wb = r.get(block, a_regs + b.reg, b.lane) >> bits * b.element & low;
                    products.push_back(decode(wa) * decode(wb));
                }
                const Place d = place_d(i, j);
                check(from ? *from : r.get(block, a_regs + b_regs + d.reg, d.lane), products,
                      r.got(block, (from ? 4 : 0) + d.reg, d.lane));
            }
}

template <class Decode>
void check_mma_float(emu_kernel *kernel, int words_out, int k, int per, uint32_t mask, Decode decode) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
        Run r(10, words_out);
        fill_random(r, seed);
        for (int block = 0; block < kBlocks; ++block) // `mask` keeps exponents where no sum overflows
            for (int lane = 0; lane < 32; ++lane) {
                for (int w = 0; w < 6; ++w) r.get(block, w, lane) &= mask;
                for (int w = 6; w < 10; ++w)
                    r.get(block, w, lane) = f32_bits((float)(int)r.get(block, w, lane) * 1e-9f);
            }
        r.run(kernel, seed);
        const auto check = [](uint32_t c, const std::vector<double> &products, uint32_t got) {
            long double sum = f32_from_bits(c);
            double size = std::fabs(f32_from_bits(c));
            for (double p : products) sum += p, size += std::fabs(p);
            // One rounding to f32, of normal and of subnormal numbers, plus the rounding of a double sum.
            const double error = std::fabs((double)(f32_from_bits(got) - sum));
            CHECK(error <= std::ldexp(std::fabs((double)sum), -24) + std::ldexp(1, -150) + std::ldexp(size, -48), "%g for %Lg",
                  f32_from_bits(got), sum);
        };
        mma_outputs(r, k, per, decode, check);
        const uint32_t zero = 0;
        if (words_out == 8) mma_outputs(r, k, per, decode, check, &zero);
        RETURN_IF_FAILED();
    }
}

void check_mma_integer(emu_kernel *kernel, int words_in, int k) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
        Run r(words_in, 8);
        fill_random(r, seed);
        r.run(kernel, seed);
        const auto decode = [](uint32_t bits) { return (double)(int8_t)bits; };
        const auto check = [](uint32_t c, const std::vector<double> &products, uint32_t got) {
            long long sum = (int32_t)c;
            for (double p : products) sum += (long long)p;
            CHECK(got == (uint32_t)sum, "%d for %lld", (int)got, sum);
        };
        mma_outputs(r, k, 4, decode, check);
        const uint32_t from = TWINS_FROM;
        mma_outputs(r, k, 4, decode, check, &from);
        RETURN_IF_FAILED();
    }
}

} // namespace

TEST(twin_mma_bf16) {
    check_mma_float(emu_twin_mma_bf16, 8, 16, 2, 0xbfffbfff,
                    [](uint32_t b) { return (double)bf16_to_f32_soft((uint16_t)b); });
}
TEST(twin_mma_f16) {
    check_mma_float(emu_twin_mma_f16, 8, 16, 2, 0xbfffbfff,
                    [](uint32_t b) { return (double)f16_to_f32_soft((uint16_t)b); });
}
TEST(twin_mma_tf32) {
    check_mma_float(emu_twin_mma_tf32, 8, 8, 1, 0xbfffffff, [](uint32_t b) { return (double)f32_from_bits(b & 0xffffe000u); });
}
TEST(twin_mma_e4m3) {
    check_mma_float(emu_twin_mma_e4m3, 4, 32, 4, 0xbfbfbfbf,
                    [](uint32_t b) { return (double)e4m3_to_f32_soft((uint8_t)b); });
}
TEST(twin_mma_s8) {
    check_mma_integer(emu_twin_mma_s8_k32, 10, 32);
    check_mma_integer(emu_twin_mma_s8_k16, 7, 16);
}

TEST(twin_ldmatrix) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
        Run r(5, 14);
        fill_random(r, seed);
        r.run(emu_twin_ldmatrix, seed);
        each_lane([&](int block, int lane) {
            // Element (row, column) of matrix m, as 16-bit halves of the row that lane 8 m + row names.
            auto element = [&](int m, int row, int column) {
                const int source = (int)(r.get(block, 4, 8 * m + row) % 32);
                return r.get(block, column / 2, source) >> 16 * (column % 2) & 0xffff;
            };
            int word = 0;
            for (bool transposed : {false, true})
                for (int count : {1, 2, 4})
                    for (int m = 0; m < count; ++m, ++word) {
                        const int i = lane / 4, j = lane % 4 * 2;
                        const uint32_t want = transposed ? element(m, j, i) | element(m, j + 1, i) << 16
                                                         : element(m, i, j) | element(m, i, j + 1) << 16;
                        CHECK(r.got(block, word, lane) == want, "word %d lane %d", word, lane);
                    }
        });
        RETURN_IF_FAILED();
    }
}

TEST(twin_shuffles) {
    for (uint64_t seed = 0; seed < 16; ++seed) {
        Run r(3, 13);
        fill_random(r, seed);
        r.run(emu_twin_shuffles, seed);
        each_lane([&](int block, int l) {
            auto v = [&](int lane) { return r.get(block, 0, lane); };
            auto want = [&](int word, uint32_t value) {
                CHECK(r.got(block, word, l) == value, "word %d lane %d: %x, want %x", word, l, r.got(block, word, l),
                      value);
            };
            const int source = (int)(r.get(block, 1, l) % 32), delta = (int)(r.get(block, 1, 0) / 32 % 32);
            auto segment = [&](int width) { return l / width * width; };
            want(0, v(source));
            want(1, v(segment(8) + source % 8));
            want(2, v(l - delta >= 0 ? l - delta : l));
            want(3, v(l - delta >= segment(16) ? l - delta : l));
            want(4, v(l + delta < 32 ? l + delta : l));
            want(5, v(l + delta < segment(4) + 4 ? l + delta : l));
            want(6, v(l ^ delta));
            want(7, v((l ^ delta) < segment(8) + 8 ? l ^ delta : l));
            want(8, v(l ^ 1));
            want(9, v(source));
            want(10, r.get(block, 2, source));
            want(11, v(l ^ delta % 16));
            want(12, v((l & 16) + source % 16));
        });
        RETURN_IF_FAILED();
    }
}

TEST(twin_votes) {
    for (uint64_t seed = 0; seed < 16; ++seed) {
        Run r(2, 13);
        fill_random(r, seed);
        if (seed % 2)
            each_lane([&](int block, int lane) { r.get(block, 1, lane) = lane < 16 ? 3u : (uint32_t)(block % 3); });
        r.run(emu_twin_votes, seed);
        each_lane([&](int block, int l) {
            auto want = [&](int word, uint32_t value) {
                CHECK(r.got(block, word, l) == value, "word %d lane %d: %x, want %x", word, l, r.got(block, word, l),
                      value);
            };
            auto v = [&](int lane) { return r.get(block, 0, lane); };
            auto small = [&](int lane) { return r.get(block, 1, lane) % 4; };
            const int first = l & 16;
            uint32_t odd = 0, equal = 0, add = 0, most = 0, all_and = ~0u, all_or = 0, all_xor = 0;
            int32_t least = INT32_MAX, most_signed = INT32_MIN;
            bool any3 = false, all_less = true, same = true;
            for (int i = 0; i < 32; ++i) {
                odd |= (v(i) & 1) << i;
                equal |= (uint32_t)(small(i) == small(l)) << i;
                add += v(i);
                most = std::max(most, v(i));
                most_signed = std::max(most_signed, (int32_t)v(i));
                all_xor ^= v(i);
            }
            for (int i = first; i < first + 16; ++i) {
                any3 |= small(i) == 3;
                all_less &= small(i) < 3;
                same &= small(i) == small(first);
                least = std::min(least, (int32_t)v(i));
                all_and &= v(i) | 0xff;
                all_or |= v(i) & 0xff00ff00u;
            }
            want(0, odd);
            want(1, any3);
            want(2, all_less);
            want(3, equal);
            want(4, same ? 0xffffu << first : 0);
            want(5, same);
            want(6, add);
            want(7, (uint32_t)least);
            want(8, most);
            want(9, (uint32_t)most_signed);
            want(10, all_and);
            want(11, all_or);
            want(12, all_xor);
        });
        RETURN_IF_FAILED();
    }
}

TEST(twin_copies_and_loads) {
    for (uint64_t seed = 0; seed < 16; ++seed) {
        Run sizes(10, 14), arrival(4, 4), bulk(4, 4), loads(4, 12);
        for (Run *r : {&sizes, &arrival, &bulk, &loads}) fill_random(*r, seed);
        sizes.run(emu_twin_cp_async_sizes, seed);
        arrival.run(emu_twin_cp_async_arrival, seed);
        bulk.run(emu_twin_bulk_copy, seed);
        loads.run(emu_twin_loads, seed);
        each_lane([&](int block, int l) {
            const int o = 31 - l;
            // Bytes kept of the word that begins at `at` within a copy of which lane `o` reads `kept` bytes.
            auto cut = [&](uint32_t word, int at, int kept) {
                const int n = std::max(0, std::min(4, kept - at));
                return n == 4 ? word : word & ((1u << 8 * n) - 1);
            };
            const int kept16 = (int)(sizes.get(block, 7, o) % 17), kept8 = (int)(sizes.get(block, 8, o) % 9),
                      kept4 = (int)(sizes.get(block, 9, o) % 5);
            for (int i = 0; i < 4; ++i) {
                const uint32_t word = sizes.flat(block, 4 * o + i);
                CHECK(sizes.got(block, i, l) == word);
                CHECK(sizes.got(block, 7 + i, l) == cut(word, 4 * i, kept16));
                CHECK(arrival.got(block, i, l) == arrival.flat(block, 4 * o + i));
                CHECK(bulk.got(block, i, l) == bulk.flat(block, 4 * o + i));
                CHECK(loads.got(block, i, l) == loads.flat(block, 4 * l + i));
            }
            for (int i = 0; i < 2; ++i) {
                const uint32_t word = sizes.flat(block, 128 + 2 * o + i);
                CHECK(sizes.got(block, 4 + i, l) == word);
                CHECK(sizes.got(block, 11 + i, l) == cut(word, 4 * i, kept8));
                CHECK(loads.got(block, 6 + i, l) == loads.flat(block, 2 * l + i));
            }
            CHECK(sizes.got(block, 6, l) == sizes.flat(block, 192 + o));
            CHECK(sizes.got(block, 13, l) == cut(sizes.flat(block, 192 + o), 0, kept4));
            CHECK(loads.got(block, 4, l) == loads.flat(block, 4 * o) &&
                  loads.got(block, 5, l) == loads.flat(block, 4 * o + 3));
            for (int i = 0; i < 4; ++i) CHECK(loads.got(block, 8 + i, l) == loads.flat(block, 32 * i + l));
        });
        RETURN_IF_FAILED();
    }
}

TEST(twin_atomics) {
    for (uint64_t seed = 0; seed < 16; ++seed) {
        Run r(2, 12);
        fill_random(r, seed);
        r.run(emu_twin_atomics, seed);
        each_lane([&](int block, int l) {
            uint32_t add = 0, most = 0, least = ~0u, bits_or = 0, bits_and = ~0u, bits_xor = 0, sum = 0;
            int32_t least_signed = INT32_MAX;
            uint64_t wide = 0;
            for (int i = 0; i < 32; ++i) {
                const uint32_t v = r.get(block, 0, i), w = r.get(block, 1, i);
                add += v, sum += w, wide += (uint64_t)v << 20, bits_or |= v & w, bits_and &= v | w, bits_xor ^= v;
                most = std::max(most, v), least = std::min(least, v), least_signed = std::min(least_signed, (int32_t)v);
            }
            const uint32_t want[12] = {add,      most,     least,          (uint32_t)least_signed, bits_or,
                                       bits_and, bits_xor, (uint32_t)wide, (uint32_t)(wide >> 32), sum,
                                       sum | 1,  0};
            for (int word = 0; word < 12; ++word)
                CHECK(r.got(block, word, l) == want[word], "word %d: %x, want %x", word, r.got(block, word, l),
                      want[word]);
        });
        RETURN_IF_FAILED();
    }
}
