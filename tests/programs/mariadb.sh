# what: MariaDB over its Unix socket: a large result, a large value both ways, a dump loaded again, mysqlslap
# needs: mariadbd:mariadb-server-core mariadb-install-db:mariadb-server-core mariadb:mariadb-client-core mariadb-slap:mariadb-client mariadb-dump:mariadb-client mariadb-admin:mariadb-client

to=(--no-defaults --socket="$HERE/mariadb.sock" --user=root)
as=(${AS_ROOT:+--user=root})

prepare() {
    mariadb-install-db --no-defaults --auth-root-authentication-method=normal --skip-test-db "${as[@]}" \
        --datadir="$HERE/data" >install.log
}

server() {
    exec mariadbd --no-defaults "${as[@]}" --datadir="$HERE/data" --socket="$HERE/mariadb.sock" \
        --skip-networking --pid-file="$HERE/pid" --max-allowed-packet=64M --innodb-flush-log-at-trx-commit=0
}

listening() {
    until mariadb-admin "${to[@]}" --silent ping; do sleep 0.05; done
}

client() {
    mariadb "${to[@]}" -N -e 'select md5(seq) from seq_1_to_300000' mysql | cksum
    mariadb "${to[@]}" -e 'create database one; create database two'
    mariadb "${to[@]}" -e 'create table t (n int primary key, body longblob)
        select seq n, repeat(md5(seq), seq * 10) body from seq_1_to_400' one
    payload value 12345678
    { printf "insert into t values (0, '"; cat value; printf "')"; } |
        mariadb "${to[@]}" --max-allowed-packet=64M one
    mariadb "${to[@]}" --max-allowed-packet=64M -N --raw -e 'select body from t where n = 0' one |
        cmp - <(cat value; echo) && echo equal
    mariadb-dump "${to[@]}" --max-allowed-packet=64M one | mariadb "${to[@]}" --max-allowed-packet=64M two
    mariadb "${to[@]}" -N -e 'checksum table one.t, two.t'
    mariadb-slap "${to[@]}" --concurrency=8 --number-of-queries=20000 --create-schema=one \
        --query='select body from t where n = 7' | grep -oE 'Number of clients.*|.*per client.*'
}
