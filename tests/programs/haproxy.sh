# what: haproxy before lighttpd: HTTP with connections used again, TCP with splicing
# needs: haproxy:haproxy lighttpd:lighttpd curl:curl

prepare() {
    files_by_lighttpd "$PORT2" 10000
    haproxy_config 'option http-keep-alive' 'http-reuse always' <<END
    maxconn 200
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
