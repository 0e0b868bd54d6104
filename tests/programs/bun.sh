# what: Bun: HTTP, WebSocket, streams by node:net
# needs: bash:bash
# npm: bun=@oven/bun-linux-x64@v1.4.4

server() {
    patched "$BUILT/bun" "$CASES/runtimes.mjs" server "$PORT" "$PORT2" &
    wait
}

ready() {
    await "$PORT2"
}

client() {
    patched "$BUILT/bun" "$CASES/runtimes.mjs" client "$PORT" "$PORT2"
}
