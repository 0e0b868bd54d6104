# what: busybox, static: httpd, wget, nc; processes for each connection
# needs: busybox:busybox-static curl:curl

prepare() {
    payloads
}

server() {
    patched busybox httpd -f -p "127.0.0.1:$PORT" -h "$FILES" &
    # More than the kernel's buffers hold, and a while in which the connection can be seen.
    { cat "$FILES/12345678" && sleep 1; } | patched busybox nc -l -p "$PORT2" >/dev/null &
    wait
}

ready() {
    await "$PORT2"
}

client() {
    local size
    # nc drops what it has not sent when its peer ends: this one has more input until all has come.
    sleep 2 | patched busybox nc 127.0.0.1 "$PORT2" | cksum
    for size in 0 1 1000 65536 1000000 12345678; do
        for _ in {1..5}; do
            patched busybox wget -q -O - "http://127.0.0.1:$PORT/$size"
        done | cksum
    done
}
