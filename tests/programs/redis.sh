# what: Redis: a replica under load
# needs: redis-server:redis-server redis-benchmark:redis-tools redis-cli:redis-tools

server() {
    redis-server --bind 127.0.0.1 --port "$PORT" --save '' --dir "$HERE" >one.log &
    redis-server --bind 127.0.0.1 --port "$PORT2" --save '' --dir "$HERE" --replicaof 127.0.0.1 "$PORT" >two.log &
    wait
}

ready() {
    await "$PORT2"
    until redis-cli -p "$PORT2" info replication | grep -q master_link_status:up; do sleep 0.05; done
}

client() {
    redis-benchmark -q -h 127.0.0.1 -p "$PORT" -c 20 -n 100000 -t set,get,incr,lpush >redis.log
    tr '\r' '\n' <redis.log | grep -oE '^(SET|GET|INCR|LPUSH)' | uniq
    redis-cli -p "$PORT" eval 'for i = 1, 50000 do redis.call("set", "k" .. i, i) end' 0
    redis-cli -p "$PORT" wait 1 10000
    redis-cli -p "$PORT2" mget k1 k25000 k50000
    redis-cli -p "$PORT" dbsize
    redis-cli -p "$PORT2" dbsize
}
