# what: uwsgi: WSGI, a connection for each request, and connections kept
# needs: uwsgi:uwsgi-core /usr/lib/uwsgi/plugins/python3_plugin.so:uwsgi-plugin-python3 curl:curl

prepare() {
    wsgi_app application
}

server() {
    local options=(--plugin python3 --wsgi-file app.py --need-app --die-on-term --disable-logging)
    uwsgi "${options[@]}" --http-socket "127.0.0.1:$PORT" &
    uwsgi "${options[@]}" --http11-socket "127.0.0.1:$PORT2" &
    wait
}

ready() {
    await "$PORT2"
}

client() {
    fetch "http://127.0.0.1:$PORT"
    fetch "http://127.0.0.1:$PORT2"
}
