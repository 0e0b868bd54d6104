# what: tinyproxy: requests, and tunnels by CONNECT
# needs: tinyproxy:tinyproxy-bin lighttpd:lighttpd curl:curl

prepare() {
    payloads
    cat >lighttpd.conf <<END
server.port = $PORT2
server.bind = "127.0.0.1"
server.document-root = "$FILES"
server.max-keep-alive-requests = 10000
END
    cat >tinyproxy.conf <<END
Port $PORT
Listen 127.0.0.1
Timeout 60
MaxClients 50
LogFile "$HERE/log"
END
}

server() {
    lighttpd -D -f lighttpd.conf &
    tinyproxy -d -c tinyproxy.conf &
    wait
}

ready() {
    await "$PORT2"
}

client() {
    fetch --proxy "http://127.0.0.1:$PORT" "http://127.0.0.1:$PORT2"
    fetch --proxy "http://127.0.0.1:$PORT" --proxytunnel "http://127.0.0.1:$PORT2"
}
