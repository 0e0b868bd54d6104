# what: Go: gRPC's interoperability tests, and its benchmark with 1 byte, unary and streaming
# needs: /bin/bash:bash
# go: grpc-server=google.golang.org/grpc/benchmark/server@v1.85.0 grpc-client=google.golang.org/grpc/benchmark/client@v1.85.0 grpc-interop-server=google.golang.org/grpc/interop/server@v1.85.0 grpc-interop-client=google.golang.org/grpc/interop/client@v1.85.0

server() {
    export TMPDIR=$HERE
    patched "$BUILT/grpc-server" -port "$PORT" -test_name server &
    patched "$BUILT/grpc-interop-server" -port "$PORT2" &
    wait
}

ready() {
    await "$PORT2"
}

client() {
    export TMPDIR=$HERE
    local test
    for test in empty_unary large_unary client_streaming server_streaming ping_pong empty_stream timeout_on_sleeping_server \
        cancel_after_begin cancel_after_first_response status_code_and_message special_status_message custom_metadata \
        unimplemented_method unimplemented_service; do
        patched "$BUILT/grpc-interop-client" -server_host 127.0.0.1 -server_port "$PORT2" -test_case "$test" 2>>interop.log
        echo "$test $?"
    done
    for test in unary streaming; do
        patched "$BUILT/grpc-client" -port "$PORT" -rpc_type "$test" -w 0 -d 2 -test_name client 2>&1 | grep -oE '^(qps|Latency): '
    done
}
