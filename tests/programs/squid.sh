# what: squid: requests, and tunnels by CONNECT
# needs: squid:squid lighttpd:lighttpd curl:curl
# user: root

prepare() {
    payloads
    chmod 777 "$HERE"
    cat >lighttpd.conf <<END
server.port = $PORT2
server.bind = "127.0.0.1"
server.document-root = "$FILES"
server.max-keep-alive-requests = 10000
END
    cat >squid.conf <<END
http_port 127.0.0.1:$PORT
http_access allow all
pid_filename $HERE/pid
access_log none
cache_log $HERE/log
cache deny all
coredump_dir $HERE
shutdown_lifetime 0 seconds
END
}

server() {
    lighttpd -D -f lighttpd.conf &
    squid -N -n "toehold$PORT" -f squid.conf &
    wait
}

ready() {
    await "$PORT2"
}

client() {
    fetch --proxy "http://127.0.0.1:$PORT" "http://127.0.0.1:$PORT2"
    fetch --proxy "http://127.0.0.1:$PORT" --proxytunnel "http://127.0.0.1:$PORT2"
}
