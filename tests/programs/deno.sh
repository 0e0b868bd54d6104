# what: Deno: HTTP, WebSocket, streams by node:net
# needs: bash:bash
# pypi: deno=deno@v2.9.8

server() {
    exec "$BUILT/deno" run --quiet --no-config --allow-net "$CASES/runtimes.mjs" server "$PORT" "$PORT2"
}

ready() {
    await "$PORT2"
}

client() {
    "$BUILT/deno" run --quiet --no-config --allow-net "$CASES/runtimes.mjs" client "$PORT" "$PORT2"
}
