# what: Node.js, cluster with `NODE_CLUSTER_SCHED_POLICY=none`: the workers accept
# needs: node:nodejs

server() {
    export NODE_CLUSTER_SCHED_POLICY=none
    exec node "$CASES/node.js" cluster "$PORT"
}

client() {
    node "$CASES/node.js" client "$PORT"
}
