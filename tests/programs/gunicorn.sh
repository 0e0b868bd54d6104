# what: gunicorn: gevent, gthread, sync and tornado workers
# needs: gunicorn:gunicorn /usr/lib/python3/dist-packages/gevent:python3-gevent /usr/lib/python3/dist-packages/tornado:python3-tornado curl:curl

prepare() {
    wsgi_app app
}

# Kind of workers, port
workers() {
    gunicorn --log-level error -k "$1" -w 1 --threads 4 --chdir "$HERE" --worker-tmp-dir "$HERE" -b "127.0.0.1:$2" app:app
}

server() {
    workers gevent "$PORT" &
    workers gthread "$PORT2" &
    workers sync "$PORT3" &
    workers tornado "$PORT4" &
    wait
}

ready() {
    local port
    for port in "$PORT" "$PORT2" "$PORT3" "$PORT4"; do
        until curl -s "http://127.0.0.1:$port/1" >/dev/null; do sleep 0.1; done
    done
}

client() {
    local port
    for port in "$PORT" "$PORT2" "$PORT3" "$PORT4"; do
        fetch "http://127.0.0.1:$port"
    done
}
