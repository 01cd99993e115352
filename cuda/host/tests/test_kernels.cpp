// test_kernels.cpp: runs every instance of every kernel family on small inputs of random contents, each buffer exactly as
// large as params promise. Whether results are right is for the property suites; here AddressSanitizer and UBSan, or the
// emulator's own checks, look at the code of every instance.
//
// A new family needs a function that makes its inputs, and a line in kFamilies at the end.
#include <cstdlib>
#include <memory>
#include <set>
#include <vector>

#include "../../include/params.h"
#include "check.hpp"
#include "kernels.hpp"

namespace {

// AddressSanitizer watches what lies beside an allocation, so nothing else may lie there; otherwise guard zones tell.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kAsan = true;
#elif defined(__has_feature)
constexpr bool kAsan = __has_feature(address_sanitizer);
#else
constexpr bool kAsan = false;
#endif
constexpr std::size_t kZone = kAsan ? 0 : 512;
constexpr int kCases = 6; // sizes around a tile, see Job::size

// One launch in the making.
class Job {
public:
    Job(const test::Kernel &kernel, int number) : random(number), number_(number), kernel_(kernel) {}

    int value(const char *arg) const { return find(arg).value; }
    std::size_t bytes(const char *arg) const { return find(arg).bytes; }

    // Of something that is dealt out in tiles, from one to `most` (of whatever the caller counts).
    int size(int tile, int most = 1 << 20) {
        const int sizes[kCases] = {1, tile - 1, tile, tile + 1, 2 * tile + 1, random.between(1, 3 * tile)};
        return std::clamp(sizes[number_], 1, most);
    }
    bool coin() { return random.word() % 2; }

    // Buffers of random bytes, of numbers in [-1, 1), and of a poison that the kernel is to overwrite. Aligned to 16.
    void *bytes_in(std::size_t n) {
        auto *data = static_cast<unsigned char *>(add(n, false));
        for (std::size_t i = 0; i < n; ++i) data[i] = static_cast<unsigned char>(random.word());
        return data;
    }
    float *floats_in(std::size_t n, bool writable = false) {
        auto *data = static_cast<float *>(add(n * sizeof(float), writable));
        for (std::size_t i = 0; i < n; ++i) data[i] = random.unit();
        return data;
    }
    float *floats_in_out(std::size_t n) { return floats_in(n, true); }
    template <class T = void> T *out(std::size_t bytes) {
        void *data = add(bytes, true);
        std::memset(data, 0xff, bytes);
        return static_cast<T *>(data);
    }

    template <class Params> void run(const Params &params, std::uint32_t blocks, std::uint32_t slabs = 1) {
        const test::Shape shape{{blocks, slabs, 1}, kernel_.threads, kernel_.shared_bytes, 0, kernel_.pdl};
        for (std::uint64_t seed = 0; seed < 2; ++seed) { // two orders of threads
            const test::Outcome outcome = test::launch(kernel_.run, params, shape, 2 * number_ + seed, buffers_);
            CHECK(outcome.status == EMU_OK, "%s, case %d: %s", kernel_.name, number_, outcome.report.c_str());
        }
        ran_ = true;
    }
    bool ran() const { return ran_; }

    test::Random random;

private:
    struct Free {
        void operator()(void *p) const { std::free(p); }
    };

    const test::Arg &find(const char *name) const {
        for (const test::Arg &arg : kernel_.args)
            if (std::strcmp(arg.name, name) == 0) return arg;
        test::note_failure(__FILE__, __LINE__, test::text(" %s has no argument %s", kernel_.name, name));
        static const test::Arg none{"", 1, 1};
        return none;
    }

    void *add(std::size_t n, bool writable) {
        auto *memory = static_cast<unsigned char *>(std::malloc(n + 2 * kZone)); // malloc aligns to 16
        memory_.emplace_back(memory);
        std::memset(memory, 0x5A, n + 2 * kZone);
        buffers_.push_back({memory + kZone, n, kZone, writable, 0});
        return memory + kZone;
    }

    int number_;
    const test::Kernel &kernel_;
    std::vector<std::unique_ptr<void, Free>> memory_;
    std::vector<emu_buffer> buffers_;
    bool ran_ = false;
};

std::uint32_t tiles(std::size_t n, int tile) { return static_cast<std::uint32_t>((n + tile - 1) / tile); }

void copy(Job &job) {
    copy_params p{};
    p.n_vecs = job.size(32 * job.value("warps") * job.value("unroll"));
    p.src = job.bytes_in(16 * p.n_vecs);
    p.dst = job.out(16 * p.n_vecs);
    job.run(p, job.random.between(1, 4));
}

void reduce(Job &job) {
    reduce_params p{};
    const int blocks = job.random.between(1, 4);
    p.n_vecs = job.size(32 * job.value("warps") * job.value("unroll"));
    p.src = job.bytes_in(16 * p.n_vecs);
    p.partial = job.out<std::uint64_t>(blocks * sizeof(std::uint64_t));
    job.run(p, blocks);
}

void dequantize(Job &job) {
    const int elems = job.value("ty"), tile = job.value("tile");
    const int blocks = job.size(tile / elems), before = job.random.between(0, 3);
    dequantize_params p{};
    p.first = before * job.bytes("ty");
    p.src_bytes = p.first + (blocks + job.random.between(0, 3)) * job.bytes("ty");
    p.n = std::uint64_t{static_cast<unsigned>(blocks)} * elems;
    p.src = job.bytes_in(p.src_bytes);
    p.out = job.out(p.n * job.bytes("out"));
    job.run(p, tiles(p.n, tile));
}

void embed(Job &job) {
    const int elems = job.value("ty"), tile = job.value("tile");
    const int n_tokens = job.random.between(1, 3);
    embed_params p{};
    p.vocab = job.random.between(1, 4);
    p.hidden = job.size(tile / elems) * elems;
    p.table = job.bytes_in(p.vocab * (p.hidden / elems * job.bytes("ty")));
    auto *tokens = job.out<std::uint32_t>(n_tokens * sizeof(std::uint32_t));
    for (int t = 0; t < n_tokens; ++t) tokens[t] = t == 0 ? p.vocab - 1 : job.random.word() % p.vocab;
    p.tokens = tokens;
    p.out = job.out(std::size_t{p.hidden} * n_tokens * job.bytes("out"));
    job.run(p, n_tokens * tiles(p.hidden, tile));
}

// Columns of a row that a block of threads holds: a multiple of `unit`.
int row_size(Job &job, int unit) {
    const int most = 128 * job.value("vecs") * job.value("warps");
    return job.size(std::max(1, most / 2 / unit), most / unit) * unit;
}

void layer_norm(Job &job) {
    const int rows = job.random.between(1, 3);
    layer_norm_params p{};
    p.n = row_size(job, job.value("load"));
    p.eps = 1e-6f;
    p.x = job.floats_in_out(std::size_t{p.n} * rows);
    p.w = job.floats_in(p.n);
    p.b = job.floats_in(p.n);
    job.run(p, rows);
}

void norm_quantize(Job &job) {
    const int block = job.value("block"), rows = job.random.between(1, 3);
    const std::size_t out_bytes = job.bytes("out");
    const bool quantize = job.coin();
    norm_quantize_params p{};
    p.n = row_size(job, quantize ? block : job.value("load"));
    p.eps = 1e-6f;
    p.x_stride = p.n + 4 * job.random.between(0, 2);
    p.y_stride = p.x_stride;
    // Nothing behind the last row.
    const std::size_t spread = p.x_stride * (rows - 1) + p.n, n = std::size_t{p.n} * rows;
    p.x = job.floats_in_out(spread);
    p.w = job.floats_in(p.n);
    if (job.coin()) p.r = job.floats_in(n);
    if (out_bytes == sizeof(float) && job.coin()) p.y = p.x;
    else if (!quantize || job.coin()) p.y = job.out(spread * out_bytes);
    if (quantize) {
        p.qs = job.out<std::int8_t>(n);
        p.scales = job.out<float>(n / block * sizeof(float));
        p.sums = job.out<std::int16_t>(n / 16 * sizeof(std::int16_t));
    }
    job.run(p, rows);
}

void mma(Job &job) {
    mma_params p{};
    const std::size_t tiles = job.value("tiles"), blocks = job.random.between(1, 3);
    p.steps = job.random.between(0, 3);
    p.a = static_cast<const std::uint32_t *>(job.bytes_in(4 * 32 * sizeof(std::uint32_t)));
    p.b = static_cast<const std::uint32_t *>(job.bytes_in(tiles * 2 * 32 * sizeof(std::uint32_t)));
    p.d = job.out(blocks * job.value("warps") * tiles * 4 * 32 * sizeof(float));
    job.run(p, blocks);
}

// `k` columns; rows of x and parts of them begin at multiples of `by` values.
void run_linear(Job &job, int rows, int tokens, std::uint32_t k, int by) {
    const int elems = job.value("ty"), slabs = job.random.between(1, 2);
    linear_params p{};
    p.n = job.size(rows, rows + 1);
    p.m = job.random.between(1, tokens + 1);
    p.k = k;
    p.round = static_cast<linear_round>(elems == 1 ? 0 : job.random.between(0, 2));
    p.x_head = p.k + by * job.random.between(0, 3);
    p.y_head = p.n + job.random.between(0, 3);
    p.x_stride = slabs * p.x_head + by * job.random.between(0, 3);
    p.y_stride = slabs * p.y_head + job.random.between(0, 3);
    // Nothing behind the last head of the last row.
    const auto spread = [&](std::uint64_t stride, std::uint64_t head, std::uint32_t len) {
        return stride * (p.m - 1) + head * (slabs - 1) + len;
    };
    p.w = job.bytes_in(std::size_t{p.n} * slabs * (p.k / elems * job.bytes("ty")));
    p.x = job.floats_in(spread(p.x_stride, p.x_head, p.k));
    p.y = job.out<float>(spread(p.y_stride, p.y_head, p.n) * sizeof(float));
    job.run(p, tiles(p.n, rows) * tiles(p.m, tokens), slabs);
}

void linear(Job &job) {
    const int elems = job.value("ty");
    // Around a few steps of columns, or a few whole blocks.
    const std::uint32_t k = elems == 1 ? job.size(64) : job.random.between(1, elems == 32 ? 5 : 2) * elems;
    run_linear(job, job.value("rows"), job.value("tokens"), k, 1);
}

void linear_float(Job &job) { run_linear(job, 8 * job.value("rows"), 16, 32 * job.size(4), 4); }

int round_up(std::uint32_t n, int to) { return (static_cast<int>(n) + to - 1) / to; }

void quantize(Job &job) {
    quantize_params p{};
    p.m = job.random.between(1, 17);
    p.k = 32 * job.size(TILE_COLS / 32);
    p.x = job.floats_in(std::size_t{p.m} * p.k);
    const std::uint32_t blocks = round_up(p.m, TILE_TOKENS) * round_up(p.k, TILE_COLS);
    p.out = job.out<tile_act>(blocks * sizeof(tile_act));
    job.run(p, blocks);
}

void repack(Job &job) {
    repack_params p{};
    const int elems = job.value("ty");
    p.n = job.random.between(1, 33);
    p.k = elems * job.size(2);
    p.src = job.bytes_in(std::size_t{p.n} * (p.k / elems) * job.bytes("ty"));
    const std::size_t tiles = round_up(p.n, TILE_ROWS) * round_up(p.k, TILE_COLS);
    p.out = job.out(tiles * (TILE_ROWS * TILE_COLS / elems * job.bytes("ty")));
    job.run(p, round_up(static_cast<int>(tiles), job.value("warps")));
}

// Some heads of a group's outputs rotated, in place or elsewhere.
void rotate(Job &job, linear_group &group, std::uint32_t m) {
    linear_rotation &r = group.rotation;
    r.stride = 2 * job.random.between(1, 12);
    r.width = 2 * job.random.between(1, static_cast<int>(r.stride / 2));
    if (group.n < r.stride || job.coin()) return;
    r.heads = job.random.between(1, static_cast<int>(group.n / r.stride));
    r.first = 2 * job.random.between(0, static_cast<int>((r.stride - r.width) / 2));
    r.angles = job.floats_in(std::size_t{m} * r.width);
    if (job.coin()) {
        r.y = group.y + r.first, r.y_stride = group.y_stride, r.y_head = r.stride;
        return;
    }
    r.y_head = r.width + job.random.between(0, 3);
    r.y_stride = std::uint64_t{r.heads} * r.y_head + job.random.between(0, 3);
    r.y = job.out<float>((r.y_stride * (m - 1) + std::uint64_t{r.y_head} * (r.heads - 1) + r.width) * sizeof(float));
}

void linear_decode(Job &job) {
    linear_decode_params p{};
    const int elems = job.value("ty");
    const bool glu = job.value("glu") != 0;
    const int tokens = job.value("tokens"); // of more than one tile all must be there
    p.m = job.random.between(tokens > TILE_TOKENS ? tokens - TILE_TOKENS + 1 : 1, tokens);
    p.k_tiles = job.size(job.value("warps"), 20);
    p.n_groups = glu ? 2 : job.random.between(1, LINEAR_GROUPS);
    int row_tiles = 0;
    for (std::uint32_t i = 0; i < p.n_groups; ++i) {
        linear_group &group = p.groups[i];
        group.n = glu && i == 1 ? p.groups[0].n : job.random.between(1, 50);
        const std::size_t tiles = round_up(group.n, TILE_ROWS);
        group.w = job.bytes_in(p.k_tiles * tiles * (TILE_ROWS * TILE_COLS / elems * job.bytes("ty")));
        if (glu && i == 1) continue;
        row_tiles += static_cast<int>(tiles);
        group.y = job.out<float>(std::size_t{p.m} * group.n * sizeof(float));
        group.y_stride = group.n;
        if (!glu) rotate(job, group, p.m);
    }
    p.x = static_cast<const tile_act *>(job.bytes_in(p.k_tiles * round_up(p.m, TILE_TOKENS) * sizeof(tile_act)));
    p.blocks = job.random.between(1, row_tiles);
    const std::uint32_t n_float = job.random.between(0, LINEAR_GROUPS - static_cast<int>(p.n_groups));
    int float_tiles = 0;
    p.k = p.k_tiles * TILE_COLS - 32 * job.random.between(0, 7);
    for (std::uint32_t i = p.n_groups; i < p.n_groups + n_float; ++i) {
        linear_group &group = p.groups[i];
        group.n = job.random.between(1, 20);
        group.w = job.bytes_in(std::size_t{group.n} * p.k * sizeof(float));
        group.y = job.out<float>(std::size_t{p.m} * group.n * sizeof(float));
        group.y_stride = group.n;
        float_tiles += round_up(group.n, 4) * round_up(p.m, 4);
    }
    if (n_float > 0) p.x_f32 = static_cast<const float *>(job.bytes_in(std::size_t{p.m} * p.k * sizeof(float)));
    job.run(p, p.blocks + float_tiles);
}

void linear_gemm(Job &job) {
    linear_gemm_params p{};
    const int elems = job.value("ty");
    const bool glu = job.value("glu") != 0, f16 = job.value("act") == 16;
    const int rows = TILE_ROWS * job.value("rows") * job.value("row_warps") / (glu ? 2 : 1);
    const int tokens = TILE_TOKENS * job.value("tokens") * job.value("token_warps");
    p.m = job.random.between(1, tokens + 9);
    p.k_tiles = job.random.between(1, 4);
    p.slabs = job.random.between(1, 2);
    p.n_groups = glu ? 2 : job.random.between(1, 2);
    std::uint32_t widest = 0;
    for (std::uint32_t i = 0; i < p.n_groups; ++i) {
        p.groups[i].n = glu && i == 1 ? p.groups[0].n : job.random.between(1, rows + 20);
        widest = std::max(widest, p.groups[i].n);
    }
    p.y_slab = widest + job.random.between(0, 3);
    int steps = 0;
    for (std::uint32_t i = 0; i < p.n_groups; ++i) {
        linear_group &group = p.groups[i];
        const std::size_t tiles = std::size_t{p.slabs} * round_up(group.n, TILE_ROWS) * p.k_tiles;
        group.w = job.bytes_in(tiles * (TILE_ROWS * TILE_COLS / elems * job.bytes("ty")));
        group.y_stride = p.y_slab * p.slabs;
        if (glu && i == 1) continue;
        // Nothing behind the last slab of the last row.
        const std::size_t values = std::size_t{group.y_stride} * (p.m - 1) + p.y_slab * (p.slabs - 1) + group.n;
        group.y = job.out<float>(values * sizeof(float));
        if (!glu && p.slabs == 1) rotate(job, group, p.m);
        steps += round_up(group.n, rows) * round_up(p.m, tokens) * static_cast<int>(p.k_tiles * p.slabs);
    }
    const std::size_t token_tiles = std::size_t{p.slabs} * round_up(p.m, TILE_TOKENS);
    p.x = job.bytes_in(token_tiles * p.k_tiles * (f16 ? sizeof(tile_act_f16) : sizeof(tile_act)));
    p.cut = job.coin();
    const int blocks = job.random.between(1, std::min(steps, 4));
    const std::size_t sums = std::size_t{2} * job.value("row_warps") * job.value("rows") * TILE_ROWS * tokens;
    p.partial = job.out<float>(blocks * sums * sizeof(float));
    p.arrived = job.out<std::uint32_t>(blocks * sizeof(std::uint32_t));
    std::fill_n(p.arrived, blocks, 0u);
    job.run(p, blocks);
}

void quantize_f16(Job &job) {
    quantize_f16_params p{};
    const int slabs = job.random.between(1, 2);
    p.m = job.random.between(1, 17);
    p.k = 32 * job.size(TILE_COLS / 32);
    p.x_slab = p.k + 4 * job.random.between(0, 2);
    p.x_stride = slabs * p.x_slab + 4 * job.random.between(0, 2);
    p.x = job.floats_in(p.x_stride * (p.m - 1) + p.x_slab * (slabs - 1) + p.k);
    const std::size_t tiles = std::size_t{1} * slabs * round_up(p.m, TILE_TOKENS);
    p.out = job.out<tile_act_f16>(tiles * round_up(p.k, TILE_COLS) * sizeof(tile_act_f16));
    job.run(p, round_up(p.m, TILE_TOKENS) * TILE_TOKENS, slabs);
}

void quantize_rows(Job &job) {
    quantize_rows_params p{};
    p.m = job.random.between(1, 17);
    p.k = 32 * job.size(TILE_COLS / 32);
    p.x = job.floats_in(std::size_t{p.m} * p.k);
    const std::size_t rows = std::size_t{p.m} * round_up(p.k, TILE_COLS);
    p.out = job.out<row_act>(rows * sizeof(row_act));
    if (job.coin()) { // by place, not all of which there are
        p.top_k = job.random.between(1, 3);
        auto *sorted = job.out<std::uint32_t>(p.m * sizeof(std::uint32_t));
        for (std::uint32_t i = 0; i < p.m; ++i) sorted[i] = job.random.word() % (p.m * p.top_k);
        auto *places = job.out<std::uint32_t>(sizeof(std::uint32_t));
        *places = job.random.between(0, static_cast<int>(p.m));
        p.sorted = sorted, p.places = places;
    }
    job.run(p, tiles(rows, job.value("warps")));
}

const row_act *rows_in(Job &job, std::size_t rows) { return static_cast<const row_act *>(job.bytes_in(rows * sizeof(row_act))); }

constexpr std::size_t kTileBytes[] = {sizeof(tile_q4_K), sizeof(tile_q5_K), sizeof(tile_q6_K), sizeof(tile_q5_0), sizeof(tile_q8_0)};

// Matrices of some type, `n` rows of `k_tiles` tiles each; several are of one type.
template <int kN> void stacks(Job &job, moe_matrix (&w)[kN], std::size_t slabs, std::size_t n, std::size_t k_tiles) {
    const int ty = job.random.between(TILES_Q4_K, TILES_Q8_0);
    for (moe_matrix &one : w) {
        one.ty = static_cast<tiles_type>(ty);
        one.w = job.bytes_in(slabs * round_up(n, TILE_ROWS) * k_tiles * kTileBytes[ty]);
    }
}

// Up to eight tokens, some of whose slots have an expert of another stack or none.
moe_pairs pairs_of(Job &job, int n_experts) {
    moe_pairs p{};
    p.m = job.random.between(1, MOE_ROWS);
    p.top_k = job.random.between(0, MOE_PAIRS / static_cast<int>(p.m));
    p.n_experts = n_experts;
    p.first = job.random.between(0, 3);
    p.early = job.coin();
    auto *ids = job.out<std::uint32_t>(p.m * p.top_k * sizeof(std::uint32_t));
    for (std::uint32_t i = 0; i < p.m * p.top_k; ++i) ids[i] = job.random.between(0, 9) == 0 ? ~0u : job.random.word() % (p.n_experts + 5);
    p.ids = ids;
    return p;
}

void moe_rows(Job &job) {
    moe_rows_params p{};
    const bool glu = job.value("glu") != 0;
    const int n_experts = job.random.between(1, 5);
    p.pairs = pairs_of(job, n_experts);
    const std::uint32_t places = p.pairs.m * p.pairs.top_k;
    p.n = glu ? 32 * job.random.between(1, 3) : job.random.between(1, 70);
    p.k_tiles = job.random.between(1, 3);
    stacks(job, p.experts, n_experts, p.n, p.k_tiles);
    if (glu && job.coin()) {
        p.n_shared = 32 * job.random.between(1, 3);
        stacks(job, p.shared, 1, p.n_shared, p.k_tiles);
    }
    p.x = rows_in(job, std::size_t{glu ? p.pairs.m : places} * p.k_tiles);
    if (glu) p.h = job.out<row_act>(places * round_up(p.n, TILE_COLS) * sizeof(row_act));
    else p.y = job.out<float>(std::size_t{places} * p.n * sizeof(float));
    if (glu && p.n_shared > 0) p.h_shared = job.out<row_act>(p.pairs.m * round_up(p.n_shared, TILE_COLS) * sizeof(row_act));
    const int blocks = job.random.between(1, job.coin() ? 5 : 200); // more than there are tiles, too
    p.partial = job.out<float>(std::size_t{static_cast<unsigned>(blocks)} * 2 * 4 * 128 * sizeof(float));
    p.arrived = job.out<std::uint32_t>(blocks * sizeof(std::uint32_t));
    std::fill_n(p.arrived, blocks, 0u);
    job.run(p, blocks);
    for (int i = 0; i < blocks; ++i) CHECK(p.arrived[i] == 0, "block %d of %d: a counter is left at %u", i, blocks, p.arrived[i]);
}

void moe_down(Job &job) {
    moe_down_params p{};
    const int n_experts = job.random.between(1, 5);
    p.pairs = pairs_of(job, n_experts);
    const std::uint32_t places = p.pairs.m * p.pairs.top_k;
    p.n = job.random.between(1, 200);
    p.k_tiles = job.random.between(1, 3);
    p.weights = job.floats_in(places);
    moe_matrix w[1];
    stacks(job, w, n_experts, p.n, p.k_tiles);
    p.experts = w[0];
    p.h = rows_in(job, std::size_t{places} * p.k_tiles);
    if (job.coin()) {
        p.k_shared = job.random.between(1, 3);
        stacks(job, w, 1, p.n, p.k_shared);
        p.shared = w[0];
        p.h_shared = rows_in(job, std::size_t{p.pairs.m} * p.k_shared);
    }
    p.y = job.out<float>(std::size_t{p.pairs.m} * p.n * sizeof(float));
    const int blocks = job.random.between(1, job.coin() ? 5 : 200); // more than there are tiles, too
    p.partial = job.out<float>(std::size_t{static_cast<unsigned>(blocks)} * 2 * 128 * sizeof(float));
    p.arrived = job.out<std::uint32_t>(blocks * sizeof(std::uint32_t));
    std::fill_n(p.arrived, blocks, 0u);
    job.run(p, blocks);
    for (int i = 0; i < blocks; ++i) CHECK(p.arrived[i] == 0, "block %d of %d: a counter is left at %u", i, blocks, p.arrived[i]);
}

void moe_gemm(Job &job) {
    moe_gemm_params p{};
    const bool glu = job.value("glu") != 0;
    const int height = TILE_TOKENS * job.value("tokens"), elems = job.value("ty");
    p.n = glu ? 32 * job.random.between(1, 5) : job.random.between(1, 200);
    p.k_tiles = job.random.between(1, 3);
    for (moe_matrix &w : p.experts)
        w.w = job.bytes_in(std::size_t{2} * round_up(p.n, TILE_ROWS) * p.k_tiles * (TILE_ROWS * TILE_COLS / elems * job.bytes("ty")));
    // Two experts, of which one may be left to moe_rows.
    const std::uint32_t counts[3] = {std::uint32_t(height), std::uint32_t(job.random.between(1, height)),
                                     std::uint32_t(job.random.between(1, height))};
    const std::uint32_t places = counts[0] + counts[1] + counts[2];
    auto *list = job.out<moe_tile>(3 * sizeof(moe_tile));
    list[0] = {0, 1, std::uint16_t(counts[0]), 0, 2};
    list[1] = {counts[0], 1, std::uint16_t(counts[1]), 0, 2};
    list[2] = {counts[0] + counts[1], 0, std::uint16_t(counts[2]), 2, 1};
    p.tiles = list;
    auto *counters = job.out<std::uint32_t>(2 * sizeof(std::uint32_t));
    counters[0] = 3, counters[1] = 0;
    p.n_tiles = counters, p.queue = counters + 1;
    p.top_k = job.random.between(1, 3);
    auto *sorted = job.out<std::uint32_t>(places * sizeof(std::uint32_t));
    for (std::uint32_t i = 0; i < places; ++i) sorted[i] = places - 1 - i;
    p.sorted = sorted;
    p.x = rows_in(job, std::size_t{glu ? (places - 1) / p.top_k + 1 : places} * p.k_tiles);
    if (glu) p.h = job.out<row_act>(places * round_up(p.n, TILE_COLS) * sizeof(row_act));
    else p.y = job.out<float>(std::size_t{places} * p.n * sizeof(float));
    job.run(p, job.random.between(1, 3));
}

struct Family {
    const char *name;
    void (*launch)(Job &job);
};
router_params router_of(Job &job) {
    router_params p{};
    p.n = job.random.between(1, job.value("experts"));
    p.m = job.random.between(1, 9);
    p.top_k = job.random.between(1, std::min(static_cast<int>(p.n), 32));
    p.gating = job.coin() ? GATING_SIGMOID : GATING_SOFTMAX;
    p.normalize = job.coin();
    p.scale = 2.5f;
    if (const std::uint32_t groups = job.random.between(2, 8); p.n % groups == 0) {
        p.group_size = p.n / groups;
        p.groups_used = job.random.between(static_cast<int>(round_up(p.top_k, p.group_size)), static_cast<int>(groups));
    }
    p.bias = job.floats_in(p.n);
    p.ids = job.out<std::uint32_t>(std::size_t{p.m} * p.top_k * sizeof(std::uint32_t));
    p.weights = job.out<float>(std::size_t{p.m} * p.top_k * sizeof(float));
    return p;
}

void router(Job &job) {
    router_params p = router_of(job);
    p.k = 4 * job.random.between(1, 300);
    p.w = job.floats_in(std::size_t{p.n} * p.k);
    p.x = job.floats_in(std::size_t{p.m} * p.k);
    p.logits = job.out<float>(std::size_t{p.m} * p.n * sizeof(float));
    const int across = round_up(p.m, ROUTER_TOKENS);
    p.arrived = job.out<std::uint32_t>(across * sizeof(std::uint32_t));
    std::fill_n(p.arrived, across, 0u);
    job.run(p, round_up(p.n, job.value("rows")) * across);
}

void router_choose(Job &job) {
    router_params p = router_of(job);
    p.logits = job.floats_in(std::size_t{p.m} * p.n);
    job.run(p, round_up(p.m, job.value("warps")));
}

void sort_pairs(Job &job, int n, int blocks) {
    moe_sort_params p{};
    p.n = n;
    p.first_expert = job.random.between(0, 5);
    p.height = job.random.between(1, 9);
    p.n_experts = job.random.between(1, std::min(job.value("experts"), 64));
    auto *ids = job.out<std::uint32_t>(p.n * sizeof(std::uint32_t));
    for (std::uint32_t i = 0; i < p.n; ++i) ids[i] = job.random.word() % 16 == 0 ? ~0u : job.random.word() % (p.n_experts + 9);
    p.ids = ids;
    p.offsets = job.out<std::uint32_t>((p.n_experts + 1) * sizeof(std::uint32_t));
    p.sorted = job.out<std::uint32_t>(p.n * sizeof(std::uint32_t));
    p.places = job.out<std::uint32_t>(p.n * sizeof(std::uint32_t));
    p.tiles = job.out<moe_tile>((p.n / p.height + std::min(p.n, p.n_experts)) * sizeof(moe_tile));
    p.counters = job.out<std::uint32_t>(MOE_COUNTERS * sizeof(std::uint32_t));
    if (blocks > 1) {
        p.arrived = job.out<std::uint32_t>(sizeof(std::uint32_t));
        *p.arrived = 0;
        blocks = (p.n_experts + blocks - 1) / blocks;
    }
    job.run(p, blocks);
}

void moe_sort(Job &job) { sort_pairs(job, job.size(1024), job.value("own")); }
void moe_sort_few(Job &job) { sort_pairs(job, job.size(1024, 32 * job.value("steps") * job.value("warps")), 1); }

void moe_sum(Job &job) {
    moe_sum_params p{};
    const int load = job.value("load"), cols = 32 * job.value("warps");
    p.m = job.random.between(1, 3);
    p.top_k = job.random.between(0, 2 * job.value("slots"));
    p.hidden = load * job.size(cols);
    const std::uint32_t pairs = p.m * p.top_k, rows = job.random.between(1, 9);
    p.rows = job.floats_in(std::size_t{rows} * p.hidden);
    auto *places = job.out<std::uint32_t>(pairs * sizeof(std::uint32_t));
    for (std::uint32_t i = 0; i < pairs; ++i) places[i] = job.coin() ? job.random.word() % rows : ~0u;
    p.places = places;
    p.weights = job.floats_in(pairs);
    p.y = job.floats_in_out(std::size_t{p.m} * p.hidden);
    if (job.coin()) p.shared = job.coin() ? p.y : job.floats_in(std::size_t{p.m} * p.hidden);
    job.run(p, p.m * tiles(p.hidden, cols * load));
}

void moe_dot(Job &job) {
    const int elems = job.value("ty"), height = job.value("tokens"), rows = job.value("rows");
    moe_dot_params p{};
    p.n = job.size(rows, rows + 1);
    p.k = elems == 1 ? job.size(64) : job.random.between(1, elems == 32 ? 5 : 2) * elems;
    p.round = elems == 1 ? ROUND_NONE : job.coin() ? ROUND_INT8 : ROUND_NONE;
    // Two experts: two tiles of one, one of the other.
    const std::uint32_t counts[3] = {std::uint32_t(height), std::uint32_t(job.random.between(1, height)),
                                     std::uint32_t(job.random.between(1, height))};
    const std::uint32_t places = counts[0] + counts[1] + counts[2];
    auto *list = job.out<moe_tile>(4 * sizeof(moe_tile)); // one more than there are
    list[0] = {0, 1, std::uint16_t(counts[0]), 0, 2};
    list[1] = {counts[0], 1, std::uint16_t(counts[1]), 0, 2};
    list[2] = {counts[0] + counts[1], 0, std::uint16_t(counts[2]), 2, 1};
    p.tiles = list;
    auto *counters = job.out<std::uint32_t>(MOE_COUNTERS * sizeof(std::uint32_t));
    counters[0] = 3;
    p.counters = counters;
    p.top_k = job.random.between(1, 3);
    std::uint32_t x_rows = places;
    if (job.coin()) {
        auto *sorted = job.out<std::uint32_t>(places * sizeof(std::uint32_t));
        for (std::uint32_t i = 0; i < places; ++i) sorted[i] = places - 1 - i;
        p.sorted = sorted;
        x_rows = (places - 1) / p.top_k + 1;
    }
    p.w = job.bytes_in(std::size_t{2} * p.n * (p.k / elems * job.bytes("ty")));
    p.x = job.floats_in(std::size_t{x_rows} * p.k);
    p.y = job.out<float>(std::size_t{places} * p.n * sizeof(float));
    job.run(p, 4 * tiles(p.n, rows));
}

// Slots of a cache of `slots` rows, each once, in falling order.
const std::uint32_t *some_slots(Job &job, std::uint32_t m, std::uint32_t slots) {
    auto *list = job.out<std::uint32_t>(m * sizeof(std::uint32_t));
    for (std::uint32_t t = 0; t < m; ++t) list[t] = slots - 1 - t;
    return list;
}

void rope_angles(Job &job) {
    rope_angles_params p{};
    p.m = job.size(job.value("warps"));
    p.pairs = job.random.between(1, ROPE_PAIRS);
    for (double &quarters : p.quarters) quarters = (1 + job.random.between(0, 999)) / 1000.;
    p.positions = static_cast<const std::uint32_t *>(job.bytes_in(p.m * sizeof(std::uint32_t)));
    p.angles = job.out<float>(std::size_t{p.m} * p.pairs * 2 * sizeof(float));
    job.run(p, tiles(p.m, job.value("warps")));
}

void rope(Job &job) {
    rope_params p{};
    const int pairs = job.value("pairs"), threads = 32 * job.value("warps");
    p.m = job.random.between(1, 3);
    p.pairs = pairs * job.random.between(1, 32);
    const std::uint32_t dim = 2 * p.pairs, step = 2 * pairs;
    p.angles = job.floats_in(std::size_t{p.m} * dim);
    p.heads = job.size(threads / (p.pairs / pairs) + 1);
    p.x_head = dim + step * job.random.between(0, 2);
    p.x_stride = std::uint64_t{p.heads} * p.x_head;
    const bool in_place = job.coin();
    p.y_head = in_place ? p.x_head : dim + step * job.random.between(0, 2);
    p.y_stride = std::uint64_t{p.heads} * p.y_head;
    // Nothing behind the last head of the last row.
    const auto size = [&](std::uint64_t stride, std::uint32_t head) { return (p.m - 1) * stride + (p.heads - 1) * head + dim; };
    float *x = job.floats_in_out(size(p.x_stride, p.x_head));
    p.x = x;
    p.y = in_place ? x : job.out<float>(size(p.y_stride, p.y_head) * sizeof(float));
    job.run(p, p.m * tiles(p.heads * (p.pairs / pairs), threads));
}

void cache_write(Job &job) {
    cache_write_params p{};
    const int load = job.value("load"), warps = job.value("warps");
    p.m = job.random.between(1, 5);
    p.width = load * job.size(32);
    const std::uint32_t slots = p.m + 2;
    p.x = job.floats_in(std::size_t{p.m} * p.width);
    p.slots = some_slots(job, p.m, slots);
    p.cache = job.out(std::size_t{slots} * p.width * job.bytes("out"));
    job.run(p, tiles(std::size_t{p.m} * tiles(p.width, 32 * load), warps));
}

void cache_write_fp8(Job &job) {
    cache_write_params p{};
    const int warps = job.value("warps"), blocks = job.random.between(1, 5);
    p.m = job.size(warps);
    p.width = 128 * blocks + 64;
    const std::uint32_t slots = p.m + 2;
    p.x = job.floats_in(std::size_t{p.m} * p.width);
    p.slots = some_slots(job, p.m, slots);
    p.cache = job.out(std::size_t{slots} * (blocks * 132 + 128));
    job.run(p, tiles(std::size_t{p.m} * (blocks + 1), warps));
}

void cache_write_int8(Job &job) {
    cache_write_params p{};
    p.m = job.size(job.value("warps"));
    p.width = 128;
    p.x = job.floats_in(std::size_t{p.m} * p.width);
    p.slots = some_slots(job, p.m, 2 * PAGE_ROWS);
    p.cache = job.out(2 * PAGE_ROWS * (p.width + 4));
    job.run(p, tiles(p.m, job.value("warps")));
}

void linear_heads(Job &job) {
    linear_heads_params p{};
    const int elems = job.value("ty"), heads = job.random.between(1, 3);
    p.m = job.random.between(1, TILE_TOKENS * job.value("tokens"));
    p.k = 32 * job.random.between(1, LINEAR_HEADS_COLS / 32);
    const bool rounds = job.coin();
    p.n = rounds ? 32 * job.random.between(1, 9) : job.random.between(1, 20 * TILE_ROWS);
    p.x_head = p.k + 4 * job.random.between(0, 3), p.x_stride = p.x_head * heads;
    p.y_head = p.n + job.random.between(0, 3), p.y_stride = p.y_head * heads;
    const std::size_t row_tiles = tiles(p.n, TILE_ROWS), k_tiles = tiles(p.k, TILE_COLS);
    p.w = job.bytes_in(heads * row_tiles * k_tiles * (TILE_ROWS * TILE_COLS / elems * job.bytes("ty")));
    // Nothing behind the last head of the last row.
    p.x = job.floats_in(p.x_stride * (p.m - 1) + p.x_head * (heads - 1) + p.k);
    if (!rounds || job.coin()) p.y = job.out<float>((p.y_stride * (p.m - 1) + p.y_head * (heads - 1) + p.n) * sizeof(float));
    if (rounds) p.out = job.out<tile_act>(tiles(std::size_t{p.n} * heads, TILE_COLS) * tiles(p.m, TILE_TOKENS) * sizeof(tile_act));
    job.run(p, tiles(row_tiles, 2 * job.value("warps")), heads);
}

void norm_tiles(Job &job) {
    norm_tiles_params p{};
    p.n_rows = job.size(TILE_TOKENS);
    p.n = 32 * job.random.between(1, 4 * job.value("vecs") * job.value("warps"));
    p.eps = 1e-5f;
    const std::size_t values = std::size_t{p.n_rows} * p.n, k_tiles = tiles(p.n, TILE_COLS);
    p.x = job.floats_in_out(values);
    if (job.coin()) p.r = job.floats_in(values);
    p.w = job.floats_in(p.n);
    if (job.coin()) p.y = job.out<float>(values * sizeof(float));
    const bool tiled = job.coin();
    if (tiled) {
        p.f16_tiles = job.coin();
        p.tiles = job.out(k_tiles * tiles(p.n_rows, TILE_TOKENS) * (p.f16_tiles ? sizeof(tile_act_f16) : sizeof(tile_act)));
    }
    if (!tiled || job.coin()) p.rows = job.out<row_act>(p.n_rows * k_tiles * sizeof(row_act));
    job.run(p, tiled ? tiles(p.n_rows, TILE_TOKENS) * TILE_TOKENS : p.n_rows);
}

void post_a(Job &job) {
    post_a_params p{};
    const int warps = job.value("warps"), most = 128 * warps * job.value("vecs");
    p.m = job.size(TILE_TOKENS);
    const bool tiled = job.coin();
    p.q_rows = tiled ? tiles(p.m, TILE_TOKENS) * TILE_TOKENS : p.m;
    p.q_cols = tiled ? 32 * job.random.between(1, most / 32) : 4 * job.random.between(1, most / 4);
    p.latent = 4 * job.random.between(1, 128), p.rope = 4 * job.random.between(1, 32);
    const bool fp8 = job.coin();
    if (fp8) p.latent = 128 * job.random.between(1, 4), p.rope = 64;
    p.eps = 1e-5f, p.key_eps = 1e-6f;
    const std::size_t m = p.m, slots = m + 2;
    p.q = job.floats_in(m * p.q_cols);
    p.q_norm = job.floats_in(p.q_cols);
    p.kv = job.floats_in(m * (p.latent + p.rope));
    p.kv_norm = job.floats_in(p.latent);
    p.angles = job.floats_in(m * p.rope);
    p.slots = some_slots(job, p.m, static_cast<std::uint32_t>(slots));
    const std::size_t bytes[] = {4, 2, 2}; // of CACHE_F32, CACHE_BF16, CACHE_F16
    p.latent_type = job.random.between(0, 2), p.key_type = job.random.between(0, 2);
    if (fp8) p.latent_type = CACHE_FP8;
    p.latent_cache = job.out(slots * (fp8 ? p.latent / 128 * 132 + 128 : (p.latent + p.rope) * bytes[p.latent_type]));
    const bool key = job.coin();
    if (key) {
        p.key_cols = job.coin() ? 128 : p.rope + 4 * job.random.between(0, static_cast<int>((128 - p.rope) / 4));
        p.key = job.floats_in(m * p.key_cols);
        p.key_norm = job.floats_in(p.key_cols);
        p.key_bias = job.floats_in(p.key_cols);
        const bool int8 = p.key_cols == 128;
        if (int8) p.key_type = CACHE_INT8;
        p.key_cache = job.out(int8 ? tiles(slots, PAGE_ROWS) * PAGE_ROWS * std::size_t{132} : slots * p.key_cols * bytes[p.key_type]);
    }
    if (!tiled || job.coin()) p.y = job.out<float>(m * p.q_cols * sizeof(float));
    if (tiled) {
        p.f16_tiles = job.coin();
        const std::size_t count = tiles(p.q_cols, TILE_COLS) * tiles(p.m, TILE_TOKENS);
        p.tiles = job.out(count * (p.f16_tiles ? sizeof(tile_act_f16) : sizeof(tile_act)));
    }
    job.run(p, p.q_rows + tiles(key ? 2 * m : m, warps));
}

void swiglu(Job &job) {
    swiglu_params p{};
    const int tile = 128 * job.value("warps") * job.value("unroll");
    p.n = job.size(tile);
    p.gate = job.floats_in_out(p.n);
    p.up = job.floats_in(p.n);
    p.y = job.coin() ? const_cast<float *>(p.gate) : job.out<float>(p.n * sizeof(float));
    job.run(p, tiles(p.n, tile));
}

void dsa_topk(Job &job) {
    dsa_topk_params p{};
    const int held = job.value("held"), rows = job.random.between(1, 3);
    p.n = job.size(1024);
    p.stride = p.n;
    p.k = job.random.between(1, 300);
    p.more = job.coin();
    const std::uint32_t parts = held > 0 ? job.random.between(1, 4) : 1, room = TOPK_LIST / parts;
    p.sharing = {parts, room, std::min(room, p.k / parts + std::uint32_t(job.random.between(1, 50))), 200};
    auto *scores = job.out<float>(std::size_t(rows) * p.n * sizeof(float));
    // Few values, many, or nearly the same, so that all ways to narrow are taken.
    const int spread = job.random.between(0, 2);
    for (std::size_t i = 0; i < std::size_t(rows) * p.n; ++i) {
        const std::uint32_t word = job.random.word();
        scores[i] = spread == 0 ? float(word % 3) : spread == 1 ? float(std::int32_t(word)) : 1.f + float(word % 4096) / 8388608.f;
    }
    p.scores = scores;
    auto *visible = job.out<std::uint32_t>(rows * sizeof(std::uint32_t));
    for (int t = 0; t < rows; ++t) visible[t] = job.random.word() % (p.n + 2);
    p.visible = visible;
    p.indices = job.out<std::uint32_t>(std::size_t(rows) * p.k * sizeof(std::uint32_t));
    p.lens = job.out<std::uint32_t>(rows * sizeof(std::uint32_t));
    if (parts > 1) {
        p.shared = job.out<dsa_topk_row>(rows * sizeof(dsa_topk_row));
        std::fill_n(p.shared, rows, dsa_topk_row{});
    }
    job.run(p, rows * parts);
}

dsa_indexer_params indexer_params(Job &job, int group, std::size_t bytes_of_key) {
    dsa_indexer_params p{};
    const int before = job.random.between(0, 2), after = job.random.between(0, 2);
    p.first = before;
    p.m = job.random.between(1, 6);
    p.rows.m = before + p.m + after;
    // Two sequences, of which the first has as many rows as the other leaves.
    const std::uint32_t one = job.random.between(0, p.rows.m), pages = 4;
    std::uint32_t *positions = job.out<std::uint32_t>(p.rows.m * 4), *starts = job.out<std::uint32_t>(p.rows.m * 4);
    std::uint32_t *tables = job.out<std::uint32_t>(2 * pages * 4);
    std::uint32_t most = 0;
    const std::uint32_t at[2] = {std::uint32_t(job.random.between(0, 200)), std::uint32_t(job.random.between(0, 200))};
    for (std::uint32_t t = 0; t < p.rows.m; ++t) {
        positions[t] = t < one ? at[0] + t : at[1] + t - one;
        starts[t] = t < one ? 0 : pages;
        most = std::max(most, positions[t] + 1);
    }
    for (std::uint32_t i = 0; i < 2 * pages; ++i) tables[i] = (i * 5 + 3) % (2 * pages);
    p.rows.positions = positions, p.rows.table_starts = starts, p.rows.tables = tables;
    p.rows.slots = positions; // not read
    p.heads = job.random.between(1, group > 0 ? INDEXER_HEADS : 40);
    p.dim = group > 0 ? int(INDEXER_DIM) : job.random.between(1, 70);
    p.q = job.floats_in(std::size_t{p.rows.m} * p.heads * p.dim);
    p.w = job.floats_in(std::size_t{p.rows.m} * p.heads);
    p.keys = job.bytes_in(2 * pages * PAGE_ROWS * (p.dim * bytes_of_key + (bytes_of_key == 1 ? sizeof(float) : 0)));
    p.stride = most + job.random.between(0, 3);
    p.scores = job.out<float>(p.m * p.stride * sizeof(float));
    p.scale = 0.5f;
    p.least = job.coin() ? 0 : job.random.between(0, 150);
    p.fill = p.least == 0 ? std::uint32_t(p.stride) : 0;
    p.workers = job.random.between(1, 3);
    return p;
}

void indexer(Job &job, int group, std::size_t bytes_of_key) {
    const dsa_indexer_params p = indexer_params(job, group, bytes_of_key);
    job.run(p, tiles(p.m, std::max(group, 1)) * p.workers);
}

void select_at_once(Job &job, std::size_t bytes_of_key) {
    dsa_select_params p{};
    p.of = indexer_params(job, 1, bytes_of_key);
    p.k = job.random.between(1, 150);
    const std::uint32_t parts = job.random.between(1, 4), room = job.random.between(20, 300);
    p.sharing = {parts, room, std::min(room, p.k / parts + std::uint32_t(job.random.between(1, 50))), 200};
    p.shared = job.out<dsa_topk_row>(p.of.m * sizeof(dsa_topk_row));
    std::fill_n(p.shared, p.of.m, dsa_topk_row{});
    p.indices = job.out<std::uint32_t>(std::size_t(p.of.m) * p.k * sizeof(std::uint32_t));
    p.lens = job.out<std::uint32_t>(p.of.m * sizeof(std::uint32_t));
    job.run(p, p.of.m * parts);
}

void dsa_select(Job &job) { select_at_once(job, job.bytes("key")); }
void dsa_select_int8(Job &job) { select_at_once(job, 1); }
void dsa_indexer(Job &job) { indexer(job, job.value("rows"), job.bytes("key")); }
void dsa_indexer_int8(Job &job) { indexer(job, job.value("rows"), 1); }
void dsa_indexer_any(Job &job) { indexer(job, 0, job.bytes("key")); }

// Rows of one or two sequences over pages in any order, and which of their keys are selected; slots of the cache.
std::uint32_t rows_of(Job &job, ragged_rows &rows, mla_selection &selected) {
    std::vector<std::uint32_t> positions, slots, starts, tables;
    std::uint32_t pages = 0;
    for (int sequence = job.random.between(1, 2); sequence > 0; --sequence) {
        const std::uint32_t len = job.size(MLA_KEYS), count = tiles(len, PAGE_ROWS), start = tables.size();
        for (std::uint32_t i = 0; i < count; ++i) tables.push_back(pages + count - 1 - i);
        pages += count;
        for (std::uint32_t at = len - std::min<std::uint32_t>(len, job.random.between(1, 3)); at < len; ++at) {
            positions.push_back(at);
            slots.push_back(tables[start + at / PAGE_ROWS] * PAGE_ROWS + at % PAGE_ROWS);
            starts.push_back(start);
        }
    }
    const auto there = [&](const std::vector<std::uint32_t> &values) {
        auto *data = job.out<std::uint32_t>(values.size() * sizeof(std::uint32_t));
        std::copy(values.begin(), values.end(), data);
        return data;
    };
    rows = {there(positions), there(slots), there(starts), there(tables), static_cast<std::uint32_t>(positions.size())};
    if (job.coin()) {
        selected.k = job.random.between(1, 2 * MLA_KEYS);
        std::vector<std::uint32_t> indices, lens;
        for (std::uint32_t position : positions) {
            lens.push_back(job.random.between(0, static_cast<int>(selected.k) + 1)); // more than there is room for, too
            for (std::uint32_t i = 0, at = 0; i < selected.k; ++i, at += job.random.between(1, 2)) indices.push_back(i % 9 == 8 ? position + i : at);
        }
        selected.indices = there(indices), selected.lens = there(lens);
    }
    return pages * PAGE_ROWS;
}

void mla_decode(Job &job) {
    mla_decode_params p{};
    const std::uint32_t slots = rows_of(job, p.rows, p.selected), heads = job.value("heads"), blocks = job.random.between(1, 6);
    p.n_heads = job.random.between(1, static_cast<int>(heads) + 3);
    const std::uint32_t all = p.rows.m * p.n_heads, units = p.rows.m * tiles(p.n_heads, static_cast<int>(heads));
    p.q = job.floats_in(std::size_t{all} * MLA_WIDTH);
    p.cache = job.bytes_in(std::size_t{slots} * (job.value("fp8") ? 656 : MLA_WIDTH * sizeof(std::uint16_t)));
    p.out = job.out<float>(std::size_t{all} * MLA_LATENT * sizeof(float));
    if (job.coin()) p.lse = job.out<float>(all * sizeof(float));
    p.partial = job.out<float>(std::size_t{blocks} * 2 * heads * MLA_LATENT * sizeof(float));
    p.sums = job.out<float>(std::size_t{blocks} * 2 * heads * 2 * sizeof(float));
    p.cuts = job.out<mla_cut>(std::min(units, blocks) * sizeof(mla_cut));
    p.scale = 0.1f;
    job.run(p, blocks);
}

void mla_merge(Job &job) {
    mla_merge_params p{};
    const std::uint32_t heads = job.value("heads"), n = job.random.between(1, 2);
    p.n_heads = job.random.between(1, static_cast<int>(heads) + 3);
    auto *cuts = job.out<mla_cut>(n * sizeof(mla_cut));
    std::uint32_t blocks = 1; // of which the first has no piece
    for (std::uint32_t i = 0; i < n; ++i) {
        cuts[i] = {i, p.n_heads > heads ? i : 0, blocks, static_cast<std::uint32_t>(job.size(8))};
        blocks += cuts[i].pieces;
    }
    cuts[0].pieces *= job.coin();
    p.cuts = cuts;
    p.partial = job.floats_in(std::size_t{blocks} * 2 * heads * MLA_LATENT);
    p.sums = job.floats_in(std::size_t{blocks} * 2 * heads * 2);
    p.out = job.out<float>(std::size_t{n} * p.n_heads * MLA_LATENT * sizeof(float));
    if (job.coin()) p.lse = job.out<float>(std::size_t{n} * p.n_heads * sizeof(float));
    job.run(p, job.value("split") ? 2 * heads * n : heads * n / 2);
}

void mla_float(Job &job) {
    mla_float_params p{};
    const std::uint32_t slots = rows_of(job, p.rows, p.selected);
    p.n_heads = job.random.between(1, 3);
    const bool fp8 = job.value("fp8") != 0;
    p.width = fp8 ? job.random.between(1, 4) * 128 + MLA_ROPE : job.size(MLA_WIDTH / 2, MLA_WIDTH);
    p.latent = job.random.between(1, static_cast<int>(p.width));
    const std::size_t all = std::size_t{p.rows.m} * p.n_heads;
    p.q = job.floats_in(all * p.width);
    p.cache = job.bytes_in(std::size_t{slots} * (fp8 ? (p.width - MLA_ROPE) / 128 * 132 + 2 * MLA_ROPE : p.width * job.bytes("ty")));
    p.out = job.out<float>(all * p.latent * sizeof(float));
    if (job.coin()) p.lse = job.out<float>(all * sizeof(float));
    p.scale = 0.1f;
    job.run(p, static_cast<std::uint32_t>(all));
}

void mla_gather(Job &job) {
    mla_gather_params p{};
    mla_selection none{};
    const std::uint32_t slots = rows_of(job, p.rows, none), row_bytes[] = {4 * PREFILL_WIDTH, 2 * PREFILL_WIDTH, 2 * PREFILL_WIDTH, 656};
    std::uint32_t keys = 0;
    for (std::uint32_t t = 0; t < p.rows.m; ++t) {
        const bool first = t == 0 || p.rows.table_starts[t] != p.rows.table_starts[t - 1];
        if (first) p.sequences.at[p.sequences.n++] = {t, 0, keys, 0};
        prefill_sequence &at = p.sequences.at[p.sequences.n - 1];
        ++at.rows, at.keys = p.rows.positions[t] + 1;
        keys = at.first + round_up(at.keys, PAGE_ROWS) * PAGE_ROWS;
    }
    p.cache = job.bytes_in(std::size_t{slots} * row_bytes[job.value("cache")]);
    p.begin = job.coin() ? PAGE_ROWS : 0; // pages behind the last, too
    const std::uint32_t pages = job.random.between(1, 4);
    p.out = job.out<std::uint16_t>(std::size_t{pages} * PAGE_ROWS * PREFILL_WIDTH * sizeof(std::uint16_t));
    job.run(p, pages);
}

void mla_expand(Job &job) {
    mla_expand_params p{};
    const std::uint32_t tiles = job.random.between(1, 2), cols = job.value("values") ? int(PREFILL_VALUE) : int(PREFILL_NOPE);
    p.n_heads = job.random.between(1, 2);
    p.rows = static_cast<const std::uint16_t *>(job.bytes_in(std::size_t{tiles} * PREFILL_EXPAND * PREFILL_WIDTH * 2));
    p.weights = static_cast<const std::uint16_t *>(job.bytes_in(std::size_t{p.n_heads} * PREFILL_LATENT * cols * 2));
    p.tiles = job.out(std::size_t{tiles} * PREFILL_EXPAND / PREFILL_KEYS * p.n_heads * PREFILL_TILE);
    job.run(p, tiles * p.n_heads);
}

void mla_prefill(Job &job) {
    mla_prefill_params p{};
    std::uint32_t m = 0, keys = 0;
    p.sequences.n = job.random.between(1, 2);
    for (std::uint32_t i = 0; i < p.sequences.n; ++i) {
        const std::uint32_t rows = i == 0 ? job.size(PREFILL_ROWS, PREFILL_ROWS + 1) : job.random.between(1, 20);
        p.sequences.at[i] = {m, rows, keys, rows + job.random.between(0, 40)};
        m += rows, keys += round_up(p.sequences.at[i].keys, PAGE_ROWS) * PAGE_ROWS;
        p.row_tiles += tiles(rows, PREFILL_ROWS);
    }
    // Some of the keys: rows without any, with earlier and with later ones.
    p.begin = job.coin() ? 0 : PREFILL_KEYS, p.end = job.coin() ? keys : p.begin + PREFILL_KEYS;
    p.n_heads = job.random.between(1, 2);
    const std::size_t all = std::size_t{m} * p.n_heads;
    p.q = job.floats_in(all * PREFILL_HEAD);
    p.tiles = job.bytes_in(std::size_t{(p.end - p.begin) / PREFILL_KEYS} * p.n_heads * PREFILL_TILE);
    p.out = job.floats_in_out(all * PREFILL_VALUE);
    p.state = job.floats_in_out(all * 8);
    if (job.coin()) p.lse = job.out<float>(all * sizeof(float));
    p.scale = 0.1f;
    job.run(p, p.row_tiles * p.n_heads);
}

constexpr Family kFamilies[] = {
    {"copy", copy},       {"dequantize", dequantize},       {"embed", embed},
    {"reduce", reduce},   {"layer_norm", layer_norm},       {"norm_quantize", norm_quantize},
    {"quantize", quantize}, {"repack", repack},             {"linear_decode", linear_decode},
    {"linear_gemm", linear_gemm}, {"linear_gemm_wide", linear_gemm}, {"quantize_f16", quantize_f16},
    {"mma_f16", mma},     {"mma_s8", mma},                  {"linear_dot", linear},
    {"linear_tile", linear}, {"linear_float", linear_float}, {"router", router},
    {"router_choose", router_choose}, {"moe_sort", moe_sort}, {"moe_sort_few", moe_sort_few}, {"moe_sum", moe_sum}, {"moe_dot", moe_dot}, {"swiglu", swiglu},
    {"quantize_rows", quantize_rows}, {"moe_rows", moe_rows}, {"moe_down", moe_down}, {"moe_gemm", moe_gemm},
    {"dsa_topk", dsa_topk}, {"dsa_select", dsa_select}, {"dsa_select_int8", dsa_select_int8},
    {"dsa_indexer", dsa_indexer}, {"dsa_indexer_int8", dsa_indexer_int8}, {"dsa_indexer_any", dsa_indexer_any},
    {"mla_decode", mla_decode}, {"mla_few", mla_decode}, {"mla_merge", mla_merge}, {"mla_float", mla_float},
    {"mla_gather", mla_gather}, {"mla_expand", mla_expand}, {"mla_prefill", mla_prefill},
    {"rope_angles", rope_angles}, {"rope", rope},           {"cache_write", cache_write}, {"post_a", post_a},
    {"linear_heads", linear_heads}, {"norm_tiles", norm_tiles},
    {"cache_write_fp8", cache_write_fp8}, {"cache_write_int8", cache_write_int8},
};

const Family *family_of(const char *name) {
    for (const Family &family : kFamilies)
        if (std::strcmp(family.name, name) == 0) return &family;
    return nullptr;
}

} // namespace

TEST(kernels) {
    std::set<std::string> unknown;
    for (const test::Kernel &kernel : test::kernels) {
        const Family *family = family_of(kernel.family);
        if (!family) {
            unknown.insert(kernel.family);
            continue;
        }
        for (int number = 0; number < kCases; ++number) {
            Job job(kernel, number);
            family->launch(job);
            CHECK(job.ran(), "%s, case %d was not launched", kernel.name, number);
            RETURN_IF_FAILED();
        }
    }
    for (const std::string &name : unknown) CHECK(false, "no inputs for the family %s: add them here", name.c_str());
    CHECK(!test::kernels.empty());
}
