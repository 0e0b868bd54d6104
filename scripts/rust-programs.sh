#!/usr/bin/env bash
# Builds the Rust programs that the cases of tests/programs name in a line `# rust: NAME=FILE.rs...`,
# static, with musl:
#
#   scripts/rust-programs.sh DIRECTORY
#
# The result is DIRECTORY/bin/NAME. Where Rust's standard library for musl cannot be had, nothing is
# built: the cases are skipped and say so.
set -euo pipefail

target=x86_64-unknown-linux-musl
directory=$(realpath -m "$1")
cases=$(realpath "${BASH_SOURCE%/*}"/../tests/programs)

if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ] && ! rustup target add "$target"; then
    echo "Rust programs are not built: that takes rustup target add $target" >&2
    exit
fi
mkdir -p "$directory/bin"
mapfile -t programs < <(sed -n 's/^# rust: //p' "$cases"/*.sh | tr ' ' '\n' | sort -u)
for program in "${programs[@]}"; do
    source=$cases/${program#*=} built=$directory/bin/${program%%=*}
    [ "$built" -nt "$source" ] || rustc --edition 2024 -O --target "$target" -o "$built" "$source"
done
