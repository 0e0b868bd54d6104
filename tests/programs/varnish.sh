# what: varnish before lighttpd, hitch with TLS before varnish
# needs: varnishd:varnish hitch:hitch lighttpd:lighttpd curl:curl openssl:openssl
# user: root

prepare() {
    certificate
    files_by_lighttpd "$PORT2"
    cat >hitch.conf <<END
frontend = "[127.0.0.1]:$PORT3"
backend = "[127.0.0.1]:$PORT"
pem-file = "$HERE/both.pem"
user = "nobody"
workers = 1
END
}

server() {
    lighttpd -D -f lighttpd.conf &
    varnishd -F -n "$HERE/varnish" -a "127.0.0.1:$PORT" -b "127.0.0.1:$PORT2" -s malloc,64m -p vsl_space=4M -p thread_pool_min=10 &
    hitch --config=hitch.conf &
    wait
}

ready() {
    await "$PORT2" "$PORT3"
}

client() {
    fetch "http://127.0.0.1:$PORT"
    fetch -k "https://127.0.0.1:$PORT3"
}
