#!/usr/bin/env bash
# Makes a folder and an archive that test and measure the GPU kernels on a host with a GPU and without Rust or CUDA toolkit.
#
#   tools/bundle.sh [--arch ARCH] [--out DIR]
#
#   --arch ARCH   architecture of the GPU, such as 90a (H100, H200) or 120a (RTX PRO 6000); 90a unless given
#   --out DIR     the folder, made anew; the archive is DIR.tar.gz. target/bundle-ARCH unless given
#
# Needs Rust, g++, strip and objdump; installs nvcc into the user's cache if NVCC, CUDA_HOME and PATH name none. No GPU.
# How to use the result: docs/gpu-host.md.
set -euo pipefail

# Of the archive: it travels to hosts over whatever there is.
most_bytes=$((16 << 20))

fail() {
    echo "bundle.sh: $*" >&2
    exit 1
}

usage() { sed -n '2,/^set /{s/^# \{0,1\}//p}' "$0"; }

arch=90a out=
while [[ $# -gt 0 ]]; do
    case $1 in
    -h | --help) usage; exit 0 ;;
    --arch | --out)
        [[ -n ${2:-} ]] || fail "$1 needs a value; see --help"
        [[ $1 == --arch ]] && arch=$2 || out=$(realpath -ms -- "$2")
        shift 2 ;;
    *) fail "no argument \`$1\`; see --help" ;;
    esac
done
[[ $arch =~ ^[1-9][0-9]{1,2}[af]?$ ]] || fail "--arch $arch: not one architecture such as 90a or 120a"
for tool in cargo g++ strip objdump tar gzip; do
    command -v $tool >/dev/null || fail "needs $tool"
done

cd "$(dirname "$0")/.."
out=${out:-$PWD/target/bundle-$arch}
[[ ! -e $out || -x $out/run-tests || (-d $out && -z $(ls -A "$out")) ]] || fail "$out exists and is no bundle"
mkdir -p "${out%/*}"

nvcc=${NVCC:-${CUDA_HOME:+$CUDA_HOME/bin/nvcc}}
nvcc=${nvcc:-$(command -v nvcc || true)}
if [[ -z $nvcc ]]; then
    exports=$(tools/get-nvcc.sh) # on its own: `eval` would hide that it failed
    eval "$exports"
    nvcc=$NVCC
fi
cuda=$("$nvcc" --version) || fail "$nvcc does not run"
cuda=$(sed -n 's/.*release \([0-9.]*\), V\([0-9.]*\).*/\1 \2/p' <<<"$cuda")

# All is made in `new`, which takes its place when it is whole.
new=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$new" "$new.tar.gz"' EXIT

GLM5_CUDA_ARCHS=$arch cargo build --release --locked --features cuda --test device --bench kernels \
    --message-format=json-render-diagnostics >"$new/messages"
for name in device kernels; do
    executable=$(sed -n 's/.*"executable":"\([^"]*\/'$name'-[^"]*\)".*/\1/p' "$new/messages")
    [[ -f $executable ]] || fail "cargo named no executable of $name"
    cp "$executable" "$new/$name"
done
rm "$new/messages"

# The comparison that lane gpu of cuda/host/tests/run.sh makes, for this architecture alone. The parts of libstdc++ that
# are left out are those that need a newer glibc than the rest.
g++ -O2 -std=c++17 -ffp-contract=off -static-libstdc++ -Wl,--gc-sections -Icuda cuda/host/*.cpp \
    cuda/host/tests/twins_gpu.cpp -x c++ cuda/host/tests/twins.cu -x none -ldl -o "$new/twins"
"$nvcc" -std=c++17 -O3 -Icuda -fatbin -gencode="arch=compute_$arch,code=sm_$arch" -o "$new/twins.fatbin" \
    cuda/host/tests/twins.cu

programs=("$new/device" "$new/kernels" "$new/twins")
strip "${programs[@]}"
glibc=$(objdump -T "${programs[@]}" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1)
number=${arch%[af]}
commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
sed -e "s/@ARCH@/$arch/; s/@COMMIT@/$commit/; s/@MACHINE@/$(uname -m)/; s/@GLIBC@/${glibc#GLIBC_}/" \
    -e "s/@CAPABILITY@/${number%?}.${number: -1}/; s/@CUDA@/${cuda% *}/; s/@NVCC@/${cuda#* }/" \
    tools/bundle/README.txt >"$new/README.txt"
cp tools/bundle/run-tests tools/bundle/run-benches "$new/"
chmod 755 "$new" "$new"/run-*

tar --sort=name --owner=0 --group=0 --numeric-owner --transform "s:^\.:${out##*/}:" -C "$new" -cf - . | gzip -9n >"$new.tar.gz"
size=$(stat -c %s "$new.tar.gz")
((size <= most_bytes)) || fail "the archive has $size bytes, more than $most_bytes; nothing was kept"

rm -rf "$out"
mv -T "$new" "$out"
mv "$new.tar.gz" "$out.tar.gz"
printf '%s.tar.gz: %d.%d MiB (at most 16), glibc %s or newer; unpacked: %s\n' \
    "$out" $((size >> 20)) $((size * 10 / (1 << 20) % 10)) "${glibc#GLIBC_}" "$out"
