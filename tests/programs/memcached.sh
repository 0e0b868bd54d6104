# what: memcached with memcaslap, values verified
# needs: memcached:memcached memcaslap:libmemcached-tools

server() {
    exec memcached -l 127.0.0.1 -U 0 -t 2 -p "$PORT" ${AS_ROOT:+-u root}
}

client() {
    memcaslap -s "127.0.0.1:$PORT" -T 1 -c 16 -x 100000 -v 1 -B >load.log
    grep -E '^(get_misses|verify_misses|verify_failed)' load.log
}
