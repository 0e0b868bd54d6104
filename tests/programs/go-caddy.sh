# what: Go: Caddy as a proxy before Caddy with files, hey: HTTP/1.1 with kept connections
# needs: curl:curl
# go: caddy=github.com/caddyserver/caddy/v2/cmd/caddy@v2.11.9 hey=github.com/rakyll/hey@v0.1.5

prepare() {
    payloads
}

server() {
    export XDG_DATA_HOME=$HERE XDG_CONFIG_HOME=$HERE
    patched "$BUILT/caddy" file-server --root "$FILES" --listen "127.0.0.1:$PORT2" 2>files.log &
    patched "$BUILT/caddy" reverse-proxy --from "http://127.0.0.1:$PORT" --to "127.0.0.1:$PORT2" 2>proxy.log &
    wait
}

ready() {
    await "$PORT2"
}

client() {
    fetch "http://127.0.0.1:$PORT"
    patched "$BUILT/hey" -n 5000 -c 10 "http://127.0.0.1:$PORT/1000" | grep -E '\[200\]'
}
