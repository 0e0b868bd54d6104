#!/usr/bin/env bash
# Runs tests of PostgreSQL against a server of its own, which listens on TCP and nowhere else.
#
#   postgres_suite.sh PROGRAMS PORT RUNNER [OPTION...]
#
# PROGRAMS is the folder of the server's programs, RUNNER `pg_regress` or one that takes the options
# of `pg_regress`. It is started in the folder with the tests, as a user that may write there.
set -euo pipefail
bin=$1 port=$2 runner=$3
shift 3

work=$(mktemp -d "$TMPDIR/postgres.XXXXXX")
export HOME=$work LC_ALL=C PGHOST=127.0.0.1 PGPORT=$port PGUSER=postgres
server=
finish() {
    [ -z "$server" ] || { kill -INT "$server" && wait "$server"; } || true
    rm -rf "$work"
}
trap finish EXIT

"$bin/initdb" -D "$work/data" -U postgres --auth=trust --no-sync --no-locale --encoding=UTF8 \
    >"$work/initdb.log" 2>&1 || { cat "$work/initdb.log"; exit 1; }
# As pg_regress would configure a server that it starts itself; no Unix socket.
"$bin/postgres" -D "$work/data" -h 127.0.0.1 -p "$port" -k '' -F \
    -c max_prepared_transactions=2 -c log_connections=on >"$work/server.log" 2>&1 &
server=$!
until "$bin/pg_isready" -q; do
    kill -0 "$server" 2>/dev/null || { cat "$work/server.log"; exit 1; }
    sleep 0.1
done

status=0
"$runner" --bindir="$bin" --host=127.0.0.1 --port="$port" --user=postgres \
    --dlpath=. --max-concurrent-tests=20 "$@" || status=$?
echo "connections over TCP: $(grep -c 'connection received: host=127.0.0.1' "$work/server.log")"
[ "$status" = 0 ] || cat regression.diffs || true
exit "$status"
