# what: Go: a server and a client of net/http, connections kept and not
# needs: /bin/bash:bash
# go: go-http=http.go

server() {
    patched "$BUILT/go-http" server "$PORT"
}

client() {
    patched "$BUILT/go-http" client "$PORT"
}
