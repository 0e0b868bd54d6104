#!/usr/bin/env bash
# Builds the .NET programs that the cases of tests/programs name in a line
# `# dotnet: NAME.dll=FILE.cs...`:
#
#   scripts/dotnet-programs.sh DIRECTORY
#
# The result is DIRECTORY/bin/NAME.dll, and DIRECTORY/bin/dotnet, which runs it. Debian has no
# package of .NET: the runtime comes from PyPI (dotnetcore2), the compiler is Mono's. Where either
# cannot be had, nothing is built: the cases are skipped and say so.
set -euo pipefail

version=3.1.23
directory=$(realpath -m "$1")
cases=$(realpath "${BASH_SOURCE%/*}"/../tests/programs)
runtime=$directory/dotnet/dotnetcore2/bin
framework=$runtime/shared/Microsoft.NETCore.App/$version

if ! command -v mcs >/dev/null; then
    echo ".NET programs are not built: that takes mcs (Debian package mono-mcs)" >&2
    exit
fi
if [ ! -e "$framework" ] && ! python3 -m pip install --quiet --no-deps \
    --target "$directory/dotnet" "dotnetcore2==$version"; then
    echo ".NET programs are not built: that takes dotnetcore2 of PyPI" >&2
    exit
fi
chmod +x "$runtime/dotnet"
mkdir -p "$directory/bin"
ln -sf "$runtime/dotnet" "$directory/bin/dotnet"
references=()
for name in Collections Console Net.Http Net.Primitives Net.Sockets Private.CoreLib Private.Uri \
    Runtime Runtime.Extensions Text.Encoding.Extensions Threading Threading.ThreadPool; do
    references+=("-r:$framework/System.$name.dll")
done
mapfile -t programs < <(sed -n 's/^# dotnet: //p' "$cases"/*.sh | tr ' ' '\n' | sort -u)
for program in "${programs[@]}"; do
    source=$cases/${program#*=} built=$directory/bin/${program%%=*}
    cat >"${built%.dll}.runtimeconfig.json" <<END
{"runtimeOptions": {
    "framework": {"name": "Microsoft.NETCore.App", "version": "$version"},
    "configProperties": {"System.Globalization.Invariant": true}
}}
END
    [ "$built" -nt "$source" ] ||
        mcs -nostdlib -noconfig -nowarn:1702 "${references[@]}" -out:"$built" "$source"
done
