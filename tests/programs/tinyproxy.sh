# what: tinyproxy: requests, and tunnels by CONNECT
# needs: tinyproxy:tinyproxy-bin lighttpd:lighttpd curl:curl

prepare() {
    files_by_lighttpd "$PORT2" 10000
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
    fetch_by_proxy
}
