# what: PgBouncer before PostgreSQL: pools of transactions and of sessions, a large result
# needs: pgbouncer:pgbouncer postgres:postgresql-15 pgbench:postgresql-client-15 psql:postgresql-client-15
# user: postgres

bin=$(dirname "$(compgen -G '/usr/lib/postgresql/*/bin/postgres' | tail -1)")
to=(-h 127.0.0.1 -U postgres)

prepare() {
    "$bin/initdb" -D data --auth=trust --no-sync -U postgres >install.log
    cat >pgbouncer.ini <<END
[databases]
transactions = host=127.0.0.1 port=$PORT2 dbname=postgres user=postgres pool_mode=transaction
sessions = host=127.0.0.1 port=$PORT2 dbname=postgres user=postgres pool_mode=session
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $PORT
unix_socket_dir =
auth_type = any
default_pool_size = 3
logfile = $HERE/pgbouncer.log
END
}

server() {
    "$bin/postgres" -D data -p "$PORT2" -h 127.0.0.1 -k '' -F &
    pgbouncer -q pgbouncer.ini &
    wait
}

ready() {
    until "$bin/pg_isready" -q "${to[@]}" -p "$PORT2"; do sleep 0.1; done
}

client() {
    "$bin/pgbench" "${to[@]}" -p "$PORT" -i -s 1 -q sessions 2>/dev/null
    "$bin/pgbench" "${to[@]}" -p "$PORT" -c 6 -t 1000 -n -S transactions | grep -E '^number'
    "$bin/pgbench" "${to[@]}" -p "$PORT" -c 3 -t 2000 -n -S -M prepared sessions | grep -E '^number'
    "$bin/psql" "${to[@]}" -p "$PORT" -At -c 'select md5(i::text) from generate_series(1, 300000) i' transactions | cksum
}
