# what: Go, with cgo as Debian builds it: Caddy with hey, etcd
# needs: caddy:caddy hey:hey etcd:etcd-server etcdctl:etcd-client curl:curl

prepare() {
    payloads
}

server() {
    XDG_DATA_HOME=$HERE XDG_CONFIG_HOME=$HERE patched caddy file-server --root "$FILES" --listen "127.0.0.1:$PORT" 2>caddy.log &
    patched etcd --data-dir etcd --listen-client-urls "http://127.0.0.1:$PORT2" --advertise-client-urls "http://127.0.0.1:$PORT2" \
        --listen-peer-urls "http://127.0.0.1:$PORT3" --initial-advertise-peer-urls "http://127.0.0.1:$PORT3" \
        --initial-cluster "default=http://127.0.0.1:$PORT3" 2>etcd.log &
    wait
}

ready() {
    await "$PORT2"
    export ETCDCTL_API=3
    until etcdctl --endpoints="127.0.0.1:$PORT2" endpoint health >/dev/null 2>&1; do sleep 0.1; done
}

client() {
    export ETCDCTL_API=3
    fetch "http://127.0.0.1:$PORT"
    patched hey -n 5000 -c 10 "http://127.0.0.1:$PORT/1000" | grep -E '\[200\]'
    local key
    for key in 1 2 3; do patched etcdctl --endpoints="127.0.0.1:$PORT2" put "key$key" "$key"; done
    patched etcdctl --endpoints="127.0.0.1:$PORT2" get --prefix key
}
