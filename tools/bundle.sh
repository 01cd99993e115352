#!/usr/bin/env bash
# Makes a folder and an archive that test and measure the GPU kernels on a host with a GPU and without Rust or CUDA toolkit.
#
#   tools/bundle.sh [--arch ARCH] [--out DIR]
#
#   --arch ARCH   architecture of the GPU, such as 90a (H100, H200) or 120a (RTX PRO 6000); 90a unless given
#   --out DIR     the folder, made anew; the archive is DIR.tar.xz. target/bundle-ARCH unless given
#
# Needs Rust, g++, strip, objdump and xz; installs nvcc into the user's cache if NVCC, CUDA_HOME and PATH name none. No GPU.
# How to use the result: docs/gpu-host.md.
set -euo pipefail

# Of the archive: it travels to hosts over whatever there is. 32 are the small models.
most_mib=56

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
for tool in cargo g++ strip objdump tar xz; do
    command -v $tool >/dev/null || fail "needs $tool"
done

cd "$(dirname "$0")/.."
out=${out:-$PWD/target/bundle-$arch}
folder=${out##*/}
# Only a bundle has this file.
mark=.glm5-bundle
[[ ! -e $out || -f $out/$mark || (-d $out && -z $(ls -A "$out")) ]] || fail "$out exists and is no bundle: no $mark in it"
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

# All is made in `new`, which takes its place when it is whole; its name is that of the folder within the archive.
beside=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$beside"' EXIT
new=$beside/$folder
mkdir "$new"
touch "$new/$mark"

commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
GLM5_COMMIT=$commit GLM5_CUDA_ARCHS=$arch cargo build --release --locked --features cuda --test device --bench kernels \
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
# By way of a plain name: nvcc hands its arguments to a shell.
twins=$(mktemp -d)
trap 'rm -rf "$beside" "$twins"' EXIT
"$nvcc" -std=c++17 -O3 -Icuda -fatbin -gencode="arch=compute_$arch,code=sm_$arch" -o "$twins/twins.fatbin" \
    cuda/host/tests/twins.cu
cp "$twins/twins.fatbin" "$new/"

programs=("$new/device" "$new/kernels" "$new/twins")
strip "${programs[@]}"
glibc=$(objdump -T "${programs[@]}" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1)
number=${arch%[af]}
text=$(<tools/bundle/README.txt)
fill() { text=${text//"@$1@"/"$2"}; } # sed would read a tag or a path as its own language
fill ARCH "$arch"
fill COMMIT "$commit"
fill MACHINE "$(uname -m)"
fill GLIBC "${glibc#GLIBC_}"
fill CAPABILITY "${number%?}.${number: -1}"
fill CUDA "${cuda% *}"
fill NVCC "${cuda#* }"
printf '%s\n' "$text" >"$new/README.txt"
cp tools/bundle/run-tests tools/bundle/run-benches "$new/"
mkdir "$new/models"
cp -r models/*.gguf models/goldens "$new/models/"
chmod 755 "$new" "$new"/run-*

# From there, so that no name has to be changed on the way.
archive=$beside/$folder.tar.xz
# Two programs hold the same images of kernels, 40 MiB apart: with a dictionary that spans them they are packed once.
(cd "$beside" && tar --sort=name --owner=0 --group=0 --numeric-owner -cf - -- "$folder") | xz --lzma2=preset=6,dict=96MiB >"$archive"
size=$(stat -c %s "$archive")
((size <= most_mib << 20)) || fail "the archive has $size bytes, more than $most_mib MiB; nothing was kept"

rm -rf "$out"
mv -T "$new" "$out"
mv -T "$archive" "$out.tar.xz"
printf '%s.tar.xz: %d.%d MiB (at most %d), glibc %s or newer; unpacked: %s\n' \
    "$out" $((size >> 20)) $((size * 10 / (1 << 20) % 10)) "$most_mib" "${glibc#GLIBC_}" "$out"
