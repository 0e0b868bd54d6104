# what: podman's API over its Unix socket, 3,000 requests on one connection and some on many
# needs: podman:podman curl:curl
# user: root

server() {
    exec podman --root "$HERE/root" --runroot "$HERE/run" system service --time 0 "unix://$HERE/api"
}

listening() {
    until [ -S api ]; do sleep 0.05; done
}

client() {
    local api=http://d/v4.0.0/libpod urls=() at
    for at in {1..1500}; do
        urls+=("$api/images/json?at=$at" "$api/_ping")
    done
    curl -sS --fail --noproxy '' --max-time 50 --unix-socket api "${urls[@]}" | cksum
    for at in {1..20}; do
        curl -sS --fail --noproxy '' --max-time 50 --unix-socket api "$api/containers/json?at=$at"
    done
}
