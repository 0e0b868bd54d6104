# what: lighttpd: files from 0 to 12 MB, kept connections
# needs: lighttpd:lighttpd curl:curl

prepare() {
    files_by_lighttpd "$PORT" 1000
}

server() {
    exec lighttpd -D -f lighttpd.conf
}

client() {
    fetch "http://127.0.0.1:$PORT"
}
