#!/usr/bin/env bash
# Runs one program, built for several C libraries, in systems of several releases, without the
# library and with it, and compares what it says. Needs root, debootstrap, pip, musl-gcc and go;
# `make build` first. WORK keeps the downloads.
#
#   scripts/matrix.sh WORK [RELEASE...]    default: bullseye bookworm trixie
#   ZIG=...                                a Zig compiler; by default `ziglang` of PyPI
set -euo pipefail

[ $# -ge 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mkdir -p "$1" && cd "$1" && pwd)
shift
releases=("$@")
[ ${#releases[@]} -gt 0 ] || releases=(bullseye bookworm trixie)
target=${CARGO_TARGET_DIR:-$here/target}/release
source=$here/tests/tests/freestanding/matrix.c
bin=$work/bin
mkdir -p "$bin"
adapter=
failures=0

die() {
    echo "matrix: $*" >&2
    exit 1
}

finish() {
    [ -z "$adapter" ] || kill "$adapter" 2>/dev/null || true
}
trap finish EXIT

for product in libtoehold.so toehold; do
    [ -f "$target/$product" ] || die "$product is not built; run: make build"
done
[ "$(id -u)" = 0 ] || die "only root can change the root directory"

if [ -z "${ZIG:-}" ]; then
    [ -x "$work/zig/ziglang/zig" ] || python3 -m pip install --quiet --target "$work/zig" ziglang
    ZIG=$work/zig/ziglang/zig
fi

# The programs. A later run builds only those that the source is newer than.
build() {
    local name=$1
    shift
    [ "$bin/$name" -nt "$source" ] || "$@" -o "$bin/$name" "$source" || die "cannot build $name"
}
build glibc-2.17 "$ZIG" cc -target x86_64-linux-gnu.2.17 -O1 -s -pthread
build i386 "$ZIG" cc -target x86-linux-gnu.2.17 -O1 -s -pthread
build musl musl-gcc -pthread
build static musl-gcc -static -pthread
if [ ! -x "$bin/go" ]; then
    mkdir -p "$work/go"
    printf 'package main\n\nimport "os"\n\nfunc main() { os.Stdout.WriteString("start\\n") }\n' \
        >"$work/go/main.go"
    # A position-independent program of Go has a dynamic linker and no libc.
    (cd "$work/go" && CGO_ENABLED=0 GO111MODULE=off go build -buildmode=pie -o "$bin/go" main.go)
fi

# The mirror that this host itself uses.
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | head -n 1)

# A system of a release, in which nothing is configured: it has its libc and a shell.
root_of() {
    local root=$work/$1
    if [ ! -e "$root/done" ]; then
        debootstrap --variant=minbase --foreign "$1" "$root" "$mirror" >"$work/$1.log" 2>&1 ||
            { tail -n 2 "$work/$1.log" >&2; return 1; }
        touch "$root/done"
    fi
    # The 32-bit libc of this host's release works in any.
    ls "$work"/libc6-i386_*.deb >/dev/null 2>&1 ||
        (cd "$work" && apt-get download -qq libc6-i386 2>/dev/null) || return 1
    [ -e "$root/lib32" ] || dpkg-deb --fsys-tarfile "$work"/libc6-i386_*.deb |
        tar -C "$root" -x --keep-directory-symlink
    # In a container debootstrap makes it a link.
    [ ! -L "$root/proc" ] || rm "$root/proc"
    mkdir -p "$root/matrix" "$root/proc"
    cp "$bin"/* "$target/libtoehold.so" "$root/matrix"
    cp "$(readlink -f /lib/ld-musl-x86_64.so.1)" "$root/lib/ld-musl-x86_64.so.1"
}

# `/proc` is there for the command alone: nothing stays mounted, however it ends.
within() {
    local root=$1
    shift
    # shellcheck disable=SC2016
    timeout 120 unshare --mount sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' \
        "$root" "$@" 2>"$work/errors" || echo "exit $?"
}

# Compares what a program says with what it should say.
try() {
    local release=$1 program=$2 expected=$3 how=$4 words=()
    shift 4
    # Without this word it waits for shared memory, which does not come.
    [[ $expected = *shared* ]] || words=(plain)
    local said
    said=$(within "$work/$release" /usr/bin/env -i "$@" "/matrix/$program" "${words[@]}" |
        tr '\n' ',')
    if [ "$said" = "$expected" ]; then
        printf '%-10s %-12s %-12s as expected\n' "$release" "$program" "$how"
    else
        printf '%-10s %-12s %-12s DIFFERS: %s\n' "$release" "$program" "$how" "$said"
        failures=$((failures + 1))
    fi
}

all() {
    echo "start,sockets $1,threads,fork,$2,signals,exec,"
}

for release in "${releases[@]}"; do
    root_of "$release" || die "there is no $release at $mirror"
    runtime=$work/$release/run/matrix
    mkdir -p "$runtime"
    chmod 700 "$runtime"
    "$target/toehold" adapter --runtime-dir "$runtime" >"$work/adapter.log" 2>&1 &
    adapter=$!
    for _ in $(seq 50); do
        [ ! -S "$runtime/adapter.sock" ] || break
        sleep 0.1
    done
    preload=LD_PRELOAD=/matrix/libtoehold.so
    started=(TOEHOLD_PATH=direct TOEHOLD_RUNTIME_DIR=/run/matrix)
    for program in glibc-2.17 musl; do
        try "$release" "$program" "$(all kernel dlopen)" without A=1
        try "$release" "$program" "$(all kernel dlopen)" loaded "$preload"
        try "$release" "$program" "$(all shared dlopen)" accelerated "$preload" "${started[@]}"
    done
    try "$release" static "$(all kernel 'no dlopen')" loaded "$preload" "${started[@]}"
    try "$release" go start, loaded "$preload" "${started[@]}"
    try "$release" i386 "$(all kernel dlopen)" loaded "$preload" "${started[@]}"
    kill "$adapter"
    wait "$adapter" 2>/dev/null || true
    adapter=
done
[ "$failures" = 0 ] || die "$failures differences"
