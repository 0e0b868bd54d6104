# what: Go: an object store (versitygw, S3 over files), objects from 0 to 12 MB put and got
# needs: curl:curl
# go: versitygw=github.com/versity/versitygw/cmd/versitygw@v1.8.0

prepare() {
    payloads
    mkdir -p objects
}

server() {
    export ROOT_ACCESS_KEY=user ROOT_SECRET_KEY=secret
    patched "$BUILT/versitygw" --port "127.0.0.1:$PORT" posix objects >log
}

client() {
    store_objects user secret
}
