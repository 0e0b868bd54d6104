# what: squid: requests, and tunnels by CONNECT
# needs: squid:squid lighttpd:lighttpd curl:curl
# user: root
# adapter: system

prepare() {
    # Not the whole directory: the library does not meet an adapter where others may put one.
    mkdir own
    chmod 777 own
    files_by_lighttpd "$PORT2" 10000
    cat >squid.conf <<END
http_port 127.0.0.1:$PORT
http_access allow all
pid_filename $HERE/own/pid
access_log none
cache_log $HERE/own/log
cache deny all
coredump_dir $HERE/own
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
