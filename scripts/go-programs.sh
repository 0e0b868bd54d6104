#!/usr/bin/env bash
# Builds the Go programs that the cases of tests/programs name, as their projects release them:
# static, from the Go module proxy, each in a module of its own. Nothing of theirs is kept here.
#
#   scripts/go-programs.sh DIRECTORY [PART OF A NAME...]
#
# A case names its programs in a line `# go: PROGRAM...`, each as
#
#   NAME=PACKAGE@VERSION          a program of another project
#   NAME=FILE.go                  a file beside the case, which needs no module
#   NAME=FILE.go:MODULE@VERSION   a file that uses a module
#
# The result is DIRECTORY/bin/NAME. What was built before is not built again. Without a Go of
# version 1.21 or newer, nothing is built: the cases are skipped and say so.
set -euo pipefail

directory=$(realpath -m "$1")
shift
cases=$(realpath "${BASH_SOURCE%/*}"/../tests/programs)

is_wanted() {
    local part
    [ $# -gt 1 ] || return 0
    for part in "${@:2}"; do [[ $1 != *"$part"* ]] || return 0; done
    return 1
}

# Builds one in a fresh module: NAME, and what stands behind it in the case's head.
build() {
    local folder=$directory/$1 source=${2%%:*} module=${2#*:} package=.
    [[ $source == *.go ]] || package=${2%@*}
    [[ $module == *@* ]] || module=
    if [ -x "$directory/bin/$1" ] && [ "$(cat "$folder/built" 2>/dev/null)" = "$2" ] &&
        { [ "$package" != . ] || cmp -s "$cases/$source" "$folder/$source"; }; then
        return
    fi
    echo "Building $1 of $2"
    rm -rf "$folder"
    mkdir -p "$folder"
    if [ "$package" = . ]; then cp "$cases/$source" "$folder"; fi
    (
        cd "$folder"
        export CGO_ENABLED=0 GOFLAGS="-p=2 -mod=mod -buildvcs=false"
        go mod init "programs/$1"
        if [ -n "$module" ]; then go get "$module"; fi
        go build -trimpath -ldflags "-s -w" -o "$directory/bin/$1" "$package"
    ) >"$folder/log" 2>&1 || {
        tail -n 5 "$folder/log" >&2
        return 1
    }
    echo "$2" >"$folder/built"
}

version=$(go env GOVERSION 2>/dev/null) || version=go1.0
minor=${version#go1.}
if ((${minor%%.*} < 21)); then
    echo "Go programs are not built: that takes Go 1.21 or newer" >&2
    exit
fi
mkdir -p "$directory/bin"
mapfile -t programs < <(sed -n 's/^# go: //p' "$cases"/*.sh | tr ' ' '\n' | sort -u)
failed=0
for program in "${programs[@]}"; do
    if is_wanted "${program%%=*}" "$@"; then
        build "${program%%=*}" "${program#*=}" || failed=1
    fi
done
exit "$failed"
