# what: Go: a NATS server, a service asked 20,000 times, 200,000 messages to two subscribers
# needs: /bin/bash:bash curl:curl
# go: nats-server=github.com/nats-io/nats-server/v2@v2.15.2 nats=github.com/nats-io/natscli/nats@v0.5.1

server() {
    patched "$BUILT/nats-server" -a 127.0.0.1 -p "$PORT" -m "$PORT2" -l nats.log
}

# How many subscribe to a subject, as the server says.
subscribers() {
    curl -s "http://127.0.0.1:$PORT2/connz?subs=1" | grep -c "\"$1\""
}

client() {
    local bench=(patched "$BUILT/nats" -s "nats://127.0.0.1:$PORT" bench) service
    "${bench[@]}" service serve toehold --size 16 --no-progress >served 2>&1 &
    service=$!
    until "$BUILT/nats" -s "nats://127.0.0.1:$PORT" request toehold x >/dev/null 2>&1; do sleep 0.1; done
    "${bench[@]}" service request toehold --size 16 --msgs 20000 --no-progress 2>&1 | grep -oE 'requester stats'
    kill "$service"
    "${bench[@]}" sub many --clients 2 --size 128 --msgs 200000 --no-progress >subscribed 2>&1 &
    service=$!
    # Nobody keeps messages for them.
    until [ "$(subscribers many)" -eq 2 ]; do sleep 0.1; done
    "${bench[@]}" pub many --size 128 --msgs 200000 --no-progress 2>&1 | grep -oE 'publisher stats'
    wait "$service"
    grep -oE '\(200,000 msgs\)' subscribed
}
