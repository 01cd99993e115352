#!/usr/bin/env bash
# Writes src/sys/ anew from cuda/include/params.h; with --check fails if that changes anything. For maintainers.
#
# Takes libclang from LIBCLANG_PATH, else installs the one of PyPI into the user's cache.
set -euo pipefail
cd "$(dirname "$0")/.."

pin=libclang==18.1.1
if [ -z "${LIBCLANG_PATH:-}" ]; then
    dir="${XDG_CACHE_HOME:-$HOME/.cache}/glm5/libclang-18.1"
    if [ ! -e "$dir" ]; then
        mkdir -p "${dir%/*}"
        new=$(mktemp -d "$dir.XXXXXX")
        trap 'rm -rf "$new"' EXIT
        PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-deps --no-compile --only-binary :all: --target "$new" "$pin"
        chmod 755 "$new"
        mv -T "$new" "$dir"
    fi
    export LIBCLANG_PATH="$dir/clang/native"
fi

before=$(mktemp -d)
trap 'rm -rf "$before" ${new:+"$new"}' EXIT
cp -r src/sys "$before"
cargo check --quiet --locked --features regen-bindings
if [ "${1:-}" = --check ] && ! diff -ru "$before/sys" src/sys; then
    echo "src/sys is not what cuda/include/params.h says; it has been written anew" >&2
    exit 1
fi
