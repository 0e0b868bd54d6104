# what: Node.js: HTTP from a worker thread, HTTP/2
# needs: node:nodejs

server() {
    exec node "$CASES/node.js" server "$PORT" "$PORT2"
}

ready() {
    await "$PORT2"
}

client() {
    node "$CASES/node.js" client "$PORT" "$PORT2"
}
