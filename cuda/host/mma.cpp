// mma.cpp: ldmatrix and mma.sync by their definitions: gather fragments to matrices, three loops, scatter.
#include "mma.hpp"

#include "../common/num.cuh"
#include "races.hpp"

#include <limits>
#include <type_traits>

namespace emu {
namespace {

struct LdmatrixLane {
    const unsigned char *row;
    unsigned count;
    bool transposed;
    Site site;
    std::uint32_t d[4];
};

void perform_ldmatrix(unsigned, LdmatrixLane *const *lanes) {
    const unsigned count = lanes[0]->count;
    for (unsigned m = 0; m < count; ++m) {
        std::uint16_t matrix[8][8];
        for (unsigned r = 0; r < 8; ++r) std::memcpy(matrix[r], lanes[8 * m + r]->row, 16);
        // Lane l receives two neighbouring elements: row l / 4, columns 2 (l % 4) and the next; transposed: the same of
        // the transposed matrix.
        for (unsigned l = 0; l < kWarpSize; ++l) {
            const unsigned i = l / 4, j = 2 * (l % 4);
            const bool t = lanes[l]->transposed;
            const std::uint32_t low = t ? matrix[j][i] : matrix[i][j];
            const std::uint32_t high = t ? matrix[j + 1][i] : matrix[i][j + 1];
            lanes[l]->d[m] = low | high << 16;
        }
    }
}

// The operand types: how many fit a 32-bit register, how to read one, what the products are summed in.
struct Bf16 {
    static constexpr unsigned per_register = 2;
    using Sum = double; // holds every product of two bf16, f16, tf32 or e4m3 exactly
    using Out = float;
    static Sum value(std::uint32_t bits) { return bf16_to_f32_soft(static_cast<std::uint16_t>(bits)); }
};
struct F16 : Bf16 {
    static Sum value(std::uint32_t bits) { return f16_to_f32_soft(static_cast<std::uint16_t>(bits)); }
};
// The upper 19 bits of an f32; the others are not looked at.
struct Tf32 : Bf16 {
    static constexpr unsigned per_register = 1;
    static Sum value(std::uint32_t bits) { return f32_from_bits(bits & 0xffffe000u); }
};
struct E4m3 : Bf16 {
    static constexpr unsigned per_register = 4;
    static Sum value(std::uint32_t bits) { return e4m3_to_f32_soft(static_cast<std::uint8_t>(bits)); }
};
struct S8 {
    static constexpr unsigned per_register = 4;
    using Sum = std::uint32_t; // wraps; as unsigned, so that wrapping is defined
    using Out = std::int32_t;
    static Sum value(std::uint32_t bits) { return static_cast<Sum>(static_cast<std::int8_t>(bits)); }
};

template <class Type, unsigned K> struct MmaLane {
    static constexpr unsigned kA = 16 * K / 32 / Type::per_register, kB = 8 * K / 32 / Type::per_register;
    std::uint32_t a[kA], b[kB];
    typename Type::Out d[4];
};

// Register r of a fragment holds `per` neighbours along K. Rows of A are groups (lane / 4) and groups + 8, columns of B
// are groups; along K, a quad's lanes hold 4 * per values per half register set. So with per = 1 (tf32), 2 (16-bit) or 4 (8-bit):
//   A register r, element e: row = group + 8 (r % 2), k = per (lane % 4) + e + 4 per (r / 2)
//   B register r, element e: column = group,          k = per (lane % 4) + e + 4 per r
//   D register r:            row = group + 8 (r / 2), column = 2 (lane % 4) + r % 2
// which for m16n8k16 of 8-bit operands leaves two A registers and one B register.
template <class Type, unsigned K> void perform_mma(unsigned, MmaLane<Type, K> *const *lanes) {
    using Lane = MmaLane<Type, K>;
    using Sum = typename Type::Sum;
    constexpr unsigned per = Type::per_register, bits = 32 / per;
    Sum a[16][K], b[K][8];
    for (unsigned l = 0; l < kWarpSize; ++l) {
        const unsigned group = l / 4, quad = l % 4;
        for (unsigned r = 0; r < Lane::kA; ++r)
            for (unsigned e = 0; e < per; ++e)
                a[group + 8 * (r % 2)][per * quad + e + 4 * per * (r / 2)] = Type::value(lanes[l]->a[r] >> bits * e);
        for (unsigned r = 0; r < Lane::kB; ++r)
            for (unsigned e = 0; e < per; ++e)
                b[per * quad + e + 4 * per * r][group] = Type::value(lanes[l]->b[r] >> bits * e);
    }
    Sum d[16][8] = {};
    for (unsigned i = 0; i < 16; ++i)
        for (unsigned k = 0; k < K; ++k)
            for (unsigned j = 0; j < 8; ++j) d[i][j] += a[i][k] * b[k][j];
    for (unsigned l = 0; l < kWarpSize; ++l)
        for (unsigned r = 0; r < 4; ++r) {
            auto &out = lanes[l]->d[r];
            out = static_cast<typename Type::Out>(static_cast<Sum>(out) + d[l / 4 + 8 * (r / 2)][2 * (l % 4) + r % 2]);
            // One NaN, without a sign, is all that matrix units give.
            if constexpr (std::is_same_v<typename Type::Out, float>)
                if (out != out) out = std::numeric_limits<float>::quiet_NaN();
        }
}

template <class Type, unsigned K>
void mma(typename Type::Out *d, const std::uint32_t *a, const std::uint32_t *b, const char *what, Site site) {
    using Lane = MmaLane<Type, K>;
    Lane lane;
    std::memcpy(lane.a, a, sizeof lane.a);
    std::memcpy(lane.b, b, sizeof lane.b);
    std::memcpy(lane.d, d, sizeof lane.d);
    collective<Lane, perform_mma<Type, K>>(~0u, what, site, lane);
    std::memcpy(d, lane.d, sizeof lane.d);
}

} // namespace

void ldmatrix(std::uint32_t *d, const void *row, unsigned count, bool transposed, Site site) {
    Thread &thread = self();
    // Only the first 8 * count lanes' addresses are used.
    if (thread.linear % kWarpSize < 8 * count) {
        check_shared(row, 16, 16, "ldmatrix", site);
        if (thread.block->races) thread.block->races->access(thread.linear, Races::Kind::Read, row, 16, 0);
    }
    static const char *const names[2][5] = {{"", "ldmatrix.x1", "ldmatrix.x2", "", "ldmatrix.x4"},
                                            {"", "ldmatrix.x1.trans", "ldmatrix.x2.trans", "", "ldmatrix.x4.trans"}};
    LdmatrixLane lane{static_cast<const unsigned char *>(row), count, transposed, site, {}};
    collective<LdmatrixLane, perform_ldmatrix>(~0u, names[transposed][count], site, lane);
    std::memcpy(d, lane.d, count * sizeof *d);
}

void mma_m16n8k16_bf16(float *d, const std::uint32_t *a, const std::uint32_t *b, Site site) {
    mma<Bf16, 16>(d, a, b, "mma.m16n8k16.bf16", site);
}
void mma_m16n8k16_f16(float *d, const std::uint32_t *a, const std::uint32_t *b, Site site) {
    mma<F16, 16>(d, a, b, "mma.m16n8k16.f16", site);
}
void mma_m16n8k8_tf32(float *d, const std::uint32_t *a, const std::uint32_t *b, Site site) {
    mma<Tf32, 8>(d, a, b, "mma.m16n8k8.tf32", site);
}
void mma_m16n8k32_e4m3(float *d, const std::uint32_t *a, const std::uint32_t *b, Site site) {
    mma<E4m3, 32>(d, a, b, "mma.m16n8k32.e4m3", site);
}
void mma_m16n8k16_s8(std::int32_t *d, const std::uint32_t *a, const std::uint32_t *b, Site site) {
    mma<S8, 16>(d, a, b, "mma.m16n8k16.s8", site);
}
void mma_m16n8k32_s8(std::int32_t *d, const std::uint32_t *a, const std::uint32_t *b, Site site) {
    mma<S8, 32>(d, a, b, "mma.m16n8k32.s8", site);
}

} // namespace emu
