# what: haproxy before lighttpd: HTTP with connections used again, TCP with splicing
# needs: haproxy:haproxy lighttpd:lighttpd curl:curl

prepare() {
    files_by_lighttpd "$PORT2" 10000
    cat >haproxy.cfg <<END
global
    maxconn 200
    nbthread 2
defaults
    timeout connect 10s
    timeout client 60s
    timeout server 60s
listen http
    mode http
    option http-keep-alive
    http-reuse always
    bind 127.0.0.1:$PORT
    server one 127.0.0.1:$PORT2
listen tcp
    mode tcp
    option splice-auto
    bind 127.0.0.1:$PORT3
    server one 127.0.0.1:$PORT2
END
}

server() {
    lighttpd -D -f lighttpd.conf &
    haproxy -db -f haproxy.cfg &
    wait
}

ready() {
    await "$PORT2" "$PORT3"
}

client() {
    fetch "http://127.0.0.1:$PORT"
    fetch "http://127.0.0.1:$PORT3"
}
