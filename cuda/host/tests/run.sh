#!/usr/bin/env bash
# Builds and runs the emulator's own tests, and every instance of the project's kernels (test_kernels.cpp).
#
#   cuda/host/tests/run.sh [LANE...]     default: gcc clang races races-clang asan
#
#   gcc, clang          -O2, as a plain C++ program
#   races, races-clang  kernels instrumented (-fsanitize=thread without its runtime): the emulator finds races itself
#   asan                AddressSanitizer and UndefinedBehaviorSanitizer, g++ (in .ci/run)
#   asan-clang          the same with clang++ (needs its runtime: libclang-rt-dev)
#   ucontext            g++, with the portable context switch
#   aarch64             cross-compiled, run under qemu
#   nvcc                compiles every wrapper for sm_90a and sm_120a and lists registers and spills
#   gpu                 builds the comparison with a GPU (twins_gpu twins.fatbin) and, if there is a GPU, runs it
#
# Needs cargo (it generates the instances), g++ and clang++; aarch64 needs g++-aarch64-linux-gnu and qemu-user-static; nvcc
# needs NVCC, CUDA_HOME or PATH to name a toolkit of 12.8 or newer. JOBS sets how many compilers run at once (2).
set -euo pipefail
root=$(cd "$(dirname "$0")/../../.." && pwd)
build=${EMU_BUILD:-$root/target/emu-tests}
jobs=${JOBS:-2}
# No contraction: a * b + c is two roundings on every host.
flags=(-O2 -g1 -std=c++17 -Wall -Wextra -Wno-unknown-pragmas -ffp-contract=off -I"$root/cuda" -I"$root/cuda/include")
asan=(-O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)

need() {
    command -v "$1" > /dev/null || { echo "$0: lane $2 needs $1${3:+ ($3)}" >&2; exit 1; }
}

# host LANE COMPILER "flags for all" "flags for kernels" RUNNER...: compiles what is older than any source, links, runs.
host() {
    local lane=$1 cxx=$2 all=$3 kernels=$4 out=$build/$1
    shift 4
    need "$cxx" "$lane"
    mkdir -p "$out"
    local newest object units list=()
    : > "$out/commands"
    units=$(cargo run --quiet --locked --manifest-path "$root/Cargo.toml" -p glm5-kernels -- --emulated "$build/emulated")
    # Kernel files too: units include them.
    # The whole list is read: who closes a pipe early ends its writer, and this script with it.
    newest=$(find "$root"/cuda \( -name '*.hpp' -o -name '*.cuh' -o -name '*.h' -o -name '*.cu' \) -printf '%T@ %p\n' |
        sort -rn | sed -n '1s/^[^ ]* //p')
    for source in "$root"/cuda/host/*.cpp "$root"/cuda/host/tests/*.{cpp,cu} $units; do
        [[ $source == *_gpu.cpp ]] && continue # a program of its own
        object=$out/$(basename "$source").o
        list+=("$object")
        [[ $object -nt $source && $object -nt $newest && $object -nt $0 ]] && continue
        local extra=$all
        [[ $source == *.cu || $source == */emulated/* ]] && extra+=" $kernels"
        echo "$cxx ${flags[*]} $extra -c -x c++ $source -o $object" >> "$out/commands"
    done
    xargs -P "$jobs" -I{} sh -c '{}' < "$out/commands"
    # shellcheck disable=SC2086
    "$cxx" $all "${list[@]}" -ldl -o "$out/tests"
    echo "== $lane"
    "$@" "$out/tests"
}

sanitized() {
    host "$1" "$2" "${asan[*]}" "" env ASAN_OPTIONS=detect_stack_use_after_return=0
    # A fake stack for each fiber costs ten times the run, so not for all kernels; what lanes exchange lies on stacks.
    echo "== $1, with stacks that do not outlive their function"
    ASAN_OPTIONS=detect_stack_use_after_return=1 "$build/$1/tests" faultless semantics twin
}

find_nvcc() {
    for candidate in "${NVCC:-}" "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" "$(command -v nvcc || true)"; do
        [[ -n $candidate && -x $candidate ]] && { echo "$candidate"; return; }
    done
    echo "$0: lane nvcc: none in NVCC, CUDA_HOME/bin or PATH" >&2
    exit 1
}

lane() {
    case $1 in
    gcc) host gcc g++ "" "" env ;;
    clang) host clang clang++ "" "" env ;;
    races) host races g++ "" -fsanitize=thread env ;;
    races-clang) host races-clang clang++ "" -fsanitize=thread env ;;
    asan) sanitized asan g++ ;;
    asan-clang) sanitized asan-clang clang++ ;;
    ucontext) host ucontext g++ -DEMU_UCONTEXT "" env ;;
    aarch64)
        need qemu-aarch64-static aarch64 qemu-user-static
        host aarch64 aarch64-linux-gnu-g++ "-static" "" qemu-aarch64-static ;;
    nvcc)
        local nvcc
        nvcc=$(find_nvcc)
        mkdir -p "$build/nvcc"
        "$nvcc" -std=c++17 -O3 -I"$root/cuda" -fatbin -Xptxas=-v,--warn-on-spills \
            -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_120a,code=sm_120a \
            -o "$build/nvcc/twins.fatbin" "$root/cuda/host/tests/twins.cu" 2> "$build/nvcc/ptxas.txt" ||
            { cat "$build/nvcc/ptxas.txt" >&2; exit 1; }
        "$nvcc" -std=c++17 -O3 -I"$root/cuda" -fatbin -gencode=arch=compute_90a,code=sm_90a \
            -gencode=arch=compute_120a,code=sm_120a -o "$build/nvcc/faults.fatbin" "$root/cuda/host/tests/faults.cu"
        echo "== nvcc"
        grep -E 'Compiling entry|Used' "$build/nvcc/ptxas.txt" | sed 's/^ptxas info *: //' | paste - -
        ! grep -i warning "$build/nvcc/ptxas.txt" ;;
    gpu)
        lane nvcc
        host gcc g++ "" "" true
        local emulator=()
        for source in "$root"/cuda/host/*.cpp; do emulator+=("$build/gcc/$(basename "$source").o"); done
        g++ "${flags[@]}" -static-libstdc++ -static-libgcc "$root/cuda/host/tests/twins_gpu.cpp" "${emulator[@]}" \
            "$build/gcc/twins.cu.o" -ldl -o "$build/twins_gpu"
        echo "== gpu: $build/twins_gpu $build/nvcc/twins.fatbin"
        if [[ -e /dev/nvidia0 ]]; then "$build/twins_gpu" "$build/nvcc/twins.fatbin"; fi ;;
    *) echo "$0: no lane $1" >&2; exit 1 ;;
    esac
}

[[ $# -gt 0 ]] || set -- gcc clang races races-clang asan
for name in "$@"; do lane "$name"; done
