# what: stunnel: plain, TLS, plain; in between a relay by socat
# needs: stunnel4:stunnel4 socat:socat lighttpd:lighttpd curl:curl openssl:openssl

prepare() {
    certificate
    files_by_lighttpd "$PORT4" 10000
    local common="foreground = yes
pid =
debug = 3"
    cat >in.conf <<END
$common
[in]
client = yes
accept = 127.0.0.1:$PORT
connect = 127.0.0.1:$PORT2
END
    cat >out.conf <<END
$common
[out]
accept = 127.0.0.1:$PORT3
connect = 127.0.0.1:$PORT4
cert = $HERE/both.pem
END
}

server() {
    lighttpd -D -f lighttpd.conf &
    stunnel4 in.conf &
    stunnel4 out.conf &
    socat "TCP-LISTEN:$PORT2,bind=127.0.0.1,reuseaddr,fork" "TCP:127.0.0.1:$PORT3" &
    wait
}

ready() {
    await "$PORT2" "$PORT3" "$PORT4"
}

client() {
    fetch "http://127.0.0.1:$PORT"
}
