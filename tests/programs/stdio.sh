# what: socat `EXEC:...,nofork`, tcpserver, systemd-socket-activate, bash on `/dev/tcp`: the socket is standard input or output
# needs: socat:socat tcpserver:ucspi-tcp systemd-socket-activate:systemd

prepare() {
    payload 12MB 12345678
}

server() {
    socat "TCP-LISTEN:$PORT,bind=127.0.0.1,reuseaddr,fork" EXEC:"cat 12MB",nofork &
    tcpserver -RHl0 127.0.0.1 "$PORT2" cat 12MB &
    systemd-socket-activate --inetd -a -l "127.0.0.1:$PORT3" /bin/cat "$HERE/12MB" 2>activate.log &
    wait
}

ready() {
    await "$PORT2" "$PORT3"
}

client() {
    local port
    for port in "$PORT" "$PORT2" "$PORT3"; do
        cksum <"/dev/tcp/127.0.0.1/$port"
    done
}
