#!/usr/bin/env bash
# Writes src/sys/ anew from cuda/include/params.h; with --check fails if that would change anything. For maintainers.
#
# Takes libclang from LIBCLANG_PATH, else installs the one of PyPI into the user's cache.
set -euo pipefail
cd "$(dirname "$0")/.."

check=
case "$*" in
    "") ;;
    --check) check=1 ;;
    *) echo "usage: regen-bindings.sh [--check]" >&2; exit 2 ;;
esac

pin=libclang==18.1.1
if [ -z "${LIBCLANG_PATH:-}" ]; then
    dir="${XDG_CACHE_HOME:-$HOME/.cache}/glm5/libclang-18.1"
    if [ ! -e "$dir" ]; then
        if ! python3 -m pip --version >/dev/null 2>&1; then
            echo "regen-bindings.sh: needs Python 3 with pip (Debian: apt-get install python3-pip), or the folder of" \
                "libclang.so in LIBCLANG_PATH" >&2
            exit 1
        fi
        mkdir -p "${dir%/*}"
        new=$(mktemp -d "$dir.XXXXXX")
        trap 'rm -rf "$new"' EXIT
        PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-deps --no-compile --only-binary :all: --target "$new" "$pin"
        chmod 755 "$new"
        mv -T "$new" "$dir"
    fi
    export LIBCLANG_PATH="$dir/clang/native"
fi
# bindgen would panic.
if [ ! -f "$LIBCLANG_PATH" ] && ! compgen -G "$LIBCLANG_PATH/libclang*" >/dev/null; then
    echo "regen-bindings.sh: LIBCLANG_PATH=$LIBCLANG_PATH: no libclang there" >&2
    exit 1
fi

before=$(mktemp -d)
# The build writes into src/sys itself. What a check found there is put back, with a new time: so the next run generates again.
end() {
    if [ -n "$check" ] && ! diff -rq "$before/sys" src/sys >/dev/null; then
        rm -rf src/sys
        cp -r "$before/sys" src/sys
    fi
    rm -rf "$before" ${new:+"$new"}
}
trap end EXIT
cp -r src/sys "$before"
status=0
cargo check --quiet --locked -p glm5 --features regen-bindings || status=$? # code that does not fit new bindings fails too
if [ -n "$check" ] && ! diff -ru "$before/sys" src/sys; then
    echo "src/sys is not what cuda/include/params.h says: tools/regen-bindings.sh writes it anew" >&2
    exit 1
fi
exit "$status"
