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
    local s3=(curl -sS --fail --noproxy '' --aws-sigv4 aws:amz:us-east-1:s3 --user user:secret
        -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD')
    local bucket=http://127.0.0.1:$PORT/bucket size at
    "${s3[@]}" -X PUT "$bucket"
    for size in 0 1 1000 65536 1000000 12345678; do
        local puts=() gets=()
        for at in {1..30}; do
            puts+=(-T "$FILES/$size" "$bucket/$size-$at")
            gets+=("$bucket/$size-$at")
        done
        "${s3[@]}" "${puts[@]}"
        "${s3[@]}" "${gets[@]}" | cksum
    done
}
