// main.cpp: runs the emulator's tests, all or those whose name contains an argument.
#include <chrono>
#include <cstdarg>
#include <cstring>

#include "../races.hpp"
#include "check.hpp"

namespace test {

static int g_failures = 0;

std::vector<Case> &cases() {
    static std::vector<Case> all;
    return all;
}

void note_failure(const char *file, int line, const std::string &text) {
    if (++g_failures <= 10) std::printf("  %s:%d:%s\n", file, line, text.c_str());
}

int failures() { return g_failures; }

std::string text(const char *format, ...) {
    char buffer[4096];
    va_list args;
    va_start(args, format);
    std::vsnprintf(buffer, sizeof buffer, format, args);
    va_end(args);
    return buffer;
}

bool instrumented() { return emu::races_instrumented(); }

} // namespace test

int main(int argc, char **argv) {
    int passed = 0, failed = 0;
    for (const test::Case &c : test::cases()) {
        bool wanted = argc < 2;
        for (int i = 1; i < argc; ++i) wanted |= std::strstr(c.name, argv[i]) != nullptr;
        if (!wanted) continue;
        test::g_failures = 0;
        const auto start = std::chrono::steady_clock::now();
        c.run();
        const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
        std::printf("%-6s %s (%.0f ms)\n", test::g_failures ? "FAILED" : "ok", c.name, ms);
        std::fflush(stdout);
        ++(test::g_failures ? failed : passed);
    }
    std::printf("%d passed, %d failed%s\n", passed, failed, test::instrumented() ? ", kernels instrumented" : "");
    return failed != 0 || passed == 0;
}
