# what: stress-ng: sock, sockmany, epoll, poll, sockpair, sendfile, splice, with verification
# needs: stress-ng:stress-ng /usr/bin/python3:python3

# Its stressors are both ends: the server is only there to be waited for.
server() {
    exec /usr/bin/python3 -m http.server --bind 127.0.0.1 "$PORT"
}

client() {
    local stressor
    for stressor in "--sock 1" "--sockmany 1" "--epoll 1 --epoll-port $PORT2" "--poll 1" "--sendfile 1" "--splice 1"; do
        # shellcheck disable=SC2086 # words of an option
        stress-ng $stressor --sock-port "$PORT3" --sockmany-port "$PORT4" --verify -t 1 --quiet
        echo "${stressor%% *} $?"
    done
}
