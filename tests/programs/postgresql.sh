# what: PostgreSQL: a large result, pgbench
# needs: postgres:postgresql-15 pgbench:postgresql-client-15 psql:postgresql-client-15 setpriv:util-linux
# user: postgres

bin=$(dirname "$(compgen -G '/usr/lib/postgresql/*/bin/postgres' | tail -1)")
to=(-h 127.0.0.1 -U postgres)

prepare() {
    "$bin/initdb" -D data --auth=trust --no-sync -U postgres >install.log
}

server() {
    exec "$bin/postgres" -D data -p "$PORT" -h 127.0.0.1 -k '' -F
}

ready() {
    until "$bin/pg_isready" -q "${to[@]}" -p "$PORT"; do sleep 0.1; done
}

client() {
    "$bin/pgbench" "${to[@]}" -p "$PORT" -i -s 1 -q postgres 2>/dev/null
    "$bin/pgbench" "${to[@]}" -p "$PORT" -c 4 -t 5000 -n -S -M prepared postgres | grep -E '^number'
    "$bin/psql" "${to[@]}" -p "$PORT" -At -c 'select md5(i::text) from generate_series(1, 300000) i' postgres | cksum
}
