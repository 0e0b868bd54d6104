# what: lighttpd: files from 0 to 12 MB, kept connections
# needs: lighttpd:lighttpd curl:curl

prepare() {
    payloads
    cat >lighttpd.conf <<END
server.port = $PORT
server.bind = "127.0.0.1"
server.document-root = "$FILES"
server.max-keep-alive-requests = 1000
END
}

server() {
    exec lighttpd -D -f lighttpd.conf
}

client() {
    fetch "http://127.0.0.1:$PORT"
}
