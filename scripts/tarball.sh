#!/usr/bin/env bash
# Makes an archive of the installed tree: RELEASE/toehold-VERSION-linux-MACHINE.tar.gz.
#
#   scripts/tarball.sh RELEASE    RELEASE is the directory with the program and the library
#
# Of one commit and one build it is always the same, byte by byte.
set -euo pipefail

source=$(cd "${BASH_SOURCE%/*}/.." && pwd)
release=$(cd "$1" && pwd)
version=$("$release/toehold" --version)
name=toehold-${version##* }-linux-$(uname -m)

stage=$release/tarball
rm -rf "$stage"
mkdir -p "$stage"
make -C "$source" --no-print-directory install DESTDIR="$stage" PREFIX="/$name" \
    CARGO_TARGET_DIR="${release%/*}" >/dev/null
share=$stage/$name/share
mkdir -p "$share/doc/toehold"
cd "$source"
cp -r README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT docs contrib/toehold.conf contrib/systemd \
    "$share/doc/toehold/"
tar --create --directory "$stage" --sort=name --owner=0 --group=0 --numeric-owner --mode=go=rX,u+w \
    --mtime="@$(git log -1 --format=%ct)" "$name" | gzip -n9 >"$release/$name.tar.gz"
rm -rf "$stage"
echo "$release/$name.tar.gz"
