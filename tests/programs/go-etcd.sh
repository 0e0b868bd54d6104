# what: Go: etcd, with a watcher; 4 clients that put 500 keys each
# needs: curl:curl
# go: etcd=go.etcd.io/etcd/server/v3@v3.7.3 etcdctl=go.etcd.io/etcd/etcdctl/v3@v3.7.3 etcd-puts=etcd.go:go.etcd.io/etcd/client/v3@v3.7.3

server() {
    patched "$BUILT/etcd" --data-dir etcd --unsafe-no-fsync --listen-client-urls "http://127.0.0.1:$PORT2" \
        --advertise-client-urls "http://127.0.0.1:$PORT2" --listen-peer-urls "http://127.0.0.1:$PORT" \
        --initial-advertise-peer-urls "http://127.0.0.1:$PORT" --initial-cluster "default=http://127.0.0.1:$PORT" 2>etcd.log
}

ready() {
    await "$PORT2"
    until "$BUILT/etcdctl" --endpoints="127.0.0.1:$PORT2" endpoint health >/dev/null 2>&1; do sleep 0.1; done
}

client() {
    local etcdctl=("$BUILT/etcdctl" --endpoints="127.0.0.1:$PORT2")
    patched "${etcdctl[@]}" watch --prefix puts/0/ >watched &
    until [ "$(curl -sS "http://127.0.0.1:$PORT2/metrics" | grep -c '^etcd_debugging_mvcc_watcher_total 1')" = 1 ]; do sleep 0.1; done
    patched "$BUILT/etcd-puts" "127.0.0.1:$PORT2" 4 500
    until [ "$(wc -l <watched)" = 1500 ]; do sleep 0.1; done
    kill $!
    cksum <watched
    patched "${etcdctl[@]}" get --prefix puts/3/ | cksum
}
