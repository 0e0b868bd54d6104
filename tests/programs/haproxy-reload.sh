# what: haproxy before lighttpd: five reloads, whose workers pass their listeners on, under loads and in the middle of a download
# needs: haproxy:haproxy lighttpd:lighttpd curl:curl python3:python3 socat:socat

prepare() {
    files_by_lighttpd "$PORT2" 10000
    haproxy_config <<END
    stats socket $HERE/socket mode 600 level admin expose-fd listeners
    hard-stop-after 30s
END
}

server() {
    lighttpd -D -f lighttpd.conf &
    haproxy -W -p "$HERE/pid" -f haproxy.cfg &
    wait
}

ready() {
    await "$PORT2" "$PORT3"
}

client() {
    touch loaded
    local loads=() entrance
    for entrance in "$PORT" "$PORT" "$PORT3"; do
        python3 "$CASES/kept-load.py" "$entrance" &
        loads+=($!)
    done
    curl -sS --noproxy '' --limit-rate 5M "http://127.0.0.1:$PORT3/12345678" | cksum >download &
    loads+=($!)
    local worker=
    for _ in {1..5}; do
        worker=$(pid)
        kill -USR2 "$(<pid)"
        until [ "$(pid)" != "$worker" ]; do sleep 0.05; done
        sleep 0.2
    done
    rm loaded
    wait "${loads[@]}"
    cat download
    fetch "http://127.0.0.1:$PORT"
}

# The worker that serves now.
pid() {
    echo 'show info' | socat - "UNIX:$HERE/socket" 2>/dev/null | sed -n 's/^Pid: //p'
}
