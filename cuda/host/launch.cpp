// launch.cpp: checks a launch as the driver would, then runs it.
#include "launch.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>

#include "memory.hpp"
#include "scheduler.hpp"

namespace emu {
namespace {

constexpr std::uint64_t kMaxBlocks = 1u << 22;      // the emulator's own limit: beyond it a test would take hours
constexpr std::uint32_t kMaxSharedBytes = 232448;   // 227 KiB, the most that any supported GPU gives to a block
constexpr std::uint64_t kMaxBuffers = 64;           // each access looks at all of them
constexpr std::uint32_t kMaxResidentThreads = 4096; // when the seed decides; a caller may ask for more

// Blocks are kept between launches: property tests launch thousands of times, and stacks are mappings.
struct Pool {
    std::vector<std::unique_ptr<Block>> blocks;
};
thread_local Pool t_pool;

void answer(const emu_launch &launch, const std::string &text) {
    if (!launch.report || launch.report_bytes == 0) return;
    const std::size_t n = std::min<std::size_t>(text.size(), launch.report_bytes - 1);
    std::memcpy(launch.report, text.data(), n);
    launch.report[n] = '\0';
}

std::string triple(const std::uint32_t v[3]) {
    return "(" + std::to_string(v[0]) + "," + std::to_string(v[1]) + "," + std::to_string(v[2]) + ")";
}

// Empty if the launch fits the kernel.
std::string complaint(const Kernel &kernel, const void *params, const emu_launch &launch) {
    if (!params) return "no params";
    if (launch.params_bytes != kernel.params_bytes)
        return "params of " + std::to_string(launch.params_bytes) + " bytes, the kernel takes " +
               std::to_string(kernel.params_bytes);
    const std::uint64_t block = std::uint64_t{launch.block[0]} * launch.block[1] * launch.block[2];
    if (launch.block[2] > 64 || block != kernel.threads)
        return "block " + triple(launch.block) + ", the kernel runs " + std::to_string(kernel.threads) + " threads";
    const bool fits = launch.grid[0] > 0 && launch.grid[1] > 0 && launch.grid[2] > 0 && launch.grid[0] <= 0x7fffffffu &&
                      launch.grid[1] <= 65535 && launch.grid[2] <= 65535;
    // x * y fits 64 bits; times z is compared by division.
    if (!fits || std::uint64_t{launch.grid[0]} * launch.grid[1] > kMaxBlocks / launch.grid[2])
        return "grid " + triple(launch.grid) + " is empty, more than a device takes, or more than " +
               std::to_string(kMaxBlocks) + " blocks";
    if (launch.shared_bytes > kMaxSharedBytes)
        return std::to_string(launch.shared_bytes) + " bytes of shared memory, the most is " +
               std::to_string(kMaxSharedBytes);
    if (launch.n_buffers > 0 && !launch.buffers) return "a number of buffers, but no buffers";
    if (launch.n_buffers > kMaxBuffers)
        return std::to_string(launch.n_buffers) + " buffers, the most is " + std::to_string(kMaxBuffers);
    return {};
}

void run(Grid &grid, const Kernel &kernel, const emu_launch &launch) {
    grid.kernel = kernel.name;
    grid.grid_dim = {launch.grid[0], launch.grid[1], launch.grid[2]};
    grid.block_dim = {launch.block[0], launch.block[1], launch.block[2]};
    grid.threads = kernel.threads;
    grid.rng = Rng(launch.seed);
    grid.body = kernel.body;
    grid.candidates = grid.rng.one_in(16) ? 1 : 4;

    const std::uint32_t blocks = launch.grid[0] * launch.grid[1] * launch.grid[2];
    std::uint32_t resident = launch.resident_blocks;
    if (resident == 0) resident = std::min(1 + grid.rng.below(4), std::max(1u, kMaxResidentThreads / grid.threads));
    resident = std::min(resident, blocks);
    while (t_pool.blocks.size() < resident) t_pool.blocks.push_back(std::make_unique<Block>());
    for (std::uint32_t i = 0; i < resident; ++i) {
        Block &block = *t_pool.blocks[i];
        if (!prepare_block(grid, block, launch.shared_bytes)) {
            grid.status = EMU_BAD_LAUNCH;
            grid.report = std::string("kernel ") + kernel.name + ": no memory for the stacks of its threads";
            return;
        }
        grid.resident.push_back(&block);
    }
    grid.pdl = launch.pdl != 0;
    grid.buffers = launch.buffers;
    grid.n_buffers = static_cast<std::uint32_t>(launch.n_buffers);
    const std::vector<unsigned char> guards = save_guards(grid);
    run_grid(grid);
    compare_guards(grid, guards);
}

} // namespace

int launch(const Kernel &kernel, const void *params, const emu_launch *launch) noexcept {
    if (!launch) return EMU_BAD_LAUNCH;
    try {
        const std::string wrong = complaint(kernel, params, *launch);
        if (!wrong.empty()) {
            answer(*launch, std::string("kernel ") + kernel.name + ": " + wrong);
            return EMU_BAD_LAUNCH;
        }
        // A private copy: on the device params are constant for the whole launch whatever the host does.
        std::vector<std::max_align_t> copy(kernel.params_bytes / sizeof(std::max_align_t) + 1);
        std::memcpy(copy.data(), params, kernel.params_bytes);
        Grid grid;
        grid.params = copy.data();
        t_grid = &grid;
        run(grid, kernel, *launch);
        t_grid = nullptr;
        if (launch->early) *launch->early = grid.early;
        answer(*launch, grid.report);
        return grid.status;
    } catch (const std::exception &e) {
        t_grid = nullptr;
        answer(*launch, std::string("kernel ") + kernel.name + ": " + e.what());
        return EMU_BAD_LAUNCH;
    }
}

} // namespace emu
