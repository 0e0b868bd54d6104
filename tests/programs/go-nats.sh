# what: Go: a NATS server, a service asked 20,000 times, 200,000 messages to two subscribers
# needs: /bin/bash:bash
# go: nats-server=github.com/nats-io/nats-server/v2@v2.15.2 nats=github.com/nats-io/natscli/nats@v0.5.1

server() {
    patched "$BUILT/nats-server" -a 127.0.0.1 -p "$PORT" -l nats.log
}

client() {
    local bench=(patched "$BUILT/nats" -s "nats://127.0.0.1:$PORT" bench) service
    "${bench[@]}" service serve toehold --size 16 --no-progress >served 2>&1 &
    service=$!
    until "$BUILT/nats" -s "nats://127.0.0.1:$PORT" request toehold x >/dev/null 2>&1; do sleep 0.1; done
    "${bench[@]}" service request toehold --size 16 --msgs 20000 --no-progress 2>&1 | grep -oE 'requester stats'
    kill "$service"
    "${bench[@]}" sub toehold --clients 2 --size 128 --msgs 200000 --no-progress >subscribed 2>&1 &
    service=$!
    sleep 1
    "${bench[@]}" pub toehold --size 128 --msgs 200000 --no-progress 2>&1 | grep -oE 'publisher stats'
    wait "$service"
    grep -oE '\(200,000 msgs\)' subscribed
}
