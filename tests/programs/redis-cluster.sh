# what: Redis Cluster of three, loaded; a fourth joins and slots move to it (MIGRATE); one is killed and comes back from its log
# needs: redis-server:redis-server redis-cli:redis-tools redis-benchmark:redis-tools

# One node: NUMBER. Each has an address of its own, so that they can have the port and the port of the bus in common.
node() {
    mkdir -p "$1"
    cd "$1" || return
    exec redis-server --bind "127.0.0.$1" --port "$PORT" --cluster-enabled yes --cluster-port "$PORT2" --cluster-announce-ip "127.0.0.$1" \
        --cluster-require-full-coverage no --appendonly yes --save '' >log
}

server() {
    local at
    for at in 1 2 3 4; do (node "$at") & done
    while sleep 0.1; do
        [ ! -e again ] || { rm again; (node 3) & }
    done
}

ready() {
    local at
    for at in 1 2 3 4; do
        until redis-cli -h "127.0.0.$at" -p "$PORT" ping >/dev/null 2>&1; do sleep 0.1; done
    done
}

# Waits until as many nodes know each other: NUMBER
agree() {
    local at
    for ((at = 1; at <= $1; at++)); do
        until [ "$(redis-cli -h "127.0.0.$at" -p "$PORT" cluster nodes | grep -c ' connected')" = "$1" ] &&
            redis-cli -h "127.0.0.$at" -p "$PORT" cluster info | grep -q state:ok; do sleep 0.1; done
    done
    until redis-cli --cluster check "127.0.0.1:$PORT" | grep -q 'agree about slots'; do sleep 0.1; done
}

# All values, from wherever they are.
values() {
    seq -f 'GET k:%.0f' 1000 | redis-cli -c -p "$PORT" | grep -v '^-> ' | cksum
}

client() {
    redis-cli --cluster create "127.0.0.1:$PORT" "127.0.0.2:$PORT" "127.0.0.3:$PORT" --cluster-yes | tail -1
    agree 3
    redis-benchmark --cluster -p "$PORT" -t set,get,lpush -n 50000 -r 20000 -c 20 -q >/dev/null
    seq 1000 | awk '{ print "SET k:" $1 " " $1 * 7 }' | redis-cli -c -p "$PORT" | grep -v '^-> ' | sort | uniq -c
    redis-cli --cluster add-node "127.0.0.4:$PORT" "127.0.0.1:$PORT" | tail -1
    agree 4
    redis-cli --cluster reshard "127.0.0.1:$PORT" --cluster-yes --cluster-slots 400 --cluster-pipeline 50 \
        --cluster-from "$(redis-cli -p "$PORT" cluster myid)" \
        --cluster-to "$(redis-cli -h 127.0.0.4 -p "$PORT" cluster myid)" >log
    agree 4
    redis-cli -h 127.0.0.4 -p "$PORT" dbsize | grep -cE '[0-9]{2}'
    values
    kill -9 "$(redis-cli -h 127.0.0.3 -p "$PORT" info server | sed -n 's/^process_id:\([0-9]*\).*/\1/p')"
    until ! redis-cli -h 127.0.0.3 -p "$PORT" ping >/dev/null 2>&1; do sleep 0.1; done
    touch again
    until redis-cli -h 127.0.0.3 -p "$PORT" ping 2>/dev/null | grep PONG; do sleep 0.1; done
    agree 4
    values
}
