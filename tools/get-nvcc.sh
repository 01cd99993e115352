#!/usr/bin/env bash
# Installs the CUDA compiler from NVIDIA's wheels on PyPI into the user's cache: no root, no GPU, no driver.
#
#     eval "$(tools/get-nvcc.sh)"     # sets NVCC, which the build reads
#
# Stdout is only what to export; everything else goes to stderr. A second run does nothing.
set -euo pipefail

# 13.0 is the toolkit that the kernels are tested with. The two disassemblers have wheels from 13.2 on; they read the
# images of older compilers.
pins=(
    nvidia-cuda-nvcc==13.0.88
    nvidia-cuda-crt==13.0.88
    nvidia-nvvm==13.0.88
    nvidia-cuda-runtime==13.0.96
    nvidia-cuda-cccl==13.0.85
    nvidia-cuda-cuobjdump==13.2.86
    nvidia-cuda-nvdisasm==13.2.86
)

cache="${XDG_CACHE_HOME:-$HOME/.cache}/glm5"
dir="$cache/nvcc-13.0"
nvcc="$dir/nvidia/cu13/bin/nvcc"

# `pins` is written last, so a folder that has it is whole.
if [ "$(cat "$dir/pins" 2>/dev/null)" != "${pins[*]}" ]; then
    if ! python3 -m pip --version >/dev/null 2>&1; then
        echo "get-nvcc.sh: needs Python 3 with pip (Debian: apt-get install python3-pip)" >&2
        exit 1
    fi
    mkdir -p "$cache"
    new=$(mktemp -d "$cache/nvcc-13.0.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    echo "get-nvcc.sh: installing ${pins[*]} into $dir" >&2
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-deps --no-compile --only-binary :all: --target "$new" "${pins[@]}" >&2
    "$new/nvidia/cu13/bin/nvcc" --version >&2
    echo "${pins[*]}" >"$new/pins"
    chmod 755 "$new"
    rm -rf "$dir"
    mv -T "$new" "$dir"
fi

printf 'export NVCC=%q\n' "$nvcc"
