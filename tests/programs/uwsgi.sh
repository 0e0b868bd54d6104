# what: uwsgi: WSGI, a connection for each request
# needs: uwsgi:uwsgi-core /usr/lib/uwsgi/plugins/python3_plugin.so:uwsgi-plugin-python3 curl:curl

prepare() {
    cat >app.py <<'END'
def application(environ, start):
    size = int(environ["PATH_INFO"][1:] or 0)
    body = (b"%d\n" % size * (size // 2 + 1))[:size]
    start("200 OK", [("Content-Length", str(len(body)))])
    return [body]
END
}

server() {
    exec uwsgi --plugin python3 --http-socket "127.0.0.1:$PORT" --wsgi-file app.py --need-app --die-on-term --disable-logging
}

client() {
    fetch "http://127.0.0.1:$PORT"
}
