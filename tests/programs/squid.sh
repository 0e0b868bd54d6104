# what: squid: requests, and tunnels by CONNECT
# needs: squid:squid lighttpd:lighttpd curl:curl
# user: root

prepare() {
    chmod 777 "$HERE"
    files_by_lighttpd "$PORT2" 10000
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
    fetch_by_proxy
}
