# what: Node.js, cluster: the primary accepts and sends sockets to its workers
# needs: node:nodejs

server() {
    exec node "$CASES/node.js" cluster "$PORT"
}

client() {
    node "$CASES/node.js" client "$PORT"
}
