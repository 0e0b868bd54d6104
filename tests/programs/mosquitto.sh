# what: mosquitto: 20,000 messages of QoS 1
# needs: mosquitto:mosquitto mosquitto_sub:mosquitto-clients

prepare() {
    cat >mosquitto.conf <<END
listener $PORT 127.0.0.1
allow_anonymous true
max_inflight_messages 0
max_queued_messages 0
$([ -z "$AS_ROOT" ] || echo 'user root')
END
}

server() {
    exec mosquitto -c mosquitto.conf
}

client() {
    mosquitto_sub -p "$PORT" -h 127.0.0.1 -q 1 -t all -C 20000 >got &
    local subscriber=$!
    # It has to be subscribed before the first message.
    until grep -q 'retained' probe 2>/dev/null; do
        mosquitto_sub -p "$PORT" -h 127.0.0.1 -W 1 -C 1 -t probe >probe &
        sleep 0.1
        mosquitto_pub -p "$PORT" -h 127.0.0.1 -r -t probe -m retained
    done
    seq 20000 | mosquitto_pub -p "$PORT" -h 127.0.0.1 -q 1 -t all -l
    wait "$subscriber"
    sort -n got | cksum
}
