# what: nginx upgraded (USR2, WINCH, QUIT) and reloaded under a load and in the middle of a download; `listen ... reuseport`
# needs: nginx:nginx-light curl:curl python3:python3

prepare() {
    payloads
    nginx_config 2 <<END
    keepalive_timeout 60s;
    server { listen 127.0.0.1:$PORT; listen 127.0.0.1:$PORT2 reuseport; root $FILES; }
END
    # With a parent that waits for it, nginx takes USR2 for a mistake.
    sed -i 's/daemon off/daemon on/' nginx.conf
}

server() {
    "$(command -v nginx)" -c "$HERE/nginx.conf"
    while sleep 0.1; do :; done
}

client() {
    fetch "http://127.0.0.1:$PORT2"
    local at loads
    for at in "$PORT" "$PORT2"; do
        touch loaded
        loads=()
        for _ in 1 2 3; do
            python3 "$CASES/kept-load.py" "$at" &
            loads+=($!)
        done
        python3 "$CASES/nginx-upgrade.py" "$HERE/pid" "$at"
        rm loaded
        wait "${loads[@]}"
    done
    fetch "http://127.0.0.1:$PORT"
}
