# what: Go: an object store (MinIO, S3), objects from 0 to 12 MB put and got
# needs: curl:curl
# go: minio=github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c

prepare() {
    payloads
    mkdir -p minio
}

server() {
    export MINIO_ROOT_USER=keeper MINIO_ROOT_PASSWORD=long-secret MINIO_UPDATE=off
    patched "$BUILT/minio" server --quiet --address "127.0.0.1:$PORT" \
        --console-address "127.0.0.1:$PORT2" minio >log 2>&1
}

ready() {
    until curl -sf --noproxy '' "http://127.0.0.1:$PORT/minio/health/ready"; do sleep 0.1; done
}

client() {
    store_objects keeper long-secret
}
